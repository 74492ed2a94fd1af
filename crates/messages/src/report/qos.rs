//! What volumes are entitled to beside others, what datastores do, and who contends there with whom.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a volume is entitled to beside others and held to, and how long that made it wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QosUse {
    /// Its weight beside the volumes of its datastore while that is congested, and on flash.
    pub shares: u32,
    /// Requests a second that clients may make; 0: no limit.
    pub limit_iops: u64,
    /// Bytes a second; 0: no limit.
    pub limit_bytes: u64,
    /// Requests that may come at once above the limit.
    pub burst_iops: u64,
    /// Bytes that may come at once above the limit.
    pub burst_bytes: u64,
    /// Requests of 4 KiB a second that its datastore does for it first; 0: none.
    pub reservation_iops: u64,
    /// Requests of clients that waited because of its limit.
    pub limit_waits: u64,
    /// How long they waited together.
    pub limit_waited_us: u64,
    /// Requests to its datastore or to flash that waited for those of others.
    pub share_waits: u64,
    /// How long they waited together.
    pub share_waited_us: u64,
}

/// What a datastore does: whether it is congested, so that shares count, and what each of its volumes has of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreReport {
    /// Its name.
    pub name: String,
    /// Not a `[[datastore]]`: the flash devices, which all volumes share.
    pub is_flash: bool,
    /// It is past its threshold: whoever wants more than it is entitled to waits for the others.
    pub congested: bool,
    /// How long it was so since the start.
    pub congested_seconds_total: f64,
    /// How often that began.
    pub congestion_episodes: u64,
    /// Latency past which it is congested.
    pub threshold_ms: f64,
    /// The threshold was found (`auto`), not given.
    pub threshold_found: bool,
    /// Mean latency of the requests that ended lately.
    pub latency_ms: f64,
    /// Small accesses to disks a second, lately.
    pub accesses_per_second: f64,
    /// What it did when it was congested; absent while it has not been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_accesses_per_second: Option<f64>,
    /// Small accesses that may be under way while it is congested; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<f64>,
    /// Small accesses that are under way.
    pub under_way: f64,
    /// What each volume has of it, by name.
    pub members: Vec<MemberReport>,
    /// The last times that it was congested, the newest last.
    pub episodes: Vec<EpisodeReport>,
}

/// What a volume has of a datastore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberReport {
    /// The volume.
    pub volume: String,
    /// Its weight.
    pub shares: u32,
    /// Requests of 4 KiB a second that are its own.
    pub reservation_iops: u64,
    /// The part of the datastore that it is entitled to beside those who ask for something now.
    pub entitled_ratio: f64,
    /// The part of what was done in the last second that was its own.
    pub used_ratio: f64,
    /// What it had since the start, in small accesses.
    pub accesses: f64,
    /// Requests that waited for their turn.
    pub waits: u64,
    /// How long they waited together.
    pub waited_us: u64,
    /// Requests that wait now.
    pub waiting: u64,
}

/// A time in which a datastore was congested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EpisodeReport {
    /// Second since 1970 in which it began.
    pub began_unix_seconds: u64,
    /// Second in which it ended; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_seconds: Option<u64>,
    /// The volume whose use was furthest above its entitlement when it began.
    pub caused_by: String,
    /// Volumes that asked for something then, sixteen at most.
    pub contenders: Vec<String>,
}

/// Members that are told to whoever follows the daemon as a whole.
const FOLLOWED: usize = 16;

impl DatastoreReport {
    /// The same with those members alone that use most of it or wait: of a thousand volumes the rest says little.
    pub fn in_short(&self) -> DatastoreReport {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by(|one, other| {
            let weight = |member: &MemberReport| (member.waiting > 0, member.used_ratio);
            let (one, other) = (weight(one), weight(other));
            other.0.cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        members.truncate(FOLLOWED);
        members.sort_by(|one, other| one.volume.cmp(&other.volume));
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
    fn whoever_follows_is_told_of_those_who_wait_and_of_those_who_use_most() {
        let member = |at: u64| MemberReport {
            volume: format!("v{at:02}"),
            used_ratio: at as f64 / 100.0,
            waiting: u64::from(at == 3),
            ..MemberReport::default()
        };
        let whole = DatastoreReport { members: (0..40).map(member).collect(), window: Some(2.0), ..Default::default() };
        let short = whole.in_short();
        let names: Vec<&str> = short.members.iter().map(|member| member.volume.as_str()).collect();
        assert_eq!((names.len(), names[0], names[1], names[15]), (16, "v03", "v25", "v39"));
        assert_eq!(short.window, Some(2.0));
    }
}
