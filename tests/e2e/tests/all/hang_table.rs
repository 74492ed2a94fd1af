//! A table of hung components and their effects: each cell is the longest wait of a probe, measured with the real
//! daemon.
//!
//! The hung file systems are FUSE mounts: no read, write or flush on them is answered, as with a lost file server.

use std::any::Any;
use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use driver::Memory;
use e2e::client::{Client, Op};
use e2e::daemon::{Daemon, hotset};
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;
use e2e::stopped_thread;
use serde_json::Value;

use crate::guest_memory;
use crate::vhost_user::Guest;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Duration of the probes while a component hangs.
const PROBE_TIME: Duration = Duration::from_secs(40);
/// Time-out of the end of a daemon.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// Backings that hang at once: more than a ring has workers on two processors.
const HUNG_BACKINGS: usize = 9;
/// Writes by a client to each volume on a hung backing.
const HUNG_VOLUME_WRITES: u64 = 64;

/// The component that hangs in a row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HungComponent {
    Nothing,
    OneMirror,
    BothMirrors,
    OneBacking,
    NineBackings,
    BackingsAtStart,
    StateDirectory,
    HistoryDisk,
    GuestMemory,
    ControlThread,
}

impl HungComponent {
    const ALL: [HungComponent; 10] = [
        HungComponent::Nothing,
        HungComponent::OneMirror,
        HungComponent::BothMirrors,
        HungComponent::OneBacking,
        HungComponent::NineBackings,
        HungComponent::BackingsAtStart,
        HungComponent::StateDirectory,
        HungComponent::HistoryDisk,
        HungComponent::GuestMemory,
        HungComponent::ControlThread,
    ];

    fn name(self) -> &'static str {
        match self {
            HungComponent::Nothing => "nothing",
            HungComponent::OneMirror => "one flash mirror",
            HungComponent::BothMirrors => "both flash mirrors",
            HungComponent::OneBacking => "one backing",
            HungComponent::NineBackings => "nine backings",
            HungComponent::BackingsAtStart => "nine backings, from before the start",
            HungComponent::StateDirectory => "the state directory",
            HungComponent::HistoryDisk => "the history's disk",
            HungComponent::GuestMemory => "a guest's memory (cut short)",
            HungComponent::ControlThread => "the control thread",
        }
    }

    /// Beginning of the kind of the alert that reports the hang.
    fn alert(self) -> Option<&'static str> {
        match self {
            HungComponent::OneMirror | HungComponent::BothMirrors => Some("flash"),
            HungComponent::OneBacking | HungComponent::NineBackings | HungComponent::BackingsAtStart => {
                Some("backing-hung")
            }
            HungComponent::StateDirectory => Some("state-disk"),
            HungComponent::HistoryDisk => Some("history"),
            HungComponent::Nothing | HungComponent::GuestMemory | HungComponent::ControlThread => None,
        }
    }
}

/// Configuration and files of a daemon with a component that can hang.
struct HangFixture {
    component: HungComponent,
    fixture: Fixture,
    mounts: Vec<Fuse>,
    hung_volumes: Vec<String>,
    /// Memory shared with the guest.
    memory: Option<Memory>,
}

impl HangFixture {
    /// `None` where file systems may not be mounted.
    fn new(component: HungComponent) -> Option<HangFixture> {
        let mut fixture = Fixture::new();
        let mount = |fixture: &Fixture, name: &str| Fuse::mount(&fixture.folder.join(name));
        let (mut mounts, mut hung_volumes, mut memory) = (Vec::new(), Vec::new(), None);
        match component {
            HungComponent::OneMirror | HungComponent::BothMirrors => {
                let mut devices: Vec<PathBuf> = Vec::new();
                mounts.push(mount(&fixture, "mount0")?);
                devices.push(mounts[0].path().join("f0"));
                if component == HungComponent::BothMirrors {
                    mounts.push(mount(&fixture, "mount1")?);
                    devices.push(mounts[1].path().join("f1"));
                } else {
                    devices.push(fixture.folder.join("f1"));
                }
                let names: Vec<String> = devices.iter().map(|path| format!("\"{}\"", path.display())).collect();
                fixture.tables = format!("[flash]\ndevices = [{}]\nsize = \"64 MiB\"\n", names.join(", "));
            }
            HungComponent::OneBacking | HungComponent::NineBackings | HungComponent::BackingsAtStart => {
                for number in 0..if component == HungComponent::OneBacking { 1 } else { HUNG_BACKINGS } {
                    mounts.push(mount(&fixture, &format!("mount{number}"))?);
                    let backing = mounts[number].path().join("hung.img");
                    File::create(&backing).and_then(|file| file.set_len(16 * MIB)).expect("the mount can be written");
                    hung_volumes.push(format!("hung{number}"));
                    fixture.add_volume_on(&hung_volumes[number], &backing.display().to_string(), "");
                }
            }
            HungComponent::StateDirectory => mounts.push(mount(&fixture, "state")?),
            HungComponent::HistoryDisk => mounts.push(mount(&fixture, "state/history")?),
            HungComponent::GuestMemory => {
                fixture.add_volume("guest", 16 * MIB, "");
                fixture.enable_vhost_user();
                memory = Some(Memory::new(Guest::queue_bytes()).expect("guest memory"));
            }
            HungComponent::Nothing | HungComponent::ControlThread => {}
        }
        fixture.add_volume("healthy", 64 * MIB, "");
        Some(HangFixture { component, fixture, mounts, hung_volumes, memory })
    }

    /// Starts the daemon; a component that hangs from before the start hangs already.
    fn start(&self) -> Daemon {
        if self.component == HungComponent::BackingsAtStart {
            self.mounts.iter().for_each(Fuse::hang);
        }
        let started_at = Instant::now();
        let daemon = self.fixture.start();
        println!("{}: the daemon served after {}", self.component.name(), seconds(started_at.elapsed()));
        daemon
    }

    /// Makes the component hang under load; dropping the returned value resumes a stopped thread.
    fn hang(&self, daemon: &Daemon) -> Option<Box<dyn Any>> {
        if self.component == HungComponent::BackingsAtStart {
            return Some(Box::new(()));
        }
        if self.component == HungComponent::ControlThread {
            return Some(Box::new(stopped_thread::stop_control(daemon)?));
        }
        self.mounts.iter().for_each(Fuse::hang);
        let mut clients = Vec::new();
        for name in &self.hung_volumes {
            let mut client = Client::connect(&self.fixture.endpoint(), name).expect("the volume is served");
            for number in 0..HUNG_VOLUME_WRITES {
                client.write(number * 16 * BLOCK, &[7; BLOCK as usize]).expect("memory has space");
            }
            client.send(Op::Flush, 0, 0, 0, &[]).expect("the request is sent");
            client.send(Op::Read, 0, 8 * MIB, BLOCK as usize, &[]).expect("the request is sent");
            clients.push(client);
        }
        if let Some(memory) = &self.memory {
            let mut guest =
                Guest::with_memory(memory.clone(), &self.fixture.vhost_user_socket("guest"), 1, guest_memory::FEATURES);
            guest.start(None);
            rustix::fs::ftruncate(memory.file(), 0).expect("the file can shrink");
            guest.queues[0].signal();
            return Some(Box::new((clients, guest)));
        }
        Some(Box::new(clients))
    }
}

/// Longest latency of one kind of request, including the request in flight.
#[derive(Default)]
struct Probe {
    /// Longest completed request, and the start of the request in flight.
    longest: Mutex<(Duration, Option<Instant>)>,
}

impl Probe {
    fn measure<T>(&self, request: impl FnOnce() -> T) -> T {
        let started_at = Instant::now();
        self.longest.lock().expect("no probe panics").1 = Some(started_at);
        let result = request();
        let mut longest = self.longest.lock().expect("no probe panics");
        *longest = (longest.0.max(started_at.elapsed()), None);
        result
    }

    /// Cell of the table; for an unanswered request, the time that it has waited.
    fn cell(&self) -> String {
        let (longest, in_flight) = *self.longest.lock().expect("no probe panics");
        match in_flight.map(|started_at| started_at.elapsed()).filter(|waited| *waited > longest) {
            Some(waited) => format!("no answer in {} s", waited.as_secs()),
            None => seconds(longest),
        }
    }
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// Probes that run repeatedly against a volume that does not hang, and against the daemon.
#[derive(Default)]
struct Probes {
    reads: Probe,
    writes: Probe,
    flushes: Probe,
    status: Probe,
    has_failed_flush: AtomicBool,
    /// Set when the probes must end.
    must_end: AtomicBool,
}

impl Probes {
    fn repeat(&self, fixture: &Fixture, probe: impl Fn(&mut Client, u64)) {
        let mut client = Client::connect(&fixture.endpoint(), "healthy").expect("the volume is served");
        let mut number = 0;
        while !self.must_end.load(Ordering::Relaxed) {
            probe(&mut client, number);
            number += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Probes until `PROBE_TIME` has passed; returns the time until the alert was seen.
    fn run(&'static self, hang: &'static HangFixture, socket: String) -> Option<Duration> {
        let fixture = &hang.fixture;
        std::thread::spawn(move || {
            self.repeat(fixture, |client, number| {
                let offset = number * 37 * BLOCK % (64 * MIB);
                self.reads.measure(|| client.read(offset, BLOCK as usize)).expect("the read succeeds");
            });
        });
        std::thread::spawn(move || {
            self.repeat(fixture, |client, number| {
                let offset = number * 41 * BLOCK % (64 * MIB);
                self.writes
                    .measure(|| client.write(offset, &[number as u8; BLOCK as usize]))
                    .expect("the write succeeds");
            });
        });
        std::thread::spawn(move || {
            self.repeat(fixture, |client, number| {
                client.write(number % 16 * BLOCK, &[number as u8; BLOCK as usize]).expect("the write succeeds");
                if self.flushes.measure(|| client.flush()).is_err() {
                    self.has_failed_flush.store(true, Ordering::Relaxed);
                }
            });
        });
        let started_at = Instant::now();
        let mut detected = None;
        while started_at.elapsed() < PROBE_TIME {
            let output = self.status.measure(|| hotset(&["status", "--json", "--socket", &socket]));
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let kinds = status["active_alerts"].as_array().cloned().unwrap_or_default();
            let is_expected = |alert: &Value| {
                alert["kind"]
                    .as_str()
                    .zip(hang.component.alert())
                    .is_some_and(|(kind, expected)| kind.starts_with(expected))
            };
            detected = detected.or_else(|| kinds.iter().any(is_expected).then(|| started_at.elapsed()));
            std::thread::sleep(Duration::from_millis(250));
        }
        self.must_end.store(true, Ordering::Relaxed);
        detected
    }
}

/// Time until the daemon has ended or logged its last line: the kernel may keep the process.
fn wait_for_end(daemon: &mut Daemon) -> String {
    let started_at = Instant::now();
    while started_at.elapsed() < END_TIMEOUT {
        let log = daemon.log();
        if !daemon.is_running() || log.contains(" again: ending at once") || log.contains("stopped, but") {
            return seconds(started_at.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    format!("no end in {} s", END_TIMEOUT.as_secs())
}

fn measure_row(component: HungComponent) -> Option<String> {
    // Threads of unanswered probes survive the row.
    let hang: &'static HangFixture = Box::leak(Box::new(HangFixture::new(component)?));
    let probes: &'static Probes = Box::leak(Box::default());
    let mut daemon = hang.start();
    let hang_guard = hang.hang(&daemon)?;
    let detected = probes.run(hang, hang.fixture.folder.join("control.sock").display().to_string());
    daemon.signal("TERM");
    let end = wait_for_end(&mut daemon);
    hang.mounts.iter().for_each(Fuse::resume);
    drop(hang_guard);
    drop(daemon);

    let second_hang = HangFixture::new(component)?;
    let mut daemon = second_hang.start();
    let hang_guard = second_hang.hang(&daemon)?;
    std::thread::sleep(Duration::from_secs(1));
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(100));
    let end_after_second_signal = if daemon.is_running() {
        daemon.signal("TERM");
        wait_for_end(&mut daemon)
    } else {
        "ended before".to_owned()
    };
    second_hang.mounts.iter().for_each(Fuse::resume);
    drop(hang_guard);
    let alert = match (component.alert(), detected) {
        (None, _) => "none".to_owned(),
        (Some(kind), None) => format!("{kind}: not seen"),
        (Some(_), Some(after)) => format!("after {}", seconds(after)),
    };
    let failed = if probes.has_failed_flush.load(Ordering::Relaxed) { ", fails" } else { "" };
    let flushes = format!("{}{failed}", probes.flushes.cell());
    let cells = [component.name().to_owned(), probes.reads.cell(), probes.writes.cell(), flushes];
    let later_cells = [probes.status.cell(), alert, end, end_after_second_signal];
    Some(format!("| {} | {} |", cells.join(" | "), later_cells.join(" | ")))
}

#[test]
#[ignore = "long: about fifteen minutes"]
fn healthy_volume_is_served_while_any_component_hangs() {
    let mut table =
        "| hangs | reads | writes | flushes | `status` | alert | end after SIGTERM | after a second SIGTERM |\n"
            .to_owned();
    table += "|---|---|---|---|---|---|---|---|\n";
    let rows = std::env::var("HOTSET_HANG_ROWS").ok();
    let is_wanted =
        |component: &HungComponent| rows.as_ref().is_none_or(|rows| rows.contains(&format!("{component:?}")));
    for component in HungComponent::ALL.into_iter().filter(is_wanted) {
        let Some(row) = measure_row(component) else { continue };
        println!("{row}");
        writeln!(table, "{row}").expect("a string grows");
    }
    println!("{table}");
    for row in table.lines().skip(2) {
        let others: Vec<&str> = row.split('|').skip(2).take(3).collect();
        assert!(others.iter().all(|cell| !cell.contains("no answer")), "a healthy volume waits: {row}");
    }
}
