//! The healthy initiator: it writes, reads back and pings the target. All results must be correct and in time.

use std::rc::Rc;

use iscsi_protocol::request::{Attribute, Command};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use crate::initiator::{Session, State};

/// Time limit of one operation.
const OPERATION_TIMEOUT: Nanos = Nanos::from_secs(1);
const PAUSE_MAX: Nanos = Nanos::from_secs(4);
const SECTORS: usize = 48;
/// Operation codes.
pub const TEST_UNIT_READY: u8 = 0x00;
pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;
/// Statuses.
pub const GOOD: u8 = 0x00;
pub const CHECK_CONDITION: u8 = 0x02;

/// A command without data, READ(10) or WRITE(10).
pub fn block_command(opcode: u8, lun: [u8; 8], sector: u32, count: u16) -> Command {
    let mut cdb = vec![0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&sector.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    Command {
        is_final: true,
        reads: opcode == READ_10,
        writes: opcode == WRITE_10,
        attribute: Attribute::Simple,
        lun,
        expected_len: u32::from(count) * 512,
        expected_read_len: None,
        cdb,
    }
}

/// Runs a command; returns its status and the data read.
pub async fn call(session: &Session, command: Command, data: &Rc<[u8]>) -> (u8, Vec<u8>) {
    let tag = session.begin(command, false, data, data.len());
    session.tasks.borrow_mut().get_mut(&tag).expect("the command was just sent").read = Some(Vec::new());
    let is_open = || session.tasks.borrow()[&tag].state == State::Open;
    session.wait_until(|| !is_open()).await;
    assert!(!session.is_closed(), "the session is open");
    let task = session.tasks.borrow_mut().remove(&tag).expect("the command was sent");
    assert_eq!(task.state, State::Answered);
    (task.status, task.read.unwrap_or_default())
}

/// Writes, reads back and pings until `is_over`, with growing pauses.
pub async fn run(seam: SimSeam, session: Rc<Session>, is_over: &dyn Fn() -> bool) {
    let none: Rc<[u8]> = [].into();
    let ready = Command { reads: false, expected_len: 0, ..block_command(TEST_UNIT_READY, [0; 8], 0, 0) };
    assert_eq!(
        call(&session, ready, &none).await.0,
        CHECK_CONDITION,
        "the first command reports the unit attention for power on"
    );
    let (mut round, mut pause) = (0_u64, Nanos::from_micros(500));
    while !is_over() {
        round += 1;
        let (sector, count) = ((round * 7 % 40) as u32 * 64, 1 + (round * 13) as usize % SECTORS);
        let mut data = Vec::with_capacity(count * 512);
        (0..count as u64).for_each(|index| data.extend_from_slice(&(round << 8 | index).to_le_bytes().repeat(64)));
        let data: Rc<[u8]> = data.into();
        let started = seam.now();
        let (status, _) = call(&session, block_command(WRITE_10, [0; 8], sector, count as u16), &data).await;
        assert_eq!(status, GOOD, "a write of the healthy initiator succeeds");
        let written = seam.now();
        let (status, read) = call(&session, block_command(READ_10, [0; 8], sector, count as u16), &none).await;
        assert!(status == GOOD && read == *data, "the healthy initiator reads back what it wrote");
        let read = seam.now();
        let ping = session.ping(b"are you there?");
        session.wait_until(|| session.is_ping_answered(ping)).await;
        let pinged = seam.now();
        for latency in [written.since(started), read.since(written), pinged.since(read)] {
            assert!(latency <= OPERATION_TIMEOUT, "an operation of the healthy initiator took {latency}");
        }
        assert!(!session.is_closed(), "the session is open");
        seam.sleep(pause).await;
        pause = Nanos((pause.0 * 3 / 2).min(PAUSE_MAX.0));
    }
    session.check_all_answered();
    session.log_out().await;
}
