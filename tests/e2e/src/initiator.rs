//! An iSCSI initiator for tests, written from RFC 7143. It shares no code with the target, so that one mistake cannot
//! hide in both.
//!
//! It uses one connection and no digests, and sends data only on R2T; commands may be pipelined.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest time without a reply before a test fails.
const TIMEOUT: Duration = Duration::from_secs(60);
const HEADER_BYTES: usize = 48;
const NONE: u32 = 0xffff_ffff;
const LOGIN_ROUNDS_MAX: usize = 10;
/// Largest data segment that the target may send.
const SEGMENT_BYTES_MAX: usize = 256 << 10;

/// A session of one connection.
pub struct Initiator {
    stream: BufReader<TcpStream>,
    next_tag: u32,
    command_number: u32,
    expected_status: u32,
    pending: BTreeMap<u32, PendingCommand>,
}

#[derive(Default)]
struct PendingCommand {
    out: Vec<u8>,
    data: Vec<u8>,
    lun: [u8; 8],
}

/// A message of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The end of a command.
    Done(Done),
    /// Reply to a ping, with its tag.
    Pong(u32),
    /// End of a task management function: its tag and response (0: done).
    TaskManaged(u32, u8),
    /// An asynchronous message with its event.
    Event(u8),
    /// Logged out.
    LoggedOut,
    /// A rejected PDU, with the reason.
    Rejected(u8),
}

/// Result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Tag of the command.
    pub tag: u32,
    /// SAM's status: 0 is good, 2 check condition, 0x18 reservation conflict, 0x40 aborted.
    pub status: u8,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Sense data without their length field.
    pub sense: Vec<u8>,
}

impl Done {
    /// Sense key, code and qualifier of fixed or descriptor sense data.
    pub fn sense_code(&self) -> (u8, u8, u8) {
        let at = |index: usize| self.sense.get(index).copied().unwrap_or_default();
        if at(0) & 0x7f >= 0x72 { (at(1) & 0xf, at(2), at(3)) } else { (at(2) & 0xf, at(12), at(13)) }
    }
}

struct Pdu {
    header: [u8; HEADER_BYTES],
    data: Vec<u8>,
}

impl Pdu {
    fn number(&self, at: usize) -> u32 {
        number(&self.header, at)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// LUN in its wire format.
pub fn lun(number: u16) -> [u8; 8] {
    let mut lun = [0; 8];
    lun[..2].copy_from_slice(&if number < 256 { number } else { 0x4000 | number }.to_be_bytes());
    lun
}

impl Initiator {
    /// Logs in to `target` as `name`; sessions of one name differ by `isid`.
    pub fn log_in(address: SocketAddr, name: &str, isid: u32, target: &str) -> io::Result<Initiator> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut session = Initiator {
            stream: BufReader::with_capacity(SEGMENT_BYTES_MAX, stream),
            next_tag: 1,
            command_number: 1,
            expected_status: 0,
            pending: BTreeMap::new(),
        };
        let keys = [
            ("InitiatorName", name),
            ("TargetName", target),
            ("SessionType", "Normal"),
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "No"),
            ("MaxBurstLength", "1048576"),
            ("MaxRecvDataSegmentLength", &SEGMENT_BYTES_MAX.to_string()),
            ("MaxConnections", "1"),
            ("ErrorRecoveryLevel", "0"),
            ("DefaultTime2Wait", "0"),
            ("DefaultTime2Retain", "0"),
        ];
        let mut text: Vec<u8> = keys.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect();
        for _ in 0..LOGIN_ROUNDS_MAX {
            let mut header = [0; HEADER_BYTES];
            // Transition from operational negotiation to the full feature phase.
            header[..2].copy_from_slice(&[0x43, 0x80 | 1 << 2 | 3]);
            header[9] = 0x80; // a random ISID; its last bytes differ
            header[10..14].copy_from_slice(&isid.to_be_bytes());
            header[24..28].copy_from_slice(&session.command_number.to_be_bytes());
            header[28..32].copy_from_slice(&session.expected_status.to_be_bytes());
            session.send(header, &std::mem::take(&mut text))?;
            let reply = session.receive()?;
            if reply.header[0] != 0x23 || reply.header[36] != 0 {
                let status = (reply.header[0], reply.header[36], reply.header[37]);
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("login refused: {status:02x?}")));
            }
            session.expected_status = reply.number(24).wrapping_add(1);
            if reply.header[1] & 0x83 == 0x83 {
                return Ok(session);
            }
        }
        Err(invalid("the login does not complete".to_owned()))
    }

    /// Sends a command; returns its tag.
    pub fn send_command(&mut self, lun: [u8; 8], cdb: &[u8], out: &[u8], read: usize) -> io::Result<u32> {
        let tag = self.draw_tag();
        let mut header = self.header(0x01, 0x80, tag);
        header[1] |= 1 | u8::from(read > 0) << 6 | u8::from(!out.is_empty()) << 5;
        header[8..16].copy_from_slice(&lun);
        header[20..24].copy_from_slice(&((read + out.len()) as u32).to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.pending.insert(tag, PendingCommand { out: out.to_vec(), data: Vec::new(), lun });
        self.command_number = self.command_number.wrapping_add(1);
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Sends a ping; returns its tag.
    pub fn ping(&mut self) -> io::Result<u32> {
        let tag = self.draw_tag();
        let mut header = self.header(0x40, 0x80, tag);
        header[20..24].copy_from_slice(&NONE.to_be_bytes());
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Sends a task management function (1: abort task, 5: logical unit reset) about a command; returns its tag.
    pub fn manage_task(&mut self, function: u8, lun: [u8; 8], about: u32) -> io::Result<u32> {
        let tag = self.draw_tag();
        let mut header = self.header(0x42, 0x80 | function, tag);
        header[8..16].copy_from_slice(&lun);
        header[20..24].copy_from_slice(&about.to_be_bytes());
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Requests a logout; [`Response::LoggedOut`] follows.
    pub fn log_out(&mut self) -> io::Result<()> {
        let tag = self.draw_tag();
        let header = self.header(0x46, 0x80, tag);
        self.send(header, &[])
    }

    /// Waits for the next message of the target.
    pub fn receive_response(&mut self) -> io::Result<Response> {
        loop {
            let pdu = self.receive()?;
            let tag = pdu.number(16);
            let opcode = pdu.header[0] & 0x3f;
            let has_status = opcode != 0x31 && (opcode != 0x25 || pdu.header[1] & 1 != 0);
            // A ping from the target does not advance the status number.
            if has_status && !(opcode == 0x20 && tag == NONE) {
                self.expected_status = pdu.number(24).wrapping_add(1);
            }
            match opcode {
                0x20 if tag == NONE => self.reply_to_ping(&pdu)?,
                0x20 => return Ok(Response::Pong(tag)),
                0x21 => {
                    let pending =
                        self.pending.remove(&tag).ok_or_else(|| invalid(format!("no command has tag {tag:x}")))?;
                    let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                    return Ok(Response::Done(Done { tag, status: pdu.header[3], data: pending.data, sense }));
                }
                0x22 => return Ok(Response::TaskManaged(tag, pdu.header[2])),
                0x25 => {
                    let done = pdu.header[1] & 1 != 0;
                    let at = pdu.number(40) as usize;
                    let pending =
                        self.pending.get_mut(&tag).ok_or_else(|| invalid(format!("no command has tag {tag:x}")))?;
                    if pending.data.len() != at {
                        return Err(invalid(format!("data at offset {at} instead of {}", pending.data.len())));
                    }
                    pending.data.extend_from_slice(&pdu.data);
                    if done {
                        let pending = self.pending.remove(&tag).expect("a pending command");
                        let status = pdu.header[3];
                        return Ok(Response::Done(Done { tag, status, data: pending.data, sense: Vec::new() }));
                    }
                }
                0x26 => return Ok(Response::LoggedOut),
                0x31 => self.send_data_out(&pdu)?,
                0x32 => return Ok(Response::Event(pdu.header[36])),
                0x3f => return Ok(Response::Rejected(pdu.header[2])),
                other => return Err(invalid(format!("an unknown opcode: {other:#x}"))),
            }
        }
    }

    /// Runs a command to its end; other messages in between are dropped.
    pub fn command(&mut self, lun: [u8; 8], cdb: &[u8], out: &[u8], read: usize) -> io::Result<Done> {
        let tag = self.send_command(lun, cdb, out, read)?;
        loop {
            match self.receive_response()? {
                Response::Done(done) if done.tag == tag => return Ok(done),
                Response::Rejected(reason) => return Err(invalid(format!("rejected: {reason}"))),
                _ => (),
            }
        }
    }

    /// Like [`Initiator::command`], but retries after unit attentions.
    pub fn retry_command(&mut self, lun: [u8; 8], cdb: &[u8], out: &[u8], read: usize) -> io::Result<Done> {
        loop {
            let done = self.command(lun, cdb, out, read)?;
            if done.status != 2 || done.sense_code().0 != 6 {
                return Ok(done);
            }
        }
    }

    /// CDB of READ (16) or WRITE (16) with blocks of 512 bytes.
    pub fn transfer(opcode: u8, block: u64, blocks: u32) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..10].copy_from_slice(&block.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        cdb
    }

    /// Reads blocks of 512 bytes.
    pub fn read(&mut self, lun: [u8; 8], block: u64, blocks: u32) -> io::Result<Done> {
        self.retry_command(lun, &Self::transfer(0x88, block, blocks), &[], blocks as usize * 512)
    }

    /// Writes whole blocks of 512 bytes.
    pub fn write(&mut self, lun: [u8; 8], block: u64, data: &[u8]) -> io::Result<Done> {
        self.retry_command(lun, &Self::transfer(0x8a, block, (data.len() / 512) as u32), data, 0)
    }

    /// SYNCHRONIZE CACHE (10) of the whole unit.
    pub fn flush(&mut self, lun: [u8; 8]) -> io::Result<Done> {
        self.retry_command(lun, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)
    }

    /// Compares a block with `old`, and writes `new` if they are equal.
    pub fn compare_and_write(&mut self, lun: [u8; 8], block: u64, old: &[u8], new: &[u8]) -> io::Result<Done> {
        let mut cdb = [0; 16];
        cdb[0] = 0x89;
        cdb[2..10].copy_from_slice(&block.to_be_bytes());
        cdb[13] = (old.len() / 512) as u8;
        self.retry_command(lun, &cdb, &[old, new].concat(), 0)
    }

    /// Sends raw bytes, for invalid requests.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn send_data_out(&mut self, r2t: &Pdu) -> io::Result<()> {
        let (tag, at, len) = (r2t.number(16), r2t.number(40) as usize, r2t.number(44) as usize);
        let pending = self.pending.get(&tag).ok_or_else(|| invalid(format!("R2T for unknown tag {tag:x}")))?;
        let out = pending.out.get(at..at + len).ok_or_else(|| invalid(format!("R2T past the end: {at} + {len}")))?;
        let (out, lun) = (out.to_vec(), pending.lun);
        let mut chunks = out.chunks(64 << 10).enumerate().peekable();
        while let Some((index, chunk)) = chunks.next() {
            let mut header = [0; HEADER_BYTES];
            header[..2].copy_from_slice(&[0x05, u8::from(chunks.peek().is_none()) << 7]);
            header[8..16].copy_from_slice(&lun);
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[20..24].copy_from_slice(&r2t.header[20..24]);
            header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
            header[36..40].copy_from_slice(&(index as u32).to_be_bytes());
            header[40..44].copy_from_slice(&((at + index * (64 << 10)) as u32).to_be_bytes());
            self.send(header, chunk)?;
        }
        Ok(())
    }

    fn reply_to_ping(&mut self, ping: &Pdu) -> io::Result<()> {
        if ping.number(20) == NONE {
            return Ok(());
        }
        let mut header = self.header(0x40, 0x80, NONE);
        header[8..16].copy_from_slice(&ping.header[8..16]);
        header[20..24].copy_from_slice(&ping.header[20..24]);
        self.send(header, &[])
    }

    fn draw_tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn header(&self, opcode: u8, flags: u8, tag: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..2].copy_from_slice(&[opcode, flags]);
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        header[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        header[28..32].copy_from_slice(&self.expected_status.to_be_bytes());
        header
    }

    fn send(&mut self, mut header: [u8; HEADER_BYTES], data: &[u8]) -> io::Result<()> {
        header[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        let padding = [0; 3];
        let pdu = [&header[..], data, &padding[..data.len().wrapping_neg() % 4]].concat();
        self.stream.get_mut().write_all(&pdu)
    }

    fn receive(&mut self) -> io::Result<Pdu> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let (extra, len) = (header[4] as usize * 4, (number(&header, 4) & 0xff_ffff) as usize);
        if len > SEGMENT_BYTES_MAX {
            return Err(invalid(format!("{len} bytes in one PDU")));
        }
        let mut data = vec![0; extra + len + len.wrapping_neg() % 4];
        self.stream.read_exact(&mut data)?;
        Ok(Pdu { header, data: data[extra..extra + len].to_vec() })
    }
}
