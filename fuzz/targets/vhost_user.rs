//! A hostile guest: arbitrary bytes in its rings and memory, with messages in between, on a volume in a simulated
//! world. Checks: no panic, no endless wait, and complete cleanup when the front end disconnects.

#![no_main]

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec};
use libfuzzer_sys::fuzz_target;
use rustix::fs::MemfdFlags;
use seam::sim::{SimDiskSpec, SimSeam, StoredContent, World, WorldSpec};
use seam::{Bell, DiskOpen, Nanos, Seam};
use vhost_user::memory::RegionLayout;
use vhost_user::message::{HEADER_BYTES, Header, Message, VringFdKind, decode, protocol};
use vhost_user::{Session, Shared, UnfinishedRequests};

const DISK_BYTES: u64 = 1 << 20;
const MEMORY_BYTES: u64 = 64 << 10;
const QUEUE_SIZE: u64 = 16;
/// Number of the daemon. Writes acknowledged by daemons of lower numbers may be lost.
const DAEMON_NUMBER: u64 = 2;
// Layout of each queue: its parts are adjacent.
const QUEUE_BYTES: u64 = 1024;
const AVAILABLE_OFFSET: u64 = 256;
const USED_OFFSET: u64 = 512;
// Feature bits.
const FLUSH: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;
const LOG_ALL: u64 = 1 << 26;
const EVENT_IDX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
/// Sets of features that affect rings, as drivers negotiate them.
const FEATURES: [u64; 4] = [
    VERSION_1 | PROTOCOL_FEATURES,
    VERSION_1 | PROTOCOL_FEATURES | EVENT_IDX,
    VERSION_1 | FLUSH,
    VERSION_1 | PROTOCOL_FEATURES | CONFIG_WCE | LOG_ALL,
];

/// An eventfd of the harness.
#[derive(Default)]
struct TestEventfd {
    is_signalled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Bell for TestEventfd {
    fn poll_rung(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_signalled.take() {
            return Poll::Ready(Ok(()));
        }
        *self.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    fn ring(&self) {
        self.is_signalled.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

thread_local! {
    static EVENTFD: Rc<TestEventfd> = Rc::default();
}

fn make_eventfd(_: OwnedFd) -> io::Result<Rc<dyn Bell>> {
    Ok(EVENTFD.with(Rc::clone))
}

/// Creates the memory that the guest shares with the device.
fn create_guest_memory() -> OwnedFd {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("access to a memfd succeeds");
    rustix::fs::ftruncate(&file, MEMORY_BYTES).expect("access to a memfd succeeds");
    file
}

/// Takes up to `len` bytes from the front of the input.
fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

async fn serve(seam: &SimSeam, mut input: &[u8]) {
    let open = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let core = Core::new(seam.clone(), CoreSpec::default());
    let disk = seam.open_disk(&open).await.expect("the disk exists");
    let volume = core.attach(VolumeSpec::new("x", VolumeId(1)), Backing::plain(disk)).expect("the volume name is free");
    let limits = connection::Limits { held_bytes_max: 1 << 20, stall_timeout: Nanos::from_secs(5) };
    let shared = Shared::new(limits, seam.blocks_total() * seam::BLOCK_BYTES, 64 << 10, DAEMON_NUMBER);
    let session = Rc::new(Session::new(
        seam.clone(),
        volume,
        &shared,
        &UnfinishedRequests::default(),
        DAEMON_NUMBER,
        make_eventfd,
    ));
    let never = |_: &Context<'_>| false;
    let file = create_guest_memory();
    let duplicate_fd = || file.try_clone().expect("the descriptor can be duplicated");
    let [options, rest @ ..] = input else { return };
    input = rest;
    let region = RegionLayout { guest: 0, len: MEMORY_BYTES, user: 0, offset: 0 };
    let mut messages = vec![
        Message::SetFeatures(FEATURES[usize::from(options & 3)]),
        // A set with any other feature is refused.
        Message::SetProtocolFeatures(protocol::OFFERED),
        Message::SetMemTable(vec![(region, duplicate_fd())]),
    ];
    if options & 4 != 0 {
        messages.push(Message::SetLogBase { len: 64, offset: 0, file: duplicate_fd() });
    }
    if options & 8 != 0 {
        // The record of requests in flight lies in the guest's own memory, with arbitrary content.
        messages.push(Message::SetInflightFd {
            len: MEMORY_BYTES,
            offset: 32 << 10,
            queues: 2,
            size: QUEUE_SIZE as u16,
            file: duplicate_fd(),
        });
    }
    // Initial content of the guest's memory.
    let initial_bytes = 256 * usize::from(options >> 4 & 3);
    rustix::io::pwrite(&file, take(&mut input, initial_bytes), 0).expect("access to a memfd succeeds");
    for index in 0..2 {
        let queue_address = QUEUE_BYTES * u64::from(index);
        messages.push(Message::SetVringNum { index, size: QUEUE_SIZE as u32 });
        messages.push(Message::SetVringAddr {
            index,
            is_logged: options & 4 != 0,
            descriptor_table: queue_address,
            available: queue_address + AVAILABLE_OFFSET,
            used: queue_address + USED_OFFSET,
            log: queue_address + USED_OFFSET,
        });
        messages.push(Message::SetVringFd { kind: VringFdKind::Call, index, fd: Some(duplicate_fd()) });
        messages.push(Message::SetVringFd { kind: VringFdKind::Kick, index, fd: Some(duplicate_fd()) });
        messages.push(Message::SetVringEnable { index, enabled: true });
    }
    for message in messages {
        // Some messages do not match the features.
        let _ = session.handle(message, never).await;
    }
    while let [action, rest @ ..] = input {
        input = rest;
        match action & 7 {
            // Writes bytes at an arbitrary address.
            0..=2 => {
                let [address, len, ..] = take(&mut input, 2) else { break };
                let address = u64::from(*address) << (action >> 3 & 7);
                let bytes = take(&mut input, usize::from(*len));
                rustix::io::pwrite(&file, bytes, address.min(MEMORY_BYTES - 256)).expect("access to a memfd succeeds");
            }
            // Writes a nearly valid descriptor.
            3 => {
                let [queue, index, address, len, flags, next] = take(&mut input, 6) else { break };
                let offset = QUEUE_BYTES * u64::from(queue & 1) + 16 * (u64::from(*index) % QUEUE_SIZE);
                let (address, len) = (u64::from(*address) << 8, u32::from(*len) << (flags >> 3 & 7));
                let flags = u16::from(flags & 7);
                let descriptor = [
                    &address.to_le_bytes()[..],
                    &len.to_le_bytes(),
                    &flags.to_le_bytes(),
                    &u16::from(*next).to_le_bytes(),
                ];
                rustix::io::pwrite(&file, &descriptor.concat(), offset).expect("access to a memfd succeeds");
            }
            // Makes more descriptors available.
            4 | 5 => {
                let [queue, count] = take(&mut input, 2) else { break };
                let index_address = QUEUE_BYTES * u64::from(queue & 1) + AVAILABLE_OFFSET + 2;
                let mut index = [0; 2];
                rustix::io::pread(&file, &mut index, index_address).expect("access to a memfd succeeds");
                let index = u16::from_le_bytes(index).wrapping_add(u16::from(*count) % 20);
                rustix::io::pwrite(&file, &index.to_le_bytes(), index_address).expect("access to a memfd succeeds");
                EVENTFD.with(|eventfd| eventfd.ring());
                seam.sleep(Nanos::from_millis(u64::from(action >> 5))).await;
            }
            // Sends a message.
            6 => {
                let [request, len, fds] = take(&mut input, 3) else { break };
                let header = [u32::from(*request) % 40, 1, u32::from(*len)].map(u32::to_le_bytes).concat();
                let header: [u8; HEADER_BYTES] = header.try_into().expect("a header has three words");
                let header = Header::decode(&header).expect("the header is valid");
                let mut body = take(&mut input, usize::from(*len)).to_vec();
                body.resize(usize::from(*len), 0);
                let fds = (0..fds % 4).map(|_| duplicate_fd()).collect();
                if let Ok(message) = decode(&header, &body, fds) {
                    let reply = session.handle(message, never).await;
                    if let Ok(reply) = reply {
                        reply.encode(&header);
                    }
                }
            }
            // Restarts a queue.
            _ => {
                let index = u32::from(action >> 3 & 1);
                let _ = session.handle(Message::GetVringBase { index }, never).await;
                let _ = session
                    .handle(Message::SetVringFd { kind: VringFdKind::Kick, index, fd: Some(duplicate_fd()) }, never)
                    .await;
            }
        }
        seam.yield_now().await;
    }
    EVENTFD.with(|eventfd| eventfd.ring());
    drop(session);
    seam.sleep(Nanos::from_secs(60)).await;
}

fuzz_target!(|data: &[u8]| {
    let spec = WorldSpec {
        blocks: 1024,
        time_max: Nanos::from_secs(86_400),
        content: StoredContent::MetadataOnly,
        ..WorldSpec::new(1)
    };
    let world = World::new(spec);
    world.add_disk("/disk", SimDiskSpec::new(DISK_BYTES));
    let seam = world.seam();
    world.block_on(serve(&seam, data));
});
