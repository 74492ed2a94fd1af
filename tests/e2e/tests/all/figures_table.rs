//! A table of known loads and the figures that every source reports for them: reads by origin, bytes, and latencies,
//! beside fio's own figures. Counts and bytes must agree; latencies are printed with their ratio to fio's.

use std::fmt::Write as _;
use std::time::Duration;

use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::tool::{tool, tool_within};
use serde_json::Value;

/// An array whose latency hides the round trip of the socket.
const ARRAY: &str = "sim://raid5?disks=5&type=sas15k&size=128MiB";
/// Duration of the loads that are bounded by time.
const LOAD_SECONDS: u64 = 25;
/// Time from the start of such a load to the sample of what is shown live.
const LIVE_AFTER: Duration = Duration::from_secs(10);

/// A load on a volume of its own.
struct Load {
    name: &'static str,
    /// Further keys of its volume.
    keys: &'static str,
    /// Arguments of fio that fill the cache before the measured load.
    warm_up: Option<&'static str>,
    fio: &'static str,
    is_timed: bool,
}

const LOADS: [Load; 4] = [
    Load { name: "scan", keys: "", warm_up: None, fio: "--rw=read --bs=64k --iodepth=4 --size=64m", is_timed: false },
    Load {
        name: "warm",
        keys: "",
        warm_up: Some("--rw=read --bs=64k --iodepth=4 --size=16m"),
        fio: "--rw=randread --bs=4k --iodepth=4 --size=16m --rate_iops=2000",
        is_timed: true,
    },
    Load {
        name: "limited",
        keys: "limit_iops = 500",
        warm_up: Some("--rw=read --bs=64k --iodepth=4 --size=8m"),
        fio: "--rw=randread --bs=4k --iodepth=4 --size=8m",
        is_timed: true,
    },
    Load {
        name: "mixed",
        keys: "",
        warm_up: None,
        fio: "--rw=randrw --rwmixread=70 --bs=4k --iodepth=4 --size=96m --norandommap=1",
        is_timed: true,
    },
];

/// Figures of one source; `None` if it does not show them.
#[derive(Default)]
struct Row {
    source: &'static str,
    /// Reads from memory, flash, readahead and the array.
    origins: Option<[u64; 4]>,
    /// Part of the reads that was served from the cache, as shown.
    hits: Option<String>,
    bytes: Option<u64>,
    /// Median and 99th percentile in microseconds, as shown.
    latency: Option<[String; 2]>,
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a count: {value}"))
}

fn run_fio(fixture: &Fixture, volume: &str, arguments: &str, is_timed: bool) -> Value {
    let mut fio = tool("fio").args("--name=f --ioengine=nbd --randseed=7 --thread --output-format=json");
    fio = fio.arg(format!("--uri={}", fixture.uri(volume))).args(arguments);
    if is_timed {
        fio = fio.args(&format!("--time_based --runtime={LOAD_SECONDS}"));
    }
    let out = fio.within(fixture.folder.path()).ok();
    let report: Value = serde_json::from_str(&out[out.find('{').expect("valid JSON")..]).expect("valid JSON");
    report["jobs"][0]["read"].clone()
}

fn of_fio(read: &Value) -> Row {
    let percentile = |name: &str| read["clat_ns"]["percentile"][name].as_f64().expect("a percentile") / 1e3;
    Row {
        source: "fio",
        bytes: Some(count(&read["io_bytes"])),
        latency: Some(["50.000000", "99.000000"].map(|name| format!("{:.0} us", percentile(name)))),
        ..Row::default()
    }
}

/// Counters of a volume before its load, which the figures of the load do not contain.
fn origins_of(report: &Value) -> [u64; 4] {
    let [memory, flash, prefetched, partial, misses] =
        ["memory_hits", "flash_hits", "prefetched_hits", "partial_hits", "misses"].map(|key| count(&report[key]));
    [memory, flash, prefetched, partial + misses]
}

fn of_report(source: &'static str, report: &Value, before: &Value) -> Row {
    let (now, before_load) = (origins_of(report), origins_of(before));
    Row {
        source,
        origins: Some(std::array::from_fn(|index| now[index] - before_load[index])),
        bytes: Some(count(&report["read_bytes"]) - count(&before["read_bytes"])),
        latency: Some(["p50", "p99"].map(|name| {
            let us = report["latency_us"]["read"][name].as_f64().expect("a latency");
            if us <= 16.384 { "< 16 us".to_owned() } else { format!("{us:.0} us") }
        })),
        ..Row::default()
    }
}

/// Figures of a volume's line in a table of the terminal, by the right-aligned heads of its columns.
fn of_screen(source: &'static str, screen: &str, volume: &str) -> Row {
    let head = screen.lines().find(|line| line.starts_with("volume ")).expect("a table of volumes");
    let line = screen.lines().find(|line| line.starts_with(&format!("{volume} "))).expect("a line per volume");
    let cells = |text: &str| -> Vec<String> {
        text.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let column = |name: &str| {
        let index = cells(head).iter().position(|cell| cell == name).unwrap_or_else(|| panic!("no {name} in {head}"));
        cells(line)[index].clone()
    };
    Row { source, hits: Some(column("hits")), latency: Some([column("read p50"), column("p99")]), ..Row::default() }
}

fn of_metrics(text: &str, volume: &str, before: &str) -> Row {
    let label = format!("{{volume=\"{volume}\",datastore=\"\"");
    let value = |text: &str, series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("no {series}"));
        line.trim().parse().expect("a number")
    };
    let of_load = |series: &str| value(text, series) - value(before, series);
    let read =
        |source: &str| of_load(&format!("hotset_volume_reads_by_source_total{label},source=\"{source}\"}}")) as u64;
    // As histogram_quantile of Prometheus does it: linear within a bucket.
    let buckets: Vec<(f64, f64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("hotset_volume_latency_seconds_bucket{label},op=\"read\",le=\"")))
        .map(|rest| {
            let (edge, _) = rest.split_once('"').expect("an edge");
            let series = format!("hotset_volume_latency_seconds_bucket{label},op=\"read\",le=\"{edge}\"}}");
            (edge.replace("+Inf", "inf").parse().expect("an edge"), of_load(&series))
        })
        .collect();
    let all = buckets.last().expect("buckets").1;
    let quantile = |part: f64| {
        let rank = all * part;
        let index = buckets.iter().position(|(_, below)| *below >= rank).expect("a bucket");
        let (edge, below) = buckets[index];
        let (lower, before) = if index == 0 { (0.0, 0.0) } else { buckets[index - 1] };
        match index {
            0 => format!("< {:.0} us", edge * 1e6),
            _ => format!("{:.0} us", (lower + (edge - lower) * (rank - before) / (below - before)) * 1e6),
        }
    };
    Row {
        source: "metrics",
        origins: Some([read("memory"), read("flash"), read("prefetched"), read("backing") + read("mixed")]),
        bytes: Some(of_load(&format!("hotset_volume_bytes_total{label},op=\"read\"}}")) as u64),
        latency: Some([quantile(0.5), quantile(0.99)]),
        ..Row::default()
    }
}

/// Figures of the history since `from`, in steps of a second; its latencies are those of the busiest minute. `None`
/// before the first step.
fn of_history(daemon: &Daemon, volume: &str, from: u64) -> Option<Row> {
    let read = |step: &str| -> Value {
        let arguments = ["volume", "history", volume, "--from", &from.to_string(), "--step", step, "--json"];
        serde_json::from_str(&daemon.command(&arguments)).expect("valid JSON")
    };
    let (seconds, report) = (read("1s"), read("1min"));
    let sum = |figure: &str| seconds["series"][figure]["sum"].as_array().into_iter().flatten().map(count).sum::<u64>();
    let steps = report["latency"]["read"]["count"].as_array().expect("counts");
    let largest = (0..steps.len()).max_by_key(|step| count(&steps[*step]))?;
    let latency = |name: &str| {
        let us = report["latency"]["read"][name][largest].as_f64().expect("a latency");
        if us <= 16.384 { "< 16 us".to_owned() } else { format!("{us:.0} us") }
    };
    Some(Row {
        source: "history",
        origins: Some([
            sum("memory_hits"),
            sum("flash_hits"),
            sum("prefetched_hits"),
            sum("partial_hits") + sum("misses"),
        ]),
        bytes: Some(sum("read_bytes")),
        latency: Some([latency("p50_us"), latency("p99_us")]),
        ..Row::default()
    })
}

/// Text of an HTML document without its pictures.
fn text_of(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text += before;
        text.push(' ');
        let skipped = ["script", "style", "svg"].into_iter().find(|name| tag.starts_with(name));
        let end = skipped.map_or(">".to_owned(), |name| format!("</{name}>"));
        rest = tag.split_once(end.as_str()).map_or("", |(_, after)| after);
    }
    text += rest;
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("&lt;", "<")
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found.trim())
}

/// Prints the text of the page at the address after it has received a few samples.
const SCRIPT: &str = "import { chromium } from 'playwright-core';
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const page = await browser.newPage();
await page.goto(process.argv[1]);
await page.waitForTimeout(6000);
console.log(await page.evaluate(() => document.body.innerText.replaceAll(/\\s+/g, ' ')));
await browser.close();";

/// Figures of the volume's page in a browser, in the second in which they are read; `None` without a browser.
fn of_page(address: &str, volume: &str) -> Option<Row> {
    let ui = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui");
    if !std::path::Path::new("/usr/bin/chromium").exists() || !ui.join("node_modules").exists() {
        eprintln!("SKIPPED: the page's figures want /usr/bin/chromium and `npm ci` in ui/");
        return None;
    }
    let node = tool_within(60, "node").args("--input-type=module --eval").arg(SCRIPT);
    let text = node.arg(format!("http://{address}/#/volumes/{volume}")).within(&ui).ok();
    let p99 = between(&text, "Read latency, p99", "median")?.to_owned();
    let p50 = between(&text, "median", "Write latency")?.split(';').next()?.to_owned();
    let hits = between(&text, "Hit ratio, total", "of")?.to_owned();
    Some(Row { source: "page (one second)", hits: Some(hits), latency: Some([p50, p99]), ..Row::default() })
}

/// Figures of the volume's line in `hotset report`.
fn of_saved_report(daemon: &Daemon, folder: &std::path::Path, volume: &str, from: u64) -> Row {
    let out = folder.join("report.html").display().to_string();
    daemon.command(&["report", "--from", &from.to_string(), "--out", &out]);
    let text = text_of(&std::fs::read_to_string(out).expect("the report is written"));
    let line = between(&text, "requests avoided read p99", "Alerts").expect("a table of volumes").to_owned();
    let line = line.split_once(&format!("{volume} ")).expect("a line per volume").1;
    let parts: Vec<&str> = line.split_whitespace().collect();
    // Reads, writes, then percentages of memory, flash, prefetched and array, requests avoided, p99.
    let percent = |index: usize| parts[2 + 2 * index].parse::<f64>().expect("a percentage");
    let hits = format!("{:.1} %", percent(0) + percent(1) + percent(2));
    let p99 = parts[11..].iter().take_while(|part| LOADS.iter().all(|load| load.name != **part));
    let p99 = p99.copied().collect::<Vec<_>>().join(" ");
    Row { source: "report", hits: Some(hits), latency: Some(["-".to_owned(), p99]), ..Row::default() }
}

/// Microseconds of a shown latency; `None` for a bound or nothing.
fn microseconds(shown: &str) -> Option<f64> {
    let (number, unit) = shown.trim().split_once(' ')?;
    let number: f64 = number.replace(',', "").parse().ok()?;
    match unit {
        "us" | "µs" => Some(number),
        "ms" => Some(number * 1e3),
        "s" => Some(number * 1e6),
        _ => None,
    }
}

fn write_row(table: &mut String, load: &str, row: &Row, fio: &Row) {
    let origins = row.origins.map(|origins| origins.map(|origin| origin.to_string()).join(" / "));
    let hits = origins.or_else(|| row.hits.clone()).unwrap_or_else(|| "-".to_owned());
    let bytes = row.bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    let cell = |index: usize| {
        let shown = row.latency.as_ref().map_or("-", |latency| latency[index].as_str());
        let client = fio.latency.as_ref().and_then(|latency| microseconds(&latency[index]));
        match microseconds(shown).zip(client) {
            Some((shown_us, client)) => format!("{shown} ({:.2})", shown_us / client),
            None => shown.to_owned(),
        }
    };
    writeln!(table, "| {load} | {} | {hits} | {bytes} | {} | {} |", row.source, cell(0), cell(1)).expect("grows");
}

#[test]
#[ignore = "long: two minutes"]
fn every_source_shows_the_figures_of_known_loads() {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    LOADS.iter().for_each(|load| fixture.add_volume_on(load.name, ARRAY, load.keys));
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let folder = fixture.folder.path();
    let mut table =
        "| load | source | reads: memory / flash / prefetched / array, or hits | bytes read | p50 | p99 |\n\
                     |---|---|---|---:|---|---|\n"
            .to_owned();
    for load in &LOADS {
        if let Some(warm_up) = load.warm_up {
            run_fio(&fixture, load.name, warm_up, false);
            // The history begins a new step, and what is shown live forgets the warm-up.
            std::thread::sleep(Duration::from_secs(3));
        }
        let path = format!("/api/v1/volumes/{}", load.name);
        let (before, metrics_before) = (http.get(&path).json(), http.get("/metrics").body);
        let from = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
        let mut rows = Vec::new();
        let read = std::thread::scope(|scope| {
            let client = scope.spawn(|| run_fio(&fixture, load.name, load.fio, load.is_timed));
            if load.is_timed {
                std::thread::sleep(LIVE_AFTER);
                rows.push(of_screen("top (one second)", &daemon.command(&["top", "--times", "1"]), load.name));
                rows.extend(of_page(http.address(), load.name));
            }
            client.join().expect("fio ends")
        });
        let fio = of_fio(&read);
        let reads_before: u64 = origins_of(&before).iter().sum();
        // The history takes one sample a second.
        let expected = count(&read["total_ios"]);
        wait_for("the history to have the load", || {
            let origins = of_history(&daemon, load.name, from)?.origins?;
            (origins.iter().sum::<u64>() == expected).then_some(())
        });
        let report = http.get(&path).json();
        rows.push(of_report("API", &report, &before));
        let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON");
        let volumes = status["volumes"].as_array().expect("a list");
        let volume = volumes.iter().find(|volume| volume["name"] == load.name).expect("the volume");
        rows.push(of_report("status --json", volume, &before));
        rows.push(of_screen("status", &daemon.command(&["status"]), load.name));
        rows.push(of_metrics(&http.get("/metrics").body, load.name, &metrics_before));
        rows.extend(of_history(&daemon, load.name, from));
        rows.push(of_saved_report(&daemon, folder, load.name, from));
        write_row(&mut table, load.name, &fio, &fio);
        let api = rows.iter().find(|row| row.source == "API").and_then(|row| row.origins).expect("its origins");
        for row in &rows {
            write_row(&mut table, load.name, row, &fio);
            let source = row.source;
            assert!(row.origins.is_none_or(|origins| origins == api), "{source}, {}: {:?}", load.name, row.origins);
            assert!(row.bytes.is_none_or(|bytes| Some(bytes) == fio.bytes), "{source}, {}: {:?}", load.name, row.bytes);
        }
        assert_eq!(api.iter().sum::<u64>(), expected, "{}: reads by origin, {reads_before} before", load.name);
    }
    println!("{table}");
    daemon.stop();
}
