//! The files of `packaging/` for Prometheus and Grafana, on a real Prometheus that scrapes the real daemon under load.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::client::{Client, Endpoint};
use e2e::daemon::{text_of, wait_at_most};
use e2e::fixture::Fixture;
use e2e::folder::Folder;
use e2e::http::Http;
use e2e::tool::{Tool, tool};
use e2e::writer::StopOnDrop;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// A rate requires two scrapes and a rule its interval, on a machine that runs other tests.
const TIMEOUT: Duration = Duration::from_secs(120);

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file).canonicalize().expect("the file exists")
}

/// Path of Prometheus and its tool; prints a line where they are missing.
fn tools() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/prometheus");
    let output = Command::new(script).stdin(Stdio::null()).output().expect("the script runs");
    if !output.status.success() {
        eprintln!("SKIPPED: no Prometheus: apt-get install prometheus; {}", text_of(&output));
        return None;
    }
    Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn promtool(tools: &Path, args: &str) -> Tool {
    tool(&tools.join("promtool").to_string_lossy()).args(args)
}

/// A Prometheus that scrapes one daemon each second; killed when dropped.
struct Prometheus {
    child: Child,
    http: Http,
}

impl Prometheus {
    fn start(tools: &Path, folder: &Folder, target: &str) -> Prometheus {
        let rules = ["hotset.rules.yml", "hotset.alerts.yml"].map(|file| packaging(&format!("prometheus/{file}")));
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{:?}, {:?}]\nscrape_configs:\n  \
             - {{ job_name: hotset, static_configs: [{{ targets: [\"{target}\"] }}] }}\n",
            rules[0], rules[1]
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).expect("the folder can be written");
        promtool(tools, "check config").arg(&file).ok();
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port is free").port();
        let address = format!("127.0.0.1:{port}");
        let log = fs::File::create(folder.join("prometheus.log")).expect("the folder can be written");
        let mut command = Command::new(tools.join("prometheus"));
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("series").display()));
        command.arg(format!("--web.listen-address={address}"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the process starts");
        let prometheus = Prometheus { child, http: Http::at(&address) };
        let ready = || prometheus.http.send("GET", "/-/ready", &[], "").ok().filter(|reply| reply.status == 200);
        wait_at_most(TIMEOUT, "Prometheus", ready);
        prometheus
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let reply = self.http.send("GET", path, &[], "").map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(&reply.body).map_err(|error| format!("{error}: {}", reply.body))?;
        if value["status"] == "success" { Ok(value["data"].clone()) } else { Err(value.to_string()) }
    }

    /// The number of series with a finite value in the result of a query.
    fn query(&self, query: &str) -> Result<usize, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.get(&format!("/api/v1/query?query={encoded}"))?;
        let series = data["result"].as_array().ok_or("it is no list of series")?;
        let is_number = |series: &&Value| {
            let value = series["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
            value.is_some_and(f64::is_finite)
        };
        Ok(series.iter().filter(is_number).count())
    }

    /// The `queries` that fail or return nothing, with the reason.
    fn failing_queries(&self, queries: &[String]) -> Vec<String> {
        let failure = |query: &String| match self.query(query) {
            Ok(0) => Some(format!("nothing: {query}")),
            Ok(_) => None,
            Err(error) => Some(format!("{error}: {query}")),
        };
        queries.iter().filter_map(failure).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every query of the dashboard, as Grafana sends it with all variables set to "All".
fn dashboard_queries() -> Vec<String> {
    let text = fs::read_to_string(packaging("grafana/hotset.json")).expect("the file exists");
    let dashboard: Value = serde_json::from_str(&text).expect("valid JSON");
    let panels = dashboard["panels"].as_array().expect("a list of panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("a list of targets"));
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().expect("a query").replace("$__rate_interval", "10s");
        ["$instance", "$datastore", "$volume"].into_iter().fold(query, |query, name| query.replace(name, ".*"))
    });
    let queries: Vec<String> = queries.collect();
    assert!(queries.iter().all(|query| !query.contains('$')), "{queries:?}");
    queries
}

/// Expressions of all rules and alerts, as Prometheus has loaded them; none of them may have failed.
fn rule_expressions(prometheus: &Prometheus) -> Vec<String> {
    let groups = prometheus.get("/api/v1/rules").expect("the rules are listed")["groups"].clone();
    let rules = groups.as_array().expect("groups").iter().flat_map(|group| group["rules"].as_array().expect("rules"));
    let evaluated = |rule: &Value| {
        assert_eq!((&rule["health"], rule["lastError"].as_str().unwrap_or("")), (&"ok".into(), ""), "{rule}");
        rule["query"].as_str().expect("an expression").to_owned()
    };
    rules.map(evaluated).collect()
}

/// Reads and writes until `stop` is set.
fn run_load(endpoint: &Endpoint, volume: &str, stop: &AtomicBool) {
    let mut client = Client::connect(endpoint, volume).expect("the volume is served");
    let mut offset = 0;
    while !stop.load(Ordering::Relaxed) {
        offset = (offset + 17 * 4096) % (8 * MIB);
        client.write(offset, &[1; 4096]).expect("the write succeeds");
        client.read(offset / 2 / 4096 * 4096, 4096).expect("the read succeeds");
        client.flush().expect("the flush succeeds");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn dashboard_and_rules_work_on_a_real_prometheus() {
    let Some(tools) = tools() else { return };
    let mut fixture = Fixture::new();
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", fixture.folder.join(name).display()));
    fixture.tables = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\n[flash]\ndevices = [{}]\nsize = \"64 MiB\"\nendurance_dwpd = 1\n\
         [[datastore]]\nname = \"shelf\"",
        devices.join(", ")
    );
    fixture.add_volume("web01", 16 * MIB, "datastore = \"shelf\"\nlabels = { vm = \"web\" }");
    fixture.add_volume("db", 16 * MIB, "");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let (stop, endpoint) = (AtomicBool::new(false), fixture.endpoint());
    std::thread::scope(|scope| {
        let _stop_guard = StopOnDrop(&stop);
        for volume in ["web01", "db"] {
            let (endpoint, stop) = (&endpoint, &stop);
            scope.spawn(move || run_load(endpoint, volume, stop));
        }
        let scraped = fixture.folder.join("scraped");
        fs::write(&scraped, http.get("/metrics").body).expect("the folder can be written");
        let check = format!("'{}' check metrics < '{}'", tools.join("promtool").display(), scraped.display());
        tool("sh").arg("-c").arg(check).ok();
        let prometheus = Prometheus::start(&tools, &fixture.folder, http.address());
        let queries = dashboard_queries();
        assert!(queries.len() > 20, "{queries:?}");
        let mut failing = Vec::new();
        wait_at_most(TIMEOUT, "data for every query of the dashboard", || {
            let failing_now = prometheus.failing_queries(&queries);
            if failing_now != failing {
                eprintln!("failing: {failing_now:#?}");
                failing = failing_now;
            }
            failing.is_empty().then_some(())
        });
        let first_error = |all: &[String]| all.iter().find_map(|rule| prometheus.query(rule).err());
        let evaluated = wait_at_most(TIMEOUT, "an evaluation of every rule", || {
            let groups = prometheus.get("/api/v1/rules").expect("the rules are listed")["groups"].to_string();
            (!groups.contains("\"health\":\"unknown\"")).then(|| rule_expressions(&prometheus))
        });
        assert!(evaluated.len() > 20, "{evaluated:?}");
        assert_eq!(first_error(&evaluated), None);
        // Recording rules have recorded, and no alert is raised without a fault.
        let recorded = ["instance:hotset_requests:rate5m", "datastore:hotset_latency_seconds:p99_rate5m"];
        let recorded = recorded.map(str::to_owned);
        wait_at_most(TIMEOUT, "the recorded series", || prometheus.failing_queries(&recorded).is_empty().then_some(()));
        assert_eq!(prometheus.query("ALERTS{alertstate=\"firing\"}"), Ok(0));
        // The check can fail: a name that does not exist, and an invalid expression.
        let invalid = ["rate(hotset_volume_requests[10s])", "sum by (hotset_alerts", "hotset_alerts / 0"];
        let invalid = invalid.map(str::to_owned);
        assert_eq!(prometheus.failing_queries(&invalid).len(), 3);
        assert!(first_error(&invalid).is_some());
        stop.store(true, Ordering::Relaxed);
    });
    daemon.stop();
}

#[test]
fn rules_pass_their_tests_and_broken_rules_fail_them() {
    let Some(tools) = tools() else { return };
    let names = ["hotset.rules.yml", "hotset.alerts.yml", "hotset.test.yml"];
    let folder = Folder::new();
    let read = |name: &str| fs::read_to_string(packaging(&format!("prometheus/{name}"))).expect("the file exists");
    for name in names {
        fs::write(folder.join(name), read(name)).expect("the folder can be written");
    }
    let test = || promtool(&tools, "test rules hotset.test.yml").within(folder.path());
    promtool(&tools, "check rules hotset.rules.yml hotset.alerts.yml").within(folder.path()).ok();
    test().ok();
    for (name, from, to) in [
        ("hotset.alerts.yml", "< 0.1", "< 0.05"),
        ("hotset.alerts.yml", "severity!=\"info\"}) > 0", "severity!=\"info\"}) > 2"),
        ("hotset.rules.yml", "source=~\"memory|flash\"", "source=~\"memory\""),
    ] {
        let valid = read(name);
        assert!(valid.contains(from), "{name} has no {from}");
        fs::write(folder.join(name), valid.replace(from, to)).expect("the folder can be written");
        test().fails();
        fs::write(folder.join(name), valid).expect("the folder can be written");
    }
}
