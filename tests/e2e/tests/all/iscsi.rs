//! iSCSI from end to end: the guarantees of a target to its initiators, tested with the tests' own initiator.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use e2e::bridge::Bridge;
use e2e::daemon::wait_for;
use e2e::fixture::{Fixture, TARGET};
use e2e::initiator::{CommandResult, Initiator, Response, lun, opcode};
use e2e::random::{Random, seed};
use e2e::server::Nbdkit;
use e2e::sizes::size;
use e2e::write_history::WriteHistory;
use e2e::writer::{StopOnDrop, Writer};

use crate::kill::kill_rounds;

const HOST: &str = "iqn.2026-11.io.hotset:host";
const SECTOR: usize = 512;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const RESERVATION_CONFLICT: u8 = 0x18;
/// Additional sense code.
const LOGICAL_UNIT_NOT_SUPPORTED: u8 = 0x25;
/// Page of INQUIRY; the bits of a designator's second byte; the type of a designator of the logical unit.
const DEVICE_IDENTIFICATION: u8 = 0x83;
const ASSOCIATION_AND_TYPE: u8 = 0x3f;
const NAA: u8 = 3;
const CODE_SET_BINARY: u8 = 1;
/// Types of descriptors of EXTENDED COPY.
const IDENTIFICATION_TARGET_DESCRIPTOR: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;
const MISCOMPARE: u8 = 0xe;
const ABORT_TASK: u8 = 1;

pub(crate) fn log_in(address: SocketAddr, isid: u32) -> Initiator {
    // A daemon that has just started answers over NBD a moment before it listens here.
    wait_for("the portal", || match Initiator::log_in(address, HOST, isid, TARGET) {
        Ok(initiator) => Some(initiator),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => None,
        Err(error) => panic!("the login fails: {error}"),
    })
}

fn expect_good_status(result: std::io::Result<CommandResult>) -> CommandResult {
    let result = result.expect("the session is open");
    assert_eq!(result.status, GOOD, "sense {:02x?}", result.sense_code());
    result
}

/// A sector that begins with a number.
fn sector(number: u64) -> Vec<u8> {
    let mut sector = vec![0; SECTOR];
    sector[..8].copy_from_slice(&number.to_be_bytes());
    sector
}

fn read_number(sector: &[u8]) -> u64 {
    u64::from_be_bytes(sector[..8].try_into().expect("eight bytes are eight"))
}

/// Total number of increments: `HOTSET_COUNT_TO`, 4,000 by default.
fn increments() -> u64 {
    size("HOTSET_COUNT_TO", 4000)
}

#[test]
fn compare_and_write_by_eight_sessions_loses_no_increment() {
    const SESSIONS: u32 = 8;
    let mut fixture = Fixture::with_volume(16 << 20);
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let increments_per_session = increments() / u64::from(SESSIONS);
    let miscompares: u64 = std::thread::scope(|scope| {
        let run_session = |isid| {
            let (mut session, mut miscompares, mut value) = (log_in(address, isid), 0, 0);
            for _ in 0..increments_per_session {
                loop {
                    let result = session.compare_and_write(lun(0), 8, &sector(value), &sector(value + 1));
                    let result = result.expect("the session is open");
                    if result.status == GOOD {
                        value += 1;
                        break;
                    }
                    assert_eq!((result.status, result.sense_code().0), (CHECK_CONDITION, MISCOMPARE));
                    miscompares += 1;
                    value = read_number(&expect_good_status(session.read(lun(0), 8, 1)).data);
                }
            }
            miscompares
        };
        let sessions: Vec<_> = (1..=SESSIONS).map(|isid| scope.spawn(move || run_session(isid))).collect();
        sessions.into_iter().map(|session| session.join().expect("the session thread does not panic")).sum()
    });
    let counted = read_number(&expect_good_status(log_in(address, 99).read(lun(0), 8, 1)).data);
    println!("{counted} increments, {miscompares} lost a race and were repeated");
    assert_eq!(counted, increments_per_session * u64::from(SESSIONS));
    assert!(miscompares > 0, "no session lost a race");
    daemon.stop();
}

/// PERSISTENT RESERVE OUT with a key, a new key and APTPL.
fn reserve_out(session: &mut Initiator, action: u8, kind: u8, key: u64, new_key: u64) -> CommandResult {
    let mut parameters = [0; 24];
    parameters[..8].copy_from_slice(&key.to_be_bytes());
    parameters[8..16].copy_from_slice(&new_key.to_be_bytes());
    parameters[20] = 1;
    let cdb = [opcode::PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0];
    session.retry_command(lun(0), &cdb, &parameters, 0).expect("the session is open")
}

/// QEMU's initiator carries the load, made durable by SYNCHRONIZE CACHE; the tests' own initiator holds the
/// reservation.
#[test]
fn kill_loses_no_synchronized_write_and_no_reservation() {
    const BYTES: u64 = 16 << 20;
    const KEY: u64 = 0xa1b2;
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 5;
    let mut fixture = Fixture::new();
    fixture.memory = "20 MiB".to_owned();
    fixture.keep_in = "none".to_owned();
    fixture.add_volume("v", BYTES, "lun = 1");
    fixture.add_volume("held", 1 << 20, "lun = 0");
    let address = fixture.add_iscsi_target("");
    let (history, mut random) = (Mutex::new(WriteHistory::new(BYTES, false)), Random::new(seed("iscsi-kill")));
    let mut daemon = fixture.start();
    let mut owner = log_in(address, 1);
    for (action, kind, key, new_key) in [(REGISTER, 0, 0, KEY), (RESERVE, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, KEY, 0)] {
        assert_eq!(reserve_out(&mut owner, action, kind, key, new_key).status, GOOD);
    }
    for _ in 0..kill_rounds().min(20) {
        let bridge = Bridge::start(&fixture.folder.join("bridge"), &format!("iscsi://{address}/{TARGET}/1"));
        let (endpoint, stop) = (bridge.endpoint(), AtomicBool::new(false));
        let writer = Writer { endpoint: &endpoint, export: "", connections: 1 + random.below(4), seed: random.draw() };
        let before = history.lock().expect("no writer panicked").sequence();
        let pause = Duration::from_millis(50 + random.below(400));
        let mut faults = std::thread::scope(|scope| {
            let run = scope.spawn(|| writer.run(&history, &stop));
            let stop_guard = StopOnDrop(&stop);
            std::thread::sleep(pause);
            daemon.kill();
            // Otherwise the bridge would send the requests in flight to the next daemon again.
            drop(bridge);
            drop(stop_guard);
            run.join().expect("the writer does not panic")
        });
        daemon = fixture.start();
        let image = e2e::client::Client::connect(&fixture.endpoint(), "v").and_then(|mut client| client.read_all());
        let mut history = history.lock().expect("no writer panicked");
        println!("killed after {pause:?} and {} writes", history.sequence() - before);
        faults.extend(history.check_after_crash(&image.expect("the volume is served again")));
        assert!(faults.is_empty(), "{:?}", &faults[..faults.len().min(20)]);

        let mut stranger = log_in(address, 2);
        let result = stranger.write(lun(0), 0, &sector(1)).expect("the session is open");
        assert_eq!(result.status, RESERVATION_CONFLICT, "the reservation was lost");
        expect_good_status(log_in(address, 1).write(lun(0), 0, &sector(1)));
    }
    daemon.stop();
}

/// Sends a ping per second and returns the longest time to an answer.
fn ping_for(session: &mut Initiator, seconds: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..seconds {
        let sent = Instant::now();
        let tag = session.ping().expect("the session is open");
        assert_eq!(session.receive_response().expect("the session is open"), Response::Pong(tag));
        longest = longest.max(sent.elapsed());
        std::thread::sleep(Duration::from_secs(1).saturating_sub(sent.elapsed()));
    }
    longest
}

/// Seconds for which the backing hangs: `HOTSET_STALL_SECONDS`, or `default`.
pub fn stall_seconds(default: u64) -> u64 {
    size("HOTSET_STALL_SECONDS", default)
}

/// Sends a signal by name (`STOP`, `CONT`) to a process.
pub fn signal(process: u32, name: &str) {
    e2e::tool::tool("kill").arg(format!("-{name}")).arg(process.to_string()).ok();
}

/// True if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process is running").flatten();
    let mut states = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    states.all(|stat| stat.rsplit(')').next().is_some_and(|fields| fields.starts_with(" T")))
}

#[test]
fn pings_and_aborts_are_answered_while_the_backing_hangs() {
    let mut fixture = Fixture::new();
    let backing = Nbdkit::start(&fixture.folder.join("slow"), "memory 16M");
    fixture.add_volume_on("v", &backing.uri(), "policy = \"write-through\"");
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let mut session = log_in(address, 1);
    expect_good_status(session.write(lun(0), 0, &sector(1)));

    signal(backing.pid(), "STOP");
    // The signal takes effect a little later: a thread on another processor may still answer a request.
    wait_for("the backing to stop", || is_stopped(backing.pid()).then_some(()));
    let read = session
        .send_command(lun(0), &Initiator::transfer(opcode::READ_16, 1024, 8), &[], 8 * SECTOR)
        .expect("the request is sent");
    let other_read = session
        .send_command(lun(0), &Initiator::transfer(opcode::READ_16, 2048, 8), &[], 8 * SECTOR)
        .expect("the request is sent");
    let write = session
        .send_command(lun(0), &Initiator::transfer(opcode::WRITE_16, 4096, 1), &sector(7), 0)
        .expect("the request is sent");
    let seconds = stall_seconds(3);
    let longest = ping_for(&mut session, seconds);
    println!("the backing hung for {seconds} s; the slowest ping took {longest:?}");

    // An aborted read ends at once; the abort of a write is answered when the write can have no later effect.
    let read_abort = session.manage_task(ABORT_TASK, lun(0), read).expect("the request is sent");
    assert_eq!(session.receive_response().expect("the session is open"), Response::TaskManaged(read_abort, 0));
    let write_abort = session.manage_task(ABORT_TASK, lun(0), write).expect("the request is sent");
    ping_for(&mut session, 1);
    signal(backing.pid(), "CONT");
    let mut ended = Vec::new();
    while ended.len() < 2 {
        match session.receive_response().expect("the session is open") {
            Response::Completed(done) => {
                assert_ne!(done.tag, read, "an aborted command was answered");
                assert_ne!(done.tag, write, "an aborted command was answered");
                assert_eq!((done.tag, done.status), (other_read, GOOD));
                ended.push(done.tag);
            }
            Response::TaskManaged(tag, response) => {
                assert_eq!((tag, response), (write_abort, 0));
                ended.push(tag);
            }
            other => panic!("{other:?}"),
        }
    }
    // The write has taken effect or not; the content does not change afterwards.
    let content = expect_good_status(session.read(lun(0), 4096, 1)).data;
    assert!(content == sector(7) || content == vec![0; SECTOR]);
    expect_good_status(session.write(lun(0), 4096, &sector(8)));
    assert_eq!(expect_good_status(session.read(lun(0), 4096, 1)).data, sector(8));
    daemon.stop();
}

/// The unit's NAA designator, from INQUIRY's page 83.
fn designator(session: &mut Initiator, unit: [u8; 8]) -> Vec<u8> {
    let page = expect_good_status(session.retry_command(
        unit,
        &[opcode::INQUIRY, 1, DEVICE_IDENTIFICATION, 1, 0, 0],
        &[],
        256,
    ))
    .data;
    let mut designators = &page[4..];
    while designators.len() > 4 {
        let len = designators[3] as usize;
        if designators[1] & ASSOCIATION_AND_TYPE == NAA {
            return designators[4..4 + len].to_vec();
        }
        designators = &designators[4 + len..];
    }
    panic!("no designator: {page:02x?}");
}

/// LUNs that the target reports.
fn units(session: &mut Initiator) -> Vec<u64> {
    let list = expect_good_status(session.retry_command(
        lun(0),
        &[opcode::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0],
        &[],
        4096,
    ))
    .data;
    list[8..].chunks_exact(8).map(|unit| u64::from(u16::from_be_bytes([unit[0], unit[1]]))).collect()
}

#[test]
fn reload_keeps_number_and_name_of_other_units() {
    let mut fixture = Fixture::new();
    for name in ["a", "b", "c"] {
        fixture.add_volume(name, 1 << 20, "");
    }
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let mut session = log_in(address, 1);
    assert_eq!(units(&mut session), [0, 1, 2]);
    let names: Vec<_> = (0..3).map(|number| designator(&mut session, lun(number))).collect();
    assert!(names[0] != names[1] && names[1] != names[2], "units share a name");
    expect_good_status(session.write(lun(2), 0, &sector(2)));

    // A new volume first, one removed, the others in another order; meanwhile a session writes to a volume that stays.
    fixture.clear_volumes();
    fixture.add_volume("new", 1 << 20, "");
    for name in ["c", "a"] {
        fixture.add_volume_on(name, &fixture.backing(name).to_string_lossy(), "");
    }
    let is_ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = log_in(address, 2);
            while !is_ending.load(std::sync::atomic::Ordering::Relaxed) {
                expect_good_status(session.write(lun(2), 64, &sector(64)));
            }
        });
        let _stop_guard = StopOnDrop(&is_ending);
        std::fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
        daemon.signal("HUP");
        wait_for("the new list of units", || (units(&mut session) == [0, 2, 3]).then_some(()));
    });
    assert_eq!(designator(&mut session, lun(0)), names[0]);
    assert_eq!(designator(&mut session, lun(2)), names[2]);
    assert_eq!(read_number(&expect_good_status(session.read(lun(2), 64, 1)).data), 64);
    // The number of the removed unit is not reused.
    assert!(!names.contains(&designator(&mut session, lun(3))));
    daemon.stop();
}

/// Bytes to copy: `HOTSET_COPY_BYTES`, 64 MiB by default.
fn copy_bytes() -> u64 {
    size("HOTSET_COPY_BYTES", 64 << 20)
}

/// Parameter list of EXTENDED COPY for `blocks` blocks inside the unit with this designator.
fn extended_copy(designator: &[u8], from: u64, to: u64, blocks: u16) -> Vec<u8> {
    let mut list = vec![0; 16 + 32 + 28];
    list[2..4].copy_from_slice(&32u16.to_be_bytes());
    list[8..12].copy_from_slice(&28u32.to_be_bytes());
    // One target descriptor, which names the unit by its designator.
    list[16] = IDENTIFICATION_TARGET_DESCRIPTOR;
    list[20..24].copy_from_slice(&[CODE_SET_BINARY, NAA, 0, designator.len() as u8]);
    list[24..24 + designator.len()].copy_from_slice(designator);
    list[44..48].copy_from_slice(&(SECTOR as u32).to_be_bytes());
    // One segment descriptor, with the first target descriptor as source and as destination.
    let segment = &mut list[48..];
    segment[0] = BLOCK_TO_BLOCK;
    segment[2..4].copy_from_slice(&24u16.to_be_bytes());
    segment[10..12].copy_from_slice(&blocks.to_be_bytes());
    segment[12..20].copy_from_slice(&from.to_be_bytes());
    segment[20..28].copy_from_slice(&to.to_be_bytes());
    list
}

#[test]
fn extended_copy_equals_its_source_and_ends_with_its_session() {
    const BLOCKS: u64 = (16 << 20) / SECTOR as u64;
    let bytes = copy_bytes();
    let mut fixture = Fixture::with_volume(2 * bytes);
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let mut session = log_in(address, 1);
    let unit = designator(&mut session, lun(0));
    let mut random = Random::new(seed("xcopy"));
    let chunk = 1 << 20;
    let mut source = Vec::with_capacity(chunk);
    for offset in (0..bytes).step_by(chunk) {
        source.clear();
        source.extend((0..chunk / 8).flat_map(|_| random.draw().to_be_bytes()));
        expect_good_status(session.write(lun(0), offset / SECTOR as u64, &source));
    }
    let mut cdb = [0; 16];
    cdb[0] = opcode::EXTENDED_COPY;
    let total_blocks = bytes / SECTOR as u64;
    for from in (0..total_blocks).step_by(BLOCKS as usize) {
        let list = extended_copy(&unit, from, total_blocks + from, BLOCKS.min(total_blocks - from) as u16);
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        expect_good_status(session.retry_command(lun(0), &cdb, &list, 0));
    }
    for offset in (0..bytes).step_by(chunk) {
        let read = |session: &mut Initiator, offset| {
            expect_good_status(session.read(lun(0), offset / SECTOR as u64, (chunk / SECTOR) as u32)).data
        };
        let (old, new) = (read(&mut session, offset), read(&mut session, bytes + offset));
        assert!(old == new, "the copy differs within a mebibyte of {offset}");
    }

    // The logout of its session ends a copy in progress.
    let list = extended_copy(&unit, 0, total_blocks, BLOCKS.min(total_blocks) as u16);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    session.send_command(lun(0), &cdb, &list, 0).expect("the request is sent");
    session.log_out().expect("the request is sent");
    loop {
        match session.receive_response().expect("the logout is answered") {
            Response::LoggedOut => break,
            Response::Completed(_) => (),
            other => panic!("{other:?}"),
        }
    }
    // No copy writes there after the log-out.
    let mut session = log_in(address, 1);
    expect_good_status(session.write(lun(0), total_blocks, &vec![0; chunk]));
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        expect_good_status(session.read(lun(0), total_blocks, (chunk / SECTOR) as u32))
            .data
            .iter()
            .all(|byte| *byte == 0)
    );
    daemon.stop();
}

#[test]
fn initiator_sees_only_units_of_its_acl_and_lost_unit_is_refused() {
    const ILLEGAL_REQUEST: u8 = 5;
    let mut fixture = Fixture::new();
    for (name, acl) in [("ours", format!("[\"{HOST}\"]")), ("theirs", "[\"iqn.2026-11.other:*\"]".to_owned())] {
        fixture.add_volume(name, 1 << 20, &format!("acl = {acl}"));
    }
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let mut host = log_in(address, 1);
    let mut stranger = Initiator::log_in(address, "iqn.2026-11.other:a", 1, TARGET).expect("the login succeeds");
    assert_eq!((units(&mut host), units(&mut stranger)), (vec![0], vec![1]));
    let hidden = host.read(lun(1), 0, 1).expect("the session is open");
    assert_eq!(
        (hidden.status, hidden.sense_code()),
        (CHECK_CONDITION, (ILLEGAL_REQUEST, LOGICAL_UNIT_NOT_SUPPORTED, 0))
    );

    expect_good_status(host.write(lun(0), 0, &sector(1)));
    daemon.command(&["volume", "set", "ours", "declared_lost=true"]);
    let lost = host.read(lun(0), 0, 1).expect("the session is open");
    assert_eq!((lost.status, lost.sense_code()), (CHECK_CONDITION, (ILLEGAL_REQUEST, LOGICAL_UNIT_NOT_SUPPORTED, 0)));
    assert!(daemon.command(&["status"]).contains("declared lost"));
    daemon.stop();
    // The declaration survives a restart.
    let daemon = fixture.start();
    let mut host = log_in(address, 1);
    assert_eq!(host.read(lun(0), 0, 1).expect("the session is open").status, CHECK_CONDITION);
    daemon.command(&["volume", "set", "ours", "declared_lost=false"]);
    assert_eq!(read_number(&expect_good_status(host.read(lun(0), 0, 1)).data), 1);
    daemon.stop();
}
