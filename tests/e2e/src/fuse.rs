//! An in-memory FUSE file system for tests, which can be made to hang.
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
const REQUEST_HEADER_BYTES: usize = 40;
const REPLY_HEADER_BYTES: usize = 16;
/// Longest write that the kernel sends, and the buffer size for one with its headers.
const WRITE_BYTES_MAX: u32 = 128 << 10;
const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;
/// Interval at which the server checks whether it hangs or must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

const FOPEN_NOFLUSH: u32 = 1 << 5;
const FATTR_MODE: u32 = 1;
const FATTR_SIZE: u32 = 1 << 3;
const FALLOC_FL_KEEP_SIZE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// Opcodes of requests (`linux/fuse.h`).
mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
}

/// A mounted file system, which is released from a hang and unmounted when dropped.
pub struct Fuse {
    path: PathBuf,
    /// Locked while a request is read and answered.
    hang: Arc<Mutex<Hang>>,
    /// Set when the server must end.
    must_end: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// Whether the file system hangs, and the operation at which a hang is to begin.
#[derive(Default)]
struct Hang {
    is_active: bool,
    begins_at: Option<Operation>,
}

/// An operation at which a hang can begin, numbered by its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading of a file.
    Read = opcode::READ as isize,
    /// Writing of a file.
    Write = opcode::WRITE as isize,
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
        let (hang, must_end) = (Arc::new(Mutex::new(Hang::default())), Arc::new(AtomicBool::new(false)));
        let (server_hang, server_must_end) = (hang.clone(), must_end.clone());
        let server = std::thread::spawn(move || Server::new(device).serve(&server_hang, &server_must_end));
        Some(Fuse { path: path.to_owned(), hang, must_end, server: Some(server) })
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
        self.must_end.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            // Closes the device, which fails all waiting requests.
            let _ = server.join();
        }
    }
}

enum Content {
    /// Inode numbers by name.
    Folder(BTreeMap<String, u64>),
    File(Vec<u8>),
}

struct Node {
    mode: u32,
    content: Content,
}

struct Server {
    device: File,
    /// Nodes by inode number. Unlinked nodes stay, because they may be open.
    nodes: BTreeMap<u64, Node>,
    next_inode: u64,
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
        let root = Node { mode: S_IFDIR | 0o755, content: Content::Folder(BTreeMap::new()) };
        Server { device, nodes: BTreeMap::from([(ROOT, root)]), next_inode: ROOT + 1 }
    }

    fn serve(mut self, hang: &Mutex<Hang>, must_end: &AtomicBool) {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        let poll_timeout = Timespec::try_from(POLL_INTERVAL).expect("a short interval");
        while !must_end.load(Ordering::Relaxed) {
            if lock(hang).is_active {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            let mut poll_fds = [PollFd::new(&self.device, PollFlags::IN)];
            if !poll(&mut poll_fds, Some(&poll_timeout)).is_ok_and(|count| count > 0) {
                continue;
            }
            let mut state = lock(hang);
            if state.is_active {
                continue;
            }
            match self.device.read(&mut buffer) {
                Ok(len) => {
                    let opcode = Fields(&buffer[4..]).u32();
                    if state.begins_at.is_some_and(|operation| operation as u32 == opcode) {
                        state.is_active = true;
                        drop(state);
                        while lock(hang).is_active && !must_end.load(Ordering::Relaxed) {
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
        let mut header = Fields(&request[4..REQUEST_HEADER_BYTES]);
        let (opcode, unique, inode) = (header.u32(), header.u64(), header.u64());
        // These requests have no reply.
        if matches!(opcode, opcode::FORGET | opcode::INTERRUPT | opcode::DESTROY | opcode::BATCH_FORGET) {
            return;
        }
        let reply = self.handle(opcode, inode, Fields(&request[REQUEST_HEADER_BYTES..]));
        let (error, body) = match reply {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let len = (REPLY_HEADER_BYTES + body.len()) as u32;
        let mut bytes = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(body);
        // The requesting process may have been killed meanwhile.
        let _ = self.device.write_all(&bytes);
    }

    fn handle(&mut self, opcode: u32, inode: u64, mut fields: Fields<'_>) -> Reply {
        match opcode {
            opcode::LOOKUP => {
                let child = *self.folder(inode)?.get(fields.name()).ok_or(Errno::NOENT)?;
                self.entry(child)
            }
            opcode::GETATTR => self.attributes_out(inode),
            opcode::SETATTR => self.set_attributes(inode, fields),
            opcode::MKDIR => {
                let (mode, _) = (fields.u32(), fields.u32());
                let created = self.create(inode, fields.name(), S_IFDIR | mode, Content::Folder(BTreeMap::new()))?;
                self.entry(created)
            }
            opcode::UNLINK | opcode::RMDIR => {
                self.folder(inode)?.remove(fields.name()).map(|_| Vec::new()).ok_or(Errno::NOENT)
            }
            opcode::RENAME => {
                let to = fields.u64();
                self.rename(inode, to, 0, fields)
            }
            opcode::OPEN | opcode::OPENDIR => Ok(Server::open_out()),
            opcode::READ => {
                let (_, offset, len) = (fields.u64(), fields.u64() as usize, fields.u32() as usize);
                let content = self.file(inode)?;
                let end = content.len().min(offset + len);
                Ok(content.get(offset.min(end)..end).unwrap_or_default().to_vec())
            }
            opcode::WRITE => {
                let (_, offset, len) = (fields.u64(), fields.u64() as usize, fields.u32());
                let data = &fields.0[20..][..len as usize];
                let content = self.file(inode)?;
                content.resize(content.len().max(offset + data.len()), 0);
                content[offset..offset + data.len()].copy_from_slice(data);
                Ok(bytes_of(&[join_u32(len, 0)]))
            }
            opcode::STATFS => {
                let free = 1 << 20;
                Ok(bytes_of(&[free, free, free, free, free, join_u32(4096, 255), join_u32(4096, 0), 0, 0, 0]))
            }
            opcode::RELEASE | opcode::FSYNC | opcode::RELEASEDIR | opcode::FSYNCDIR | opcode::ACCESS => Ok(Vec::new()),
            // Version 7.31 of the protocol, no flags, and a time granularity of 1 ns.
            opcode::INIT => Ok(bytes_of(&[
                join_u32(7, 31),
                join_u32(0, 0),
                join_u32(0, WRITE_BYTES_MAX),
                join_u32(1, 0),
                0,
                0,
                0,
                0,
            ])),
            opcode::READDIR => self.read_folder(inode, fields),
            opcode::CREATE => {
                let (_, mode, _, _) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
                let created = self.create(inode, fields.name(), S_IFREG | mode & 0o7777, Content::File(Vec::new()))?;
                Ok([self.entry(created)?, Server::open_out()].concat())
            }
            opcode::FALLOCATE => {
                let (_, offset, len, mode) = (fields.u64(), fields.u64(), fields.u64(), fields.u32());
                let content = self.file(inode)?;
                if mode & FALLOC_FL_KEEP_SIZE == 0 {
                    content.resize(content.len().max((offset + len) as usize), 0);
                }
                Ok(Vec::new())
            }
            opcode::RENAME2 => {
                let (to, flags, _) = (fields.u64(), fields.u32(), fields.u32());
                self.rename(inode, to, flags, fields)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Reply to an open (`struct fuse_open_out`), with file handle 0.
    fn open_out() -> Vec<u8> {
        bytes_of(&[0, join_u32(FOPEN_NOFLUSH, 0)])
    }

    fn node(&mut self, inode: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::STALE)
    }

    fn folder(&mut self, inode: u64) -> Result<&mut BTreeMap<String, u64>, Errno> {
        match &mut self.node(inode)?.content {
            Content::Folder(names) => Ok(names),
            Content::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn file(&mut self, inode: u64) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node(inode)?.content {
            Content::File(content) => Ok(content),
            Content::Folder(_) => Err(Errno::ISDIR),
        }
    }

    fn create(&mut self, folder: u64, name: &str, mode: u32, content: Content) -> Result<u64, Errno> {
        let inode = self.next_inode;
        if self.folder(folder)?.insert(name.to_owned(), inode).is_some() {
            return Err(Errno::EXIST);
        }
        self.next_inode += 1;
        self.nodes.insert(inode, Node { mode, content });
        Ok(inode)
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

    fn set_attributes(&mut self, inode: u64, mut fields: Fields<'_>) -> Reply {
        let (valid, _, _, len) = (fields.u32(), fields.u32(), fields.u64(), fields.u64());
        if valid & FATTR_SIZE != 0 {
            self.file(inode)?.resize(len as usize, 0);
        }
        if valid & FATTR_MODE != 0 {
            let mode = u32::from_ne_bytes(fields.0[44..48].try_into().expect("four bytes"));
            let node = self.node(inode)?;
            node.mode = node.mode & !0o7777 | mode & 0o7777;
        }
        self.attributes_out(inode)
    }

    /// Directory entries from the given offset on, as many as fit.
    fn read_folder(&mut self, inode: u64, mut fields: Fields<'_>) -> Reply {
        let (_, offset, len_max) = (fields.u64(), fields.u64() as usize, fields.u32() as usize);
        let mut bytes = Vec::new();
        for (index, (name, child)) in self.folder(inode)?.iter().enumerate().skip(offset) {
            let entry =
                [bytes_of(&[*child, index as u64 + 1, join_u32(name.len() as u32, 0)]), name.as_bytes().to_vec()];
            let mut entry = entry.concat();
            entry.resize(entry.len().next_multiple_of(8), 0);
            if bytes.len() + entry.len() > len_max {
                break;
            }
            bytes.extend(entry);
        }
        Ok(bytes)
    }

    fn attributes(&mut self, inode: u64) -> Reply {
        let node = self.node(inode)?;
        let (len, links) = match &node.content {
            Content::File(content) => (content.len() as u64, 1),
            Content::Folder(_) => (0, 2),
        };
        let blocks = len.div_ceil(512);
        let words = [inode, len, blocks, 0, 0, 0, 0, join_u32(0, node.mode), join_u32(links, 0), 0, join_u32(4096, 0)];
        Ok(bytes_of(&words))
    }

    /// Attributes with a validity of zero, so that the kernel requests them each time.
    fn attributes_out(&mut self, inode: u64) -> Reply {
        Ok([bytes_of(&[0, 0]), self.attributes(inode)?].concat())
    }

    /// Reply to a lookup or a creation (`struct fuse_entry_out`).
    fn entry(&mut self, inode: u64) -> Reply {
        Ok([bytes_of(&[inode, 0, 0, 0, 0]), self.attributes(inode)?].concat())
    }
}
