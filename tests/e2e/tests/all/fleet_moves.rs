//! Many hand-overs of a volume between two hosts under load: no acknowledged write is lost, and the wait of the first
//! write on the next host is printed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::ceph::cluster;
use e2e::daemon::{Daemon, wait_for};
use e2e::numbered::{BLOCK, Numbered, content};
use e2e::sizes::size;

use super::fleet::is_state;
use super::fleet_link::{connect_standby, linked_hosts};
use super::rbd_losses::{helper_of, signal};

/// Hand-overs of a run; `HOTSET_MOVES` replaces the number.
const MOVES: u64 = 4;
/// Blocks that the load writes to.
const BLOCKS: usize = 512;
/// Time of the load before each hand-over.
const LOAD: Duration = Duration::from_millis(500);

#[test]
fn volume_changes_hosts_under_load_without_a_lost_write() {
    let Some(cluster) = cluster("hand-overs under load") else { return };
    let moves = size("HOTSET_MOVES", MOVES);
    let fixtures: [_; 2] = linked_hosts(&cluster.create_image("fleet-moves", 64));
    let daemons = [fixtures[0].start(), fixtures[1].start()];
    let (mut numbered, mut waits) = (Numbered::new(BLOCKS), Vec::new());
    for number in 0..moves {
        let from = usize::from(number % 2 == 1);
        let to = 1 - from;
        let (mut source, mut target) = (fixtures[from].connect("v"), connect_standby(&fixtures[to]));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    numbered.write(&mut source).and_then(|()| source.flush()).expect("the owner serves");
                }
            });
            std::thread::sleep(LOAD);
            // As when a virtual machine stops at its source.
            is_over.store(true, Ordering::Relaxed);
        });
        let began_at = Instant::now();
        numbered.write(&mut target).expect("the first write waits for the ownership");
        waits.push(began_at.elapsed());
        assert!(is_state(&daemons[to], "active").is_some(), "move {number}");
        assert_eq!(numbered.check_all(&mut target).expect("it is served"), Vec::<String>::new(), "move {number}");
        target.flush().expect("it is served");
        wait_for("the former owner", || is_state(&daemons[from], "standby"));
    }
    waits.sort_unstable();
    let of_rank = |rank: usize| waits[(waits.len() * rank / 100).min(waits.len() - 1)].as_millis();
    println!(
        "{moves} hand-overs, {} flushed writes: the first write waited {} ms (median), {} ms (p99), {} ms (max)",
        numbered.count(),
        of_rank(50),
        of_rank(99),
        of_rank(100)
    );
    daemons.into_iter().for_each(Daemon::stop);
}

/// A helper that is started again goes on with the ownership that the other hosts know.
#[test]
fn volume_is_handed_over_after_a_crash_of_its_helper() {
    let Some(cluster) = cluster("a hand-over after a crash of a helper") else { return };
    let fixtures: [_; 2] = linked_hosts(&cluster.create_image("fleet-crashed-helper", 8));
    let [first, second] = [fixtures[0].start(), fixtures[1].start()];
    let mut source = fixtures[0].connect("v");
    source.write(0, &content(1, 1)).and_then(|()| source.flush()).expect("the owner serves");
    let helper = helper_of(&first);
    signal(helper, "KILL");
    source.write(BLOCK as u64, &content(2, 2)).and_then(|()| source.flush()).expect("the log takes it");
    wait_for("another process", || (helper_of(&first) != helper).then_some(()));
    // The other host looks at the owner's record every second.
    std::thread::sleep(Duration::from_secs(3));
    let mut target = connect_standby(&fixtures[1]);
    assert!(target.read(0, BLOCK).expect("reads are forwarded") == content(1, 1));
    target.write(0, &content(3, 3)).expect("the first write waits for the ownership");
    assert!(is_state(&second, "active").is_some() && is_state(&first, "standby").is_some());
    assert!(target.read(BLOCK as u64, BLOCK).expect("it is served") == content(2, 2));
    // The process that has claimed the image crashes, too.
    let helper = helper_of(&second);
    signal(helper, "KILL");
    target.flush().expect("the log takes it");
    wait_for("another process", || (helper_of(&second) != helper).then_some(()));
    assert!(target.read(0, BLOCK).expect("it is served") == content(3, 3));
    let mut back = connect_standby(&fixtures[0]);
    back.write(0, &content(4, 4)).expect("the first write waits for the ownership");
    assert!(is_state(&first, "active").is_some());
    second.stop();
    first.stop();
}
