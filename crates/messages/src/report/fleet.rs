//! The ownership of a volume among the hosts that have it in their configuration.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{VolumeReport, VolumeState};

/// The ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetReport {
    /// Name of this host.
    pub host: String,
    /// The host that owns the image; empty while that is not known.
    pub owner: String,
    /// This host owns it.
    pub is_owner: bool,
    /// Number of the ownership among those of the image; 0 while that is not known.
    pub ownership: u64,
    /// A client has the image open; only on standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_has_image_open: Option<bool>,
    /// The owner has given the image up: the host that may claim it, or `any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_to: Option<String>,
    /// The policy of the configuration and of commands; the one in effect is the volume's `policy`.
    pub requested_policy: String,
    /// `command` or `automatic`.
    pub take_over: String,
    /// Absence of the owner before an automatic take-over.
    pub take_over_after_seconds: u64,
    /// The host that may have flushed data which the image lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undestaged_host: Option<String>,
    /// The name of that data, for `--give-up`; only of another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undestaged_data: Option<String>,
}

impl FleetReport {
    /// True if this host takes the volume over when it takes over all volumes of `host`: that one owns the image and
    /// has not released it, or the volume is refused because of its undestaged data.
    pub fn is_left_by(&self, host: &str) -> bool {
        match self.owner.as_str() {
            "" => self.undestaged_host.as_deref() == Some(host),
            owner => !self.is_owner && owner == host && self.released_to.is_none(),
        }
    }
}

/// A volume and its ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetVolumeReport {
    /// The volume.
    pub volume: String,
    /// Its image.
    pub image: String,
    /// Its state on this host.
    pub state: VolumeState,
    /// The policy in effect on this host.
    pub policy: String,
    /// Its ownership.
    pub fleet: FleetReport,
}

impl FleetVolumeReport {
    /// The volumes of these reports that several hosts can have.
    pub fn of(volumes: &[VolumeReport]) -> Vec<FleetVolumeReport> {
        let report = |volume: &VolumeReport| {
            let fleet = volume.fleet.clone()?;
            let (image, policy) = (volume.backing.clone(), volume.policy.clone());
            Some(FleetVolumeReport { volume: volume.name.clone(), image, state: volume.state, policy, fleet })
        };
        volumes.iter().filter_map(report).collect()
    }
}

/// A host of the fleet, with the volumes of its configuration that several hosts can have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetHostReport {
    /// Its name.
    pub host: String,
    /// The address at which it listens for other hosts; empty if this host has no link to others.
    #[serde(default)]
    pub address: String,
    /// Version of its daemon; empty if it has not answered.
    #[serde(default)]
    pub version: String,
    /// The reason why it has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its volumes.
    #[serde(default)]
    pub volumes: Vec<FleetVolumeReport>,
}

/// Another host of the fleet, as its last answers show it. It is asked every 15 seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetPeerReport {
    /// Its name.
    pub host: String,
    /// Version of its daemon at the last answer; empty before the first one.
    pub version: String,
    /// Time since its last answer, or since it is asked.
    pub silent_ms: u64,
    /// The reason why it has not answered the last request; null if it has.
    #[schema(required)]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_leaves_what_it_owns_and_what_lacks_its_data() {
        let owned = FleetReport { owner: "alpha".to_owned(), ..FleetReport::default() };
        assert!(owned.is_left_by("alpha") && !owned.is_left_by("beta"));
        let released = FleetReport { released_to: Some("gamma".to_owned()), ..owned.clone() };
        assert!(!released.is_left_by("alpha") && !released.is_left_by("gamma"));
        let refused = FleetReport { undestaged_host: Some("alpha".to_owned()), ..FleetReport::default() };
        assert!(refused.is_left_by("alpha") && !refused.is_left_by("beta"));
        let of_another = FleetReport { owner: "gamma".to_owned(), ..refused };
        assert!(!of_another.is_left_by("alpha"), "the owner may be alive");
        let own = FleetReport { is_owner: true, ..owned };
        assert!(!own.is_left_by("alpha"));
    }
}
