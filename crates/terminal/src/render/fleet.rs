//! `fleet status` and `fleet hosts`: the owners of images that several hosts can own.

use messages::VolumeState;
use messages::report::{FleetHostReport, FleetReport, FleetVolumeReport};

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
            ownership(fleet),
            policy(volume),
            take_over(fleet),
            undestaged(fleet),
            volume.image.clone(),
        ]);
    }
    table.render(style)
}

/// A table of hosts, one of the volumes of all of them, and the reasons why hosts have not answered.
pub fn hosts_table(hosts: &[FleetHostReport], style: Style) -> String {
    let columns = ["host", "address", "version", "owns", "standby", "not served"];
    let sides = [Side::Left, Side::Left, Side::Left, Side::Right, Side::Right, Side::Right];
    let columns: Vec<_> = columns.into_iter().zip(sides).collect();
    let mut table = Table::new(&columns);
    for (index, host) in hosts.iter().enumerate() {
        let count = |is_counted: &dyn Fn(&FleetVolumeReport) -> bool| match host.error {
            Some(_) => "-".to_owned(),
            None => host.volumes.iter().filter(|volume| is_counted(volume)).count().to_string(),
        };
        let (owns, standby) = (count(&|volume| volume.fleet.is_owner), count(&is_on_standby));
        let not_served = count(&|volume| !volume.fleet.is_owner && !is_on_standby(volume));
        let name = if index == 0 { format!("{} (this host)", host.host) } else { host.host.clone() };
        table.row(vec![name, or_dash(&host.address), or_dash(&host.version), owns, standby, not_served]);
    }
    let mut text = table.render(style);
    for error in hosts.iter().filter_map(|host| host.error.as_ref()) {
        text.push_str(&format!("{}\n", messages::plain(error)));
    }
    let mut rows: Vec<_> =
        hosts.iter().flat_map(|host| host.volumes.iter().map(move |volume| (volume, host))).collect();
    if rows.is_empty() {
        return text;
    }
    rows.sort_by_key(|(volume, host)| (&volume.image, !volume.fleet.is_owner, &host.host));
    let columns = ["volume", "host", "state", "owner", "ownership", "policy", "image"];
    let mut table = Table::new(&columns.map(|name| (name, if name == "ownership" { Side::Right } else { Side::Left })));
    for (volume, host) in rows {
        let fleet = &volume.fleet;
        table.row(vec![
            volume.volume.clone(),
            host.host.clone(),
            volume.state.name().to_owned(),
            released(fleet),
            ownership(fleet),
            policy(volume),
            volume.image.clone(),
        ]);
    }
    format!("{text}\n{}", table.render(style))
}

fn is_on_standby(volume: &FleetVolumeReport) -> bool {
    volume.state == VolumeState::Standby
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

fn ownership(fleet: &FleetReport) -> String {
    if fleet.ownership == 0 { "-".to_owned() } else { fleet.ownership.to_string() }
}

/// The owner of an image, and the host for which it has released it.
pub fn owner(fleet: &FleetReport) -> String {
    let here = if fleet.is_owner { " (this host)" } else { "" };
    format!("{}{here}", released(fleet))
}

fn released(fleet: &FleetReport) -> String {
    let owner = if fleet.owner.is_empty() { "unknown" } else { fleet.owner.as_str() };
    match fleet.released_to.as_deref() {
        None => owner.to_owned(),
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
    use super::*;

    #[test]
    fn hosts_are_shown_with_their_volumes_or_the_reason_of_silence() {
        let volume = |state, is_owner| FleetVolumeReport {
            volume: "web".to_owned(),
            image: "rbd:vms/web".to_owned(),
            state,
            policy: "write-back".to_owned(),
            fleet: FleetReport {
                owner: "alpha".to_owned(),
                is_owner,
                requested_policy: "write-back".to_owned(),
                ..FleetReport::default()
            },
        };
        let host = |host: &str, volumes| FleetHostReport {
            host: host.to_owned(),
            address: format!("{host}:7401"),
            version: "0.1.0".to_owned(),
            error: None,
            volumes,
        };
        let error = Some("host gamma cannot be reached".to_owned());
        let hosts = [
            host("beta", vec![volume(VolumeState::Standby, false)]),
            host("alpha", vec![volume(VolumeState::Active, true)]),
            FleetHostReport { host: "gamma".to_owned(), error, ..FleetHostReport::default() },
        ];
        let text = hosts_table(&hosts, Style::PLAIN);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["beta", "(this", "host)", "beta:7401", "0.1.0", "0", "1", "0"]), "{text}");
        assert!(lines.contains(&vec!["alpha", "alpha:7401", "0.1.0", "1", "0", "0"]), "{text}");
        assert!(lines.contains(&vec!["gamma", "-", "-", "-", "-", "-"]), "{text}");
        assert!(text.contains("host gamma cannot be reached"), "{text}");
        let row = |host: &str| lines.iter().position(|line| line[..2.min(line.len())] == ["web", host]);
        assert!(row("alpha").is_some() && row("alpha") < row("beta"), "the owner comes first: {text}");
    }

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
