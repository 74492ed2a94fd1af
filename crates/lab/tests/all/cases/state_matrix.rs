//! State matrix: absent, clean or dirty neighbouring blocks × starts and ends × policies, checked against a list of
//! tags. Actions run one after the other, and with racing eviction, discard and destage.

use engine::{ByteOffset, WriteFlags, WritePolicy};
use lab::fixture::{Fixture, durable_tags, out_of_order_disk, read, write};
use lab::random::Random;
use seam::Seam;
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 3;
const SECTORS: u64 = BLOCKS * 8;

/// Action on the prepared blocks.
#[derive(Clone, Copy, Debug)]
enum Action {
    Write,
    Discard,
    Read,
}

/// Prepares blocks in the states given by `states` (in base 3: absent, clean, dirty), acts on `first..end`, and checks
/// the content.
fn check(fixture: &Fixture, name: &str, policy: WritePolicy, states: u64, action: Action, range: (u64, u64)) {
    let disk = fixture.add_disk(name, SimDiskSpec::new(64 << 10));
    let volume = fixture.attach(name, |spec| spec.policy = policy).unwrap();
    let mut expected = vec![1; SECTORS as usize];
    fixture.world.block_on(write(&volume, 0, SECTORS, 1)).unwrap();
    fixture.world.block_on(volume.destage_all()).unwrap();
    volume.invalidate();
    for block in 0..BLOCKS {
        match states / 3_u64.pow(block as u32) % 3 {
            0 => {}
            1 => drop(fixture.world.block_on(read(&volume, block * 8, 8)).unwrap()),
            _ => {
                fixture.world.block_on(write(&volume, block * 8 + 2, 3, 2)).unwrap();
                expected[block as usize * 8 + 2..][..3].fill(2);
            }
        }
    }
    let (first, end) = range;
    let inside = first as usize..end as usize;
    match action {
        Action::Write => {
            fixture.world.block_on(write(&volume, first, end - first, 3)).unwrap();
            expected[inside].fill(3);
        }
        Action::Discard => {
            let discard = volume.discard(ByteOffset(first * 512), (end - first) * 512, WriteFlags::default());
            fixture.world.block_on(discard).unwrap();
            expected[inside].fill(0);
        }
        Action::Read => {
            assert_eq!(fixture.world.block_on(read(&volume, first, end - first)).unwrap(), expected[inside])
        }
    }
    let case = format!("{policy}, states {states}, {action:?} of {first}..{end}");
    assert_eq!(fixture.world.block_on(read(&volume, 0, SECTORS)).unwrap(), expected, "{case}");
    fixture.world.block_on(fixture.core.detach(name)).unwrap();
    assert_eq!(durable_tags(&disk, 0, SECTORS), expected, "{case}: the backing afterwards");
}

#[test]
fn case_22_every_range_over_every_state_reads_back() {
    for (name, policy) in WritePolicy::ALL {
        let fixture = Fixture::with_memory(1, MIB);
        for states in 0..3_u64.pow(BLOCKS as u32) {
            for action in [Action::Write, Action::Discard, Action::Read] {
                // Block edges, one sector beside them, and the middle.
                let edges = [0, 1, 7, 8, 9, 12, 16, 17, 23, 24];
                for (from, first) in edges.into_iter().enumerate() {
                    for end in edges.into_iter().skip(from + 1) {
                        let disk = format!("{name}-{states}-{action:?}-{first}-{end}");
                        check(&fixture, &disk, policy, states, action, (first, end));
                    }
                }
            }
        }
    }
}

#[test]
fn case_22_every_state_reads_back_under_races() {
    const BLOCKS: u64 = 32;
    for (name, policy) in WritePolicy::ALL {
        // Memory is little larger than a request, so eviction is frequent.
        let fixture = Fixture::with_memory(1, 96 * 4096);
        let disk = fixture.add_disk(name, out_of_order_disk(MIB));
        let mut expected: Vec<u64> = (1_000..3_048).collect();
        disk.set_tags(0, &expected);
        let volume = fixture.attach(name, |spec| spec.policy = policy).unwrap();
        let write = |first, count, tag| fixture.world.block_on(write(&volume, first, count, tag)).unwrap();
        let read = |first, count| fixture.world.block_on(read(&volume, first, count)).unwrap();
        let discard = |first: u64, count: u64| {
            let discard = volume.discard(ByteOffset(first * 512), count * 512, WriteFlags::default());
            fixture.world.block_on(discard).unwrap();
        };
        let (mut random, mut tag) = (Random::new(22, 0), 10_000);
        for pattern in 0..81_u64 {
            // Four blocks at the border of two pages take each combination of states; the others are drawn at random.
            for block in 0..BLOCKS {
                let position = block.wrapping_sub(14);
                let state = if position < 4 { pattern / 3_u64.pow(position as u32) % 3 } else { random.below(3) };
                let sectors = block as usize * 8..block as usize * 8 + 8;
                match state {
                    0 => discard(block * 8, 8),
                    1 => assert_eq!(read(block * 8, 8), expected[sectors.clone()], "{policy} {pattern}"),
                    _ => write(block * 8, 8, tag),
                }
                match state {
                    0 => expected[sectors].fill(0),
                    1 => {}
                    _ => expected[sectors].fill(tag),
                }
                tag += 1;
            }
            if pattern % 4 == 1 {
                volume.invalidate();
            }
            if pattern % 5 == 2 {
                let volume = volume.clone();
                fixture.seam.spawn(async move { volume.flush().await.expect("a disk without faults does not fail") });
            }
            for _ in 0..24 {
                let first = random.below(BLOCKS * 8 - 1);
                let count = random.between(1, BLOCKS * 8 - first - 1);
                let sectors = first as usize..(first + count) as usize;
                match random.below(4) {
                    0 => {
                        write(first, count, tag);
                        expected[sectors].fill(tag);
                        tag += 1;
                    }
                    1 => {
                        discard(first, count);
                        expected[sectors].fill(0);
                    }
                    _ => assert_eq!(read(first, count), expected[sectors], "{policy} {pattern}"),
                }
            }
        }
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(
            durable_tags(&disk, 0, BLOCKS * 8),
            expected[..BLOCKS as usize * 8],
            "{policy}: the backing afterwards"
        );
    }
}
