//! Quality of service of volumes, and the state of datastores with the use of each volume.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Shares, limits and reservation of a volume, with the waits that they caused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QosUse {
    /// Its weight beside other volumes on flash, and in its datastore during congestion.
    pub shares: u32,
    /// Limit of client requests per second; 0: none.
    pub limit_iops: u64,
    /// Limit of bytes per second; 0: none.
    pub limit_bytes: u64,
    /// Requests of a burst above the limit.
    pub burst_iops: u64,
    /// Bytes of a burst above the limit.
    pub burst_bytes: u64,
    /// Reserved requests of 4 KiB per second in its datastore; 0: none.
    pub reservation_iops: u64,
    /// Client requests delayed by its limit.
    pub limit_waits: u64,
    /// Sum of their waits.
    pub limit_waited_us: u64,
    /// Requests to its datastore or to flash that waited for requests of other volumes.
    pub share_waits: u64,
    /// Sum of their waits.
    pub share_waited_us: u64,
}

/// State of a datastore: congestion, during which shares count, and the use of each volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreReport {
    /// Its name.
    pub name: String,
    /// True for the flash devices, which all volumes share, instead of a `[[datastore]]`.
    pub is_flash: bool,
    /// True while latency is past the threshold: volumes above their entitlement wait for the others.
    pub congested: bool,
    /// Time of congestion since the start.
    pub congested_seconds_total: f64,
    /// Number of congestion episodes.
    pub congestion_episodes: u64,
    /// Congestion threshold.
    pub threshold_ms: f64,
    /// True if the threshold was determined by measurement (`auto`).
    #[serde(rename = "threshold_found")]
    pub threshold_is_automatic: bool,
    /// Mean latency of recent requests.
    pub latency_ms: f64,
    /// Recent small disk accesses per second.
    pub accesses_per_second: f64,
    /// Accesses per second during congestion; absent before the first congestion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "shown_accesses_per_second")]
    pub peak_accesses_per_second: Option<f64>,
    /// Limit of small accesses in flight during congestion; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<f64>,
    /// Small accesses in flight.
    #[serde(rename = "under_way")]
    pub outstanding: f64,
    /// Use by each volume, by name.
    pub members: Vec<MemberReport>,
    /// Recent congestion episodes, the newest last.
    pub episodes: Vec<EpisodeReport>,
}

/// A volume's use of a datastore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberReport {
    /// The volume.
    pub volume: String,
    /// Its weight.
    pub shares: u32,
    /// Reserved requests of 4 KiB per second.
    pub reservation_iops: u64,
    /// Entitled part of the datastore beside the volumes that are active now.
    pub entitled_ratio: f64,
    /// Its part of the accesses of the last second.
    pub used_ratio: f64,
    /// Its accesses since the start, in small accesses.
    pub accesses: f64,
    /// Requests that waited for an I/O slot.
    pub waits: u64,
    /// Sum of their waits.
    pub waited_us: u64,
    /// Requests waiting now.
    pub waiting: u64,
}

/// A congestion episode of a datastore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EpisodeReport {
    /// Second since 1970 in which it began.
    pub began_unix_seconds: u64,
    /// Second in which it ended; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_seconds: Option<u64>,
    /// The volume whose use was furthest above its entitlement when it began.
    pub caused_by: String,
    /// Volumes that were active then, sixteen at most.
    pub contenders: Vec<String>,
}

/// Maximum number of members in the report of the whole daemon.
const SUMMARY_MEMBERS_MAX: usize = 16;

impl DatastoreReport {
    /// A copy with the members that wait or use most of the datastore.
    pub fn summary(&self) -> DatastoreReport {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by(|left, right| {
            let rank = |member: &MemberReport| (member.waiting > 0, member.used_ratio);
            let (left, right) = (rank(left), rank(right));
            right.0.cmp(&left.0).then(right.1.total_cmp(&left.1))
        });
        members.truncate(SUMMARY_MEMBERS_MAX);
        members.sort_by(|left, right| left.volume.cmp(&right.volume));
        DatastoreReport { members: members.into_iter().cloned().collect(), ..self.without_members() }
    }

    fn without_members(&self) -> DatastoreReport {
        DatastoreReport { members: Vec::new(), name: self.name.clone(), episodes: self.episodes.clone(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_report_lists_waiting_members_and_the_heaviest_users() {
        let member = |number: u64| MemberReport {
            volume: format!("v{number:02}"),
            used_ratio: number as f64 / 100.0,
            waiting: u64::from(number == 3),
            ..MemberReport::default()
        };
        let whole = DatastoreReport { members: (0..40).map(member).collect(), window: Some(2.0), ..Default::default() };
        let short = whole.summary();
        let names: Vec<&str> = short.members.iter().map(|member| member.volume.as_str()).collect();
        assert_eq!((names.len(), names[0], names[1], names[15]), (16, "v03", "v25", "v39"));
        assert_eq!(short.window, Some(2.0));
    }
}
