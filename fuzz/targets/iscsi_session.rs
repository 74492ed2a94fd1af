//! Whole sessions with the iSCSI server in a simulated world. Hostile initiators log in properly and then send nearly
//! valid or arbitrary PDUs, while a healthy initiator reads, writes and pings.
//!
//! The healthy initiator gets correct responses in time, independent of the hostile ones. Each command is answered or
//! aborted, never both. Memory stays within its limit, and no resources remain after all sessions have ended.

#![no_main]

mod healthy;
mod hostile;
mod initiator;
mod scsi_commands;

use std::alloc::System;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use cap::Cap;
use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec, WritePolicy};
use iscsi::{ChapUser, Credentials, Options, Server};
use libfuzzer_sys::fuzz_target;
use scsi::{AccessList, Identity, Lun, ReservationStore, StoreFuture, Target, UnitSpec};
use seam::sim::{Latency, SimDiskSpec, SimSeam, TaskOrder, WireSpec, World, WorldSpec};
use seam::{Address, DiskOpen, Nanos, Seam};

use hostile::Hostile;
use initiator::{COMMANDS_MAX, LoginOptions, SECRET, Session, TARGET, USER};
use scsi_commands::{INITIATOR_NAMES, usages};

const DISK_BYTES: u64 = 4 << 20;
/// Name of the healthy initiator; it alone sees the first unit, and it sees no other.
const HEALTHY: &str = "iqn.x:healthy";
/// Limits in the options: logins, sessions, and waiting write data.
const LOGINS_MAX: usize = 4;
const SESSIONS_MAX: usize = 6;
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Memory of a session besides its quota of write data: receive buffers, replies, commands.
const SESSION_BYTES: usize = 3 << 19;
/// Memory of the world itself, including one more write for each session.
const OTHER_BYTES: usize = 6 << 20;

/// Counts allocated memory.
#[global_allocator]
static COUNTING: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    COUNTING.allocated()
}

/// Stores the last reservation record of each unit.
#[derive(Clone, Default)]
struct MemoryStore(Rc<RefCell<std::collections::BTreeMap<VolumeId, Vec<u8>>>>);

impl ReservationStore for MemoryStore {
    fn store(&self, volume_id: VolumeId, record: Vec<u8>) -> StoreFuture {
        self.0.borrow_mut().insert(volume_id, record);
        Box::pin(async { Ok(()) })
    }
}

/// Portals of the healthy and of the hostile initiators.
fn portals() -> [Address; 2] {
    [Address::Tcp("10.0.0.7".into(), 3260), Address::Tcp("10.0.0.8".into(), 3260)]
}

/// Parameters that initiators request.
const PARAMETERS: [&str; 4] = [
    "InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=16384\0MaxBurstLength=1048576\0\
     FirstBurstLength=262144\0MaxOutstandingR2T=4\0",
    "InitialR2T=Yes\0ImmediateData=No\0MaxRecvDataSegmentLength=4096\0MaxBurstLength=65536\0",
    "InitialR2T=No\0ImmediateData=No\0MaxRecvDataSegmentLength=262144\0MaxOutstandingR2T=8\0FirstBurstLength=65536\0",
    "",
];

/// The target: one unit for the healthy initiator, two for the hostile ones.
async fn create_target(
    seam: &SimSeam,
    core: &Core<SimSeam>,
    policy: WritePolicy,
    store: &MemoryStore,
) -> Target<SimSeam> {
    let target = Target::new(seam.clone(), TARGET, 2, Rc::new(store.clone()));
    for number in 0..3 {
        let name = format!("/disk{number}");
        let open = DiskOpen { path: (&name).into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
        let volume_id = VolumeId(u64::from(number) + 1);
        let disk = seam.open_disk(&open).await.expect("the disk exists");
        let spec = VolumeSpec { policy, ..VolumeSpec::new(&name, volume_id) };
        let volume = core.attach(spec, Backing::plain(disk)).expect("the volume name is free");
        let access = if number == 0 { AccessList::new([HEALTHY]) } else { AccessList::new(INITIATOR_NAMES) };
        let (lun, identity) = (Lun::new(number).expect("the number is a valid LUN"), Identity::of(1, volume_id.0));
        let unit = UnitSpec {
            lun,
            volume,
            identity,
            access,
            read_only: false,
            physical_4k: true,
            reservation_record: Vec::new(),
            thin_pool: None,
        };
        target.add(unit).expect("the LUN is free");
    }
    target
}

/// All supported commands, reported by an idle target.
fn all_usages() -> &'static [Vec<u8>] {
    static USAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    USAGES.get_or_init(|| {
        let world = create_world(0);
        let seam = world.seam();
        world.block_on(async {
            let core = Core::new(seam.clone(), CoreSpec::default());
            usages(
                create_target(&seam, &core, WritePolicy::None, &MemoryStore::default()).await,
                [0, 1, 0, 0, 0, 0, 0, 0],
            )
            .await
        })
    })
}

fn create_world(seed: u8) -> World {
    let world = World::new(WorldSpec {
        order: TaskOrder::Seeded,
        blocks: 4096,
        time_max: Nanos::from_secs(3600),
        ..WorldSpec::new(seed.into())
    });
    world.set_wires(WireSpec {
        delay: Latency::between(Nanos::from_micros(1), Nanos::from_micros(100)),
        chunk_bytes_max: 30_000,
        window_bytes: 64 << 10,
    });
    (0..3).for_each(|number| drop(world.add_disk(format!("/disk{number}"), SimDiskSpec::new(DISK_BYTES))));
    world
}

/// Limit of allocated memory with this number of sessions, excluding bytes that hostile initiators have queued.
fn allocated_bytes_max(sessions: usize) -> usize {
    let sessions = sessions.max(1);
    // Solicited and unsolicited data, each with a shared limit, but at least half a MiB per session.
    2 * PAYLOAD_BYTES_MAX.max(sessions << 19) + sessions * SESSION_BYTES + OTHER_BYTES
}

/// Checks periodically that memory stays within its limit.
async fn check_memory(seam: SimSeam, server: Server<SimSeam>, hostile: Rc<Hostile>, allocated_before: usize) {
    while !hostile.is_over() {
        let stats = server.stats();
        assert!(stats.half_open <= LOGINS_MAX as u64 && stats.sessions <= SESSIONS_MAX as u64, "{stats:?}");
        let held_bytes = allocated().saturating_sub(allocated_before + hostile.queued_bytes());
        let limit = allocated_bytes_max(stats.sessions as usize);
        assert!(
            held_bytes <= limit,
            "{held_bytes} bytes are allocated with {} sessions: the limit is {limit}",
            stats.sessions
        );
        // A quarter of the pool for replies, and a part for reads and writes in progress.
        let held_buffers = seam.blocks_total() - seam.blocks_free();
        assert!(held_buffers <= seam.blocks_total() / 2, "{held_buffers} of {} buffers are held", seam.blocks_total());
        seam.sleep(if hostile.is_finishing() { Nanos::from_millis(500) } else { Nanos::from_millis(1) }).await;
    }
}

/// Runs sessions with the options in `mode`. Bit 0: header digest; bit 1: data digest; bit 2: CHAP; bit 3: write-back;
/// bits 4 and 5: index of the parameters in [`PARAMETERS`].
async fn run_sessions(world: &World, mode: u8, input: &[u8], usages: &'static [Vec<u8>]) {
    let (seam, allocated_before) = (world.seam(), allocated());
    let core = Core::new(seam.clone(), CoreSpec::default());
    let store = MemoryStore::default();
    let policy = if mode & 8 == 0 { WritePolicy::None } else { WritePolicy::WriteBack };
    let target = create_target(&seam, &core, policy, &store).await;
    let uses_chap = mode & 4 != 0;
    let options = Options {
        chap_users: uses_chap
            .then(|| ChapUser::of_all(Credentials { user: USER.into(), secret: SECRET.to_vec(), mutual: None }))
            .into_iter()
            .collect(),
        sessions_max: SESSIONS_MAX,
        logins_max: LOGINS_MAX,
        commands_max: COMMANDS_MAX,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        ping_after: Nanos::from_secs(600),
        ..Options::default()
    };
    let server = Server::new(seam.clone(), target, options);
    for portal in portals() {
        let (listener, accepting) = (seam.listen(&portal).await.expect("the address is free"), server.clone());
        seam.spawn(async move { accepting.accept(listener).await });
    }
    let [healthy_portal, portal] = portals();
    let parameters = PARAMETERS[usize::from(mode >> 4 & 3)];
    let digests = (mode & 1 != 0, mode & 2 != 0);
    let login = LoginOptions { portal, name: INITIATOR_NAMES[0], isid: [1; 6], digests, uses_chap, parameters };
    let healthy = LoginOptions { portal: healthy_portal, name: HEALTHY, ..login.clone() };
    let hostile = Rc::new(Hostile::new(seam.clone(), login.clone(), usages));
    let memory_check = check_memory(seam.clone(), server.clone(), Rc::clone(&hostile), allocated_before);
    seam.spawn(memory_check);
    let (hostile_clone, healthy_seam) = (Rc::clone(&hostile), seam.clone());
    // Logs in before the hostile initiators, whose many logins may displace others.
    let session = Session::log_in(&seam, &healthy).await.expect("the healthy initiator is admitted");
    let work = async move { healthy::run(healthy_seam, session, &|| hostile_clone.is_over()).await };
    let is_healthy_done = Rc::new(std::cell::Cell::new(false));
    let is_done = Rc::clone(&is_healthy_done);
    seam.spawn(async move {
        work.await;
        is_done.set(true);
    });
    hostile.run(world, input).await;
    while !is_healthy_done.get() {
        seam.sleep(Nanos::from_millis(100)).await;
    }
    // Longer than the time limit of a login.
    seam.sleep(Nanos::from_secs(20)).await;
    let stats = server.stats();
    assert_eq!((stats.sessions, stats.half_open), (0, 0), "no session remains");
    hostile::check_nothing_reserved(&seam, &login).await;
    server.stop(Nanos::from_secs(1)).await;
    drop(server);
    for number in 0..3 {
        core.detach(&format!("/disk{number}")).await.expect("the volume is unused");
    }
    assert_eq!(seam.blocks_free(), seam.blocks_total(), "buffers were leaked");
}

fuzz_target!(|data: &[u8]| {
    let [mode, seed, input @ ..] = data else { return };
    let (usages, ()) = (all_usages(), hostile::prepare());
    let allocated_before = allocated();
    let world = create_world(*seed);
    world.block_on(run_sessions(&world, *mode, input, usages));
    assert_eq!(world.violations(), Vec::<String>::new());
    drop(world);
    assert_eq!(allocated(), allocated_before, "memory was leaked");
});
