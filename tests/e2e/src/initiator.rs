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
/// The reserved value of a tag.
const RESERVED_TAG: u32 = 0xffff_ffff;
const LOGIN_ROUNDS_MAX: usize = 10;
/// Largest data segment that the target may send.
const SEGMENT_BYTES_MAX: usize = 256 << 10;
/// Data segment of a Data-Out PDU.
const DATA_OUT_BYTES: usize = 64 << 10;
/// Set in the second byte of a login PDU that ends its stage; two bits name the present stage, two the next one.
const TRANSIT: u8 = 0x80;
const OPERATIONAL_NEGOTIATION: u8 = 1;
const FULL_FEATURE_PHASE: u8 = 3;
/// Set in the first byte of a request that is executed without waiting for its turn in CmdSN order.
const IMMEDIATE: u8 = 0x40;
/// Set in the second byte of the last PDU of a sequence.
const FINAL: u8 = 0x80;
/// Flags of a SCSI command in its second byte.
const READS: u8 = 0x40;
const WRITES: u8 = 0x20;
const SIMPLE_TASK: u8 = 1;
/// Set in the second byte of a Data-In PDU that carries the command's status.
const CARRIES_STATUS: u8 = 1;

/// Opcodes of PDUs (RFC 7143, section 11.2.1.2).
mod pdu {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC_MESSAGE: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
    /// The bits of the first byte that hold the opcode.
    pub const OPCODE_MASK: u8 = 0x3f;
}

/// Offsets of fields in the header of a PDU.
mod field {
    /// Response of a task management function, reason of a reject.
    pub const RESPONSE: usize = 2;
    /// SCSI status of a response or of the last Data-In PDU.
    pub const STATUS: usize = 3;
    /// Length of the additional header in words, then the length of the data in bytes.
    pub const LENGTHS: usize = 4;
    pub const LUN: usize = 8;
    pub const ISID: usize = 8;
    pub const INITIATOR_TASK_TAG: usize = 16;
    pub const TARGET_TRANSFER_TAG: usize = 20;
    pub const REFERENCED_TASK_TAG: usize = 20;
    pub const EXPECTED_DATA_TRANSFER_LENGTH: usize = 20;
    pub const CMD_SN: usize = 24;
    pub const STAT_SN: usize = 24;
    pub const EXP_STAT_SN: usize = 28;
    pub const CDB: usize = 32;
    pub const LOGIN_STATUS: usize = 36;
    pub const ASYNC_EVENT: usize = 36;
    pub const DATA_SN: usize = 36;
    pub const BUFFER_OFFSET: usize = 40;
    pub const DESIRED_DATA_TRANSFER_LENGTH: usize = 44;
}

/// Operation codes of SCSI commands.
pub mod opcode {
    #![allow(missing_docs, reason = "the names are those of the standards")]
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const LOG_SENSE: u8 = 0x4d;
    pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub const EXTENDED_COPY: u8 = 0x83;
    pub const READ_16: u8 = 0x88;
    pub const COMPARE_AND_WRITE: u8 = 0x89;
    pub const WRITE_16: u8 = 0x8a;
    pub const REPORT_LUNS: u8 = 0xa0;
}

/// Status of a command that has sense data.
const CHECK_CONDITION: u8 = 2;
const UNIT_ATTENTION: u8 = 6;
/// Response code of sense data in descriptor format; smaller ones are of fixed format.
const DESCRIPTOR_SENSE: u8 = 0x72;

/// A session of one connection.
pub struct Initiator {
    stream: BufReader<TcpStream>,
    next_tag: u32,
    /// CmdSN of the next command.
    cmd_sn: u32,
    exp_stat_sn: u32,
    pending: BTreeMap<u32, PendingCommand>,
}

#[derive(Default)]
struct PendingCommand {
    data_out: Vec<u8>,
    /// Received data.
    data_in: Vec<u8>,
    lun: [u8; 8],
}

/// A message of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The end of a command.
    Completed(CommandResult),
    /// Reply to a ping (NOP-Out), with its tag.
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
pub struct CommandResult {
    /// Tag of the command.
    pub tag: u32,
    /// SCSI status (SAM-5): 0 is good, 2 check condition, 0x18 reservation conflict, 0x40 aborted.
    pub status: u8,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Sense data without their length field.
    pub sense: Vec<u8>,
}

impl CommandResult {
    /// Sense key, additional sense code and its qualifier, of fixed or descriptor sense data.
    pub fn sense_code(&self) -> (u8, u8, u8) {
        let byte = |index: usize| self.sense.get(index).copied().unwrap_or_default();
        if byte(0) & 0x7f >= DESCRIPTOR_SENSE {
            (byte(1) & 0xf, byte(2), byte(3))
        } else {
            (byte(2) & 0xf, byte(12), byte(13))
        }
    }
}

struct Pdu {
    header: [u8; HEADER_BYTES],
    data: Vec<u8>,
}

impl Pdu {
    fn read_u32(&self, offset: usize) -> u32 {
        read_u32(&self.header, offset)
    }
}

fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn put_u32(header: &mut [u8; HEADER_BYTES], offset: usize, value: u32) {
    header[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
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
            cmd_sn: 1,
            exp_stat_sn: 0,
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
            header[0] = IMMEDIATE | pdu::LOGIN;
            header[1] = TRANSIT | OPERATIONAL_NEGOTIATION << 2 | FULL_FEATURE_PHASE;
            // In the ISID, the second byte is constant, and the last four distinguish the sessions.
            header[field::ISID + 1] = 0x80;
            put_u32(&mut header, field::ISID + 2, isid);
            put_u32(&mut header, field::CMD_SN, session.cmd_sn);
            put_u32(&mut header, field::EXP_STAT_SN, session.exp_stat_sn);
            session.send(header, &std::mem::take(&mut text))?;
            let reply = session.receive()?;
            if reply.header[0] != pdu::LOGIN_RESPONSE || reply.header[field::LOGIN_STATUS] != 0 {
                let class = reply.header[field::LOGIN_STATUS];
                let status = (reply.header[0], class, reply.header[field::LOGIN_STATUS + 1]);
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("login refused: {status:02x?}")));
            }
            session.exp_stat_sn = reply.read_u32(field::STAT_SN).wrapping_add(1);
            if reply.header[1] & (TRANSIT | FULL_FEATURE_PHASE) == TRANSIT | FULL_FEATURE_PHASE {
                return Ok(session);
            }
        }
        Err(invalid("the login does not complete".to_owned()))
    }

    /// Sends a command that writes `data_out` or reads `read_len` bytes; returns its tag.
    pub fn send_command(&mut self, lun: [u8; 8], cdb: &[u8], data_out: &[u8], read_len: usize) -> io::Result<u32> {
        let tag = self.next_task_tag();
        let mut header = self.header(pdu::SCSI_COMMAND, FINAL, tag);
        header[1] |= SIMPLE_TASK;
        header[1] |= if read_len > 0 { READS } else { 0 };
        header[1] |= if data_out.is_empty() { 0 } else { WRITES };
        header[field::LUN..][..lun.len()].copy_from_slice(&lun);
        put_u32(&mut header, field::EXPECTED_DATA_TRANSFER_LENGTH, (read_len + data_out.len()) as u32);
        header[field::CDB..][..cdb.len()].copy_from_slice(cdb);
        self.pending.insert(tag, PendingCommand { data_out: data_out.to_vec(), data_in: Vec::new(), lun });
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Sends a ping (NOP-Out); returns its tag.
    pub fn ping(&mut self) -> io::Result<u32> {
        let tag = self.next_task_tag();
        let mut header = self.header(IMMEDIATE | pdu::NOP_OUT, FINAL, tag);
        put_u32(&mut header, field::TARGET_TRANSFER_TAG, RESERVED_TAG);
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Sends a task management function (1: abort task, 5: logical unit reset) for the command with the tag
    /// `referenced_task_tag`; returns the function's own tag.
    pub fn manage_task(&mut self, function: u8, lun: [u8; 8], referenced_task_tag: u32) -> io::Result<u32> {
        let tag = self.next_task_tag();
        let mut header = self.header(IMMEDIATE | pdu::TASK_MANAGEMENT, FINAL | function, tag);
        header[field::LUN..][..lun.len()].copy_from_slice(&lun);
        put_u32(&mut header, field::REFERENCED_TASK_TAG, referenced_task_tag);
        self.send(header, &[])?;
        Ok(tag)
    }

    /// Requests a logout; [`Response::LoggedOut`] follows.
    pub fn log_out(&mut self) -> io::Result<()> {
        let tag = self.next_task_tag();
        let header = self.header(IMMEDIATE | pdu::LOGOUT, FINAL, tag);
        self.send(header, &[])
    }

    /// Waits for the next message of the target.
    pub fn receive_response(&mut self) -> io::Result<Response> {
        loop {
            let reply = self.receive()?;
            let tag = reply.read_u32(field::INITIATOR_TASK_TAG);
            let opcode = reply.header[0] & pdu::OPCODE_MASK;
            let is_last_data = opcode == pdu::DATA_IN && reply.header[1] & CARRIES_STATUS != 0;
            let has_status = opcode != pdu::R2T && (opcode != pdu::DATA_IN || is_last_data);
            // A ping from the target does not advance StatSN.
            if has_status && !(opcode == pdu::NOP_IN && tag == RESERVED_TAG) {
                self.exp_stat_sn = reply.read_u32(field::STAT_SN).wrapping_add(1);
            }
            match opcode {
                pdu::NOP_IN if tag == RESERVED_TAG => self.reply_to_ping(&reply)?,
                pdu::NOP_IN => return Ok(Response::Pong(tag)),
                pdu::SCSI_RESPONSE => {
                    let pending =
                        self.pending.remove(&tag).ok_or_else(|| invalid(format!("no command has tag {tag:x}")))?;
                    let sense = reply.data.get(2..).unwrap_or_default().to_vec();
                    let status = reply.header[field::STATUS];
                    return Ok(Response::Completed(CommandResult { tag, status, data: pending.data_in, sense }));
                }
                pdu::TASK_MANAGEMENT_RESPONSE => {
                    return Ok(Response::TaskManaged(tag, reply.header[field::RESPONSE]));
                }
                pdu::DATA_IN => {
                    let offset = reply.read_u32(field::BUFFER_OFFSET) as usize;
                    let pending =
                        self.pending.get_mut(&tag).ok_or_else(|| invalid(format!("no command has tag {tag:x}")))?;
                    if pending.data_in.len() != offset {
                        return Err(invalid(format!("data at offset {offset} instead of {}", pending.data_in.len())));
                    }
                    pending.data_in.extend_from_slice(&reply.data);
                    if is_last_data {
                        let pending = self.pending.remove(&tag).expect("a pending command");
                        let status = reply.header[field::STATUS];
                        let result = CommandResult { tag, status, data: pending.data_in, sense: Vec::new() };
                        return Ok(Response::Completed(result));
                    }
                }
                pdu::LOGOUT_RESPONSE => return Ok(Response::LoggedOut),
                pdu::R2T => self.send_data_out(&reply)?,
                pdu::ASYNC_MESSAGE => return Ok(Response::Event(reply.header[field::ASYNC_EVENT])),
                pdu::REJECT => return Ok(Response::Rejected(reply.header[field::RESPONSE])),
                other => return Err(invalid(format!("an unknown opcode: {other:#x}"))),
            }
        }
    }

    /// Runs a command to its end; drops other messages that arrive meanwhile.
    pub fn command(&mut self, lun: [u8; 8], cdb: &[u8], data_out: &[u8], read_len: usize) -> io::Result<CommandResult> {
        let tag = self.send_command(lun, cdb, data_out, read_len)?;
        loop {
            match self.receive_response()? {
                Response::Completed(result) if result.tag == tag => return Ok(result),
                Response::Rejected(reason) => return Err(invalid(format!("rejected: {reason}"))),
                _ => (),
            }
        }
    }

    /// Like [`Initiator::command`], but retries after unit attentions.
    pub fn retry_command(
        &mut self,
        lun: [u8; 8],
        cdb: &[u8],
        data_out: &[u8],
        read_len: usize,
    ) -> io::Result<CommandResult> {
        loop {
            let result = self.command(lun, cdb, data_out, read_len)?;
            if result.status != CHECK_CONDITION || result.sense_code().0 != UNIT_ATTENTION {
                return Ok(result);
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
    pub fn read(&mut self, lun: [u8; 8], block: u64, blocks: u32) -> io::Result<CommandResult> {
        self.retry_command(lun, &Self::transfer(opcode::READ_16, block, blocks), &[], blocks as usize * 512)
    }

    /// Writes whole blocks of 512 bytes.
    pub fn write(&mut self, lun: [u8; 8], block: u64, data: &[u8]) -> io::Result<CommandResult> {
        self.retry_command(lun, &Self::transfer(opcode::WRITE_16, block, (data.len() / 512) as u32), data, 0)
    }

    /// SYNCHRONIZE CACHE (10) of the whole unit.
    pub fn flush(&mut self, lun: [u8; 8]) -> io::Result<CommandResult> {
        self.retry_command(lun, &[opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)
    }

    /// Compares a block with `old`, and writes `new` if they are equal.
    pub fn compare_and_write(&mut self, lun: [u8; 8], block: u64, old: &[u8], new: &[u8]) -> io::Result<CommandResult> {
        let mut cdb = [0; 16];
        cdb[0] = opcode::COMPARE_AND_WRITE;
        cdb[2..10].copy_from_slice(&block.to_be_bytes());
        cdb[13] = (old.len() / 512) as u8;
        self.retry_command(lun, &cdb, &[old, new].concat(), 0)
    }

    /// Sends raw bytes, for invalid requests.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn send_data_out(&mut self, r2t: &Pdu) -> io::Result<()> {
        let tag = r2t.read_u32(field::INITIATOR_TASK_TAG);
        let (offset, len) =
            (r2t.read_u32(field::BUFFER_OFFSET) as usize, r2t.read_u32(field::DESIRED_DATA_TRANSFER_LENGTH) as usize);
        let pending = self.pending.get(&tag).ok_or_else(|| invalid(format!("R2T for unknown tag {tag:x}")))?;
        let data = pending
            .data_out
            .get(offset..offset + len)
            .ok_or_else(|| invalid(format!("R2T past the end: {offset} + {len}")))?;
        let (data, lun) = (data.to_vec(), pending.lun);
        let mut chunks = data.chunks(DATA_OUT_BYTES).enumerate().peekable();
        while let Some((index, chunk)) = chunks.next() {
            let mut header = [0; HEADER_BYTES];
            header[0] = pdu::DATA_OUT;
            header[1] = if chunks.peek().is_none() { FINAL } else { 0 };
            header[field::LUN..][..lun.len()].copy_from_slice(&lun);
            put_u32(&mut header, field::INITIATOR_TASK_TAG, tag);
            put_u32(&mut header, field::TARGET_TRANSFER_TAG, r2t.read_u32(field::TARGET_TRANSFER_TAG));
            put_u32(&mut header, field::EXP_STAT_SN, self.exp_stat_sn);
            put_u32(&mut header, field::DATA_SN, index as u32);
            put_u32(&mut header, field::BUFFER_OFFSET, (offset + index * DATA_OUT_BYTES) as u32);
            self.send(header, chunk)?;
        }
        Ok(())
    }

    fn reply_to_ping(&mut self, ping: &Pdu) -> io::Result<()> {
        if ping.read_u32(field::TARGET_TRANSFER_TAG) == RESERVED_TAG {
            return Ok(());
        }
        let mut header = self.header(IMMEDIATE | pdu::NOP_OUT, FINAL, RESERVED_TAG);
        header[field::LUN..field::INITIATOR_TASK_TAG]
            .copy_from_slice(&ping.header[field::LUN..field::INITIATOR_TASK_TAG]);
        put_u32(&mut header, field::TARGET_TRANSFER_TAG, ping.read_u32(field::TARGET_TRANSFER_TAG));
        self.send(header, &[])
    }

    fn next_task_tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn header(&self, opcode: u8, flags: u8, tag: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..2].copy_from_slice(&[opcode, flags]);
        put_u32(&mut header, field::INITIATOR_TASK_TAG, tag);
        put_u32(&mut header, field::CMD_SN, self.cmd_sn);
        put_u32(&mut header, field::EXP_STAT_SN, self.exp_stat_sn);
        header
    }

    fn send(&mut self, mut header: [u8; HEADER_BYTES], data: &[u8]) -> io::Result<()> {
        put_u32(&mut header, field::LENGTHS, data.len() as u32);
        let padding = [0; 3];
        let pdu = [&header[..], data, &padding[..data.len().wrapping_neg() % 4]].concat();
        self.stream.get_mut().write_all(&pdu)
    }

    fn receive(&mut self) -> io::Result<Pdu> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let (ahs_len, len) =
            (header[field::LENGTHS] as usize * 4, (read_u32(&header, field::LENGTHS) & 0xff_ffff) as usize);
        if len > SEGMENT_BYTES_MAX {
            return Err(invalid(format!("{len} bytes in one PDU")));
        }
        let mut data = vec![0; ahs_len + len + len.wrapping_neg() % 4];
        self.stream.read_exact(&mut data)?;
        Ok(Pdu { header, data: data[ahs_len..ahs_len + len].to_vec() })
    }
}
