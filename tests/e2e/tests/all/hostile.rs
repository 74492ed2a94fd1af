//! Clients that stall, disconnect or send garbage affect no other client.

use std::io::Write;
use std::os::unix::net::UnixStream;

use e2e::client::{Client, Op};
use e2e::fixture::Fixture;
use e2e::random::Random;

const MIB: u64 = 1 << 20;
/// Header of a write of 1 MiB at offset 0.
const WRITE_HEADER: &[u8] = b"\x25\x60\x95\x13\0\0\0\x01cookie!!\0\0\0\0\0\0\0\0\0\x10\0\0";

#[test]
fn two_hundred_stalled_clients_do_not_affect_a_healthy_one() {
    let fixture = Fixture::with_volume(32 * MIB);
    let daemon = fixture.start();
    let mut stalled = Vec::new();
    for number in 0..200 {
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the daemon accepts 200 connections");
        match number % 4 {
            0 => client.send_raw(&WRITE_HEADER[..13]),
            1 => client.send_raw(&[WRITE_HEADER, &[9; 300_000]].concat()),
            2 => client.send_raw(WRITE_HEADER),
            // Replies that the client requests and never reads.
            _ => (0..8).try_for_each(|_| client.send(Op::Read, 0, 0, 1 << 20, &[]).map(drop)),
        }
        .expect("the daemon reads the bytes");
        stalled.push(client);
    }
    let mut healthy = Client::connect(&fixture.endpoint(), "v").expect("the daemon accepts one more connection");
    for number in 0..500u64 {
        let offset = 8 * MIB + number * 4096;
        healthy.write(offset, &[number as u8; 4096]).expect("the write succeeds");
        assert_eq!(healthy.read(offset, 4096).expect("the read succeeds"), [number as u8; 4096]);
    }
    healthy.flush().expect("the flush succeeds");
    // Of a write whose data arrived in part, each block is old or new, and no byte past the data sent has changed.
    let blocks = healthy.read(0, 1 << 20).expect("the read succeeds");
    let is_whole = |block: &[u8]| block.iter().all(|&byte| byte == block[0]) && matches!(block[0], 0 | 9);
    assert!(blocks.chunks(4096).all(is_whole));
    assert!(blocks[300_000..].iter().all(|&byte| byte == 0));
    drop(stalled);
    healthy.write(0, &[1; 512]).expect("the write succeeds");
    drop(healthy);
    daemon.stop();
}

#[test]
fn garbage_ends_at_most_its_own_connection() {
    let fixture = Fixture::with_volume(4 * MIB);
    let mut daemon = fixture.start();
    let mut random = Random::new(11);
    let mut healthy = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for number in 0..200 {
        let mut noise: Vec<u8> = (0..random.below(4000)).map(|_| random.draw() as u8).collect();
        if number % 2 == 0 {
            let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
            if number % 4 == 0 {
                // The magic of a request.
                noise.splice(..0, [0x25, 0x60, 0x95, 0x13]);
            }
            // The daemon may have closed the connection at the first bytes.
            let _ = client.send_raw(&noise);
        } else {
            let mut stream = UnixStream::connect(fixture.socket()).expect("the daemon listens");
            let _ = stream.write_all(&noise);
        }
    }
    assert_eq!(healthy.read(0, 512).expect("the read succeeds").len(), 512);
    assert!(daemon.is_running());
    daemon.stop();
}
