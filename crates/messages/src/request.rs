//! Requests to a daemon, one message per action.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Role;
use crate::report::{Assumptions, EventKind};

/// An action. On the socket one JSON object on one line: `{"action":"volume-flush","name":"web01"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Status of the daemon.
    Status {},
    /// The flash store and its devices.
    FlashList {},
    /// Determine the effects of the addition of a flash device, or of its replacement, on the clean pages.
    FlashPlan {
        /// The new device, partition or file.
        path: String,
        /// The device that it replaces: its path, or its number. Without it the new device is added.
        #[serde(default)]
        replaced: Option<String>,
    },
    /// Add a device to the flash store while it serves.
    FlashAdd {
        /// The device, partition or file.
        path: String,
        /// Destroy its content.
        #[serde(default)]
        force: bool,
    },
    /// Take a device out of the flash store while it serves.
    FlashRemove {
        /// Its path, or its number.
        path: String,
    },
    /// Replace a device while the flash store serves.
    FlashReplace {
        /// The old device: its path, or its number.
        old: String,
        /// The new device.
        new: String,
        /// Destroy the new device's content.
        #[serde(default)]
        force: bool,
    },
    /// Pause the running add, remove or replace of a flash device.
    FlashPause {},
    /// Resume the paused change of a flash device.
    FlashResume {},
    /// Cancel the running change of a flash device.
    FlashCancel {},
    /// Every volume.
    VolumeList {},
    /// One volume.
    VolumeShow {
        /// The volume.
        name: String,
    },
    /// Change settings of a volume; they hold across a restart until the key changes in the file.
    VolumeSet {
        /// The volume.
        name: String,
        /// Keys and values as in the configuration.
        settings: BTreeMap<String, String>,
    },
    /// Destage all dirty data, then flush the backing.
    VolumeFlush {
        /// The volume.
        name: String,
        /// Reply with the job once the flush has begun.
        #[serde(default, rename = "aside", skip_serializing_if = "std::ops::Not::not")]
        in_background: bool,
    },
    /// Bypass the cache.
    VolumePause {
        /// The volume.
        name: String,
    },
    /// Serve hits, add nothing to the cache.
    VolumeFreeze {
        /// The volume.
        name: String,
    },
    /// Cache again.
    VolumeResume {
        /// The volume.
        name: String,
    },
    /// Promote pages to flash and keep them there.
    VolumePin {
        /// The volume.
        name: String,
        /// First byte.
        #[serde(default)]
        from_bytes: u64,
        /// End of the range; default: the volume's end.
        #[serde(default)]
        to_bytes: Option<u64>,
    },
    /// Unpin pages.
    VolumeUnpin {
        /// The volume.
        name: String,
        /// First byte.
        #[serde(default)]
        from_bytes: u64,
        /// End of the range; default: the volume's end.
        #[serde(default)]
        to_bytes: Option<u64>,
    },
    /// The slowest requests of the last hour.
    VolumeSlow {
        /// The volume.
        name: String,
    },
    /// Heat map of a volume in the last hour.
    VolumeHeat {
        /// The volume.
        name: String,
    },
    /// Metrics over time.
    History {
        /// The volume.
        #[serde(default)]
        volume: Option<String>,
        /// The datastore; an empty name means the volumes without a datastore. With neither volume nor datastore: all
        /// volumes together.
        #[serde(default)]
        datastore: Option<String>,
        /// A pool.
        #[serde(default)]
        pool: Option<String>,
        /// Start in seconds since 1970; default: an hour before the end.
        #[serde(default)]
        from_unix_seconds: Option<u64>,
        /// End; default: now.
        #[serde(default)]
        to_unix_seconds: Option<u64>,
        /// Seconds of a step; default: suited to a chart.
        #[serde(default)]
        step_seconds: Option<u64>,
        /// Metrics; default: all.
        #[serde(default)]
        series: Vec<String>,
    },
    /// Events, the newest first.
    Events {
        /// Maximum number of events in the reply.
        limit: u32,
        /// Events with smaller numbers.
        #[serde(default)]
        before: Option<u64>,
        /// Events with larger numbers.
        #[serde(default)]
        after: Option<u64>,
        /// Events from this second since 1970 on.
        #[serde(default)]
        since_unix_seconds: Option<u64>,
        /// Events before this second since 1970.
        #[serde(default)]
        until_unix_seconds: Option<u64>,
        /// Events of this volume or device.
        #[serde(default)]
        subject: Option<String>,
        /// Events of this kind.
        #[serde(default)]
        kind: Option<EventKind>,
    },
    /// Active alerts.
    Alerts {},
    /// Acknowledge an active alert.
    AlertAcknowledge {
        /// Its identifier.
        id: String,
    },
    /// Send no messages about an alert for a time.
    AlertSilence {
        /// Its identifier. The alert need not be active.
        id: String,
        /// Duration in seconds.
        seconds: u64,
        /// The reason.
        #[serde(default)]
        reason: Option<String>,
    },
    /// End the silence of an alert.
    AlertUnsilence {
        /// Its identifier.
        id: String,
    },
    /// Send a test through each alert channel.
    AlertsTest {},
    /// All keys of the configuration.
    Configuration {},
    /// Datastores: congestion, and the use of each volume.
    DatastoreList {},
    /// Open pools: tiers, groups, volumes.
    PoolList {},
    /// One open pool.
    PoolShow {
        /// The pool.
        name: String,
    },
    /// The moves that a pool would make now, and the load from which they follow.
    PoolPlan {
        /// The pool.
        name: String,
    },
    /// The moves of a pool that have not ended.
    PoolQueue {
        /// The pool.
        name: String,
    },
    /// Tiers and load of the slices of a volume of a pool.
    PoolCells {
        /// The pool.
        name: String,
        /// The volume.
        volume: String,
    },
    /// The ranges of volumes on absent devices of a pool.
    PoolLost {
        /// The pool.
        name: String,
    },
    /// Plan and move slices now.
    PoolRelocate {
        /// The pool.
        name: String,
    },
    /// Stop moves of slices; this holds across a restart.
    PoolPause {
        /// The pool.
        name: String,
    },
    /// Move slices again.
    PoolResume {
        /// The pool.
        name: String,
    },
    /// Add a device to a tier of a pool while it serves.
    PoolAdd {
        /// The pool.
        name: String,
        /// Name of the tier.
        tier: String,
        /// The device, partition or file.
        path: String,
        /// Destroy its content.
        #[serde(default)]
        force: bool,
    },
    /// Make a volume of a device full of data, in place.
    PoolImport {
        /// The pool.
        name: String,
        /// Name of the tier of the device.
        tier: String,
        /// The device, partition or file.
        path: String,
        /// Name of the new volume.
        volume: String,
        /// Import a device that carries a signature of md, LVM, ZFS, LUKS or another storage stack.
        #[serde(default)]
        force: bool,
    },
    /// Move all slices of a device to others and remove it from its pool, in the background.
    PoolDrain {
        /// The pool.
        name: String,
        /// Path of the device, or number of its group.
        device: String,
        /// Return a draining device to service instead.
        #[serde(default)]
        cancel: bool,
    },
    /// Add a device to the tier of another one, and move all slices of that one away, in the background.
    PoolReplace {
        /// The pool.
        name: String,
        /// Path of the device that leaves, or number of its group.
        device: String,
        /// The new device; optional with `lost`.
        #[serde(default)]
        path: Option<String>,
        /// Destroy the content of the new device.
        #[serde(default)]
        force: bool,
        /// The device that leaves is absent: give up what it holds.
        #[serde(default)]
        lost: bool,
    },
    /// Change the tier policy of a volume of a pool.
    PoolSetPolicy {
        /// The pool.
        name: String,
        /// The volume.
        volume: String,
        /// `auto`, `start-high`, `highest`, `lowest`, or the name of a tier.
        tier_policy: String,
    },
    /// Delete a volume that is not served from its pool, with its data.
    PoolDeleteVolume {
        /// The pool.
        name: String,
        /// The volume.
        volume: String,
    },
    /// Snapshots of a volume of a pool.
    SnapshotList {
        /// The volume.
        name: String,
    },
    /// Take a snapshot of a volume of a pool while it serves.
    SnapshotCreate {
        /// The volume.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
    },
    /// Return a volume to a snapshot.
    SnapshotRollback {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
        /// Disconnect its clients.
        #[serde(default)]
        force: bool,
    },
    /// Delete a snapshot.
    SnapshotDelete {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Create a volume in the same pool with the content of a snapshot.
    SnapshotClone {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
        /// Name of the new volume.
        new_volume: String,
    },
    /// Jobs in progress.
    JobList {},
    /// Cancel a job.
    JobCancel {
        /// Its identifier in `job list`.
        id: String,
    },
    /// Estimated gain of each volume from more memory and flash, sorted by volume name.
    Advice {
        /// Maximum number of volumes in the reply.
        limit: u32,
        /// Volumes with names after this one.
        #[serde(default)]
        after: Option<String>,
        /// This volume alone.
        #[serde(default)]
        volume: Option<String>,
        /// Assumptions.
        #[serde(default)]
        assumptions: Assumptions,
    },
    /// Start recording a volume's requests.
    TraceOpen {
        /// The volume.
        name: String,
    },
    /// Take the requests recorded since the last call. Call at least once a second, so that the ring does not overflow.
    TraceTake {
        /// The volume.
        name: String,
        /// The recorder's number.
        recorder: u64,
    },
    /// Stop recording.
    TraceClose {
        /// The volume.
        name: String,
        /// The recorder's number.
        recorder: u64,
    },
    /// Drop all cached data, including flash.
    VolumeInvalidate {
        /// The volume.
        name: String,
        /// Discard dirty data instead of refusing.
        #[serde(default)]
        discard_dirty: bool,
    },
    /// Change the size of a volume.
    VolumeResize {
        /// The volume.
        name: String,
        /// The new size; default: the backing's size.
        size_bytes: Option<u64>,
        /// Discard dirty data past the new end.
        discard_dirty: bool,
    },
    /// Add a volume.
    VolumeAdd {
        /// Its name.
        name: String,
        /// Its backing, as in the configuration.
        backing: String,
        /// Its size, for a backing without a size of its own.
        size_bytes: Option<u64>,
        /// Its policy; default: the configured one.
        policy: Option<String>,
        /// Refuse writes.
        read_only: bool,
        /// Placement of a new volume on a pool; default: `auto`.
        #[serde(default)]
        tier_policy: Option<String>,
        /// Allocation of a new volume on a pool, `thin` or `thick`; default: `thin`.
        #[serde(default)]
        provisioning: Option<String>,
    },
    /// Destage a volume and stop serving it.
    VolumeRemove {
        /// The volume.
        name: String,
        /// The volume ID of a refused volume whose dirty data is discarded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<String>,
    },
    /// Bind a volume to another backing than before, by explicit consent.
    VolumeAdopt {
        /// The volume.
        name: String,
        /// Identifies the data that may be lost: a volume ID, or the name of a flash store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<String>,
        /// Discard dirty data past the end of a shrunk backing, and keep the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        discard_dirty: bool,
    },
    /// All hosts of the fleet with their volumes on shared storage; the others are asked.
    FleetHosts {},
    /// This host with its volumes on shared storage; other hosts ask.
    FleetHost {},
    /// By another host: the export of the volume on this image. In a tunnel the bytes of the NBD server follow.
    FleetForward {
        /// Identity of the image: its cluster, pool, namespace and ID.
        image: String,
        /// Number of the ownership.
        ownership: u64,
    },
    /// By another host, in a tunnel: the cached blocks of a volume that it has got from this host. They follow.
    FleetTransfer {
        /// Identity of the image.
        image: String,
        /// Number of this host's ownership, which has ended.
        ownership: u64,
        /// Version of the image's header between this ownership and the next one.
        header_version: u64,
    },
    /// By another host, before [`Request::FleetRelease`]: destage the volume while clients are served.
    FleetDestage {
        /// Identity of the image.
        image: String,
        /// Number of the ownership.
        ownership: u64,
    },
    /// By another host: as [`Request::FleetMove`], for the volume on this image.
    FleetRelease {
        /// Identity of the image.
        image: String,
        /// Number of the ownership that is to end.
        ownership: u64,
        /// The host that may claim the image; default: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// Clients stay connected, and read from the next owner: a client of that host has moved there.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keeps_clients: bool,
    },
    /// By another host: it has released this image, which this host may claim.
    FleetReleased {
        /// Identity of the image.
        image: String,
    },
    /// Destage a volume, give its image up for another host, and stop serving it. A host on standby asks the owner.
    FleetMove {
        /// The volume.
        name: String,
        /// The host that may claim the image; default: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// The same for all volumes on shared storage.
    FleetDrain {},
    /// Take a volume on standby over from its owner, whose client is blocked.
    FleetTakeOver {
        /// The volume.
        name: String,
        /// The host that the owner has to be; default: whoever is the owner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// The name of another host's data that may be lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<String>,
        /// The owner's host is known to be off: the end of its lease is not waited for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        fenced: bool,
    },
    /// The same for all volumes on standby that a host owns, or of which it has undestaged data.
    FleetTakeOverHost {
        /// The host.
        host: String,
        /// The host is known to be off.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        fenced: bool,
    },
    /// Create a token for the HTTP interface.
    TokenCreate {
        /// Its name.
        name: String,
        /// Role.
        role: Role,
    },
    /// The tokens, without their secrets.
    TokenList {},
    /// Revoke a token and its sessions.
    TokenRevoke {
        /// Its name.
        name: String,
    },
    /// Create a single-use link that logs a browser in.
    TokenLink {
        /// Role.
        role: Role,
    },
    /// Read the configuration again and apply the keys that do not need a restart.
    Reload {},
    /// Stop the daemon.
    Stop {
        /// Destage all dirty data first.
        destage: bool,
    },
}

impl Request {
    /// The open pool that the request needs.
    pub fn pool(&self) -> Option<&str> {
        match self {
            Request::PoolShow { name }
            | Request::PoolPlan { name }
            | Request::PoolQueue { name }
            | Request::PoolCells { name, .. }
            | Request::PoolRelocate { name }
            | Request::PoolPause { name }
            | Request::PoolResume { name }
            | Request::PoolAdd { name, .. }
            | Request::PoolImport { name, .. }
            | Request::PoolDrain { name, .. }
            | Request::PoolSetPolicy { name, .. }
            | Request::PoolDeleteVolume { name, .. } => Some(name),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_readable_object() {
        let request = Request::VolumeFlush { name: "web01".to_owned(), in_background: false };
        let text = serde_json::to_string(&request).expect("text keys");
        assert_eq!(text, r#"{"action":"volume-flush","name":"web01"}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).expect("its own text"), request);
        assert_eq!(serde_json::from_str::<Request>(r#"{"action":"status"}"#).expect("no fields"), Request::Status {});
    }

    #[test]
    fn unknown_actions_and_fields_are_refused() {
        for text in [r#"{"action":"explode"}"#, r#"{"action":"status","loud":true}"#, r#"{}"#, "[]", "7"] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }
}
