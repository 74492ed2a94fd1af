//! Advice for live volumes: client requests form the curve, and the command and the HTTP interface report it alike.

use e2e::client::Client;
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::Value;

const MIB: u64 = 1 << 20;

#[test]
fn live_volume_advice_matches_its_hot_set() {
    let fixture = Fixture::with_volume(64 * MIB);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    // Eight rounds over 4 MiB, and one over the whole volume.
    for round in 0..8 {
        for offset in (0..4 * MIB).step_by(16_384) {
            match round {
                0 => client.write(offset, &[7; 16_384]).expect("the write succeeds"),
                _ => drop(client.read(offset, 16_384).expect("the read succeeds")),
            }
        }
    }
    (0..64 * MIB).step_by(65_536).for_each(|offset| drop(client.read(offset, 65_536).expect("the read succeeds")));
    let json_of = |args: &[&str]| serde_json::from_str::<Value>(&daemon.command(args)).expect("valid JSON");
    let shown = json_of(&["volume", "show", "v", "--json"]);
    let curve = &shown["miss_ratio_curve"];
    assert_eq!(curve["memory"]["accesses"], 8 * 1_024 + 16_384, "{curve}");
    let points = curve["memory"]["points"].as_array().expect("a list");
    assert!((2..=64).contains(&points.len()), "{curve}");
    let svg_path = fixture.config().with_file_name("curve.svg");
    let advice = json_of(&["advise", "v", "--json", "--svg", &svg_path.to_string_lossy()]);
    assert_eq!(advice["volume"], "v");
    let knee = advice["memory"]["knee_bytes"].as_u64().expect("the curve has a knee");
    assert!((3 * MIB..=6 * MIB).contains(&knee), "{advice}");
    let today = advice["memory"]["today"]["size_bytes"].as_u64().expect("a number");
    assert_eq!(Some(today), shown["memory_bytes"].as_u64());
    let svg = std::fs::read_to_string(svg_path).expect("the picture exists");
    assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("today"), "{svg}");
    assert!(daemon.command(&["advise", "v"]).contains("\nrecommendation"));
    drop(client);
    daemon.stop();
}

#[test]
fn command_and_http_give_the_same_advice() {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    ["a", "b", "idle"].iter().for_each(|name| fixture.add_volume(name, 8 * MIB, ""));
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    for name in ["a", "b"] {
        let mut client = Client::connect(&fixture.endpoint(), name).expect("the volume is served");
        for _ in 0..4 {
            (0..2 * MIB)
                .step_by(16_384)
                .for_each(|offset| drop(client.read(offset, 16_384).expect("the read succeeds")));
        }
    }
    // The mean rate changes with time; all other fields are constant.
    let without_rates = |mut advice: Value| {
        let fields = advice.as_object_mut().expect("an object");
        for rate in ["requests_per_s", "reads_per_s"] {
            assert!(fields.remove(rate).is_some_and(|rate| rate.as_f64() > Some(0.0)), "{fields:?}");
        }
        for tier in ["memory", "flash"] {
            for step in fields[tier]["steps"].as_array_mut().expect("a list") {
                let saved = step.as_object_mut().and_then(|step| step.remove("saved_spindles"));
                assert!(saved.is_some_and(|saved| saved.is_f64()), "a rate is known");
            }
        }
        advice
    };
    let assumed = "spindle_iops=75&array_latency_us=12000";
    for name in ["a", "b"] {
        let options = ["advise", name, "--json", "--spindle-iops", "75", "--array-latency", "12ms"];
        let command_advice: Value = serde_json::from_str(&daemon.command(&options)).expect("valid JSON");
        let page = http.get(&format!("/api/v1/advice?volume={name}&{assumed}")).json();
        assert_eq!((&page["next"], &page["assumptions"]), (&Value::Null, &command_advice["assumptions"]));
        let mut advice = page["volumes"][0].clone();
        assert_eq!(advice.as_object_mut().and_then(|fields| fields.remove("nothing")), Some(Value::Null));
        let mut command_advice = without_rates(command_advice);
        command_advice.as_object_mut().expect("an object").remove("assumptions");
        assert_eq!(without_rates(advice), command_advice);
        let best = command_advice["memory"]["steps"].as_array().and_then(|steps| steps.last()).expect("a step");
        assert!(best["hit_ratio"].as_f64() > Some(0.7) && best["latency_us"].as_f64() < Some(4_000.0), "{best}");
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = http.get(&format!("/api/v1/advice?limit=2{after}")).json();
        for advice in page["volumes"].as_array().expect("a list") {
            names.push((advice["volume"].as_str().expect("a name").to_owned(), advice["nothing"].is_null()));
        }
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(
        names,
        [("a", true), ("b", true), ("idle", false)].map(|(name, has_advice)| (name.to_owned(), has_advice))
    );
    for (query, status) in [
        ("limit=0", 400),
        ("limit=101", 400),
        ("limit=many", 400),
        ("spindle_iops=0", 400),
        ("array_latency_us=-1", 400),
        ("size=1", 400),
        ("volume=none", 404),
    ] {
        assert_eq!(http.get(&format!("/api/v1/advice?{query}")).status, status, "{query}");
    }
    daemon.stop();
}
