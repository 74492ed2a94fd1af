//! Volumes on images of a real Ceph cluster: content, zeroes, growth, one owner.

use e2e::ceph::cluster;
use e2e::client::Op;
use e2e::daemon::text_of;
use e2e::fixture::Fixture;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn block(number: u8) -> Vec<u8> {
    vec![number; BLOCK]
}

fn allocated_bytes(diff: &str) -> u64 {
    let extents: Value = serde_json::from_str(diff).expect("valid JSON");
    let extents = extents.as_array().expect("a list").iter();
    extents.filter(|extent| extent["exists"] == "true").map(|extent| extent["length"].as_u64().expect("a number")).sum()
}

#[test]
fn flushed_write_through_data_is_in_the_image() {
    let Some(cluster) = cluster("write-through on RBD") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("through", 16), "policy = \"write-through\"");
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    assert_eq!(client.size, 16 * MIB);
    for number in 1..=64 {
        client.write(u64::from(number) * 37 * BLOCK as u64, &block(number)).expect("the write succeeds");
    }
    // A part of a block, and a request over the border of two objects.
    client.write(8 * MIB + 512, &[77; 512]).expect("the write succeeds");
    client.write(12 * MIB - BLOCK as u64, &[78; 2 * BLOCK]).expect("the write succeeds");
    client.flush().expect("the flush succeeds");
    let image = cluster.export("through");
    assert_eq!(image, client.read_all().expect("the volume is read"));
    assert_eq!((image[37 * BLOCK], image[(8 * MIB) as usize + 512], image[12 * MIB as usize]), (1, 77, 78));
    drop(client);
    daemon.stop();
    assert_eq!(cluster.lock_owner("through"), None, "a stop releases the lock");
}

#[test]
fn write_back_data_is_in_the_image_after_a_stop() {
    let Some(cluster) = cluster("write-back on RBD") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("back", 16), "");
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    for number in 1..=200u8 {
        client.write(u64::from(number) * 17 * BLOCK as u64, &block(number)).expect("the write succeeds");
    }
    let content = client.read_all().expect("the volume is read");
    drop(client);
    daemon.stop();
    assert!(cluster.export("back") == content, "the image has all writes");
    let daemon = fixture.start();
    assert!(fixture.connect("v").read_all().expect("the volume is read") == content);
    daemon.stop();
}

#[test]
fn discarded_objects_are_released_and_growth_is_seen() {
    let Some(cluster) = cluster("discard and growth on RBD") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("sparse", 32), "");
    let daemon = fixture.start();
    let mut client = fixture.connect("v");
    for number in 0..16 {
        client.write(number * MIB, &vec![9; MIB as usize]).expect("the write succeeds");
    }
    client.flush().expect("the flush succeeds");
    assert_eq!(allocated_bytes(&cluster.rbd("diff --whole-object --format json rbd/sparse").ok()), 16 * MIB);
    let map = e2e::tool::tool("nbdinfo").arg("--map").arg(fixture.uri("v")).ok();
    assert!(map.lines().last().is_some_and(|line| line.contains("hole,zero")), "{map}");
    client.call(Op::Trim, 0, 4 * MIB, 8 * MIB as usize, &[]).expect("the discard succeeds");
    client.call(Op::WriteZeroes, 0, 13 * MIB, MIB as usize, &[]).expect("the zeroes are written");
    client.flush().expect("the flush succeeds");
    assert_eq!(allocated_bytes(&cluster.rbd("diff --whole-object --format json rbd/sparse").ok()), 8 * MIB);
    let image = cluster.export("sparse");
    let expected = |mib: u64| if (4..12).contains(&mib) || mib == 13 || mib >= 16 { 0 } else { 9 };
    assert!(
        (0..32).all(|mib| image[(mib * MIB) as usize..((mib + 1) * MIB) as usize]
            .iter()
            .all(|byte| *byte == expected(mib)))
    );

    cluster.rbd("resize --no-progress --size 48M rbd/sparse").ok();
    daemon.command(&["volume", "resize", "v"]);
    drop(client);
    let mut client = fixture.connect("v");
    assert_eq!(client.size, 48 * MIB);
    client.write(47 * MIB, &block(5)).and_then(|()| client.flush()).expect("the new end can be written");
    assert_eq!(cluster.export("sparse")[47 * MIB as usize], 5);
    drop(client);
    daemon.stop();
}

#[test]
fn second_daemon_is_refused_with_the_name_of_the_owner() {
    let Some(cluster) = cluster("two daemons on an image of RBD") else { return };
    let image = cluster.create_image("owned", 8);
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &image, "");
    fixture.tables = "[fleet]\nhost = \"alpha\"\n".to_owned();
    let daemon = fixture.start();
    let owner = cluster.lock_owner("owned").expect("the daemon has the lock");
    let other_fixture = Fixture::with_volume(MIB);
    let other = other_fixture.start();
    let output = other.try_command(&["volume", "add", "second", "--backing", &image]);
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("host alpha owns its image"), "{text}");
    assert_eq!(cluster.lock_owner("owned"), Some(owner), "the first daemon keeps the lock");
    // A client that takes the lock by itself, as QEMU does, cannot write either.
    cluster.rbd("bench --io-type write --io-size 4K --io-total 4K rbd/owned").fails();
    let mut client = fixture.connect("v");
    client.write(0, &block(3)).and_then(|()| client.flush()).expect("the owner still writes");
    drop(client);
    daemon.command(&["volume", "remove", "v"]);
    assert_eq!(cluster.lock_owner("owned"), None, "a refused client does not hinder the release");
    other.command(&["volume", "add", "second", "--backing", &image]);
    assert_eq!(other_fixture.connect("second").read(0, BLOCK).expect("the read succeeds"), block(3));
    other.stop();
    daemon.stop();
}

#[test]
fn image_created_anew_under_the_same_name_is_refused() {
    let Some(cluster) = cluster("another image of the same name") else { return };
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &cluster.create_image("renewed", 8), "");
    let daemon = fixture.start();
    fixture.connect("v").write(0, &block(1)).expect("the write succeeds");
    daemon.stop();
    cluster.rbd("rm --no-progress rbd/renewed").ok();
    cluster.create_image("renewed", 8);
    let daemon = fixture.start();
    let shown: Value = serde_json::from_str(&daemon.command(&["volume", "show", "v", "--json"])).expect("valid JSON");
    assert_eq!(shown["state"], "refused", "{shown}");
    daemon.command(&["volume", "adopt", "v"]);
    assert_eq!(fixture.connect("v").read(0, BLOCK).expect("it is served"), block(0), "the data of the former image");
    daemon.stop();
}
