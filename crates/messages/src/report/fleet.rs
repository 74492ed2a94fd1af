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
