//! The text of the event that records a request for a change. Requests that only read have none.

use messages::Request;

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedChange {
    /// The volume that the request acts on, if any.
    pub volume: Option<String>,
    /// The event's subject if there is no `volume`: a device, or the subject of an alert; `None` for the daemon.
    pub other_subject: Option<String>,
    /// Description of the change.
    pub text: String,
}

fn volume_change(volume: &str, text: impl Into<String>) -> Option<RequestedChange> {
    Some(RequestedChange { volume: Some(volume.to_owned()), other_subject: None, text: text.into() })
}

fn device_change(device: &str, text: impl Into<String>) -> Option<RequestedChange> {
    Some(RequestedChange { volume: None, other_subject: Some(device.to_owned()), text: text.into() })
}

/// A change of a pool. A pool may have the name of a volume, so its events name it as a pool.
fn pool_change(name: &str, text: impl Into<String>) -> Option<RequestedChange> {
    device_change(&format!("pool {name}"), text)
}

/// A change of an alert. The alert's subject, a device or a volume, goes into `other_subject`: a name in `volume` would
/// mean that the settings of the volume change.
fn alert_change(id: &str, text: String) -> Option<RequestedChange> {
    let other_subject = id.split_once(':').map(|(_, subject)| subject.to_owned());
    Some(RequestedChange { volume: None, other_subject, text })
}

fn daemon_change(text: impl Into<String>) -> Option<RequestedChange> {
    Some(RequestedChange { volume: None, other_subject: None, text: text.into() })
}

fn range_text(from_bytes: u64, to_bytes: Option<u64>) -> String {
    match to_bytes {
        Some(to_bytes) => format!("bytes {from_bytes} to {to_bytes}"),
        None => format!("from byte {from_bytes} to the end"),
    }
}

/// The change that `request` makes; `None` for a request that only reads.
pub fn requested_change(request: &Request) -> Option<RequestedChange> {
    let with_force =
        |change: &str, force: bool| if force { format!("{change}, and erase its content") } else { change.to_owned() };
    let with_discard =
        |change: String, discard: bool| if discard { format!("{change}, and discard dirty data") } else { change };
    match request {
        Request::VolumeSet { name, settings } => {
            let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
            volume_change(name, format!("set {}", settings.join(" ")))
        }
        Request::VolumeFlush { name, .. } => volume_change(name, "flush"),
        Request::VolumePause { name } => volume_change(name, "pause"),
        Request::VolumeFreeze { name } => volume_change(name, "freeze"),
        Request::VolumeResume { name } => volume_change(name, "resume"),
        Request::VolumePin { name, from_bytes, to_bytes } => {
            volume_change(name, format!("pin {}", range_text(*from_bytes, *to_bytes)))
        }
        Request::VolumeUnpin { name, from_bytes, to_bytes } => {
            volume_change(name, format!("unpin {}", range_text(*from_bytes, *to_bytes)))
        }
        Request::VolumeInvalidate { name, discard_dirty } => {
            volume_change(name, with_discard("invalidate".to_owned(), *discard_dirty))
        }
        Request::VolumeResize { name, size_bytes, discard_dirty } => {
            let change = size_bytes.map_or_else(|| "resize".to_owned(), |bytes| format!("resize to {bytes} bytes"));
            volume_change(name, with_discard(change, *discard_dirty))
        }
        Request::VolumeAdd { name, backing, policy, read_only, tier_policy, provisioning, .. } => {
            let part = |part: &Option<String>| part.as_ref().map_or(String::new(), |part| format!(", {part}"));
            let tiers = tier_policy.as_ref().map_or(String::new(), |policy| format!(", tier policy {policy}"));
            let (policy, provisioning) = (part(policy), part(provisioning));
            let read_only = if *read_only { ", read-only" } else { "" };
            volume_change(name, format!("add on {backing}{policy}{tiers}{provisioning}{read_only}"))
        }
        Request::VolumeRemove { name, give_up: None } => volume_change(name, "remove"),
        Request::VolumeRemove { name, give_up: Some(data) } => {
            volume_change(name, format!("remove, and give up the data of {data}"))
        }
        Request::VolumeAdopt { name, give_up: None, discard_dirty } => {
            let discard = if *discard_dirty { ", and discard dirty data past its end" } else { "" };
            volume_change(name, format!("adopt the backing as it is now{discard}"))
        }
        Request::VolumeAdopt { name, give_up: Some(data), .. } => {
            volume_change(name, format!("adopt the backing as it is now, and give up the data of {data}"))
        }
        Request::FleetMove { name, to: None } => volume_change(name, "release its image for any host"),
        Request::FleetMove { name, to: Some(host) } => {
            volume_change(name, format!("release its image for host {host}"))
        }
        Request::FleetRelease { image, ownership: _, to, keeps_clients: _ } => {
            let host = to.as_ref().map_or("any host".to_owned(), |host| format!("host {host}"));
            daemon_change(format!("release image {image} for {host}"))
        }
        Request::FleetReleased { image } => daemon_change(format!("serve the volume on image {image}, now released")),
        Request::FleetDrain {} => daemon_change("release the images of all volumes"),
        Request::FleetTakeOver { name, from, give_up, fenced } => {
            let from = from.as_ref().map_or(String::new(), |host| format!(" from host {host}"));
            let data = give_up.as_ref().map_or(String::new(), |data| format!(", and give up the data of {data}"));
            let fenced = if *fenced { ", which is off" } else { "" };
            volume_change(name, format!("take over{from}{fenced}{data}"))
        }
        Request::FleetTakeOverHost { host, fenced } => {
            let fenced = if *fenced { ", which is off" } else { "" };
            daemon_change(format!("take over all volumes of host {host}{fenced}"))
        }
        Request::TraceOpen { name } => volume_change(name, "record a trace"),
        Request::FlashAdd { path, force } => device_change(path, with_force("add to the flash cache", *force)),
        Request::FlashRemove { path } => device_change(path, "remove from the flash cache"),
        Request::FlashReplace { old, new, force } => {
            device_change(old, with_force(&format!("replace with {new}"), *force))
        }
        Request::FlashPause {} => daemon_change("pause the change of the flash devices"),
        Request::FlashResume {} => daemon_change("resume the change of the flash devices"),
        Request::FlashCancel {} => daemon_change("cancel the change of the flash devices"),
        Request::PoolRelocate { name } => pool_change(name, "relocate slices"),
        Request::PoolAdd { name, tier, path, force } => {
            pool_change(name, with_force(&format!("add {path} to tier {tier}"), *force))
        }
        Request::PoolImport { name, tier, path, volume, force } => {
            pool_change(name, with_force(&format!("import {path} to tier {tier} as volume {volume}"), *force))
        }
        Request::PoolDrain { name, device, cancel: false } => pool_change(name, format!("drain {device}")),
        Request::PoolDrain { name, device, cancel: true } => pool_change(name, format!("cancel the drain of {device}")),
        Request::PoolReplace { name, device, path, lost, .. } => {
            let by = path.as_ref().map_or_else(|| "nothing".to_owned(), Clone::clone);
            let action = if *lost { "give up" } else { "drain" };
            pool_change(name, format!("{action} {device}, replaced by {by}"))
        }
        Request::PoolSetPolicy { name, volume, tier_policy } => {
            pool_change(name, format!("set the tier policy of volume {volume} to {tier_policy}"))
        }
        Request::PoolDeleteVolume { name, volume } => pool_change(name, format!("delete volume {volume}")),
        Request::SnapshotCreate { name, snapshot } => volume_change(name, format!("create the snapshot {snapshot}")),
        Request::SnapshotRollback { name, snapshot, force } => {
            let clients = if *force { ", and disconnect its clients" } else { "" };
            volume_change(name, format!("roll back to the snapshot {snapshot}{clients}"))
        }
        Request::SnapshotDelete { name, snapshot } => volume_change(name, format!("delete the snapshot {snapshot}")),
        Request::SnapshotClone { name, snapshot, new_volume } => {
            volume_change(name, format!("clone the snapshot {snapshot} as volume {new_volume}"))
        }
        Request::PoolPause { name } => pool_change(name, "pause moves of slices"),
        Request::PoolResume { name } => pool_change(name, "resume moves of slices"),
        Request::JobCancel { id } => daemon_change(format!("cancel the job {id}")),
        Request::TokenCreate { name, role } => daemon_change(format!("create the token {name} ({role})")),
        Request::TokenRevoke { name } => daemon_change(format!("revoke the token {name}")),
        Request::TokenLink { role } => daemon_change(format!("create a login link ({role})")),
        Request::AlertAcknowledge { id } => alert_change(id, format!("acknowledge the alert {id}")),
        Request::AlertSilence { id, seconds, reason } => {
            let reason = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            alert_change(id, format!("silence the alert {id} for {seconds} s{reason}"))
        }
        Request::AlertUnsilence { id } => alert_change(id, format!("end the silence of the alert {id}")),
        Request::AlertsTest {} => daemon_change("test the alert channels"),
        Request::Reload {} => daemon_change("reload the configuration"),
        Request::Stop { destage } => daemon_change(if *destage { "stop, and destage everything" } else { "stop" }),
        Request::Status {}
        | Request::FlashList {}
        | Request::FlashPlan { .. }
        | Request::VolumeList {}
        | Request::VolumeShow { .. }
        | Request::VolumeSlow { .. }
        | Request::VolumeHeat { .. }
        | Request::History { .. }
        | Request::Events { .. }
        | Request::Alerts {}
        | Request::Configuration {}
        | Request::FleetHosts {}
        | Request::FleetHost {}
        | Request::FleetForward { .. }
        | Request::FleetTransfer { .. }
        | Request::FleetDestage { .. }
        | Request::JobList {}
        | Request::DatastoreList {}
        | Request::PoolList {}
        | Request::PoolShow { .. }
        | Request::PoolPlan { .. }
        | Request::PoolQueue { .. }
        | Request::PoolCells { .. }
        | Request::SnapshotList { .. }
        | Request::PoolLost { .. }
        | Request::TraceTake { .. }
        | Request::TraceClose { .. }
        | Request::Advice { .. }
        | Request::TokenList {} => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_described_with_its_arguments_and_read_is_none() {
        let settings =
            [("policy", "none"), ("flash_max", "1 GiB")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let set = Request::VolumeSet { name: "v".to_owned(), settings: settings.into() };
        assert_eq!(requested_change(&set), volume_change("v", "set flash_max=1 GiB policy=none"));
        let invalidate = Request::VolumeInvalidate { name: "v".to_owned(), discard_dirty: true };
        assert_eq!(requested_change(&invalidate), volume_change("v", "invalidate, and discard dirty data"));
        let adopt = Request::VolumeAdopt { name: "v".to_owned(), give_up: None, discard_dirty: true };
        let adopted = volume_change("v", "adopt the backing as it is now, and discard dirty data past its end");
        assert_eq!(requested_change(&adopt), adopted);
        let add = Request::FlashAdd { path: "/dev/x".to_owned(), force: true };
        assert_eq!(requested_change(&add), device_change("/dev/x", "add to the flash cache, and erase its content"));
        let pin = Request::VolumePin { name: "v".to_owned(), from_bytes: 7, to_bytes: None };
        assert_eq!(requested_change(&pin), volume_change("v", "pin from byte 7 to the end"));
        let silence = Request::AlertSilence { id: "endurance:/dev/x".to_owned(), seconds: 7, reason: None };
        assert_eq!(requested_change(&silence), device_change("/dev/x", "silence the alert endurance:/dev/x for 7 s"));
        let create = Request::TokenCreate { name: "ops".to_owned(), role: messages::Role::Operate };
        assert_eq!(requested_change(&create), daemon_change("create the token ops (operate)"));
        let revoke = Request::TokenRevoke { name: "ops".to_owned() };
        assert_eq!(requested_change(&revoke), daemon_change("revoke the token ops"));
        let pause = Request::PoolPause { name: "tank".to_owned() };
        assert_eq!(requested_change(&pause), device_change("pool tank", "pause moves of slices"));
        assert_eq!(requested_change(&Request::TokenList {}), None);
        assert_eq!(requested_change(&Request::Status {}), None);
    }
}
