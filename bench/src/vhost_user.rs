//! vhost-user-blk beside qemu-storage-daemon's, with the same driver in shared memory, and beside the daemon's own NBD.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use driver::{FrontEnd, Memory, Queue, Request, feature, protocol};
use nbd_protocol::{Command as NbdCommand, Request as NbdRequest};

use crate::machine;
use crate::nbd::connect;
use crate::process::{Bound, Process, cpu_us};
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{HOTSET_EXPORT, Programs, daemon};

/// Bytes per request.
const REQUEST_BYTES: u32 = 4096;
/// Bytes of a simple reply's header.
const REPLY_BYTES: usize = 16;
const QUEUE_SIZE: u16 = 128;
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
const FEATURES: u64 = feature::FLUSH
    | feature::MQ
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// Cells: name, requests in flight, whether they write, and the lowest acceptable ratio to each of the others.
const CELLS: [(&str, usize, bool, Option<f64>); 4] = [
    ("4 KiB random read, depth 1", 1, false, None),
    ("4 KiB random read, depth 32", 32, false, Some(1.3)),
    ("4 KiB random write, depth 1", 1, true, None),
    ("4 KiB random write, depth 32", 32, true, Some(1.3)),
];

/// One run: requests per second, and CPU microseconds per request of server and client.
#[derive(Clone, Copy, Default)]
struct Sample {
    iops: f64,
    server_us: f64,
    client_us: f64,
}

/// A client through shared memory or over a socket.
enum Client {
    Guest { _front_end: FrontEnd, queue: Queue },
    Nbd(UnixStream),
}

/// Connects a driver with one queue.
pub(crate) fn connect_guest(socket: &Path) -> io::Result<(FrontEnd, Queue)> {
    let features = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;
    let mut front_end = FrontEnd::connect(socket, FEATURES, features)?;
    let memory = Memory::new(Queue::bytes(QUEUE_SIZE, 1 << 16).next_multiple_of(4096))?;
    let queue = Queue::new(&memory, 0, QUEUE_SIZE, 1 << 16, true, true)?;
    front_end.share_memory(&memory)?;
    front_end.start_queue(0, &queue, None)?;
    Ok((front_end, queue))
}

impl Client {
    /// A client through shared memory.
    fn guest(socket: &Path) -> io::Result<Client> {
        let (front_end, queue) = connect_guest(socket)?;
        Ok(Client::Guest { _front_end: front_end, queue })
    }

    /// Keeps `depth` requests in flight for `time`, anywhere in `bytes`; returns the number of completed requests.
    fn run(&mut self, time: Duration, depth: usize, writes: bool, bytes: u64) -> io::Result<u64> {
        let (began, mut completed, mut random) = (Instant::now(), 0, 0x9E37_79B9_7F4A_7C15_u64);
        let mut random_offset = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % (bytes / u64::from(REQUEST_BYTES)) * u64::from(REQUEST_BYTES)
        };
        match self {
            Client::Guest { queue, .. } => {
                let data = vec![0xa5; REQUEST_BYTES as usize];
                let mut in_flight = 0;
                loop {
                    let is_running = began.elapsed() < time;
                    while is_running && in_flight < depth {
                        let offset = random_offset();
                        let request = if writes {
                            Request::Write(offset, data.clone())
                        } else {
                            Request::Read(offset, REQUEST_BYTES)
                        };
                        queue.submit(&request).ok_or_else(|| io::Error::other("the queue is full"))?;
                        in_flight += 1;
                    }
                    if in_flight == 0 {
                        return Ok(completed);
                    }
                    for completion in queue.wait(READY_TIMEOUT)? {
                        if completion.status != 0 {
                            return Err(io::Error::other(format!(
                                "a request failed with status {}",
                                completion.status
                            )));
                        }
                        in_flight -= 1;
                        completed += 1;
                    }
                }
            }
            Client::Nbd(stream) => {
                let (mut send_buffer, mut receive_buffer, mut received_len) = (Vec::new(), vec![0; 1 << 20], 0);
                let reply_len = if writes { REPLY_BYTES } else { REPLY_BYTES + REQUEST_BYTES as usize };
                let mut in_flight = 0;
                loop {
                    let is_running = began.elapsed() < time;
                    while is_running && in_flight < depth {
                        let command = if writes { NbdCommand::Write } else { NbdCommand::Read };
                        let request =
                            NbdRequest { flags: 0, command, cookie: 1, offset: random_offset(), len: REQUEST_BYTES };
                        send_buffer.extend_from_slice(&request.encode());
                        send_buffer.extend_from_slice(if writes { &[0xa5; REQUEST_BYTES as usize] } else { &[] });
                        in_flight += 1;
                    }
                    if in_flight == 0 {
                        return Ok(completed);
                    }
                    stream.write_all(&send_buffer)?;
                    send_buffer.clear();
                    let count = stream.read(&mut receive_buffer[received_len..])?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    received_len += count;
                    let replies = received_len / reply_len;
                    receive_buffer.copy_within(replies * reply_len..received_len, 0);
                    received_len -= replies * reply_len;
                    in_flight -= replies;
                    completed += replies as u64;
                }
            }
        }
    }

    /// Writes all blocks once.
    fn fill(&mut self, bytes: u64) -> io::Result<()> {
        let Client::Guest { queue, .. } = self else { return Ok(()) };
        for offset in (0..bytes).step_by(1 << 16) {
            queue
                .submit(&Request::Write(offset, vec![0xa5; 1 << 16]))
                .ok_or_else(|| io::Error::other("the queue is full"))?;
            queue.wait(READY_TIMEOUT)?;
        }
        Ok(())
    }
}

/// A server process and its client.
struct Peer<'a> {
    name: &'static str,
    process: &'a Process,
    client: Client,
}

impl Peer<'_> {
    fn sample(&mut self, seconds: u32, depth: usize, writes: bool, bytes: u64) -> io::Result<Sample> {
        let own_cpu_us = || cpu_us("/proc/self/stat");
        let (server, client, began) = (self.process.cpu_us(), own_cpu_us(), Instant::now());
        let completed = self.client.run(Duration::from_secs(seconds.into()), depth, writes, bytes)? as f64;
        let iops = completed / began.elapsed().as_secs_f64();
        Ok(Sample {
            iops,
            server_us: (self.process.cpu_us() - server) / completed,
            client_us: (own_cpu_us() - client) / completed,
        })
    }
}

/// Starts qemu-storage-daemon; returns its process and socket.
fn start_qemu(folder: &Path, bytes: u64) -> io::Result<(Process, PathBuf)> {
    let (file, socket) = (folder.join("qemu.img"), folder.join("qemu-vhost.sock"));
    fs::write(&file, vec![0; bytes as usize])?;
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--blockdev", &format!("driver=file,node-name=d,filename={},aio=io_uring", file.display())]);
    let export =
        format!("type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={},writable=on", socket.display());
    command.args(["--export", &export]);
    let process = Process::start_until(command, || socket.exists())?;
    Ok((process, socket))
}

/// Measures all three, interleaved, on volumes of `effort.size_bytes` in `folder`, which lies in memory.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let bytes = effort.size_bytes;
    let (socket, vhost, image) = (folder.join("hotset.sock"), folder.join("vhost"), folder.join("hotset.img"));
    fs::File::create(&image)?.set_len(bytes)?;
    let extra_toml = format!("[vhost_user]\ndirectory = \"{}\"\n", vhost.display());
    let volume = (HOTSET_EXPORT, image.display().to_string());
    let hotset =
        Process::start(daemon(folder, &socket, bytes * 8, &[volume], &extra_toml, &programs.hotset)?, &socket)?;
    let (qemu, qemu_socket) = start_qemu(folder, bytes)?;
    let guest = Client::guest(&vhost.join(format!("{HOTSET_EXPORT}.sock")))?;
    let mut peers = [
        Peer { name: "hotset", process: &hotset, client: guest },
        Peer { name: "qemu-s-d", process: &qemu, client: Client::guest(&qemu_socket)? },
        Peer { name: "hotset over NBD", process: &hotset, client: Client::Nbd(connect(&socket, HOTSET_EXPORT)?) },
    ];
    for peer in &mut peers {
        peer.client.fill(bytes)?;
    }
    // Without binding, the scheduler would place server and client on one CPU or on two for whole runs, and the
    // comparison would measure that.
    let _bound = if machine::processors() > 1 {
        hotset.bind(0)?;
        qemu.bind(0)?;
        Some(Bound::to(1)?)
    } else {
        None
    };
    let mut text = "A volume that is entirely in memory, used by one driver in shared memory, beside \
                    qemu-storage-daemon's vhost-user-blk \
                    export of a file in memory, and beside the same daemon over NBD on a Unix socket. Servers have \
                    one processor, the client another. A cell shows: requests per second · the \
                    server's CPU time per request · the client's.\n\n\
                    | | hotset | qemu-s-d | hotset over NBD | to qemu-s-d | to NBD | target |\n| --- | ---: | ---: | \
                    ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for (name, depth, writes, target) in CELLS {
        let mut rounds = Vec::new();
        for round in 0..effort.rounds {
            let mut samples = [Sample::default(); 3];
            // The order rotates, because a later peer finds the machine in the state that the others left.
            for turn in 0..peers.len() {
                let index = (turn + round) % peers.len();
                samples[index] = peers[index].sample(effort.seconds, depth, writes, bytes)?;
            }
            rounds.push(samples);
        }
        let median_of = |figure: &dyn Fn(&[Sample; 3]) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let format_figures = |peer: usize| {
            let (iops, server, client) =
                (median_of(&|s| s[peer].iops), median_of(&|s| s[peer].server_us), median_of(&|s| s[peer].client_us));
            format!("{iops:.0} · {server:.1} µs · {client:.1} µs")
        };
        let ratio = |to: usize| {
            let ratios: Vec<_> = rounds.iter().map(|s| format!("{:.2}", s[0].iops / s[to].iops)).collect();
            format!("**{:.2}** ({})", median_of(&|s| s[0].iops / s[to].iops), ratios.join(", "))
        };
        eprintln!("vhost-user, {name}: {} of {}, {} of {}", ratio(1), peers[1].name, ratio(2), peers[2].name);
        let target = target.map_or_else(String::new, |target| format!("{target:.1}"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {target} |",
            format_figures(0),
            format_figures(1),
            format_figures(2),
            ratio(1),
            ratio(2)
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "vhost-user".into(), text, ratios: Vec::new(), measured: Vec::new() })
}
