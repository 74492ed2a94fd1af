//! What waits takes no more memory than is counted. In a process of its own, because all of it is measured.

#[expect(dead_code, reason = "this test says little")]
#[path = "../simulated/client.rs"]
mod client;
#[expect(dead_code, reason = "this test says little")]
#[path = "../simulated/setting.rs"]
mod setting;

use std::alloc::System;

use cap::Cap;
use iscsi::Options;
use seam::{Nanos, Seam};

use crate::client::{Client, Manner, counted, write_cdb};
use crate::setting::with_server;

#[global_allocator]
static COUNTING: Cap<System> = Cap::new(System, usize::MAX);

#[test]
fn writes_of_which_a_little_was_not_taken_hold_little() {
    let options = Options { payload_bytes_max: 1 << 20, ..Options::default() };
    with_server(1, options, async |seam, server, _| {
        let text = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0";
        let mut client = Client::ready(&seam, &Manner { text, ..Manner::default() }).await;
        let (data, before) = (counted(1, 2048), COUNTING.allocated());
        for _ in 0..32 {
            // Its unit takes parts that end at multiples of 256 KiB: 8 KiB of what comes unasked are left.
            client.begin(&write_cdb(16, 2048), 0, &data).await;
            seam.sleep(Nanos::from_millis(50)).await;
        }
        let (held, under_way) = (COUNTING.allocated().saturating_sub(before), server.sessions()[0].under_way);
        assert!(under_way > 20, "only {under_way} writes wait");
        assert!(held <= 3 << 20, "{held} bytes are held for {under_way} writes that may hold one MiB together");
    });
}
