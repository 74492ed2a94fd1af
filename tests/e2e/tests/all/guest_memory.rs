//! Guest memory that disappears: a truncated file, a full tmpfs, a hanging file system. It ends the front end of that
//! guest only.

use std::fs::File;
use std::os::fd::AsFd;

use driver::{Memory, Request, descriptor, feature, message};
use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::fixture::Fixture;
use e2e::fuse::Fuse;

use crate::history::SmallDisk;
use crate::vhost_user::{ALL_FEATURES, Guest, connect};

const BYTES: u64 = 64 << 20;
/// Features without indirect descriptors, because the test writes the descriptors itself.
pub const FEATURES: u64 = ALL_FEATURES & !feature::INDIRECT_DESC & !feature::EVENT_IDX;
/// Address of request data far from the queue.
const FAR: u64 = 8 << 20;
/// Length of the data of a request.
const LEN: u32 = 16 << 10;

/// Size of the rings of one queue.
const RINGS_BYTES: usize = 4096;

/// A daemon with the volume `v` of a guest, and a second volume.
struct Deployment {
    fixture: Fixture,
    daemon: Daemon,
    /// A client of the second volume from before the test.
    client: Client,
    /// A guest on the second volume from before the test.
    neighbour: Guest,
}

impl Deployment {
    fn new() -> Deployment {
        let mut fixture = Fixture::new();
        ["v", "other"].iter().for_each(|name| fixture.add_volume(name, BYTES, ""));
        fixture.enable_vhost_user();
        let daemon = fixture.start();
        let client = Client::connect(&fixture.endpoint(), "other").expect("the volume is served");
        let mut neighbour = Guest::new(&fixture.vhost_user_socket("other"), 1, ALL_FEATURES);
        neighbour.start(None);
        let mut v = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
        v.write(0, &[7; LEN as usize]).expect("a served volume");
        Deployment { fixture, daemon, client, neighbour }
    }

    /// Starts a guest anew in the memory of an earlier one.
    fn guest(&self, memory: &Memory) -> Guest {
        memory.write(0, &[0; RINGS_BYTES]);
        Guest::with_memory(memory.clone(), &self.fixture.vhost_user_socket("v"), 1, FEATURES)
    }

    /// Checks that the daemon serves all others, and that the guest's volume is intact.
    fn assert_others_are_served(&mut self) {
        assert!(self.daemon.is_running(), "{}", self.daemon.log());
        self.client.write(0, &[3; 4096]).expect("the connection still works");
        assert_eq!(self.neighbour.request(0, &Request::Read(0, 4096)), (0, vec![3; 4096]));
        let mut v = Client::connect(&self.fixture.endpoint(), "v").expect("the volume is served");
        assert_eq!(v.read(0, LEN as usize).expect("a served volume"), [7; LEN as usize]);
    }

    /// Waits until the log, which is written apart from the requests, has `count` lines with `text`; more are an error.
    fn assert_log_count(&self, text: &str, count: usize) {
        let lines = || self.daemon.log().matches(text).count();
        e2e::daemon::wait_for("the log line", || (lines() >= count).then_some(()));
        assert_eq!(lines(), count, "{}", self.daemon.log());
    }
}

/// Submits a read or a write of the volume's first bytes with its data at `data_address` of the guest's memory.
fn submit_request(guest: &mut Guest, is_write: bool, data_address: u64) {
    let (header, status) = (guest.queues[0].data(0), guest.queues[0].data(1));
    guest.memory.write(header, &[&u32::from(is_write).to_le_bytes()[..], &[0; 12]].concat());
    guest.memory.write(status, &[0xff]);
    let flags = if is_write { 0 } else { descriptor::WRITE };
    guest.queues[0].put_descriptor(0, header, 16, descriptor::NEXT, 1);
    guest.queues[0].put_descriptor(1, data_address, LEN, descriptor::NEXT | flags, 2);
    guest.queues[0].put_descriptor(2, status, 1, descriptor::WRITE, 0);
    guest.queues[0].offer(0);
}

/// Waits for the status of the hand-written request.
fn wait_for_status(guest: &Guest) -> u8 {
    let status = guest.queues[0].data(1);
    e2e::daemon::wait_for("an answer", || Some(guest.memory.read(status, 1)[0]).filter(|status| *status != 0xff))
}

#[test]
fn truncated_guest_memory_ends_only_its_front_end() {
    let mut deployment = Deployment::new();
    let memory = Memory::new(Guest::queue_bytes()).expect("guest memory");
    let data_region = Memory::new(LEN.into()).expect("guest memory");
    let add_region = |guest: &mut Guest| {
        guest.front_end.add_memory(&data_region, FAR, LEN.into(), 0).expect("taken");
        guest.start(None);
    };
    // A new front end in each round, with the same memory.
    for (round, is_write) in [false, true, false, true].into_iter().enumerate() {
        rustix::fs::ftruncate(data_region.file(), LEN.into()).expect("the file can grow");
        let mut guest = deployment.guest(&memory);
        add_region(&mut guest);
        rustix::fs::ftruncate(data_region.file(), 4096).expect("the file can shrink");
        submit_request(&mut guest, is_write, FAR);
        assert!(guest.front_end.is_closed(), "round {round}");
        assert_eq!(guest.memory.read(guest.queues[0].data(1), 1), [0xff], "the request is not answered");
        deployment.assert_others_are_served();
        deployment.assert_log_count("a page of the guest's memory is missing", round + 1);
    }
    rustix::fs::ftruncate(data_region.file(), LEN.into()).expect("the file can grow");
    let mut guest = deployment.guest(&memory);
    add_region(&mut guest);
    submit_request(&mut guest, false, FAR);
    assert_eq!(wait_for_status(&guest), 0);
    assert_eq!(data_region.read(0, LEN as usize), [7; LEN as usize]);
    drop(guest);
    let Deployment { daemon, neighbour, client, .. } = deployment;
    drop((neighbour, client));
    daemon.stop();
}

#[test]
fn truncated_guest_queues_end_only_their_front_end() {
    let mut deployment = Deployment::new();
    let (first, second) = (Guest::queue_bytes(), 2 * Guest::queue_bytes());
    let memory = Memory::new(second).expect("guest memory");
    let mut guest = Guest::with_memory(memory.clone(), &deployment.fixture.vhost_user_socket("v"), 2, FEATURES);
    guest.start(None);
    assert_eq!(guest.request(1, &Request::Read(0, 512)), (0, vec![7; 512]));
    // Truncates the second queue's rings; only its eventfd still works.
    rustix::fs::ftruncate(memory.file(), first).expect("the file can shrink");
    guest.queues[1].signal();
    assert!(guest.front_end.is_closed());
    deployment.assert_others_are_served();
    drop(guest);
    let Deployment { daemon, neighbour, client, .. } = deployment;
    drop((neighbour, client));
    daemon.stop();
}

#[test]
fn full_tmpfs_under_guest_memory_ends_only_its_front_end() {
    let mut deployment = Deployment::new();
    let Some(tmpfs) = SmallDisk::mount_sized(&deployment.fixture.folder.join("shm"), "4m") else { return };
    let file = File::options().create_new(true).read(true).write(true).open(tmpfs.path().join("guest")).expect("room");
    let memory = Memory::of_file(file.into(), 2 * FAR).expect("guest memory");
    let mut guest = deployment.guest(&memory);
    guest.start(None);
    assert_eq!(guest.request(0, &Request::Read(0, 512)), (0, vec![7; 512]));
    submit_request(&mut guest, false, FAR);
    assert_eq!((wait_for_status(&guest), memory.read(FAR, 1)), (0, vec![7]), "tmpfs has space for a page");
    tmpfs.fill();
    for (round, is_write) in [false, true, false].into_iter().enumerate() {
        submit_request(&mut guest, is_write, FAR + 2 * u64::from(LEN));
        assert!(guest.front_end.is_closed(), "round {round}");
        deployment.assert_others_are_served();
        guest = deployment.guest(&memory);
        guest.start(None);
    }
    tmpfs.empty();
    submit_request(&mut guest, false, FAR + 2 * u64::from(LEN));
    assert_eq!(wait_for_status(&guest), 0);
    assert_eq!(memory.read(FAR + 2 * u64::from(LEN), LEN as usize), [7; LEN as usize]);
    drop(guest);
    let Deployment { daemon, neighbour, client, .. } = deployment;
    drop((neighbour, client));
    daemon.stop();
}

#[test]
fn memory_on_a_hanging_file_system_is_refused_without_delay() {
    let mut deployment = Deployment::new();
    let Some(fuse) = Fuse::mount(&deployment.fixture.folder.join("fuse")) else { return };
    let file = File::options().create_new(true).read(true).write(true).open(fuse.path().join("guest")).expect("room");
    file.set_len(LEN.into()).expect("room");
    fuse.hang();
    // Memory, an eventfd, the back-end channel: their types are checked by the kernel, not by the file system.
    let memory_table: Vec<u8> = [1, 0, u64::from(LEN), 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    for (request, body) in [
        (message::SET_MEM_TABLE, &memory_table[..]),
        (message::SET_VRING_KICK, &[0; 8]),
        (message::SET_BACKEND_REQ_FD, &[]),
    ] {
        let mut front_end = connect(&deployment.fixture.vhost_user_socket("v"), ALL_FEATURES);
        let refused = front_end.send_acked(request, body, &[file.as_fd()]);
        assert!(refused.is_err(), "message {request} was taken");
        deployment.assert_others_are_served();
    }
    deployment.assert_log_count("neither a memfd nor a file on tmpfs or hugetlbfs", 1);
    let log = deployment.daemon.log();
    assert!(log.contains(&fuse.path().join("guest").display().to_string()), "{log}");
    fuse.resume();
    drop(file);
    let Deployment { daemon, neighbour, client, .. } = deployment;
    drop((neighbour, client));
    daemon.stop();
}
