//! An in-memory FUSE file system of the tests that can be made to hang.
//!
//! It holds its content until it is unmounted, and serves one request at a time. While it hangs it takes no requests
//! from the kernel, or has taken only the one that began the hang. Waiting processes then block in a killable state, as
//! with an unreachable server. It sets `FOPEN_NOFLUSH`, because the kernel would otherwise wait for a flush at each
//! close, even at the end of a process.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Inode number of the root.
const ROOT: u64 = 1;
const IN_HEAD_BYTES: usize = 40;
/// Longest write that the kernel sends, and the buffer size for one with its headers.
const WRITE_BYTES_MAX: u32 = 128 << 10;
const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;
/// Interval at which the server checks whether it hangs or must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

const FOPEN_NOFLUSH: u32 = 1 << 5;
const SET_MODE: u32 = 1;
const SET_SIZE: u32 = 1 << 3;
const KEEP_SIZE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// A mounted file system, which is released from a hang and unmounted when dropped.
pub struct Fuse {
    path: PathBuf,
    /// Locked while a request is read and answered.
    hang: Arc<Mutex<Hang>>,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// Whether the file system hangs, and the operation at which a hang is to begin.
#[derive(Default)]
struct Hang {
    is_active: bool,
    begins_at: Option<Operation>,
}

/// An operation at which a hang can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading of a file.
    Read = 15,
    /// Writing of a file.
    Write = 16,
}

fn lock(hang: &Mutex<Hang>) -> MutexGuard<'_, Hang> {
    hang.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fuse {
    /// Mounts a file system at `path`, which is created. Prints `SKIPPED` where the user lacks permission.
    pub fn mount(path: &Path) -> Option<Fuse> {
        std::fs::create_dir_all(path).expect("the folder can be created");
        let mounted = OpenOptions::new().read(true).write(true).open("/dev/fuse").and_then(|device| {
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
            let options = CString::new(options).expect("no zero byte");
            mount("hotset-test", path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(&*options))?;
            Ok(device)
        });
        let device = match mounted {
            Ok(device) => device,
            Err(error) => {
                println!("SKIPPED: no FUSE file system may be mounted here ({error})");
                return None;
            }
        };
        let (hang, ends) = (Arc::new(Mutex::new(Hang::default())), Arc::new(AtomicBool::new(false)));
        let (server_hang, server_ends) = (hang.clone(), ends.clone());
        let server = std::thread::spawn(move || Server::new(device).serve(&server_hang, &server_ends));
        Some(Fuse { path: path.to_owned(), hang, ends, server: Some(server) })
    }

    /// Path of the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops answering requests.
    pub fn hang(&self) {
        lock(&self.hang).is_active = true;
    }

    /// Stops answering requests from the next operation of this kind on. A process that waits for this operation cannot
    /// be killed before the file system answers.
    pub fn hang_at(&self, operation: Operation) {
        lock(&self.hang).begins_at = Some(operation);
    }

    /// True while it hangs.
    pub fn is_hung(&self) -> bool {
        lock(&self.hang).is_active
    }

    /// Answers requests again, waiting ones first.
    pub fn resume(&self) {
        *lock(&self.hang) = Hang::default();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.resume();
        // A lazy unmount, because a daemon may still have files open.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        self.ends.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            // Closes the device, which fails all waiting requests.
            let _ = server.join();
        }
    }
}

enum Content {
    Folder(BTreeMap<String, u64>),
    File(Vec<u8>),
}

struct Node {
    mode: u32,
    content: Content,
}

struct Server {
    device: File,
    /// Nodes by number. Unlinked nodes stay, because they may be open.
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

/// Body of a request, read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u32(&mut self) -> u32 {
        let (field, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_ne_bytes(field.try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        let (field, rest) = self.0.split_at(8);
        self.0 = rest;
        u64::from_ne_bytes(field.try_into().expect("eight bytes"))
    }

    fn name(&mut self) -> &'a str {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a name ends with a zero");
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        std::str::from_utf8(name).expect("tests use plain names")
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn join_u32(low: u32, high: u32) -> u64 {
    let [low, high] = [low, high].map(u32::to_ne_bytes);
    u64::from_ne_bytes([low, high].concat().try_into().expect("eight bytes"))
}

type Reply = Result<Vec<u8>, Errno>;

impl Server {
    fn new(device: File) -> Server {
        let root = Node { mode: FOLDER | 0o755, content: Content::Folder(BTreeMap::new()) };
        Server { device, nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    fn serve(mut self, hang: &Mutex<Hang>, ends: &AtomicBool) {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        let pause = Timespec::try_from(POLL_INTERVAL).expect("a short interval");
        while !ends.load(Ordering::Relaxed) {
            if lock(hang).is_active {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            let mut waits = [PollFd::new(&self.device, PollFlags::IN)];
            if !poll(&mut waits, Some(&pause)).is_ok_and(|count| count > 0) {
                continue;
            }
            let mut state = lock(hang);
            if state.is_active {
                continue;
            }
            match self.device.read(&mut buffer) {
                Ok(len) => {
                    let operation = Fields(&buffer[4..]).u32();
                    if state.begins_at.is_some_and(|begin| begin as u32 == operation) {
                        state.is_active = true;
                        drop(state);
                        while lock(hang).is_active && !ends.load(Ordering::Relaxed) {
                            std::thread::sleep(POLL_INTERVAL);
                        }
                    }
                    self.process_request(&buffer[..len]);
                }
                // The waiting process was killed.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(_) => return,
            }
        }
    }

    fn process_request(&mut self, request: &[u8]) {
        let mut head = Fields(&request[4..IN_HEAD_BYTES]);
        let (operation, unique, node) = (head.u32(), head.u64(), head.u64());
        // FORGET, INTERRUPT and DESTROY have no reply.
        if matches!(operation, 2 | 36 | 38 | 42) {
            return;
        }
        let reply = self.handle(operation, node, Fields(&request[IN_HEAD_BYTES..]));
        let (error, body) = match reply {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let len = (16 + body.len()) as u32;
        let mut bytes = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(body);
        // The requesting process may have been killed meanwhile.
        let _ = self.device.write_all(&bytes);
    }

    fn handle(&mut self, operation: u32, node: u64, mut fields: Fields<'_>) -> Reply {
        match operation {
            1 => {
                let entry_node = *self.folder(node)?.get(fields.name()).ok_or(Errno::NOENT)?;
                self.entry(entry_node)
            }
            3 => self.attributes_out(node),
            4 => self.set_attributes(node, fields),
            9 => {
                let (mode, _) = (fields.u32(), fields.u32());
                let created = self.make(node, fields.name(), FOLDER | mode, Content::Folder(BTreeMap::new()))?;
                self.entry(created)
            }
            10 | 11 => self.folder(node)?.remove(fields.name()).map(|_| Vec::new()).ok_or(Errno::NOENT),
            12 => {
                let to = fields.u64();
                self.rename(node, to, 0, fields)
            }
            14 | 27 => Ok(Server::opened()),
            15 => {
                let (_, at, len) = (fields.u64(), fields.u64() as usize, fields.u32() as usize);
                let content = self.file(node)?;
                let end = content.len().min(at + len);
                Ok(content.get(at.min(end)..end).unwrap_or_default().to_vec())
            }
            16 => {
                let (_, at, len) = (fields.u64(), fields.u64() as usize, fields.u32());
                let data = &fields.0[20..][..len as usize];
                let content = self.file(node)?;
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(data);
                Ok(bytes_of(&[join_u32(len, 0)]))
            }
            17 => {
                let free = 1 << 20;
                Ok(bytes_of(&[free, free, free, free, free, join_u32(4096, 255), join_u32(4096, 0), 0, 0, 0]))
            }
            18 | 20 | 29 | 30 | 34 => Ok(Vec::new()),
            26 => Ok(bytes_of(&[
                join_u32(7, 31),
                join_u32(0, 0),
                join_u32(0, WRITE_BYTES_MAX),
                join_u32(1, 0),
                0,
                0,
                0,
                0,
            ])),
            28 => self.read_folder(node, fields),
            35 => {
                let (_, mode, _, _) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
                let created = self.make(node, fields.name(), FILE | mode & 0o7777, Content::File(Vec::new()))?;
                Ok([self.entry(created)?, Server::opened()].concat())
            }
            43 => {
                let (_, at, len, mode) = (fields.u64(), fields.u64(), fields.u64(), fields.u32());
                let content = self.file(node)?;
                if mode & KEEP_SIZE == 0 {
                    content.resize(content.len().max((at + len) as usize), 0);
                }
                Ok(Vec::new())
            }
            45 => {
                let (to, flags, _) = (fields.u64(), fields.u32(), fields.u32());
                self.rename(node, to, flags, fields)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn opened() -> Vec<u8> {
        bytes_of(&[0, join_u32(FOPEN_NOFLUSH, 0)])
    }

    fn node(&mut self, number: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::STALE)
    }

    fn folder(&mut self, number: u64) -> Result<&mut BTreeMap<String, u64>, Errno> {
        match &mut self.node(number)?.content {
            Content::Folder(names) => Ok(names),
            Content::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn file(&mut self, number: u64) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node(number)?.content {
            Content::File(content) => Ok(content),
            Content::Folder(_) => Err(Errno::ISDIR),
        }
    }

    fn make(&mut self, folder: u64, name: &str, mode: u32, content: Content) -> Result<u64, Errno> {
        let number = self.next;
        if self.folder(folder)?.insert(name.to_owned(), number).is_some() {
            return Err(Errno::EXIST);
        }
        self.next += 1;
        self.nodes.insert(number, Node { mode, content });
        Ok(number)
    }

    fn rename(&mut self, from: u64, to: u64, flags: u32, mut names: Fields<'_>) -> Reply {
        let (old, new) = (names.name(), names.name());
        let moved = self.folder(from)?.remove(old).ok_or(Errno::NOENT)?;
        let replaced = self.folder(to)?.insert(new.to_owned(), moved);
        match (flags & RENAME_EXCHANGE != 0, replaced) {
            (false, _) => Ok(Vec::new()),
            (true, Some(replaced)) => {
                self.folder(from)?.insert(old.to_owned(), replaced);
                Ok(Vec::new())
            }
            (true, None) => {
                self.folder(to)?.remove(new);
                self.folder(from)?.insert(old.to_owned(), moved);
                Err(Errno::NOENT)
            }
        }
    }

    fn set_attributes(&mut self, number: u64, mut fields: Fields<'_>) -> Reply {
        let (valid, _, _, len) = (fields.u32(), fields.u32(), fields.u64(), fields.u64());
        if valid & SET_SIZE != 0 {
            self.file(number)?.resize(len as usize, 0);
        }
        if valid & SET_MODE != 0 {
            let mode = u32::from_ne_bytes(fields.0[44..48].try_into().expect("four bytes"));
            let node = self.node(number)?;
            node.mode = node.mode & !0o7777 | mode & 0o7777;
        }
        self.attributes_out(number)
    }

    /// Directory entries from the given offset on, as many as fit.
    fn read_folder(&mut self, number: u64, mut fields: Fields<'_>) -> Reply {
        let (_, from, room) = (fields.u64(), fields.u64() as usize, fields.u32() as usize);
        let mut bytes = Vec::new();
        for (index, (name, number)) in self.folder(number)?.iter().enumerate().skip(from) {
            let entry =
                [bytes_of(&[*number, index as u64 + 1, join_u32(name.len() as u32, 0)]), name.as_bytes().to_vec()];
            let mut entry = entry.concat();
            entry.resize(entry.len().next_multiple_of(8), 0);
            if bytes.len() + entry.len() > room {
                break;
            }
            bytes.extend(entry);
        }
        Ok(bytes)
    }

    fn attributes(&mut self, number: u64) -> Reply {
        let node = self.node(number)?;
        let (len, links) = match &node.content {
            Content::File(content) => (content.len() as u64, 1),
            Content::Folder(_) => (0, 2),
        };
        let blocks = len.div_ceil(512);
        let words = [number, len, blocks, 0, 0, 0, 0, join_u32(0, node.mode), join_u32(links, 0), 0, join_u32(4096, 0)];
        Ok(bytes_of(&words))
    }

    /// Attributes with a validity of zero, so that the kernel requests them each time.
    fn attributes_out(&mut self, number: u64) -> Reply {
        Ok([bytes_of(&[0, 0]), self.attributes(number)?].concat())
    }

    fn entry(&mut self, number: u64) -> Reply {
        Ok([bytes_of(&[number, 0, 0, 0, 0]), self.attributes(number)?].concat())
    }
}
