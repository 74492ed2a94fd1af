//! A trace recorded on a live volume has every request of its client.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, binary, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

/// A running `trace record`.
struct Recorder(Child);

impl Recorder {
    fn start(fixture: &Fixture, daemon: &Daemon, out: &Path, options: &[&str]) -> Recorder {
        // An earlier recording may have written the same line.
        let recordings = || daemon.log().matches("recording of requests started").count();
        let before = recordings();
        let mut command = Command::new(binary());
        command
            .arg("--socket")
            .arg(fixture.folder.join("control.sock"))
            .args(["--json", "trace", "record", "v", "--out"])
            .arg(out)
            .args(options);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("hotset runs");
        wait_for("the recorder", || (recordings() > before).then_some(()));
        Recorder(child)
    }

    /// Ends the recording as Ctrl-C does; returns the output.
    fn interrupt(self) -> String {
        tool("kill").arg("-INT").arg(self.0.id().to_string()).ok();
        let output = self.0.wait_with_output().expect("the process ends");
        assert!(output.status.success(), "{}", text_of(&output));
        String::from_utf8(output.stdout).expect("JSON is UTF-8")
    }
}

/// Runs a command that has to succeed.
fn run_command(args: &[&str]) -> String {
    let output = hotset(args);
    assert!(output.status.success(), "{args:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("plain text")
}

/// `(Read|Write, offset, bytes)` of every request, sorted: fio logs in another order than the daemon.
fn requests(trace: &Path) -> Vec<String> {
    let csv = trace.with_extension("msr");
    run_command(&["trace", "convert", &trace.to_string_lossy(), &csv.to_string_lossy()]);
    let text = fs::read_to_string(csv).expect("the file was written");
    let mut requests: Vec<String> =
        text.lines().map(|line| line.split(',').skip(3).take(3).collect::<Vec<_>>().join(",")).collect();
    requests.sort_unstable();
    requests
}

#[test]
fn recorded_trace_equals_the_requests_of_fio() {
    let fixture = Fixture::with_volume(64 * MIB);
    let daemon = fixture.start();
    let [recorded, anonymised, logged] =
        ["recorded.hotset", "hidden.hotset", "fio.iolog"].map(|name| fixture.folder.join(name));
    let recorder = Recorder::start(&fixture, &daemon, &recorded, &[]);
    let second =
        daemon.try_command(&["trace", "record", "v", "--out", &anonymised.to_string_lossy(), "--seconds", "1"]);
    assert!(text_of(&second).contains("is already being recorded"), "{}", text_of(&second));
    let uri = format!("--uri={}", fixture.uri("v"));
    let load = "--name=v --ioengine=nbd --randseed=7 --rw=randrw --bsrange=512-64k --blockalign=512 --iodepth=16 \
                --size=64m --io_size=96m";
    let log = format!("--write_iolog={}", logged.display());
    tool("fio").args(load).arg(&uri).arg(&log).within(fixture.folder.path()).ok();
    let output = recorder.interrupt();
    assert!(output.contains("\"lost\": 0"), "{output}");
    let (recorded_requests, logged_requests) = (requests(&recorded), requests(&logged));
    assert!(logged_requests.len() > 1_000, "{}", logged_requests.len());
    assert!(
        recorded_requests == logged_requests,
        "{} recorded, {} logged by fio",
        recorded_requests.len(),
        logged_requests.len()
    );

    let recorder = Recorder::start(&fixture, &daemon, &anonymised, &["--anonymise"]);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(5 * MIB, &[1; 4096]).expect("the write succeeds");
    client.read(5 * MIB + 65_536, 512).expect("the read succeeds");
    client.call(Op::Trim, 0, 0, MIB as usize, &[]).expect("the trim succeeds");
    client.flush().expect("the flush succeeds");
    drop(client);
    recorder.interrupt();
    daemon.stop();
    let info = run_command(&["--json", "trace", "info", &anonymised.to_string_lossy()]);
    for count in ["\"reads\": 1", "\"writes\": 1", "\"discards\": 1", "\"flushes\": 1", "\"discard_bytes\": 1048576"] {
        assert!(info.contains(count), "{count}: {info}");
    }
    let offsets: Vec<u64> =
        requests(&anonymised).iter().map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(
        (offsets[0] - offsets[1], offsets[1] % MIB),
        (65_536, 0),
        "a read and a write of one extent stay together"
    );
}

/// Reads served completely by the cache, as a fraction of all reads.
fn hit_ratio(counts: &serde_json::Value) -> f64 {
    let count = |name: &str| counts[name].as_f64().unwrap_or_else(|| panic!("no {name} in {counts}"));
    (count("memory_hits") + count("flash_hits")) / count("reads")
}

#[test]
fn recorded_trace_replays_to_the_live_hit_ratio() {
    let mut fixture = Fixture::new();
    fixture.memory = "32 MiB".to_owned();
    fixture.add_volume("v", 256 * MIB, "");
    let daemon = fixture.start();
    let recorded = fixture.folder.join("recorded.hotset");
    let recorder = Recorder::start(&fixture, &daemon, &recorded, &[]);
    let uri = format!("--uri={}", fixture.uri("v"));
    let load = "--name=v --ioengine=nbd --randseed=7 --rw=randrw --rwmixread=80 --bs=4k \
                --random_distribution=zipf:0.9 --iodepth=8 --size=256m --io_size=160m";
    tool("fio").args(load).arg(&uri).within(fixture.folder.path()).ok();
    recorder.interrupt();
    let shown: serde_json::Value =
        serde_json::from_str(&daemon.command(&["--json", "volume", "show", "v"])).expect("valid JSON");
    daemon.stop();
    let live_ratio = hit_ratio(&shown);
    let trace = recorded.to_string_lossy().into_owned();
    let output =
        run_command(&["--json", "simulate", &trace, "--memory", "32 MiB", "--array", "raid5?disks=5&type=ssd"]);
    let replayed: serde_json::Value = serde_json::from_str(&output).expect("valid JSON");
    let with_cache = &replayed["timed"]["with"];
    assert_eq!(with_cache["reads"], shown["reads"], "{output}");
    let replayed_ratio = hit_ratio(with_cache);
    println!("live {live_ratio:.4}, replayed {replayed_ratio:.4}, policies alone {}", replayed["total"]["hit_ratio"]);
    assert!((0.2..0.8).contains(&live_ratio), "{live_ratio}: a ratio that tests no cache");
    assert!((live_ratio - replayed_ratio).abs() <= 0.01, "live {live_ratio:.4}, replayed {replayed_ratio:.4}");
}
