//! What does not answer stops nothing but itself.

use e2e::held;
use e2e::site::Site;

#[test]
fn a_second_signal_ends_a_daemon_whose_control_thread_stands_still() {
    let site = Site::with_volume(16 << 20);
    let mut daemon = site.start();
    let Some(held) = held::control(&daemon) else { return };
    daemon.signal("TERM");
    daemon.signal("INT");
    let status = daemon.wait();
    drop(held);
    assert_eq!(status.code(), Some(1), "{status}");
    assert!(daemon.log().contains(" again: ending at once; what was acknowledged waits"), "{}", daemon.log());
}
