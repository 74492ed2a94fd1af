//! Failures are reported in the log, the events and the status, with cause, effect and remedy.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use e2e::client::Client;
use e2e::daemon::{Daemon, binary, hotset, text_of, wait_for};
use e2e::fixture::{Fixture, TARGET};
use e2e::initiator::Initiator;

use crate::history::SmallDisk;

const MIB: u64 = 1 << 20;

/// Waits until log, events and status have an alert of `kind` with `cause` and `remedy`.
fn expect_alert(daemon: &Daemon, kind: &str, cause: &str, remedy: &str) {
    let is_complete = |text: &str| text.contains(cause) && text.contains(remedy);
    wait_for(kind, || {
        let (log, events) = (daemon.log(), daemon.command(&["events", "--kind", "alert"]));
        let raised = format!("{kind} raised");
        let has_line = |text: &str| text.lines().any(|line| line.contains(&raised) && is_complete(line));
        (has_line(&log) && has_line(&events)).then_some(())
    });
    // The status wraps its lines.
    let words: Vec<_> = daemon.command(&["status"]).split_whitespace().map(str::to_owned).collect();
    let status = words.join(" ");
    assert!(is_complete(&status) && status.contains("effect:") && status.contains("remedy:"), "{status}");
}

#[test]
fn full_backing_is_reported_with_its_remedy() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let Some(disk) = SmallDisk::mount(&fixture.folder.join("small")) else { return };
    let backing = disk.path().join("full.img");
    fs::File::create(&backing).and_then(|file| file.set_len(4 * MIB)).expect("a sparse file fits");
    fixture.add_volume_on("full", &backing.display().to_string(), "");
    let daemon = fixture.start();
    disk.fill();
    let mut client = Client::connect(&fixture.endpoint(), "full").expect("the volume is served");
    client.write(0, &vec![1; MIB as usize]).expect("the cache takes the write");
    let flush = daemon.try_command(&["volume", "flush", "full"]);
    assert!(!flush.status.success(), "{}", text_of(&flush));
    expect_alert(&daemon, "destage-failing", "no space left", "free space on the file system or pool of the backing");
    disk.empty();
    daemon.command(&["volume", "flush", "full"]);
    drop(client);
    daemon.stop();
}

#[test]
fn refused_initiator_is_reported_with_the_reason() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let secret = fixture.folder.join("chap.secret");
    fs::write(&secret, "a secret of sixteen\n").expect("the folder can be written");
    let chap = format!("chap = {{ user = \"esx\", secret_file = \"{}\" }}", secret.display());
    let address = fixture.add_iscsi_target(&chap);
    let daemon = fixture.start();
    let refused = Initiator::log_in(address, "iqn.1998-01.com.vmware:esx1", 1, TARGET).err();
    assert!(refused.is_some(), "the login needs a secret");
    let cause = "iqn.1998-01.com.vmware:esx1";
    expect_alert(&daemon, "login-refused", cause, "compare user and secret of the initiator with `[iscsi] chap`");
    assert!(daemon.log().contains("offers no CHAP, which the target requires"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn wait_for_a_port_names_its_process() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket is bound").port();
    fixture.listen.push(format!("tcp:127.0.0.1:{port}"));
    let mut daemon = Daemon::launch(&fixture);
    let holder = format!("port {port} is in use by process {}", std::process::id());
    wait_for("the wait in the log", || daemon.log().contains(&format!("{holder} (")).then_some(()));
    assert!(daemon.log().contains("waiting up to 10 s for it"), "{}", daemon.log());
    assert!(!daemon.wait().success(), "the port stays in use");
    assert!(daemon.log().contains("stop that process, or configure another port"), "{}", daemon.log());
}

#[test]
fn busy_port_of_the_api_is_a_problem_in_the_status() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    fixture.tables = format!("[api]\nlisten = \"{address}\"\n");
    let daemon = fixture.start();
    let holder = format!("port {} is in use by process {} (", address.port(), std::process::id());
    let problem = format!("web console and API are not reachable: [api] cannot listen on {address}: {holder}");
    let status = daemon.command(&["status"]);
    assert!(status.contains(&problem) && status.contains("the daemon retries every 5 s"), "{status}");
    drop(listener);
    wait_for("the web console", || daemon.command(&["status"]).contains(&format!("http://{address}/")).then_some(()));
    let status = daemon.command(&["status"]);
    assert!(!status.contains("not reachable"), "{status}");
    daemon.stop();
}

#[test]
fn check_warns_of_ports_that_another_process_holds() {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    fixture.listen.push(format!("tcp:{address}"));
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let check = || {
        let checked = hotset(&["check-config", &fixture.config().display().to_string()]);
        assert!(checked.status.success(), "{}", text_of(&checked));
        text_of(&checked)
    };
    let port = address.port();
    let holder = format!("warning: [nbd]: port {port} is in use by process {} (", std::process::id());
    assert!(check().contains(&holder), "{}", check());
    drop(listener);
    assert!(!check().contains(&holder), "{}", check());
    // The daemon of this configuration holds its own ports.
    let daemon = fixture.start();
    assert!(!check().contains("is in use"), "{}", check());
    daemon.stop();
}

#[test]
fn wait_for_a_locked_backing_names_its_process() {
    let fixture = Fixture::with_volume(4 * MIB);
    let holder = fs::File::open(fixture.backing("v")).expect("the backing exists");
    holder.lock().expect("the backing is not locked");
    let mut daemon = Daemon::launch(&fixture);
    let backing = fixture.backing("v");
    let wait = format!("waiting up to 10 s for process {} to release {}", std::process::id(), backing.display());
    wait_for("the wait in the log", || daemon.log().contains(&wait).then_some(()));
    drop(holder);
    daemon.wait_until_ready();
    daemon.stop();
}

#[test]
fn second_daemon_says_that_it_waits_for_the_first() {
    let fixture = Fixture::with_volume(4 * MIB);
    let first = fixture.start();
    let mut second = Daemon::launch(&fixture);
    let wait = format!("waiting up to 10 s for process {} to release the state directory", first.pid());
    wait_for("the wait in the log", || second.log().contains(&wait).then_some(()));
    first.stop();
    second.wait_until_ready();
    second.stop();
}

#[test]
fn failed_volume_addition_leaves_no_file_and_no_record() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let path = fixture.folder.join("new.img");
    let backing = path.display().to_string();
    // No file system has files of the first size, and the second is not a multiple of the sector size.
    for size in ["7 EiB", "1000"] {
        let failed = daemon.try_command(&["volume", "add", "new", "--backing", &backing, "--size", size]);
        assert!(!failed.status.success(), "{size}: {}", text_of(&failed));
        assert!(!path.exists(), "{size}: the file stays");
        assert!(!daemon.command(&["volume", "list"]).contains("new"), "{size}");
    }
    let missing = text_of(&daemon.try_command(&["volume", "add", "new", "--backing", &backing]));
    assert!(missing.contains("does not exist") && missing.contains("repeat the command"), "{missing}");
    assert!(!missing.contains("retries"), "there is no volume to retry: {missing}");
    let state = fs::read_to_string(fixture.folder.join("state/state.json")).expect("the state was written");
    assert!(!state.contains("\"new\""), "{state}");
    daemon.command(&["volume", "add", "new", "--backing", &backing, "--size", "1 MiB"]);
    assert_eq!(fs::metadata(&path).expect("the file was created").len(), MIB);
    daemon.stop();
}

#[test]
fn command_finds_the_socket_in_the_environment() {
    let fixture = Fixture::with_volume(4 * MIB);
    let daemon = fixture.start();
    let run = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(args).env("HOTSET_SOCKET", fixture.folder.join("control.sock"));
        let output = command.output().expect("the binary was built");
        assert!(output.status.success(), "{}", text_of(&output));
        text_of(&output)
    };
    assert!(run(&["volume", "list"]).contains('v'));
    let sample = run(&["top", "--times", "1", "--every", "100ms"]);
    assert!(sample.contains("reads/s"), "a single sample has rates: {sample}");
    daemon.stop();
}

#[test]
fn check_warns_of_flash_files_that_do_not_fit() {
    let mut fixture = Fixture::with_volume(MIB);
    let Some(disk) = SmallDisk::mount(&fixture.folder.join("small")) else { return };
    let folder = disk.path().display();
    fixture.tables = format!("[flash]\ndevices = [\"{folder}/f0\", \"{folder}/f1\"]\nsize = \"1 GiB\"\n");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let checked = hotset(&["check-config", &fixture.config().display().to_string()]);
    let text = text_of(&checked);
    assert!(checked.status.success(), "a warning is no error: {text}");
    let expected = format!(
        "warning: [flash]: the daemon cannot create {folder}/f0 and {folder}/f1: 2 GiB are needed, and the file system \
         has 1 MiB free"
    );
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn check_lists_files_to_be_created_and_wrong_sizes() {
    let mut fixture = Fixture::new();
    fixture.add_volume("a", MIB, "size = \"2 MiB\"");
    fixture.tables =
        format!("[flash]\ndevices = [\"{0}/f0\", \"{0}/f1\"]\nsize = \"1 GiB\"\n", fixture.folder.path().display());
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let checked = hotset(&["check-config", &fixture.config().display().to_string()]);
    let text = text_of(&checked);
    assert!(checked.status.success(), "{text}");
    for expected in
        ["the daemon will create the file", "f1 of 1 GiB", "volume a: size is 2 MiB, but", "/state does not exist"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
