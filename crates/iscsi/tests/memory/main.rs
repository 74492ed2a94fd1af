//! Commands in flight hold no more memory than their accounting allows. A separate test binary, because the allocator
//! counts all allocations of the process.

#[expect(dead_code, reason = "this test uses a part of the client")]
#[path = "../simulated/client.rs"]
mod client;
#[expect(dead_code, reason = "this test uses a part of the fixture")]
#[path = "../simulated/fixture.rs"]
mod fixture;

use std::alloc::System;

use cap::Cap;
use iscsi::Options;
use seam::{Nanos, Seam};

use crate::client::{Client, LoginSpec, numbered_sectors, write_cdb};
use crate::fixture::with_server;

#[global_allocator]
static COUNTING: Cap<System> = Cap::new(System, usize::MAX);

#[test]
fn writes_with_a_small_remainder_hold_little_memory() {
    let options = Options { payload_bytes_max: 1 << 20, ..Options::default() };
    with_server(1, options, async |seam, server, _| {
        let text = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0";
        let mut client = Client::ready(&seam, &LoginSpec { text, ..LoginSpec::default() }).await;
        let (data, before) = (numbered_sectors(1, 2048), COUNTING.allocated());
        for _ in 0..32 {
            // The LUN processes data in parts aligned to 256 KiB, so 8 KiB of the unsolicited data stay buffered.
            client.begin(&write_cdb(16, 2048), 0, &data).await;
            seam.sleep(Nanos::from_millis(50)).await;
        }
        let (held, in_flight) = (COUNTING.allocated().saturating_sub(before), server.sessions()[0].commands_in_flight);
        assert!(in_flight > 20, "only {in_flight} writes wait");
        assert!(held <= 3 << 20, "{held} bytes are held for {in_flight} writes with a limit of 1 MiB in total");
    });
}
