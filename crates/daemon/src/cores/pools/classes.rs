//! The class of each tier's devices: configured, or measured when the pool is opened.

use config::PoolConfig;
use futures_util::future::join_all;
use messages::report::PoolClassReport;
use pool::planner::ClassCost;
use pool::{ProbeResult, probe};
use seam::Disk;
use seam::real::{RealDisk, RealSeam};

use super::RealPool;

/// Class of a tier that could not be measured: neither flash nor the slowest disks.
const UNKNOWN: &str = "10k";

/// The class of a tier.
pub struct TierClass {
    tier: String,
    cost: ClassCost,
    origin: Origin,
}

/// Origin of a class.
enum Origin {
    /// The configuration names it.
    Configured(String),
    /// The slowest of its devices, which the probe measured.
    Measured { device: String, reads: u64 },
    /// No device answered the probe.
    Unknown,
}

/// The classes of a pool's tiers, the fastest first. The devices of tiers without a configured class are measured, all
/// at once.
pub async fn tier_classes(seam: &RealSeam, config: &PoolConfig, pool: &RealPool, disks: &[RealDisk]) -> Vec<TierClass> {
    let groups = pool.groups();
    let configured = |tier: &str| config.tiers.iter().find(|known| known.name == tier)?.class.clone();
    let tiers = pool.tiers();
    let probes = tiers.iter().enumerate().map(async |(index, tier)| {
        if let Some(name) = configured(tier) {
            let cost = ClassCost::named(&name).expect("the configuration is checked");
            return TierClass { tier: tier.clone(), cost, origin: Origin::Configured(name) };
        }
        let of_tier = groups.iter().filter(|group| usize::from(group.tier.0) == index && group.is_present);
        let of_tier = of_tier.filter_map(|group| disks.iter().find(|disk| disk.identity() == group.device));
        let measured = join_all(of_tier.map(async |disk| Some((disk.identity(), probe(seam, disk).await?)))).await;
        let slowest = measured.into_iter().flatten().max_by_key(|(_, result)| result.cost.read_access);
        let (cost, origin) = match slowest {
            Some((device, ProbeResult { cost, reads })) => (cost, Origin::Measured { device, reads }),
            None => (ClassCost::named(UNKNOWN).expect("a class of the list"), Origin::Unknown),
        };
        TierClass { tier: tier.clone(), cost, origin }
    });
    join_all(probes).await
}

impl TierClass {
    /// Costs of its groups.
    pub fn cost(&self) -> ClassCost {
        self.cost
    }

    /// The class in words; `show` replaces identities of devices by their paths.
    pub fn describe(&self, show: impl Fn(&str) -> String) -> String {
        let TierClass { tier, cost, origin } = self;
        match origin {
            Origin::Configured(name) => format!("tier {tier} has the configured class {name}"),
            Origin::Measured { device, reads } => format!(
                "tier {tier} is most like {}, by {reads} random reads of {}: {} us each, {} at once, {} MB/s \
                 sequential",
                cost.nearest_name(),
                show(device),
                cost.read_access.as_micros(),
                cost.parallel,
                bytes_per_second(cost) / 1_000_000
            ),
            Origin::Unknown => format!("tier {tier} could not be measured and is taken for {UNKNOWN}; set its class"),
        }
    }

    /// The class in reports.
    pub fn report(&self) -> PoolClassReport {
        PoolClassReport {
            name: match &self.origin {
                Origin::Configured(name) => name.clone(),
                Origin::Measured { .. } => self.cost.nearest_name().to_owned(),
                Origin::Unknown => UNKNOWN.to_owned(),
            },
            measured: matches!(self.origin, Origin::Measured { .. }),
            read_us: self.cost.read_access.as_micros(),
            bytes_per_second: bytes_per_second(&self.cost),
            parallel: self.cost.parallel,
        }
    }
}

fn bytes_per_second(cost: &ClassCost) -> u64 {
    1_000_000_000_000 / cost.byte_ps.max(1)
}
