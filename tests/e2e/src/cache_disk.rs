//! An NBD server whose disk has a volatile cache: a power cut may lose unflushed writes.
//!
//! | a write | at a power cut |
//! |---|---|
//! | flushed, or written with FUA | stays |
//! | not flushed | each physical sector independently: kept, lost, or as of any write since the last flush |

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::daemon::wait_for;
use crate::pattern::SECTOR;
use crate::random::Random;

const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flags of the export.
const FLAGS: u16 = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
/// Largest accepted request in bytes.
const REQUEST_MAX: usize = 64 << 20;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const EINVAL: u32 = 22;

/// Commands of requests, numbered as on the wire.
mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    /// The command flag of a durable write.
    pub const FLAG_FUA: u16 = 1;
}

/// Options of the negotiation, and the types of their replies.
mod option {
    pub const ABORT: u8 = 2;
    pub const INFO: u8 = 6;
    pub const GO: u8 = 7;
    pub const REP_ACK: u32 = 1;
    pub const REP_INFO: u32 = 3;
    pub const REP_ERR_UNSUP: u32 = 0x8000_0001;
}

struct Content {
    /// Size of a physical sector, which a power cut keeps or loses as a whole.
    sector_bytes: usize,
    /// Content that certainly survives a power cut.
    durable: Vec<u8>,
    /// Content that reads return.
    live: Vec<u8>,
    /// All versions of each sector since the last flush.
    volatile: BTreeMap<usize, Vec<Vec<u8>>>,
    flushes: u64,
    reads: u64,
    writes: u64,
    clients: u32,
}

/// A disk with a volatile cache, served until dropped.
pub struct CacheDisk {
    content: Arc<Mutex<Content>>,
    socket: PathBuf,
}

impl CacheDisk {
    /// Serves `bytes` of zeroes on `socket`.
    pub fn serve(socket: &Path, bytes: usize) -> io::Result<CacheDisk> {
        CacheDisk::serve_image(socket, vec![0; bytes], SECTOR)
    }

    /// Serves a disk with the content `image` and physical sectors of `sector_bytes` on `socket`.
    pub fn serve_image(socket: &Path, image: Vec<u8>, sector_bytes: usize) -> io::Result<CacheDisk> {
        assert!(image.len().is_multiple_of(sector_bytes), "a disk of {} bytes", image.len());
        let content = Content {
            sector_bytes,
            durable: image.clone(),
            live: image,
            volatile: BTreeMap::new(),
            flushes: 0,
            reads: 0,
            writes: 0,
            clients: 0,
        };
        let content = Arc::new(Mutex::new(content));
        let listener = UnixListener::bind(socket)?;
        let shared = content.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                // A disconnect or protocol error ends only this client's thread.
                std::thread::spawn(move || {
                    lock(&shared).clients += 1;
                    let result = serve_client(stream, &shared);
                    lock(&shared).clients -= 1;
                    result
                });
            }
        });
        Ok(CacheDisk { content, socket: socket.to_owned() })
    }

    /// URI of the disk.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Number of flushes and FUA writes so far.
    pub fn flushes(&self) -> u64 {
        lock(&self.content).flushes
    }

    /// Number of reads and writes so far.
    pub fn requests(&self) -> (u64, u64) {
        let content = lock(&self.content);
        (content.reads, content.writes)
    }

    /// Simulates a power cut and returns the disk's content after it. Every client must be dead; their sent requests
    /// are processed first.
    pub fn cut(&self, random: &mut Random) -> Vec<u8> {
        wait_for("the last client's end", || (lock(&self.content).clients == 0).then_some(()));
        let mut content = lock(&self.content);
        let lose_all = random.chance(20);
        let sector_bytes = content.sector_bytes;
        for (sector, versions) in std::mem::take(&mut content.volatile) {
            let kept = random.below(versions.len() as u64 + 1) as usize;
            if let Some(version) = versions.get(kept)
                && !lose_all
            {
                content.durable[sector * sector_bytes..][..sector_bytes].copy_from_slice(version);
            }
        }
        content.live = content.durable.clone();
        content.durable.clone()
    }
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().expect("no connection panicked")
}

impl Content {
    fn write(&mut self, offset: usize, data: &[u8], durable: bool) {
        let end = offset + data.len();
        self.live[offset..end].copy_from_slice(data);
        for sector in offset / self.sector_bytes..end.div_ceil(self.sector_bytes) {
            let range = self.range_of(sector);
            if durable {
                self.volatile.remove(&sector);
                self.durable[range.clone()].copy_from_slice(&self.live[range]);
            } else {
                self.volatile.entry(sector).or_default().push(self.live[range].to_vec());
            }
        }
        self.flushes += u64::from(durable);
    }

    fn flush(&mut self) {
        for sector in std::mem::take(&mut self.volatile).into_keys() {
            let range = self.range_of(sector);
            self.durable[range.clone()].copy_from_slice(&self.live[range]);
        }
        self.flushes += 1;
    }

    fn range_of(&self, sector: usize) -> Range<usize> {
        sector * self.sector_bytes..(sector + 1) * self.sector_bytes
    }
}

fn read_array<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn serve_client(mut stream: UnixStream, content: &Mutex<Content>) -> io::Result<()> {
    if !negotiate(&mut stream, lock(content).live.len() as u64)? {
        return Ok(());
    }
    loop {
        let header: [u8; 28] = read_array(&mut stream)?;
        let (flags, kind) = (u16::from_be_bytes([header[4], header[5]]), u16::from_be_bytes([header[6], header[7]]));
        let cookie = &header[8..16];
        let offset = u64::from_be_bytes(header[16..24].try_into().expect("eight bytes")) as usize;
        let len = u32::from_be_bytes(header[24..28].try_into().expect("four bytes")) as usize;
        let mut data = vec![0; if kind == command::WRITE { len.min(REQUEST_MAX) } else { 0 }];
        stream.read_exact(&mut data)?;
        let durable = flags & command::FLAG_FUA != 0;
        let mut reply = Vec::with_capacity(16);
        reply.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        let mut content = lock(content);
        let inside = offset.checked_add(len).is_some_and(|end| end <= content.live.len()) && len <= REQUEST_MAX;
        let aligned = offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        content.reads += u64::from(kind == command::READ);
        content.writes += u64::from(matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES));
        let error = match kind {
            command::READ if inside => 0u32,
            command::WRITE if inside && aligned => {
                content.write(offset, &data, durable);
                0
            }
            command::DISC => return Ok(()),
            command::FLUSH => {
                content.flush();
                0
            }
            // A trim is a hint, which this disk ignores.
            command::TRIM if inside => 0,
            command::WRITE_ZEROES if inside && aligned => {
                content.write(offset, &vec![0; len], durable);
                0
            }
            _ => EINVAL,
        };
        reply.extend(error.to_be_bytes());
        reply.extend(cookie);
        if kind == command::READ && error == 0 {
            reply.extend(&content.live[offset..offset + len]);
        }
        drop(content);
        stream.write_all(&reply)?;
    }
}

/// Negotiates; true when the client has chosen the export, false when it aborted.
fn negotiate(stream: &mut UnixStream, size: u64) -> io::Result<bool> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    let _: [u8; 4] = read_array(stream)?;
    loop {
        let header: [u8; 16] = read_array(stream)?;
        let option = &header[8..12];
        let len = u32::from_be_bytes([header[12], header[13], header[14], header[15]]) as usize;
        let mut body = vec![0; len.min(4096)];
        stream.read_exact(&mut body)?;
        let mut reply = |kind: u32, body: &[u8]| {
            let mut out = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            out.extend(option);
            out.extend(kind.to_be_bytes());
            out.extend((body.len() as u32).to_be_bytes());
            out.extend(body);
            stream.write_all(&out)
        };
        match option[3] {
            option::INFO | option::GO => {
                let mut info = vec![0, 0];
                info.extend(size.to_be_bytes());
                info.extend(FLAGS.to_be_bytes());
                reply(option::REP_INFO, &info)?;
                reply(option::REP_ACK, &[])?;
                if option[3] == option::GO {
                    return Ok(true);
                }
            }
            option::ABORT => return reply(option::REP_ACK, &[]).map(|()| false),
            _ => reply(option::REP_ERR_UNSUP, &[])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Endpoint, FUA, Op};
    use crate::folder::Folder;

    #[test]
    fn flushed_sectors_survive_and_others_are_lost_independently() {
        let folder = Folder::new();
        let disk = CacheDisk::serve(&folder.join("s"), 1 << 20).expect("a socket can be created");
        let mut kept = 0;
        for seed in 0..8 {
            let mut client = Client::connect(&Endpoint::Unix(folder.join("s")), "").expect("the disk is served");
            client.write(0, &[1; 65536]).expect("the write succeeds");
            client.flush().expect("the flush succeeds");
            client.write(0, &[2; 65536]).expect("the write succeeds");
            client.call(Op::Write, FUA, 0, 512, &[3; 512]).expect("the write succeeds");
            assert_eq!(client.read(512, 1).expect("the read succeeds"), [2]);
            drop(client);
            let image = disk.cut(&mut Random::new(seed));
            assert_eq!(image[..512], [3; 512]);
            assert!(image[512..65536].contains(&1), "nothing was lost");
            kept += u32::from(image[512..65536].contains(&2));
        }
        assert_eq!(disk.flushes(), 16);
        assert!(kept > 0, "nothing was ever kept");
    }

    #[test]
    fn large_physical_sector_is_kept_or_lost_as_a_whole() {
        const SECTOR_BYTES: usize = 4096;
        let folder = Folder::new();
        let disk = CacheDisk::serve_image(&folder.join("s"), vec![0; 1 << 16], SECTOR_BYTES).expect("a socket");
        let mut client = Client::connect(&Endpoint::Unix(folder.join("s")), "").expect("the disk is served");
        for sector in 0..16 {
            client.write(sector * SECTOR_BYTES as u64 + 1024, &[1; 1024]).expect("the write succeeds");
        }
        // A durable part makes its sector durable with the unflushed writes before it.
        client.call(Op::Write, FUA, 0, 512, &[2; 512]).expect("the write succeeds");
        drop(client);
        let image = disk.cut(&mut Random::new(1));
        assert_eq!((image[0], image[1024], image[2047]), (2, 1, 1));
        let sectors: Vec<&[u8]> = image.chunks(SECTOR_BYTES).skip(1).map(|sector| &sector[1024..2048]).collect();
        assert!(sectors.iter().all(|written| written.iter().all(|byte| *byte == written[0])), "a sector was torn");
        assert!([0, 1].iter().all(|value| sectors.iter().any(|written| written[0] == *value)), "all or none survived");
    }
}
