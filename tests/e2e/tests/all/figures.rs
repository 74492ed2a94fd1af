//! Agreement of all figures: every source reports fio's counts, and one additional request appears in all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The compared figures, by their names in reports and in the history.
const FIGURES: [&str; 5] = ["reads", "writes", "flushes", "read_bytes", "write_bytes"];

/// Figures and values of one source.
type Figures = BTreeMap<&'static str, u64>;

/// A run of fio: pattern, bytes per request, number of requests, and writes between two flushes.
struct Run(&'static str, u64, u64, u64);

/// Several sizes, both directions, flushes, and a read-write mix whose counts only fio reports.
const RUNS: [(&str, Run); 6] = [
    ("v", Run("write", 65_536, 128, 16)),
    ("v", Run("randwrite", 4_096, 1_024, 0)),
    ("v", Run("randread", 4_096, 3_000, 0)),
    ("v", Run("read", 16_384, 500, 0)),
    ("v", Run("randrw", 8_192, 800, 0)),
    ("w", Run("randread", 512, 700, 0)),
];

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a count: {value}"))
}

/// Runs fio and returns its own figures; checks the number of requests.
fn run_fio(fixture: &Fixture, volume: &str, Run(pattern, bytes, requests, flush_every): &Run) -> Figures {
    let mut fio = tool("fio").args("--name=f --ioengine=nbd --randseed=7 --iodepth=8 --size=32m --output-format=json");
    fio = fio.arg(format!("--uri={}", fixture.uri(volume))).arg(format!("--rw={pattern}"));
    fio = fio.arg(format!("--bs={bytes}")).arg(format!("--io_size={}", bytes * requests));
    if *flush_every > 0 {
        fio = fio.arg(format!("--fsync={flush_every}"));
    }
    let out = fio.within(fixture.folder.path()).ok();
    let report: Value = serde_json::from_str(&out[out.find('{').expect("valid JSON")..]).expect("valid JSON");
    let job = &report["jobs"][0];
    let figure_of = |kind: &str, figure: &str| count(&job[kind][figure]);
    let figures = Figures::from([
        ("reads", figure_of("read", "total_ios")),
        ("writes", figure_of("write", "total_ios")),
        ("flushes", figure_of("sync", "total_ios")),
        ("read_bytes", figure_of("read", "io_bytes")),
        ("write_bytes", figure_of("write", "io_bytes")),
    ]);
    assert_eq!(figures["reads"] + figures["writes"], *requests, "{pattern}: {figures:?}");
    assert_eq!(figures["read_bytes"] + figures["write_bytes"], bytes * requests, "{pattern}: {figures:?}");
    assert_eq!(figures["flushes"] > 0, *flush_every > 0, "{pattern}: {figures:?}");
    figures
}

fn sum<'a>(volumes: impl IntoIterator<Item = &'a Figures>) -> Figures {
    let mut sum = Figures::new();
    volumes.into_iter().flatten().for_each(|(figure, count)| *sum.entry(figure).or_default() += count);
    sum
}

fn of_report(report: &Value) -> Figures {
    FIGURES.iter().map(|figure| (*figure, count(&report[figure]))).collect()
}

fn of_history(report: &Value) -> Figures {
    let sum = |figure: &str| report["series"][figure]["sum"].as_array().into_iter().flatten().map(count).sum();
    FIGURES.iter().map(|figure| (*figure, sum(figure))).collect()
}

/// Figures from the metrics of one volume or datastore, whose series begin with `name` and these labels.
fn of_metrics(text: &str, name: &str, labels: &str) -> Figures {
    let series = [("reads", "requests", "read"), ("writes", "requests", "write"), ("flushes", "requests", "flush")];
    let series = series.into_iter().chain([("read_bytes", "bytes", "read"), ("write_bytes", "bytes", "write")]);
    series
        .map(|(figure, family, op)| {
            let series = format!("{name}_{family}_total{{{labels},op=\"{op}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            (figure, value.unwrap_or_else(|| panic!("no {series}in\n{text}")).parse().expect("a count"))
        })
        .collect()
}

/// Request counts of a latency histogram.
fn of_latencies(text: &str, name: &str, labels: &str) -> Figures {
    let count = |op: &str| {
        let series = format!("{name}_latency_seconds_count{{{labels},op=\"{op}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series)).expect("a histogram has a count");
        value.parse().expect("a count")
    };
    Figures::from([("reads", count("read")), ("writes", count("write"))])
}

/// Figures from a volume's line in `hotset status`, found by the right-aligned column heads.
fn of_screen(screen: &str, volume: &str) -> Figures {
    let head = screen.lines().find(|line| line.starts_with("volume ")).expect("a table of volumes");
    let line = screen.lines().find(|line| line.starts_with(&format!("{volume} "))).expect("a line per volume");
    let column = |name: &str| {
        let end = head.find(&format!(" {name} ")).expect("its column") + 1 + name.len();
        let text = line[..end].rsplit(' ').next().expect("a figure");
        text.replace(',', "").parse().expect("a count")
    };
    Figures::from([("reads", column("reads")), ("writes", column("writes"))])
}

/// Figures of `v`, and of all volumes together, from every source.
fn figures_of_all_sources(daemon: &Daemon, http: &Http) -> BTreeMap<&'static str, [Option<Figures>; 2]> {
    let json = |args: &[&str]| -> Value { serde_json::from_str(&daemon.command(args)).expect("valid JSON") };
    let figures_of = |volumes: &Value| {
        let by_volume: BTreeMap<_, _> =
            volumes.as_array().expect("a list").iter().map(|v| (v["name"].as_str(), of_report(v))).collect();
        [Some(by_volume[&Some("v")].clone()), Some(sum(by_volume.values()))]
    };
    let metrics = http.get("/metrics").body;
    let (_, event) = http.subscribe("/api/v1/stream?volumes=v", &[]).next_event();
    let last_minutes = "from=-10min&step=1";
    let commanded = ["volume", "history", "v", "--from", "-10min", "--step", "1s", "--json"];
    let datastores = http.get("/api/v1/datastores").json();
    let of_datastore = |labels: &str| of_metrics(&metrics, "hotset_datastore", labels);
    let [shelf, other] = ["shelf", ""].map(|name| format!("datastore=\"{name}\""));
    BTreeMap::from([
        ("API, status", figures_of(&http.get("/api/v1/status").json()["volumes"])),
        ("API, volumes", figures_of(&http.get("/api/v1/volumes").json()["volumes"])),
        ("API, the volume", [Some(of_report(&http.get("/api/v1/volumes/v").json())), None]),
        ("API, datastores", {
            let list = datastores.as_array().expect("a list");
            let v = list.iter().find(|store| store["name"] == "shelf").map(of_report);
            [v, Some(sum(&list.iter().map(of_report).collect::<Vec<_>>()))]
        }),
        ("status --json", figures_of(&json(&["status", "--json"])["volumes"])),
        ("status", [Some(of_screen(&daemon.command(&["status"]), "v")), None]),
        ("volume show --json", [Some(of_report(&json(&["volume", "show", "v", "--json"]))), None]),
        (
            "metrics, the volume",
            [Some(of_metrics(&metrics, "hotset_volume", "volume=\"v\",datastore=\"shelf\"")), None],
        ),
        (
            "metrics, latencies",
            [Some(of_latencies(&metrics, "hotset_volume", "volume=\"v\",datastore=\"shelf\"")), None],
        ),
        ("metrics, datastores", [Some(of_datastore(&shelf)), Some(sum(&[of_datastore(&shelf), of_datastore(&other)]))]),
        (
            "history",
            [
                Some(of_history(&http.get(&format!("/api/v1/volumes/v/history?{last_minutes}")).json())),
                Some(of_history(&http.get(&format!("/api/v1/history?{last_minutes}")).json())),
            ],
        ),
        ("volume history --json", [Some(of_history(&json(&commanded))), None]),
        ("stream", [Some(of_report(&event["volumes"]["v"])), Some(of_report(&event["totals"]))]),
    ])
}

/// Differences between the sources and `counted` (of `v`, and of all).
fn disagreements(reported: &BTreeMap<&'static str, [Option<Figures>; 2]>, counted: &[Figures; 2]) -> Vec<String> {
    let mut differences = Vec::new();
    for (source, reported) in reported {
        for ((reported, counted), subject) in reported.iter().zip(counted).zip(["v", "all"]) {
            for (figure, count) in reported.iter().flatten() {
                if *count != counted[figure] {
                    differences.push(format!("{source}, {subject}: {figure} {count} instead of {}", counted[figure]));
                }
            }
        }
    }
    differences
}

/// Polls until all sources agree: the history and the stream take one sample per second.
fn wait_for_agreement(daemon: &Daemon, http: &Http, counted: &[Figures; 2]) -> Vec<String> {
    let mut differences = Vec::new();
    for _ in 0..60 {
        differences = disagreements(&figures_of_all_sources(daemon, http), counted);
        if differences.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    differences
}

#[test]
fn all_sources_report_the_counts_of_fio() {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"\n[[datastore]]\nname = \"shelf\"".to_owned();
    fixture.add_volume("v", 32 * MIB, "datastore = \"shelf\"");
    fixture.add_volume("w", 32 * MIB, "");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let runs: Vec<_> = RUNS.iter().map(|(volume, run_spec)| (*volume, run_fio(&fixture, volume, run_spec))).collect();
    let of_v = runs.iter().filter(|(volume, _)| *volume == "v").map(|(_, figures)| figures);
    let counted = [sum(of_v), sum(runs.iter().map(|(_, figures)| figures))];
    assert_eq!(wait_for_agreement(&daemon, &http, &counted), [""; 0]);
    // One request that fio does not know of must appear in every source. This proves that the comparison above can
    // fail.
    Client::connect(&fixture.endpoint(), "v").expect("the volume is served").read(0, 4096).expect("the read succeeds");
    let one_more = counted.clone().map(|figures| sum([&figures, &Figures::from([("reads", 1), ("read_bytes", 4096)])]));
    assert_eq!(wait_for_agreement(&daemon, &http, &one_more), [""; 0]);
    let reported = figures_of_all_sources(&daemon, &http);
    let differences = disagreements(&reported, &counted);
    for source in reported.keys() {
        assert!(
            differences.iter().any(|line| line.starts_with(source) && line.contains("reads")),
            "{source} is not in {differences:#?}"
        );
    }
    daemon.stop();
}
