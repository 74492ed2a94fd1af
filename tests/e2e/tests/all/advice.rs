//! `hotset advise` of a live volume: what its clients ask draws the curve.

use e2e::client::Client;
use e2e::site::Site;
use serde_json::Value;

const MIB: u64 = 1 << 20;

#[test]
fn a_live_volume_is_advised_to_buy_what_its_clients_use_again_and_again() {
    let site = Site::with_volume(64 * MIB);
    let daemon = site.start();
    let mut client = Client::connect(&site.endpoint(), "v").expect("the daemon serves");
    // Eight rounds over 4 MiB, and once everything.
    for round in 0..8 {
        for at in (0..4 * MIB).step_by(16_384) {
            match round {
                0 => client.write(at, &[7; 16_384]).expect("it writes"),
                _ => drop(client.read(at, 16_384).expect("it reads")),
            }
        }
    }
    (0..64 * MIB).step_by(65_536).for_each(|at| drop(client.read(at, 65_536).expect("it reads")));
    let read = |args: &[&str]| serde_json::from_str::<Value>(&daemon.command(args)).expect("JSON");
    let shown = read(&["volume", "show", "v", "--json"]);
    let curve = &shown["miss_ratio_curve"];
    assert_eq!(curve["memory"]["accesses"], 8 * 1_024 + 16_384, "{curve}");
    let points = curve["memory"]["points"].as_array().expect("a list");
    assert!((2..=64).contains(&points.len()), "{curve}");
    let picture = site.config().with_file_name("curve.svg");
    let advice = read(&["advise", "v", "--json", "--svg", &picture.to_string_lossy()]);
    assert_eq!(advice["volume"], "v");
    let knee = advice["memory"]["knee_bytes"].as_u64().expect("there is a hot set");
    assert!((3 * MIB..=6 * MIB).contains(&knee), "{advice}");
    let today = advice["memory"]["today"]["size_bytes"].as_u64().expect("a number");
    assert_eq!(Some(today), shown["memory_bytes"].as_u64());
    let picture = std::fs::read_to_string(picture).expect("it was drawn");
    assert!(picture.contains("prefers-color-scheme: dark") && picture.contains("today"), "{picture}");
    assert!(daemon.command(&["advise", "v"]).contains("worth buying: memory "));
    drop(client);
    daemon.stop();
}
