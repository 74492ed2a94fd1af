//! `pool list`: groups by tier, and volumes with their bytes in each tier.

use messages::report::{PoolReport, PoolTierReport};

use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_percent};

/// A table of groups and one of volumes for each pool.
pub fn tables(pools: &[PoolReport], style: Style) -> String {
    if pools.is_empty() {
        return "no open pools; add [[pool]] to the configuration, create it with `hotset pool create NAME`, and add a \
                [[volume]] with backing = \"pool://NAME\"\n"
            .to_owned();
    }
    let texts: Vec<_> = pools.iter().map(|pool| one_pool(pool, style)).collect();
    texts.join("\n")
}

fn one_pool(pool: &PoolReport, style: Style) -> String {
    let used_bytes = pool.size_bytes - pool.free_bytes;
    let mut groups = Table::new(&[
        ("tier", Side::Left),
        ("group", Side::Right),
        ("device", Side::Left),
        ("state", Side::Left),
        ("size", Side::Right),
        ("free", Side::Right),
        ("metadata", Side::Left),
    ]);
    for PoolTierReport { name, groups: of_tier } in &pool.tiers {
        for group in of_tier {
            groups.row(vec![
                name.clone(),
                group.number.to_string(),
                group.device.clone(),
                group.state.clone(),
                show_bytes(group.size_bytes),
                show_bytes(group.free_bytes),
                if group.carries_metadata { "yes" } else { "" }.to_owned(),
            ]);
        }
    }
    let mut columns = vec![("volume", Side::Left), ("size", Side::Right), ("allocated", Side::Right)];
    columns.extend(pool.tiers.iter().map(|tier| (tier.name.as_str(), Side::Right)));
    columns.push(("on absent devices", Side::Right));
    let mut volumes = Table::new(&columns);
    for volume in &pool.volumes {
        let mut row =
            vec![volume.name.clone(), show_bytes(volume.size_bytes), show_bytes(volume.tier_bytes.iter().sum())];
        row.extend(volume.tier_bytes.iter().map(|bytes| show_bytes(*bytes)));
        row.push(show_bytes(volume.lost_bytes));
        volumes.row(row);
    }
    format!(
        "pool {}: {} of {} used ({}), slices of {}\n{}{}",
        pool.name,
        show_bytes(used_bytes),
        show_bytes(pool.size_bytes),
        show_percent(used_bytes, pool.size_bytes),
        show_bytes(pool.slice_bytes),
        groups.render(style),
        volumes.render(style)
    )
}

#[cfg(test)]
mod tests {
    use messages::report::{PoolGroupReport, PoolVolumeReport};

    use super::*;

    #[test]
    fn pool_shows_groups_by_tier_and_volumes_by_their_bytes_in_each() {
        let group = |number, device: &str, free_bytes| PoolGroupReport {
            number,
            device: device.to_owned(),
            state: "in-service".to_owned(),
            carries_metadata: number == 0,
            size_bytes: 100 << 30,
            free_bytes,
        };
        let tier = |name: &str, groups| PoolTierReport { name: name.to_owned(), groups };
        let volume = PoolVolumeReport {
            name: "web01".to_owned(),
            size_bytes: 80 << 30,
            tier_bytes: vec![10 << 30, 20 << 30],
            lost_bytes: 0,
        };
        let pool = PoolReport {
            name: "tank".to_owned(),
            slice_bytes: 4 << 20,
            size_bytes: 200 << 30,
            free_bytes: 170 << 30,
            tiers: vec![
                tier("ssd", vec![group(0, "/dev/sdb", 90 << 30)]),
                tier("sas", vec![group(1, "/dev/sdc", 80 << 30)]),
            ],
            volumes: vec![volume],
        };
        insta::assert_snapshot!(tables(&[pool], Style::PLAIN));
        assert!(tables(&[], Style::PLAIN).contains("hotset pool create"));
    }
}
