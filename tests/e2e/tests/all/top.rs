//! `hotset top` on a terminal: live, at any size, across a restart of the daemon. The terminal is restored at the end.

use std::sync::atomic::{AtomicBool, Ordering};

use e2e::client::{Client, Endpoint};
use e2e::fixture::Fixture;
use e2e::terminal::Terminal;
use e2e::writer::StopOnDrop;

const MIB: u64 = 1 << 20;

/// The number after `label` on the screen.
fn figure(text: &str, label: &str) -> Option<u64> {
    let value = text.split_once(label)?.1.trim_start();
    let digits: String = value.chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
    digits.replace(',', "").parse().ok()
}

/// Reads the same block repeatedly until `stop` is set or the daemon has ended.
fn read_repeatedly(endpoint: &Endpoint, stop: &AtomicBool) {
    let Ok(mut client) = Client::connect(endpoint, "busy") else { return };
    while !stop.load(Ordering::Relaxed) && client.read(0, 4096).is_ok() {}
}

#[test]
fn top_shows_load_over_a_restart_and_restores_the_terminal() {
    let mut fixture = Fixture::new();
    fixture.add_volume("busy", 4 * MIB, "labels = { vm = \"web01\" }");
    fixture.add_volume("idle", 4 * MIB, "policy = \"write-through\"");
    let socket = fixture.folder.join("control.sock").display().to_string();
    let args = ["top", "--every", "200ms", "--socket", &socket];
    // Without a daemon it waits for one.
    let mut terminal = Terminal::run(&fixture.folder, &args, 120, 30);
    terminal.wait_for("the missing daemon", |text| text.contains("no answer from the daemon"));
    assert!(terminal.is_alternate_screen());
    let daemon = fixture.start();
    let (stop, endpoint) = (AtomicBool::new(false), fixture.endpoint());
    std::thread::scope(|scope| {
        let _stop_guard = StopOnDrop(&stop);
        scope.spawn(|| read_repeatedly(&endpoint, &stop));
        let busy = |text: &str| figure(text, "IOPS").is_some_and(|iops| iops > 0);
        let text = terminal.wait_for("load", |text| text.contains("live") && busy(text));
        assert!(text.contains("busy") && text.contains("idle") && text.contains("2 volumes"), "{text}");
        // By default the busiest volume is first. In reverse name order, `idle` precedes `busy`.
        let is_first = |text: &str, one: &str, other: &str| {
            let table = text.split_once("reads/s").map_or("", |(_, table)| table);
            table.find(one).zip(table.find(other)).is_some_and(|(one, other)| one < other)
        };
        terminal.wait_for("the busiest first", |text| is_first(text, "busy", "idle"));
        terminal.press("nn");
        terminal.wait_for("the reverse order of names", |text| is_first(text, "idle", "busy"));
        terminal.press("/web01\r");
        terminal.wait_for("the filter", |text| text.contains("1 of 2 match") && !text.contains("idle"));
        terminal.press("\u{1b}");
        terminal.wait_for("all volumes", |text| text.contains("idle"));
        terminal.press("?");
        terminal.wait_for("the keys", |text| text.contains("sort by dirty"));
        terminal.press(" ");
        // Wait for the key press to take effect: a key that arrives together with a resize may stay unread until the
        // next key.
        terminal.wait_for("the table again", |text| !text.contains("sort by dirty") && text.contains("reads/s"));
        terminal.resize(60, 20);
        let text = terminal.wait_for("a smaller screen", |text| text.contains("live") && text.contains("busy"));
        assert!(text.lines().count() <= 20 && text.lines().all(|line| line.chars().count() <= 60), "{text}");
        terminal.resize(170, 40);
        terminal.wait_for("a larger screen", |text| text.contains("datastore") && text.contains("policy"));
        daemon.kill();
        terminal.wait_for("the lost daemon, with the last data", |text| {
            text.contains("no answer from the daemon") && text.contains("busy")
        });
        let daemon = fixture.start();
        scope.spawn(|| read_repeatedly(&endpoint, &stop));
        terminal.wait_for("the next daemon", |text| text.contains("live") && busy(text));
        terminal.press("q");
        assert!(terminal.wait().success());
        assert!(!terminal.is_alternate_screen(), "the alternate screen is still active");
        stop.store(true, Ordering::Relaxed);
        daemon.stop();
    });
}
