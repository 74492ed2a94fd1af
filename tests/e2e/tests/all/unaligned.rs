//! Unaligned requests of NBD clients that negotiate no block size, and long reads without structured replies.

use std::io::Write;

use e2e::client::{Client, FUA, Op};
use e2e::fixture::Fixture;
use e2e::loop_device::LoopDevice;
use e2e::random::Random;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 48 * MIB;

/// A fixture with a volume `v` on a loop device with this sector size. Prints `SKIPPED` and returns `None` if no device
/// can be created.
fn fixture_on(sector_bytes: u32) -> Option<(Fixture, LoopDevice)> {
    let mut fixture = Fixture::new();
    // Memory is smaller than the volume, so blocks are evicted and read again from the device.
    fixture.memory = "20 MiB".to_owned();
    match LoopDevice::attach(&fixture.folder.join("device.img"), VOLUME_BYTES, sector_bytes) {
        Ok(device) => {
            fixture.add_volume_on("v", &device.path().to_string_lossy(), "");
            Some((fixture, device))
        }
        Err(reason) => {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: unaligned requests on {sector_bytes}-byte sectors: no loop device can be made ({reason})"
            );
            None
        }
    }
}

/// Sends random requests of any offset and length, compares with an array, and restarts in between.
fn check_against_array(fixture: &Fixture) {
    let mut random = Random::new(24);
    let mut array = vec![0; VOLUME_BYTES as usize];
    for _ in 0..2 {
        let daemon = fixture.start();
        let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        assert!(client.read(0, array.len()).expect("the read succeeds") == array, "the whole volume after a start");
        for number in 0..600 {
            let len_max = if number % 40 == 0 { 2 * MIB } else { 9000 };
            let len = 1 + random.below(len_max) as usize;
            let offset = random.below(VOLUME_BYTES - len as u64 + 1) as usize;
            let (range, flags) = (offset..offset + len, if random.below(8) == 0 { FUA } else { 0 });
            let result = match random.below(4) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
                    array[range].copy_from_slice(&data);
                    client.call(Op::Write, flags, offset as u64, len, &data)
                }
                2 => {
                    array[range].fill(0);
                    client.call(Op::WriteZeroes, flags, offset as u64, len, &[])
                }
                _ => {
                    // Whole sectors are trimmed to zeroes; parts of sectors stay.
                    let (first, last) = (offset.next_multiple_of(512), (offset + len) / 512 * 512);
                    array[first.min(last)..last].fill(0);
                    client.call(Op::Trim, flags, offset as u64, len, &[])
                }
            };
            result.unwrap_or_else(|error| panic!("request {number}, {offset}+{len}: {error}"));
            let len = 1 + random.below(9000) as usize;
            let offset = random.below(VOLUME_BYTES - len as u64 + 1) as usize;
            let read = client.read(offset as u64, len).expect("the read succeeds");
            assert!(read == array[offset..offset + len], "{offset}+{len} after request {number}");
        }
        drop(client);
        daemon.stop();
    }
}

#[test]
fn unaligned_requests_on_512_byte_sectors_match_a_byte_array() {
    if let Some((fixture, _device)) = fixture_on(512) {
        check_against_array(&fixture);
    }
}

#[test]
fn unaligned_requests_on_4096_byte_sectors_match_a_byte_array() {
    if let Some((fixture, _device)) = fixture_on(4096) {
        check_against_array(&fixture);
    }
}

#[test]
fn concurrent_partial_sector_writes_lose_no_byte() {
    const CLIENTS: u64 = 4;
    let mut fixture = Fixture::new();
    fixture.add_volume("v", 4 * MIB, "policy = \"write-through\"");
    let daemon = fixture.start();
    // Each client has its own hundred bytes of each sector.
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let endpoint = fixture.endpoint();
            scope.spawn(move || {
                let mut client = Client::connect(&endpoint, "v").expect("the volume is served");
                for round in 1..=40 {
                    for sector in 0..32 {
                        let offset = sector * 512 + number * 128 + 14;
                        client.send(Op::Write, 0, offset, 100, &[round; 100]).expect("the request is sent");
                    }
                    for _ in 0..32 {
                        assert_eq!(client.receive().expect("an answer").error, 0);
                    }
                    for sector in 0..32 {
                        let offset = sector * 512 + number * 128 + 14;
                        assert_eq!(
                            client.read(offset, 100).expect("the read succeeds"),
                            [round; 100],
                            "sector {sector}"
                        );
                    }
                }
            });
        }
    });
    let image =
        Client::connect(&fixture.endpoint(), "v").and_then(|mut client| client.read_all()).expect("the read succeeds");
    for slot in image[..32 * 512].chunks(128) {
        assert!(slot[..14] == [0; 14] && slot[14..114] == [40; 100] && slot[114..] == [0; 14], "{slot:?}");
    }
    daemon.stop();
}

#[test]
fn long_simple_reads_stay_inside_the_memory_bound() {
    let mut fixture = Fixture::with_volume(96 * MIB);
    fixture.memory = "20 MiB".to_owned();
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for offset in (0..96).map(|index| index * MIB) {
        client.write(offset, &[(offset / MIB) as u8 + 1; 4096]).expect("the write succeeds");
    }
    let lengths = [1_048_590, 17_000_000, 32 * MIB as usize, 64 * MIB as usize];
    for (len, offset) in lengths.into_iter().flat_map(|len| [(len, 0), (len, 1), (len, 30 * MIB)]) {
        let data =
            client.read(offset, len).unwrap_or_else(|error| panic!("a read of {len} bytes at {offset}: {error}"));
        let first = offset.next_multiple_of(MIB);
        for pattern_start in (first..offset + len as u64 - 4096).step_by(MIB as usize) {
            let start = (pattern_start - offset) as usize;
            assert!(
                data[start..start + 4096] == [(pattern_start / MIB) as u8 + 1; 4096],
                "{len} at {offset}: {pattern_start}"
            );
        }
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("the daemon runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel reports the value");
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    assert!(peak_kib <= (20 + 64) * 1024, "{peak_kib} KiB for 20 MiB of memory");
    daemon.stop();
}
