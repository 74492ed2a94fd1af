//! The text of the event that records a request for a change. Requests that only read have none.

use messages::Request;

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The volume that the change concerns, if it concerns one.
    pub volume: Option<String>,
    /// The device that the change concerns, if it concerns one.
    pub device: Option<String>,
    /// The change in words.
    pub what: String,
}

fn of(volume: &str, what: impl Into<String>) -> Option<Asked> {
    Some(Asked { volume: Some(volume.to_owned()), device: None, what: what.into() })
}

fn of_device(device: &str, what: impl Into<String>) -> Option<Asked> {
    Some(Asked { volume: None, device: Some(device.to_owned()), what: what.into() })
}

fn of_all(what: impl Into<String>) -> Option<Asked> {
    Some(Asked { volume: None, device: None, what: what.into() })
}

fn range(from_bytes: u64, to_bytes: Option<u64>) -> String {
    let to = to_bytes.map_or(String::new(), |to| to.to_string());
    format!("{from_bytes}..{to} bytes")
}

/// The change that `request` asks for; `None` for a request that only reads.
pub fn asked(request: &Request) -> Option<Asked> {
    let anyway =
        |what: &str, force: bool| if force { format!("{what}, and erase its content") } else { what.to_owned() };
    let dirty = |what: String, discard: bool| if discard { format!("{what}, and discard dirty data") } else { what };
    match request {
        Request::VolumeSet { name, settings } => {
            let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
            of(name, format!("set {}", settings.join(" ")))
        }
        Request::VolumeFlush { name, .. } => of(name, "flush"),
        Request::VolumePause { name } => of(name, "pause"),
        Request::VolumeFreeze { name } => of(name, "freeze"),
        Request::VolumeResume { name } => of(name, "resume"),
        Request::VolumePin { name, from_bytes, to_bytes } => of(name, format!("pin {}", range(*from_bytes, *to_bytes))),
        Request::VolumeUnpin { name, from_bytes, to_bytes } => {
            of(name, format!("unpin {}", range(*from_bytes, *to_bytes)))
        }
        Request::VolumeInvalidate { name, discard_dirty } => of(name, dirty("invalidate".to_owned(), *discard_dirty)),
        Request::VolumeResize { name, size_bytes, discard_dirty } => {
            let what = size_bytes.map_or_else(|| "resize".to_owned(), |bytes| format!("resize to {bytes} bytes"));
            of(name, dirty(what, *discard_dirty))
        }
        Request::VolumeAdd { name, backing, policy, read_only, .. } => {
            let policy = policy.as_ref().map_or(String::new(), |policy| format!(", {policy}"));
            of(name, format!("add on {backing}{policy}{}", if *read_only { ", read-only" } else { "" }))
        }
        Request::VolumeRemove { name } => of(name, "remove"),
        Request::VolumeAdopt { name, give_up: None } => of(name, "adopt the backing as it is now"),
        Request::VolumeAdopt { name, give_up: Some(data) } => {
            of(name, format!("adopt the backing as it is now, and discard data {data}"))
        }
        Request::TraceOpen { name } => of(name, "record a trace"),
        Request::FlashAdd { path, force } => of_device(path, anyway("add to the flash cache", *force)),
        Request::FlashRemove { path } => of_device(path, "remove from the flash cache"),
        Request::FlashReplace { old, new, force } => of_device(old, anyway(&format!("replace by {new}"), *force)),
        Request::FlashPause {} => of_all("pause the change of the flash devices"),
        Request::FlashResume {} => of_all("resume the change of the flash devices"),
        Request::FlashCancel {} => of_all("cancel the change of the flash devices"),
        Request::JobCancel { id } => of_all(format!("cancel {id}")),
        Request::TokenCreate { name, role } => of_all(format!("create the token {name} ({role})")),
        Request::TokenRevoke { name } => of_all(format!("revoke the token {name}")),
        Request::TokenLink { role } => of_all(format!("create a login link ({role})")),
        Request::Reload {} => of_all("reload the configuration"),
        Request::Stop { destage } => of_all(if *destage { "stop, and destage everything" } else { "stop" }),
        Request::Status {}
        | Request::FlashList {}
        | Request::VolumeList {}
        | Request::VolumeShow { .. }
        | Request::VolumeSlow { .. }
        | Request::VolumeHeat { .. }
        | Request::History { .. }
        | Request::Events { .. }
        | Request::Alerts {}
        | Request::Configuration {}
        | Request::JobList {}
        | Request::DatastoreList {}
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
    fn a_change_is_described_with_its_arguments_and_a_read_is_none() {
        let settings =
            [("policy", "none"), ("flash_max", "1 GiB")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let set = Request::VolumeSet { name: "v".to_owned(), settings: settings.into() };
        assert_eq!(asked(&set), of("v", "set flash_max=1 GiB policy=none"));
        let invalidate = Request::VolumeInvalidate { name: "v".to_owned(), discard_dirty: true };
        assert_eq!(asked(&invalidate), of("v", "invalidate, and discard dirty data"));
        let add = Request::FlashAdd { path: "/dev/x".to_owned(), force: true };
        assert_eq!(asked(&add), of_device("/dev/x", "add to the flash cache, and erase its content"));
        let pin = Request::VolumePin { name: "v".to_owned(), from_bytes: 7, to_bytes: None };
        assert_eq!(asked(&pin), of("v", "pin 7.. bytes"));
        assert_eq!(asked(&Request::Status {}), None);
    }
}
