//! `fleet status`: the owners of images that several hosts can own.

use messages::report::{FleetReport, FleetVolumeReport};

use super::style::Style;
use super::table::{Side, Table};

/// A table of volumes.
pub fn table(volumes: &[FleetVolumeReport], style: Style) -> String {
    if volumes.is_empty() {
        return "no volume lies on an image of RBD, which several hosts could own\n".to_owned();
    }
    let mut table = Table::new(&[
        ("volume", Side::Left),
        ("state", Side::Left),
        ("owner", Side::Left),
        ("ownership", Side::Right),
        ("policy", Side::Left),
        ("take-over", Side::Left),
        ("undestaged data", Side::Left),
        ("image", Side::Left),
    ]);
    for volume in volumes {
        let fleet = &volume.fleet;
        table.row(vec![
            volume.volume.clone(),
            volume.state.name().to_owned(),
            owner(fleet),
            if fleet.ownership == 0 { "-".to_owned() } else { fleet.ownership.to_string() },
            policy(volume),
            take_over(fleet),
            undestaged(fleet),
            volume.image.clone(),
        ]);
    }
    table.render(style)
}

/// The owner of an image, and the host for which it has released it.
pub fn owner(fleet: &FleetReport) -> String {
    let owner = if fleet.owner.is_empty() { "unknown" } else { fleet.owner.as_str() };
    let here = if fleet.is_owner { " (this host)" } else { "" };
    match fleet.released_to.as_deref() {
        None => format!("{owner}{here}"),
        Some("any") => format!("{owner}, released"),
        Some(host) => format!("{owner}, released for {host}"),
    }
}

fn policy(volume: &FleetVolumeReport) -> String {
    match &volume.fleet.requested_policy {
        requested if *requested == volume.policy => requested.clone(),
        requested => format!("{} ({requested} requested)", volume.policy),
    }
}

fn take_over(fleet: &FleetReport) -> String {
    match fleet.take_over.as_str() {
        "automatic" => format!("after {} s", fleet.take_over_after_seconds),
        other => format!("by {other}"),
    }
}

fn undestaged(fleet: &FleetReport) -> String {
    match (&fleet.undestaged_host, &fleet.undestaged_data) {
        (Some(host), Some(data)) => format!("{data} of {host}"),
        (Some(host), None) => format!("of {host}"),
        (None, _) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use messages::VolumeState;

    use super::*;

    #[test]
    fn owner_and_named_data_of_a_volume_on_standby_are_shown() {
        let fleet = FleetReport {
            owner: "alpha".to_owned(),
            ownership: 7,
            released_to: Some("beta".to_owned()),
            requested_policy: "write-back".to_owned(),
            take_over: "automatic".to_owned(),
            take_over_after_seconds: 60,
            undestaged_host: Some("gamma".to_owned()),
            undestaged_data: Some("00000000000000ff".to_owned()),
            ..FleetReport::default()
        };
        let volume = FleetVolumeReport {
            volume: "web".to_owned(),
            image: "rbd:vms/web".to_owned(),
            state: VolumeState::Standby,
            policy: "write-through".to_owned(),
            fleet,
        };
        let text = table(&[volume], Style::PLAIN);
        for part in [
            "standby",
            "alpha, released for beta",
            "write-through (write-back requested)",
            "after 60 s",
            "00000000000000ff of gamma",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
