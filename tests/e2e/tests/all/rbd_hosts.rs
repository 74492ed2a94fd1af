//! Two hosts, each with a daemon and a state directory of its own, and one image of a real Ceph cluster.

use std::time::Duration;

use e2e::ceph::{Cluster, cluster};
use e2e::daemon::{Daemon, text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::tool::tool;

use super::rbd_losses::{add_flash, helper_of, json, lose_power, signal};
use super::rbd_owners::write_dirty_block;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Time after which Ceph ends the watch of a dead client, the margin of the take-over, the daemon's longest pause
/// between two attempts, and a reserve.
const TAKE_OVER_MAX: Duration = Duration::from_secs(120);

/// A host with volume `v` on the image, with a flash log. It takes over by itself.
fn host(image: &str, lines: &str) -> Fixture {
    let mut fixture = Fixture::new();
    let automatic = "take_over = \"automatic\"\ntake_over_after = \"30s\"";
    fixture.add_volume_on("v", image, &format!("{lines}\n{automatic}"));
    add_flash(&mut fixture);
    fixture
}

fn refusal_of(daemon: &Daemon) -> String {
    json(daemon, &["volume", "show", "v"])["refusal"].as_str().unwrap_or_default().to_owned()
}

fn shown(daemon: &Daemon) -> String {
    json(daemon, &["volume", "show", "v"]).to_string()
}

fn is_served(daemon: &Daemon) -> Option<()> {
    (json(daemon, &["volume", "show", "v"])["state"] == "active").then_some(())
}

fn has_mark(cluster: &Cluster, name: &str) -> bool {
    cluster.rbd(&format!("image-meta list rbd/{name}")).ok().contains("hotset.undestaged")
}

#[test]
fn data_in_the_log_of_a_dead_host_keeps_other_hosts_off_the_image() {
    let Some(cluster) = cluster("a second host after the death of one with dirty data") else { return };
    let image = cluster.create_image("held", 8);
    let (first, second) = (host(&image, ""), host(&image, ""));
    let daemon = first.start();
    assert!(has_mark(cluster, "held"), "the log may answer flushes from now on");
    write_dirty_block(&mut first.connect("v"));
    lose_power(daemon);
    let content = cluster.export("held");
    assert_ne!(content[..BLOCK], [0xdd; BLOCK], "the log alone has the block");

    let other = second.start();
    let refused = || (refusal_of(&other) == "undestaged-elsewhere").then_some(());
    wait_at_most(TAKE_OVER_MAX, "the refusal, once the dead client is known to be dead", refused);
    assert!(cluster.export("held") == content);

    // The first host comes back, goes on with its ownership, and gives it up.
    let daemon = first.start();
    wait_at_most(TAKE_OVER_MAX, "the first host", || is_served(&daemon));
    let mut client = first.connect("v");
    assert_eq!(client.read(0, BLOCK).expect("it is served"), [0xdd; BLOCK]);
    assert!(client.flush().is_err(), "unflushed writes may be lost");
    write_dirty_block(&mut client);
    drop(client);
    daemon.stop();
    assert!(has_mark(cluster, "held"), "a stop leaves dirty data in the log");
    wait_at_most(TAKE_OVER_MAX, "the refusal", || {
        assert!(is_served(&other).is_none());
        refused()
    });
    let daemon = first.start();
    wait_at_most(TAKE_OVER_MAX, "the first host", || is_served(&daemon));
    daemon.command(&["stop", "--destage"]);
    wait_at_most(TAKE_OVER_MAX, "the second host", || is_served(&other));
    assert_eq!(second.connect("v").read(0, BLOCK).expect("it is served"), [0xdd; BLOCK]);
    other.stop();
}

#[test]
#[ignore = "long: two minutes"]
fn write_through_volume_of_a_dead_host_is_served_by_another() {
    let Some(cluster) = cluster("a second host after the death of one without dirty data") else { return };
    let image = cluster.create_image("through-host", 8);
    let (first, second) = (host(&image, ""), host(&image, "policy = \"write-through\""));
    let daemon = first.start();
    write_dirty_block(&mut first.connect("v"));
    // The change of the policy destages the block, and the image needs no mark any more.
    daemon.command(&["volume", "set", "v", "policy=write-through"]);
    assert!(!has_mark(cluster, "through-host"));
    let mut client = first.connect("v");
    client.write(BLOCK as u64, &[0xcc; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    drop(client);
    let other = second.start();
    assert!(is_served(&other).is_none(), "the first host owns the image");
    lose_power(daemon);
    wait_at_most(TAKE_OVER_MAX, "the second host", || is_served(&other));
    let content = second.connect("v").read(0, 2 * BLOCK).expect("it is served");
    assert_eq!((&content[..BLOCK], &content[BLOCK..]), (&[0xdd; BLOCK][..], &[0xcc; BLOCK][..]));
    assert!(!has_mark(cluster, "through-host"));
    other.command(&["volume", "set", "v", "policy=write-back"]);
    assert!(has_mark(cluster, "through-host"), "before the log answers flushes");
    other.stop();
}

#[test]
#[ignore = "long: a minute"]
fn image_of_a_lost_host_is_served_without_its_data_by_command_alone() {
    let Some(cluster) = cluster("the adoption of an image of a lost host") else { return };
    let image = cluster.create_image("abandoned", 8);
    let (first, second) = (host(&image, ""), host(&image, ""));
    let daemon = first.start();
    write_dirty_block(&mut first.connect("v"));
    daemon.kill();
    wait_for("the release of the lock", || cluster.lock_owner("abandoned").is_none().then_some(()));
    let content = cluster.export("abandoned");
    let other = second.start();
    let refused = || (refusal_of(&other) == "undestaged-elsewhere").then_some(());
    wait_at_most(TAKE_OVER_MAX, "the refusal, after the margin", refused);
    let text = text_of(&other.try_command(&["volume", "add", "w", "--backing", &image]));
    assert!(text.contains("owns its image"), "{text}");
    assert_eq!(cluster.lock_owner("abandoned"), None, "a refused image is left as it is");
    assert!(!other.try_command(&["volume", "adopt", "v"]).status.success(), "the data has to be named");
    let data = shown(&other).split("--give-up ").nth(1).expect("the text has the choice")[..16].to_owned();
    other.command(&["volume", "adopt", "v", "--give-up", &data]);
    assert!(second.connect("v").read_all().expect("it is served") == content);
    other.command(&["stop", "--destage"]);
    assert!(!has_mark(cluster, "abandoned"));

    // The first host was not lost: its data is refused, and nothing is overwritten.
    let daemon = first.start();
    let refused = || (refusal_of(&daemon) == "owner-changed").then_some(());
    wait_at_most(TAKE_OVER_MAX, "the refusal, after the margin", refused);
    assert!(cluster.export("abandoned") == content);
    daemon.stop();
}

#[test]
fn clone_of_a_marked_image_is_served() {
    let Some(cluster) = cluster("a clone of an image with dirty data") else { return };
    let image = cluster.create_image("master", 8);
    let first = host(&image, "");
    let daemon = first.start();
    cluster.rbd("snap create --no-progress rbd/master@s").ok();
    cluster.rbd("clone --rbd-default-clone-format 2 rbd/master@s rbd/copy").ok();
    assert!(has_mark(cluster, "copy"), "a clone has the metadata of its master");
    let address = format!("rbd:rbd/copy?ceph_conf={}", cluster.conf().display());
    daemon.command(&["volume", "add", "copy", "--backing", &address]);
    let mut client = first.connect("copy");
    client.write(0, &[1; BLOCK]).and_then(|()| client.flush()).expect("the volume works");
    drop(client);
    daemon.stop();
}

#[test]
fn mark_that_is_removed_while_its_host_serves_comes_back() {
    let Some(cluster) = cluster("the removal of a mark of a living host") else { return };
    let image = cluster.create_image("unmarked", 8);
    let first = host(&image, "");
    let daemon = first.start();
    for disturb in [false, true] {
        cluster.rbd("image-meta rm rbd/unmarked hotset.undestaged").ok();
        if disturb {
            signal(helper_of(&daemon), "KILL");
            // `rbd` would count as a client that could have had the lock while the next helper acquires it.
            first.connect("v").write(0, &[1; BLOCK]).expect("it waits for the next helper");
            first.connect("v").flush().expect("the log takes it");
            first.connect("v").read(MIB, BLOCK).expect("it waits for the next helper");
        }
        wait_for("the mark", || has_mark(cluster, "unmarked").then_some(()));
    }
    daemon.command(&["stop", "--destage"]);
    assert!(!has_mark(cluster, "unmarked"));
}

#[test]
fn moved_state_directory_goes_on_with_its_data() {
    let Some(cluster) = cluster("a moved state directory with dirty data of an image") else { return };
    let image = cluster.create_image("moved", 8);
    let first = host(&image, "");
    let daemon = first.start();
    write_dirty_block(&mut first.connect("v"));
    daemon.stop();
    assert!(has_mark(cluster, "moved"), "a stop leaves dirty data in the log");
    // A copy that replaces the original has other inodes.
    let state = first.folder.join("state");
    let copy = state.with_extension("copy");
    tool("cp").arg("-a").arg(&state).arg(&copy).ok();
    std::fs::remove_dir_all(&state).and_then(|()| std::fs::rename(&copy, &state)).expect("it can be replaced");
    let daemon = first.start();
    wait_at_most(TAKE_OVER_MAX, "the volume", || is_served(&daemon));
    assert_eq!(first.connect("v").read(0, BLOCK).expect("it is served"), [0xdd; BLOCK]);
    daemon.stop();
}
