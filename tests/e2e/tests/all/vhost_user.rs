//! vhost-user-blk with the tests' own driver: permitted requests, hostile drivers, and restarts with requests in
//! flight.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use driver::{Completion, FrontEnd, Inflight, Memory, Queue, Request, descriptor, feature, message, protocol};
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;

const BYTES: u64 = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
const DATA_BYTES: u32 = 16 << 10;
const QUEUE_SIZE: u16 = 64;
/// Length of the configuration space, and offsets of its fields `blk_size` and `writeback`.
const CONFIG_BYTES: u32 = 60;
const BLK_SIZE_OFFSET: usize = 20;
const WRITEBACK_OFFSET: usize = 32;
pub const ALL_FEATURES: u64 = feature::SEG_MAX
    | feature::FLUSH
    | feature::CONFIG_WCE
    | feature::MQ
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;
const ALL_PROTOCOL_FEATURES: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::LOG_SHMFD
    | protocol::CONFIGURE_MEM_SLOTS;

fn fixture(lines: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.add_volume("v", BYTES, lines);
    fixture.enable_vhost_user();
    fixture
}

/// A guest with its front end and its queues.
pub struct Guest {
    pub front_end: FrontEnd,
    pub memory: Memory,
    pub queues: Vec<Queue>,
}

impl Guest {
    /// Memory of a queue with its requests, in bytes.
    pub fn queue_bytes() -> u64 {
        Queue::bytes(QUEUE_SIZE, DATA_BYTES).next_multiple_of(4096)
    }

    /// A guest whose queues are not started.
    pub fn new(socket: &Path, queues: usize, features: u64) -> Guest {
        let memory = Memory::new(Guest::queue_bytes() * queues as u64).expect("guest memory");
        Guest::with_memory(memory, socket, queues, features)
    }

    /// A guest whose queues lie at the beginning of its memory.
    pub fn with_memory(memory: Memory, socket: &Path, queues: usize, features: u64) -> Guest {
        let bytes_per_queue = Guest::queue_bytes();
        let event_idx = features & feature::EVENT_IDX != 0;
        let indirect = features & feature::INDIRECT_DESC != 0;
        let created = (0..queues as u64).map(|number| {
            Queue::new(&memory, number * bytes_per_queue, QUEUE_SIZE, DATA_BYTES, event_idx, indirect).expect("a queue")
        });
        let queues = created.collect();
        let mut guest = Guest { front_end: connect(socket, features), memory, queues };
        guest.front_end.share_memory(&guest.memory).expect("the server accepts the message");
        guest
    }

    /// Starts all queues; `inflight` has the requests in flight of an earlier daemon.
    pub fn start(&mut self, inflight: Option<&Inflight>) {
        if let Some(inflight) = inflight {
            self.front_end.set_inflight(inflight).expect("the server accepts the message");
        }
        for (index, queue) in self.queues.iter().enumerate() {
            self.front_end.start_queue(index as u32, queue, None).expect("started");
        }
    }

    /// A guest on volume `v` with started queues.
    pub fn started(fixture: &Fixture, queues: usize, features: u64) -> Guest {
        let mut guest = Guest::new(&fixture.vhost_user_socket("v"), queues, features);
        guest.start(None);
        guest
    }

    /// Sends a request and waits for it: returns the status, and the data of a read.
    pub fn request(&mut self, queue: usize, request: &Request) -> (u8, Vec<u8>) {
        let head = self.queues[queue].submit(request).expect("a descriptor is free");
        let completions = self.queues[queue].wait(TIMEOUT).expect("a completion");
        let [Completion { head: completed_head, status, written }] = completions[..] else { panic!("{completions:?}") };
        assert_eq!(completed_head, head);
        let len = match request {
            Request::Read(_, len) => *len as usize,
            Request::GetId => 20,
            _ => 0,
        };
        assert!(status != 0 || written as usize == len + 1, "{written} bytes of {len}");
        (status, self.memory.read(self.queues[queue].data(head), len))
    }
}

pub fn connect(socket: &Path, features: u64) -> FrontEnd {
    wait_for("the vhost-user socket", || FrontEnd::connect(socket, features, ALL_PROTOCOL_FEATURES).ok())
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (index % 56)) as u8 ^ index as u8)
        .collect()
}

#[test]
fn every_permitted_guest_request_is_served() {
    let fixture = fixture("");
    let daemon = fixture.start();
    for features in [
        ALL_FEATURES,
        ALL_FEATURES & !feature::INDIRECT_DESC,
        ALL_FEATURES & !feature::EVENT_IDX,
        ALL_FEATURES & !feature::INDIRECT_DESC & !feature::EVENT_IDX,
    ] {
        let mut guest = Guest::started(&fixture, 4, features);
        for queue in 0..4 {
            let (offset, data) = (queue as u64 * 65536 + 512, content(queue as u64 + features, 9 * 512));
            assert_eq!(guest.request(queue, &Request::Write(offset, data.clone())).0, 0);
            assert_eq!(guest.request((queue + 1) % 4, &Request::Read(offset, 9 * 512)), (0, data));
        }
        assert_eq!(guest.request(0, &Request::Flush).0, 0);
        assert_eq!(guest.request(0, &Request::Discard(0, 65536)).0, 0);
        assert_eq!(guest.request(0, &Request::WriteZeroes(65536, 4096, false)).0, 0);
        assert_eq!(guest.request(0, &Request::Read(60 << 10, 8192)), (0, vec![0; 8192]));
        let (status, identity) = guest.request(0, &Request::GetId);
        assert!(status == 0 && identity[..16].iter().all(u8::is_ascii_hexdigit) && identity[16..] == [0; 4]);
        assert_eq!(guest.request(0, &Request::Read(BYTES - 512, 1024)).0, 1);
        assert_eq!(guest.request(0, &Request::Read(0, 100)).0, 1);
        assert_eq!(guest.request(0, &Request::Discard(BYTES, 512)).0, 1);
        assert_eq!(guest.request(0, &Request::Other(99, 0, vec![0; 16])).0, 2);
    }
    // Access is decided by the socket's permissions, not by the directory's.
    let directory = fixture
        .vhost_user_socket("v")
        .parent()
        .expect("the socket has a parent folder")
        .metadata()
        .expect("the file exists");
    assert_eq!(directory.permissions().mode() & 0o777, 0o755);
    let mut front_end = connect(&fixture.vhost_user_socket("v"), ALL_FEATURES);
    let config = front_end.config(CONFIG_BYTES).expect("the server replies");
    assert_eq!(u64::from_le_bytes(config[..8].try_into().expect("eight bytes")), BYTES / 512);
    assert_eq!(
        (config[BLK_SIZE_OFFSET..][..4].to_vec(), config[WRITEBACK_OFFSET]),
        (512_u32.to_le_bytes().to_vec(), 1)
    );
    front_end.set_config(WRITEBACK_OFFSET as u32, 0).expect("the field can be changed");
    assert_eq!(front_end.config(CONFIG_BYTES).expect("the server replies")[WRITEBACK_OFFSET], 0);
    assert!(front_end.set_config(0, 0).is_err());
    // Other clients see the same content.
    drop(front_end);
    daemon.stop();
    let mut file = std::fs::File::open(fixture.backing("v")).expect("the backing exists");
    let mut bytes = vec![0; 4096];
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(65536)).expect("the file is long enough");
    file.read_exact(&mut bytes).expect("the file is long enough");
    assert_eq!(bytes, [0; 4096]);
}

#[test]
fn full_queue_completes_each_request_once() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut guest = Guest::started(&fixture, 2, ALL_FEATURES);
    let mut random = 7_u64;
    let mut written: Vec<u64> = vec![0; 256];
    for round in 1..200_u64 {
        let mut in_flight = Vec::new();
        for queue in 0..2 {
            // Each queue has its own blocks: the order of two requests on one block at once is not defined.
            let mut blocks: Vec<u64> = Vec::new();
            while let Some(block) = (blocks.len() < 48).then(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 40) % 128 * 2 + queue as u64
            }) {
                if blocks.contains(&block) {
                    continue;
                }
                blocks.push(block);
                let is_write = random >> 63 == 1;
                let request = match is_write {
                    true => Request::Write(block * 4096, content(block + round * 1000, 4096)),
                    false => Request::Read(block * 4096, 4096),
                };
                let head = guest.queues[queue].submit(&request).expect("a descriptor is free");
                in_flight.push((queue, head, block, is_write));
            }
        }
        while !in_flight.is_empty() {
            for queue in 0..2 {
                for completion in guest.queues[queue].take_completions() {
                    let position = in_flight
                        .iter()
                        .position(|(queue_number, head, ..)| (*queue_number, *head) == (queue, completion.head));
                    let (_, head, block, is_write) =
                        in_flight.swap_remove(position.expect("the request is in flight and completes once"));
                    assert_eq!(completion.status, 0);
                    if is_write {
                        written[block as usize] = round;
                        continue;
                    }
                    let data = guest.memory.read(guest.queues[queue].data(head), 4096);
                    let old = written[block as usize];
                    let expected = if old == 0 { vec![0; 4096] } else { content(block + old * 1000, 4096) };
                    assert!(data == expected, "block {block} is not what was written in round {old}");
                }
            }
        }
    }
    drop(guest);
    daemon.stop();
}

#[test]
fn read_only_volume_refuses_writes() {
    let fixture = fixture("read_only = true");
    let daemon = fixture.start();
    let mut guest = Guest::started(&fixture, 1, ALL_FEATURES | feature::RO);
    let offered = guest.front_end.offered_features().expect("the server replies");
    assert_eq!(offered & (feature::RO | feature::DISCARD | feature::WRITE_ZEROES), feature::RO);
    assert_eq!(guest.request(0, &Request::Write(0, vec![1; 512])).0, 1);
    assert_eq!(guest.request(0, &Request::Discard(0, 512)).0, 1);
    assert_eq!(guest.request(0, &Request::Read(0, 512)), (0, vec![0; 512]));
    drop(guest);
    daemon.stop();
}

#[test]
fn guest_is_notified_of_growth() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut guest = Guest::started(&fixture, 1, ALL_FEATURES);
    let mut back_channel = guest.front_end.open_backend_channel().expect("the server accepts the message");
    daemon.command(&["volume", "resize", "v", "96 MiB"]);
    let mut message = [0; 12];
    back_channel.read_exact(&mut message).expect("a message");
    // The header of CONFIG_CHANGE_MSG, version 1, without a body.
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let sectors =
        u64::from_le_bytes(guest.front_end.config(8).expect("the server replies").try_into().expect("eight bytes"));
    assert_eq!(sectors, (96 << 20) / 512);
    assert_eq!(guest.request(0, &Request::Write(BYTES, vec![5; 512])).0, 0);
    drop(guest);
    daemon.stop();
}

/// Makes a driver violate the queue's rules.
type Violation = fn(&mut Queue, u64);

#[test]
fn rule_violation_stops_its_own_queue_only() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut neighbour = Guest::started(&fixture, 1, ALL_FEATURES);
    let violations: [(&str, Violation); 12] = [
        ("a chain that never ends", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::NEXT, 0);
            queue.offer(0);
        }),
        ("a loop of two", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::NEXT, 1);
            queue.put_descriptor(1, data, 16, descriptor::NEXT, 0);
            queue.offer(0);
        }),
        ("a head past the end", |queue, _| queue.offer(QUEUE_SIZE)),
        ("a next past the end", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::NEXT, 0xffff);
            queue.offer(0);
        }),
        ("a buffer outside memory", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::NEXT, 1);
            queue.put_descriptor(1, 1 << 60, 512, descriptor::NEXT | descriptor::WRITE, 2);
            queue.put_descriptor(2, data, 1, descriptor::WRITE, 0);
            queue.offer(0);
        }),
        ("a buffer past the end of memory", |queue, data| {
            queue.put_descriptor(0, data, u32::MAX, descriptor::WRITE, 0);
            queue.offer(0);
        }),
        ("an address that wraps", |queue, _| {
            queue.put_descriptor(0, u64::MAX - 4, 16, 0, 0);
            queue.offer(0);
        }),
        ("an empty indirect table", |queue, data| {
            queue.put_descriptor(0, data, 0, descriptor::INDIRECT, 0);
            queue.offer(0);
        }),
        ("an indirect table in another one", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::INDIRECT, 0);
            queue.put_descriptor(1, data, 16, descriptor::INDIRECT, 0);
            queue.offer(0);
            queue.offer(1);
        }),
        ("a chain without a status descriptor", |queue, data| {
            queue.put_descriptor(0, data, 16, 0, 0);
            queue.offer(0);
        }),
        ("a readable descriptor after a writable one", |queue, data| {
            queue.put_descriptor(0, data, 16, descriptor::WRITE | descriptor::NEXT, 1);
            queue.put_descriptor(1, data, 16, 0, 0);
            queue.offer(0);
        }),
        ("an available index past the queue's size", |queue, _| queue.set_available(0x8000)),
    ];
    for (case, violate) in violations {
        let mut guest = Guest::started(&fixture, 2, ALL_FEATURES & !feature::EVENT_IDX);
        let data = guest.queues[0].data(0);
        guest.memory.write(data, &[0; 256]);
        if case.contains("in another") {
            let table = [&data.to_le_bytes()[..], &16_u32.to_le_bytes(), &descriptor::INDIRECT.to_le_bytes(), &[0; 2]];
            guest.memory.write(data, &table.concat());
        }
        violate(&mut guest.queues[0], data);
        assert!(guest.queues[0].has_failed(TIMEOUT).expect("an event"), "{case} was accepted");
        // The guest's other queue continues, and the broken queue can be set up again.
        assert_eq!(guest.request(1, &Request::Write(4096, vec![3; 512])).0, 0, "{case}");
        guest.front_end.stop_queue(0).expect("stopped");
        assert_eq!(neighbour.request(0, &Request::Read(4096, 512)), (0, vec![3; 512]), "{case}");
    }
    drop(neighbour);
    daemon.stop();
}

#[test]
fn malformed_messages_end_their_own_front_end_only() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut neighbour = Guest::started(&fixture, 1, ALL_FEATURES);
    let zeroes = std::fs::File::open("/dev/zero").expect("the file exists");
    let socket = fixture.vhost_user_socket("v");
    let malformed: [&dyn Fn(&mut FrontEnd); 6] = [
        &|front_end| front_end.send_raw(&[0xff; 12], &[]).expect("the bytes are sent"),
        &|front_end| front_end.send(99, &[], &[]).expect("the bytes are sent"),
        &|front_end| {
            front_end.send(message::SET_VRING_NUM, &[64, 0, 0, 0, 3, 0, 0, 0], &[]).expect("the bytes are sent")
        },
        &|front_end| {
            front_end.send(message::SET_VRING_NUM, &[0, 0, 0, 0, 3, 0, 0, 0], &[]).expect("the bytes are sent")
        },
        // An event descriptor that is always readable, and memory whose end lies before its start.
        &|front_end| {
            let fds = [std::os::fd::AsFd::as_fd(&zeroes)];
            front_end.send(message::SET_VRING_KICK, &[0; 8], &fds).expect("the bytes are sent");
        },
        &|front_end| {
            let body: Vec<u8> = [1, 0, 1 << 20, 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            front_end
                .send(message::SET_MEM_TABLE, &body, &[std::os::fd::AsFd::as_fd(&zeroes)])
                .expect("the bytes are sent");
        },
    ];
    for (number, violate) in malformed.iter().enumerate() {
        let mut front_end = connect(&socket, ALL_FEATURES);
        violate(&mut front_end);
        assert!(front_end.is_closed(), "message {number} was accepted");
    }
    // Half a message delays no other client.
    let mut partial = connect(&socket, ALL_FEATURES);
    partial.send_raw(&[1, 0, 0], &[]).expect("the bytes are sent");
    assert_eq!(neighbour.request(0, &Request::Write(0, vec![1; 512])).0, 0);
    drop((neighbour, partial));
    daemon.stop();
}

/// Requests delayed by a limit are in flight when the daemon is killed.
#[test]
fn requests_in_flight_at_a_kill_run_once_in_the_next_daemon() {
    let fixture = fixture("policy = \"write-through\"\nlimit_iops = 100");
    let mut daemon = fixture.start();
    let mut guest = Guest::new(&fixture.vhost_user_socket("v"), 2, ALL_FEATURES);
    let inflight = guest.front_end.get_inflight(2, QUEUE_SIZE).expect("the server provides inflight memory");
    guest.start(Some(&inflight));
    let (mut in_flight, mut block) = (Vec::new(), 0_u64);
    for _ in 0..6 {
        for queue in 0..2 {
            while guest.queues[queue].has_room() {
                let head = guest.queues[queue].submit(&Request::Write(block * 4096, content(block, 4096)));
                in_flight.push((queue, head.expect("a descriptor is free")));
                block += 1;
            }
        }
        let mut completed = 0;
        while completed < 10 {
            for queue in 0..2 {
                for completion in guest.queues[queue].take_completions() {
                    assert_eq!(completion.status, 0);
                    let position = in_flight.iter().position(|entry| *entry == (queue, completion.head));
                    in_flight.swap_remove(position.expect("the request is in flight and completes once"));
                    completed += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.kill();
        daemon = Daemon::start(&fixture);
        guest.front_end = connect(&fixture.vhost_user_socket("v"), ALL_FEATURES);
        guest.front_end.share_memory(&guest.memory).expect("the server accepts the message");
        guest.start(Some(&inflight));
    }
    daemon.command(&["volume", "set", "v", "limit_iops=0"]);
    while !in_flight.is_empty() {
        for queue in 0..2 {
            for completion in guest.queues[queue].take_completions() {
                assert_eq!(completion.status, 0);
                let position = in_flight.iter().position(|entry| *entry == (queue, completion.head));
                in_flight.swap_remove(position.expect("the request is in flight and completes once"));
            }
        }
    }
    for number in 0..block {
        assert_eq!(guest.request(0, &Request::Read(number * 4096, 4096)), (0, content(number, 4096)), "block {number}");
    }
    drop(guest);
    daemon.stop();
}

#[test]
fn lost_acknowledged_writes_fail_the_next_flush() {
    let mut fixture = fixture("");
    fixture.keep_in = "none".to_owned();
    let mut daemon = fixture.start();
    let mut guest = Guest::new(&fixture.vhost_user_socket("v"), 1, ALL_FEATURES);
    let inflight = guest.front_end.get_inflight(1, QUEUE_SIZE).expect("the server provides inflight memory");
    guest.start(Some(&inflight));
    let restart = |daemon: &mut Option<Daemon>, guest: &mut Guest, kill: bool| {
        let old = daemon.take().expect("the daemon runs");
        if kill {
            old.kill()
        } else {
            old.stop()
        }
        *daemon = Some(Daemon::start(&fixture));
        guest.front_end = connect(&fixture.vhost_user_socket("v"), ALL_FEATURES);
        guest.front_end.share_memory(&guest.memory).expect("the server accepts the message");
        guest.start(Some(&inflight));
    };
    let mut running = Some(daemon);
    for (flushes, kill, status) in [(true, true, 0), (false, true, 1), (false, false, 0), (true, false, 0)] {
        assert_eq!(guest.request(0, &Request::Write(0, vec![7; 512])).0, 0);
        if flushes {
            assert_eq!(guest.request(0, &Request::Flush).0, 0);
        }
        restart(&mut running, &mut guest, kill);
        assert_eq!(guest.request(0, &Request::Flush).0, status, "flushed: {flushes}, killed: {kill}");
        assert_eq!(guest.request(0, &Request::Flush).0, 0, "the loss is reported once");
    }
    // A guest with write-through semantics loses no acknowledged write.
    guest.front_end.set_config(WRITEBACK_OFFSET as u32, 0).expect("the field can be changed");
    assert_eq!(guest.request(0, &Request::Write(0, vec![9; 512])).0, 0);
    restart(&mut running, &mut guest, true);
    assert_eq!(
        guest.front_end.config(CONFIG_BYTES).expect("the server replies")[WRITEBACK_OFFSET],
        0,
        "the cache mode survives the restart"
    );
    assert_eq!(guest.request(0, &Request::Flush).0, 0);
    assert_eq!(guest.request(0, &Request::Read(0, 512)), (0, vec![9; 512]));
    drop(guest);
    daemon = running.take().expect("the daemon runs");
    daemon.stop();
}

/// A daemon without loss follows one with a loss, and is killed before the guest has flushed: the guest's flush still
/// fails once.
#[test]
fn loss_is_reported_after_any_number_of_restarts() {
    let mut fixture = fixture("");
    fixture.keep_in = "none".to_owned();
    let daemon = fixture.start();
    let mut guest = Guest::new(&fixture.vhost_user_socket("v"), 1, ALL_FEATURES);
    let inflight = guest.front_end.get_inflight(1, QUEUE_SIZE).expect("the server provides inflight memory");
    guest.start(Some(&inflight));
    assert_eq!(guest.request(0, &Request::Write(0, vec![7; 512])).0, 0);
    daemon.kill();
    fixture.keep_in = "auto".to_owned();
    let reconnect = |guest: &mut Guest| {
        guest.front_end = connect(&fixture.vhost_user_socket("v"), ALL_FEATURES);
        guest.front_end.share_memory(&guest.memory).expect("the server accepts the message");
        guest.start(Some(&inflight));
    };
    // One daemon without a guest, and one with a guest.
    fixture.start().kill();
    let daemon = fixture.start();
    reconnect(&mut guest);
    assert_eq!(guest.request(0, &Request::Write(4096, vec![8; 512])).0, 0);
    daemon.kill();
    let daemon = fixture.start();
    reconnect(&mut guest);
    assert_eq!(guest.request(0, &Request::Read(4096, 512)), (0, vec![8; 512]));
    assert_eq!([1, 2, 3].map(|_| guest.request(0, &Request::Flush).0), [1, 0, 0]);
    assert_eq!(guest.request(0, &Request::Write(0, vec![9; 512])).0, 0);
    daemon.kill();
    let daemon = fixture.start();
    reconnect(&mut guest);
    assert_eq!(guest.request(0, &Request::Flush).0, 0, "the loss was reported before");
    assert_eq!(guest.request(0, &Request::Read(0, 512)), (0, vec![9; 512]));
    drop(guest);
    daemon.stop();
}

/// The guest continues while the daemon is away: acknowledged writes survive, flushed or not, and no flush fails.
#[test]
fn acknowledged_guest_writes_survive_a_kill() {
    let fixture = fixture("");
    let mut daemon = fixture.start();
    let mut guest = Guest::new(&fixture.vhost_user_socket("v"), 1, ALL_FEATURES);
    let inflight = guest.front_end.get_inflight(1, QUEUE_SIZE).expect("the server provides inflight memory");
    guest.start(Some(&inflight));
    for round in 1..5 {
        assert_eq!(guest.request(0, &Request::Write(u64::from(round) * 4096, vec![round; 4608])).0, 0);
        daemon.kill();
        daemon = fixture.start();
        guest.front_end = connect(&fixture.vhost_user_socket("v"), ALL_FEATURES);
        guest.front_end.share_memory(&guest.memory).expect("the server accepts the message");
        guest.start(Some(&inflight));
        assert_eq!(guest.request(0, &Request::Flush).0, 0);
        for earlier in 1..=round {
            assert_eq!(guest.request(0, &Request::Read(u64::from(earlier) * 4096, 4096)), (0, vec![earlier; 4096]));
        }
        assert_eq!(guest.request(0, &Request::Read(u64::from(round) * 4096 + 4096, 512)), (0, vec![round; 512]));
    }
    drop(guest);
    daemon.stop();
}

/// A closed front end leaves a waiting request; later writes are applied after it, never before it.
#[test]
fn late_request_does_not_overwrite_the_next_front_ends_writes() {
    let fixture = fixture("limit_iops = 2");
    let daemon = fixture.start();
    let mut first = Guest::started(&fixture, 1, ALL_FEATURES);
    for block in 0..4 {
        first.queues[0].submit(&Request::Write(block * 4096, vec![1; 4096])).expect("a descriptor is free");
    }
    std::thread::sleep(Duration::from_millis(200));
    drop(first);
    let mut second = Guest::started(&fixture, 1, ALL_FEATURES);
    daemon.command(&["volume", "set", "v", "limit_iops=0"]);
    for block in 0..4 {
        assert_eq!(second.request(0, &Request::Write(block * 4096, vec![2; 4096])).0, 0);
    }
    std::thread::sleep(Duration::from_secs(1));
    for block in 0..4 {
        assert_eq!(second.request(0, &Request::Read(block * 4096, 4096)), (0, vec![2; 4096]), "block {block}");
    }
    drop(second);
    daemon.stop();
}

#[test]
fn memory_hotplug_works_under_load_and_writes_are_logged() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut guest = Guest::started(&fixture, 1, ALL_FEATURES | feature::LOG_ALL);
    let added = Memory::new(1 << 20).expect("guest memory");
    let (added_address, data) = (1_u64 << 32, guest.queues[0].data(0));
    guest.front_end.add_memory(&added, added_address, 1 << 20, 0).expect("the server accepts the message");
    // A read into the added memory.
    let read = |guest: &mut Guest| {
        let queue = &mut guest.queues[0];
        guest.memory.write(data, &[0; 16]);
        guest.memory.write(data + 16, &[0xff]);
        queue.put_descriptor(60, data, 16, descriptor::NEXT, 61);
        queue.put_descriptor(61, added_address + 0x3000, 4096, descriptor::NEXT | descriptor::WRITE, 62);
        queue.put_descriptor(62, data + 16, 1, descriptor::WRITE, 0);
        queue.offer(60);
    };
    assert_eq!(guest.request(0, &Request::Write(0, vec![6; 4096])).0, 0);
    read(&mut guest);
    wait_for("the data", || {
        (guest.memory.read(data + 16, 1) == [0] && added.read(0x3000, 4096) == [6; 4096]).then_some(())
    });
    std::thread::sleep(Duration::from_millis(100));
    guest.queues[0].skip_completions();

    let log = Memory::new(1 << 18).expect("guest memory");
    guest.front_end.set_dirty_log(&log).expect("the server accepts the message");
    guest.front_end.set_features(ALL_FEATURES | feature::LOG_ALL).expect("agreed");
    let [_, _, used_ring] = guest.queues[0].addresses();
    let (front_end, queue) = (&mut guest.front_end, &guest.queues[0]);
    front_end.set_addresses(0, queue, Some(used_ring)).expect("the server accepts the message");
    read(&mut guest);
    let is_logged = |address: u64| log.read(address / 4096 / 8, 1)[0] >> (address / 4096 % 8) & 1 == 1;
    wait_for("the used ring in the log", || is_logged(used_ring).then_some(()));
    assert!(is_logged(added_address + 0x3000) && is_logged(data + 16) && !is_logged(added_address + 0x4000));
    std::thread::sleep(Duration::from_millis(100));
    guest.queues[0].skip_completions();

    guest.front_end.remove_memory(added_address, 1 << 20, 0).expect("the server accepts the message");
    read(&mut guest);
    assert!(guest.queues[0].has_failed(TIMEOUT).expect("an event"), "removed memory was written");
    drop(guest);
    daemon.stop();
}

#[test]
fn removed_volume_disconnects_guests_and_added_one_has_a_socket() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let mut guest = Guest::started(&fixture, 1, ALL_FEATURES);
    assert_eq!(guest.request(0, &Request::Write(0, vec![8; 512])).0, 0);
    daemon.command(&["volume", "remove", "v"]);
    assert!(guest.front_end.is_closed() && !fixture.vhost_user_socket("v").exists());
    daemon.command(&["volume", "add", "w", "--backing", &fixture.backing("v").display().to_string()]);
    let mut other = Guest::new(&fixture.vhost_user_socket("w"), 1, ALL_FEATURES);
    other.start(None);
    assert_eq!(other.request(0, &Request::Read(0, 512)), (0, vec![8; 512]));
    drop((guest, other));
    daemon.stop();
}
