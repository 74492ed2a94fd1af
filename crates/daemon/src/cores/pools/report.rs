//! Reports of open pools.

use config::TierChoice;
use messages::report::{
    PoolGroupReport, PoolProvisioning, PoolRelocationReport, PoolReport, PoolTierReport, PoolVolumeReport,
};
use pool::{GroupReport, MemberState, Provisioning, TierNo, VolumeReport};
use seam::Seam;

use super::OpenPool;

impl OpenPool {
    /// The pool's state. The list of volumes takes longer, by the number of slices.
    pub fn report(&self, with_volumes: bool) -> PoolReport {
        self.log_notices();
        let slice_bytes = self.pool.slice_bytes();
        let bytes = |slices: u32| u64::from(slices) * slice_bytes;
        let groups = self.pool.groups();
        let tiers: Vec<_> = (0..).map(TierNo).zip(self.pool.tiers()).collect();
        // A pool whose tiers lack costs has no loads.
        let loads = self.pool.utilisation(&self.class_costs()).unwrap_or_default();
        let group_report = |group: &GroupReport| {
            let state = match group.state {
                MemberState::Removed => "removed",
                MemberState::Lost => "lost",
                MemberState::Importing | MemberState::Marking => "importing",
                _ if !group.is_present => "absent",
                MemberState::InService => "in-service",
                MemberState::Draining => "draining",
            };
            PoolGroupReport {
                number: group.group.0,
                device: self.device(group),
                state: state.to_owned(),
                carries_metadata: group.carries_metadata,
                size_bytes: bytes(group.slots),
                free_bytes: bytes(group.free),
                load_ppm: loads.iter().find(|(number, _)| *number == group.group).map(|(_, ppm)| *ppm),
                drain: (group.state == MemberState::Draining).then(|| self.drain_report(group)),
            }
        };
        let volumes = if with_volumes { self.pool.volumes() } else { Vec::new() };
        let tier_of = |number| groups.iter().find(|group| group.group == number).map(|group| group.tier);
        let is_absent = |number| groups.iter().any(|group| group.group == number && !group.is_present);
        let volume_report = |volume: &VolumeReport| PoolVolumeReport {
            name: volume.spec.name.clone(),
            size_bytes: volume.spec.size_bytes,
            tier_policy: TierChoice::of(volume.spec.policy, |tier| tiers[usize::from(tier.0)].1.clone()).to_string(),
            provisioning: match volume.spec.provisioning {
                Provisioning::Thin => PoolProvisioning::Thin,
                Provisioning::Thick => PoolProvisioning::Thick,
            },
            tier_bytes: tiers
                .iter()
                .map(|(tier, _)| {
                    let on_tier = volume.slices.iter().filter(|(group, _)| tier_of(*group) == Some(*tier));
                    on_tier.map(|(_, slices)| bytes(*slices)).sum()
                })
                .collect(),
            lost_bytes: volume.slices.iter().filter(|(group, _)| is_absent(*group)).map(|(_, of)| bytes(*of)).sum(),
        };
        PoolReport {
            name: self.name.clone(),
            slice_bytes,
            size_bytes: groups.iter().map(|group| bytes(group.slots)).sum(),
            free_bytes: groups.iter().map(|group| bytes(group.free)).sum(),
            tiers: tiers
                .iter()
                .zip(self.relocation.classes())
                .map(|((tier, name), class)| PoolTierReport {
                    name: name.clone(),
                    class: class.report(),
                    groups: groups.iter().filter(|group| group.tier == *tier).map(group_report).collect(),
                })
                .collect(),
            volumes: volumes.iter().map(volume_report).collect(),
            relocation: self.relocation_report(),
            full_at_unix_seconds: None,
        }
    }

    fn relocation_report(&self) -> PoolRelocationReport {
        let (progress, counts) = (self.pool.relocation(), self.pool.counts());
        let now = self.seam.now();
        let report = &progress.report;
        PoolRelocationReport {
            state: self.relocation.state(self.pool.is_moving()),
            times: self.relocation.times().to_string(),
            rate: self.relocation.rate().to_string(),
            planned_moves: report.planned,
            ended_moves: report.moved + report.skipped + report.failed,
            moves: counts.moves,
            moved_bytes: counts.moves * self.pool.slice_bytes(),
            skipped_moves: counts.skipped_moves,
            failed_moves: counts.failed_moves,
            next_plan_seconds: progress.next_plan_at.map(|at| at.since(now).as_millis() / 1_000),
        }
    }
}
