//! As `refusals.rs`, for volumes on images of a real Ceph cluster.

use std::time::Duration;

use e2e::ceph::cluster;
use e2e::daemon::{wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::refusal::page::Entry;
use e2e::refusal::{run_proposed_command, show, volume_refusal};

use super::rbd_losses::add_flash;
use super::rbd_owners::{write_dirty_block, write_elsewhere};
use super::refusals::{ADOPT, GIVE_UP, destage};

const TAKE_OVER: &str = "hotset fleet take-over NAME --give-up DATA";

#[test]
fn image_that_another_client_has_owned_is_refused_as_documented() {
    let Some(cluster) = cluster("a refusal of an image that another client has owned") else { return };
    let written = |name: &str| {
        let mut fixture = Fixture::new();
        fixture.add_volume_on("v", &cluster.create_image(name, 8), "");
        add_flash(&mut fixture);
        let daemon = fixture.start();
        write_dirty_block(&mut fixture.connect("v"));
        daemon.kill();
        wait_for("the release of the lock", || cluster.lock_owner(name).is_none().then_some(()));
        write_elsewhere(cluster, name);
        (fixture, cluster.export(name))
    };
    let (fixture, content) = written("refused");
    let daemon = fixture.start();
    let mut entry = Entry::new(
        "owner-changed",
        "there is dirty data for an RBD image that another client may have written since",
        "the dirty data is older, and would overwrite those writes",
    );
    let message = volume_refusal(&fixture, &daemon, "owner-changed");
    entry.message("", &message);
    entry.choice(GIVE_UP, "the dirty data; the backing stays unchanged", || {
        run_proposed_command(&daemon, &message, GIVE_UP);
        destage(daemon);
        assert!(cluster.export("refused") == content, "the dirty data is discarded");
    });
    entry.choice(ADOPT, "none if no other client has written; otherwise blocks that it has written", || {
        let (fixture, content) = written("accepted");
        let daemon = fixture.start();
        run_proposed_command(&daemon, &volume_refusal(&fixture, &daemon, "owner-changed"), ADOPT);
        destage(daemon);
        assert!(cluster.export("accepted") != content, "the dirty data is written");
    });
    entry.check();
}

#[test]
fn image_that_lacks_data_of_another_host_is_refused_as_documented() {
    let Some(cluster) = cluster("a refusal of an image that lacks data of another host") else { return };
    let hosts = |name: &str| {
        let image = cluster.create_image(name, 8);
        let [first, second] = [(), ()].map(|()| {
            let mut fixture = Fixture::new();
            fixture.add_volume_on("v", &image, "take_over = \"automatic\"\ntake_over_after = \"30s\"");
            add_flash(&mut fixture);
            fixture
        });
        let daemon = first.start();
        write_dirty_block(&mut first.connect("v"));
        daemon.kill();
        wait_for("the release of the lock", || cluster.lock_owner(name).is_none().then_some(()));
        let other = second.start();
        let refused = || (show(&other, "v")["refusal"] == "undestaged-elsewhere").then_some(());
        wait_at_most(Duration::from_secs(90), "the refusal after the margin", refused);
        (first, second, other)
    };
    let (first, second, other) = hosts("host");
    let mut entry = Entry::new(
        "undestaged-elsewhere",
        "the RBD image lacks flushed data that may be in the flash log of another host",
        "older content would be served, and that data could not be added later",
    );
    let message = volume_refusal(&second, &other, "undestaged-elsewhere");
    entry.message("", &message);
    entry.choice("`hotset fleet move NAME` on that host", "none", || {
        let daemon = first.start();
        daemon.command(&["fleet", "move", "v"]);
        daemon.stop();
        wait_for("the volume", || (show(&other, "v")["state"] == "active").then_some(()));
        other.stop();
    });
    entry.choice(TAKE_OVER, "that data", || {
        let (_first, second, daemon) = hosts("gone");
        run_proposed_command(&daemon, &volume_refusal(&second, &daemon, "undestaged-elsewhere"), TAKE_OVER);
        assert!(cluster.export("gone")[..4096] != [0xdd; 4096]);
        destage(daemon);
    });
    entry.check();
}
