//! What may be asked of a daemon: one message an action.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Role;
use crate::report::{Assumptions, EventKind};

/// An action. On the socket one JSON object on one line: `{"action":"volume-flush","name":"web01"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Everything on one screen.
    Status {},
    /// The flash log and its devices.
    FlashList {},
    /// Add a device to the flash log while it serves.
    FlashAdd {
        /// The device, partition or file.
        path: String,
        /// Destroy what it holds.
        #[serde(default)]
        force: bool,
    },
    /// Take a device out of the flash log while it serves.
    FlashRemove {
        /// Its path, or its number.
        path: String,
    },
    /// Put a device into another one's place while the flash log serves.
    FlashReplace {
        /// The one that goes: its path, or its number.
        old: String,
        /// The one that comes.
        new: String,
        /// Destroy what the new one holds.
        #[serde(default)]
        force: bool,
    },
    /// Hold the change of the flash devices that is under way.
    FlashPause {},
    /// Let it go on.
    FlashResume {},
    /// Call it off.
    FlashCancel {},
    /// Every volume.
    VolumeList {},
    /// One volume.
    VolumeShow {
        /// The volume.
        name: String,
    },
    /// Change settings of a volume; they hold over a restart until the key changes in the file.
    VolumeSet {
        /// The volume.
        name: String,
        /// Keys and values as in the configuration.
        settings: BTreeMap<String, String>,
    },
    /// Destage all that is dirty, then flush the backing.
    VolumeFlush {
        /// The volume.
        name: String,
        /// Answer with the job that it is, once it has begun.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aside: bool,
    },
    /// Pass everything through, cache nothing.
    VolumePause {
        /// The volume.
        name: String,
    },
    /// Serve hits, add nothing.
    VolumeFreeze {
        /// The volume.
        name: String,
    },
    /// Cache again.
    VolumeResume {
        /// The volume.
        name: String,
    },
    /// Keep pages on flash: bring them there, and let none of them go.
    VolumePin {
        /// The volume.
        name: String,
        /// First byte.
        #[serde(default)]
        from_bytes: u64,
        /// The byte behind the last; without it, the volume's end.
        #[serde(default)]
        to_bytes: Option<u64>,
    },
    /// Let pages go again like others.
    VolumeUnpin {
        /// The volume.
        name: String,
        /// First byte.
        #[serde(default)]
        from_bytes: u64,
        /// The byte behind the last; without it, all up to the end.
        #[serde(default)]
        to_bytes: Option<u64>,
    },
    /// The slowest requests of the last hour.
    VolumeSlow {
        /// The volume.
        name: String,
    },
    /// How often each part of a volume was asked for in the last hour.
    VolumeHeat {
        /// The volume.
        name: String,
    },
    /// Figures over time.
    History {
        /// Of which volume.
        #[serde(default)]
        volume: Option<String>,
        /// Of which datastore, empty for the volumes without one; without both of all together.
        #[serde(default)]
        datastore: Option<String>,
        /// From which second since 1970; an hour before the end without it.
        #[serde(default)]
        from_unix_seconds: Option<u64>,
        /// Up to which; now without it.
        #[serde(default)]
        to_unix_seconds: Option<u64>,
        /// Seconds of a step; without it as many as make a chart.
        #[serde(default)]
        step_seconds: Option<u64>,
        /// Which figures; all without any.
        #[serde(default)]
        series: Vec<String>,
    },
    /// What has happened, the newest first.
    Events {
        /// How many at most.
        limit: u32,
        /// Those with smaller numbers.
        #[serde(default)]
        before: Option<u64>,
        /// Those with larger numbers.
        #[serde(default)]
        after: Option<u64>,
        /// From this second since 1970 on.
        #[serde(default)]
        since_unix_seconds: Option<u64>,
        /// Before this second.
        #[serde(default)]
        until_unix_seconds: Option<u64>,
        /// Of this volume or device.
        #[serde(default)]
        subject: Option<String>,
        /// Of this kind.
        #[serde(default)]
        kind: Option<EventKind>,
    },
    /// What is wrong now.
    Alerts {},
    /// Every key of the configuration.
    Configuration {},
    /// Datastores: whether they are congested, and who has what of them.
    DatastoreList {},
    /// Long work that is under way.
    JobList {},
    /// Call some of it off.
    JobCancel {
        /// What `job list` calls it.
        id: String,
    },
    /// What further memory and flash would bring the volumes, by name.
    Advice {
        /// How many volumes at most.
        limit: u32,
        /// Those whose names come after this one.
        #[serde(default)]
        after: Option<String>,
        /// This one alone.
        #[serde(default)]
        volume: Option<String>,
        /// What is assumed.
        #[serde(default)]
        assumptions: Assumptions,
    },
    /// Begin to record a volume's requests.
    TraceOpen {
        /// The volume.
        name: String,
    },
    /// Take what was recorded since the last time; to be asked every second at least.
    TraceTake {
        /// The volume.
        name: String,
        /// The recorder's number.
        recorder: u64,
    },
    /// Record no more.
    TraceClose {
        /// The volume.
        name: String,
        /// The recorder's number.
        recorder: u64,
    },
    /// Drop what is cached, on flash too.
    VolumeInvalidate {
        /// The volume.
        name: String,
        /// Give up what is dirty instead of refusing.
        #[serde(default)]
        discard_dirty: bool,
    },
    /// Change the size of a volume.
    VolumeResize {
        /// The volume.
        name: String,
        /// The new size; without it, whatever the backing has now.
        size_bytes: Option<u64>,
        /// Give up dirty data past the new end.
        discard_dirty: bool,
    },
    /// Serve another volume.
    VolumeAdd {
        /// Its name.
        name: String,
        /// Its backing, as in the configuration.
        backing: String,
        /// Its size, where the backing has none of its own.
        size_bytes: Option<u64>,
        /// Its policy; without it the default.
        policy: Option<String>,
        /// Refuse writes.
        read_only: bool,
    },
    /// Destage a volume and stop serving it.
    VolumeRemove {
        /// The volume.
        name: String,
    },
    /// Take another backing than before for a volume's, in explicit words.
    VolumeAdopt {
        /// The volume.
        name: String,
        /// The data that may be lost for that, by its name: an incarnation, or a flash store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<String>,
    },
    /// Make a token for the HTTP interface.
    TokenCreate {
        /// Its name.
        name: String,
        /// What it permits.
        role: Role,
    },
    /// The tokens, without their secrets.
    TokenList {},
    /// Let a token, and who logged in with it, do nothing any more.
    TokenRevoke {
        /// Its name.
        name: String,
    },
    /// Make a link that logs a browser in, once.
    TokenLink {
        /// What it permits.
        role: Role,
    },
    /// Read the configuration again and apply what can be applied.
    Reload {},
    /// Stop the daemon.
    Stop {
        /// Answer when the backings are complete.
        destage: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_readable_object() {
        let request = Request::VolumeFlush { name: "web01".to_owned(), aside: false };
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
