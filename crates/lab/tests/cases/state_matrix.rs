//! State matrix: absent, clean, dirty over neighbouring blocks × starts and ends × policies, against a list of tags.

use engine::{WriteFlags, WritePolicy};
use lab::rig::{Rig, durable, read, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 3;
const SECTORS: u64 = BLOCKS * 8;

/// What is done to the prepared blocks.
#[derive(Clone, Copy, Debug)]
enum Action {
    Write,
    Discard,
    Read,
}

/// Prepares blocks in the states that `states` says (in base 3: absent, clean, dirty), acts on `first..end`, looks.
fn check(rig: &Rig, name: &str, policy: WritePolicy, states: u64, action: Action, range: (u64, u64)) {
    let disk = rig.add_disk(name, SimDiskSpec::new(64 << 10));
    let volume = rig.attach(name, |spec| spec.policy = policy).unwrap();
    let mut expected = vec![1; SECTORS as usize];
    rig.world.block_on(write(&volume, 0, SECTORS, 1)).unwrap();
    rig.world.block_on(volume.destage_all()).unwrap();
    volume.invalidate();
    for block in 0..BLOCKS {
        match states / 3_u64.pow(block as u32) % 3 {
            0 => {}
            1 => drop(rig.world.block_on(read(&volume, block * 8, 8)).unwrap()),
            _ => {
                rig.world.block_on(write(&volume, block * 8 + 2, 3, 2)).unwrap();
                expected[block as usize * 8 + 2..][..3].fill(2);
            }
        }
    }
    let (first, end) = range;
    let inside = first as usize..end as usize;
    match action {
        Action::Write => {
            rig.world.block_on(write(&volume, first, end - first, 3)).unwrap();
            expected[inside].fill(3);
        }
        Action::Discard => {
            let discard = volume.discard(first * 512, (end - first) * 512, WriteFlags::default());
            rig.world.block_on(discard).unwrap();
            expected[inside].fill(0);
        }
        Action::Read => assert_eq!(rig.world.block_on(read(&volume, first, end - first)).unwrap(), expected[inside]),
    }
    let case = format!("{policy}, states {states}, {action:?} of {first}..{end}");
    assert_eq!(rig.world.block_on(read(&volume, 0, SECTORS)).unwrap(), expected, "{case}");
    rig.world.block_on(rig.core.detach(name)).unwrap();
    assert_eq!(durable(&disk, 0, SECTORS), expected, "{case}: the backing afterwards");
}

#[test]
fn case_22_every_start_and_end_over_every_state_under_every_policy_reads_back() {
    for (name, policy) in WritePolicy::ALL {
        let rig = Rig::with_memory(1, MIB);
        for states in 0..3_u64.pow(BLOCKS as u32) {
            for action in [Action::Write, Action::Discard, Action::Read] {
                // Block edges, one sector beside them, and the middle.
                let edges = [0, 1, 7, 8, 9, 12, 16, 17, 23, 24];
                for (from, first) in edges.into_iter().enumerate() {
                    for end in edges.into_iter().skip(from + 1) {
                        let disk = format!("{name}-{states}-{action:?}-{first}-{end}");
                        check(&rig, &disk, policy, states, action, (first, end));
                    }
                }
            }
        }
    }
}
