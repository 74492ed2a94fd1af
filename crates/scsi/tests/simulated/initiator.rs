//! An initiator that sends commands and collects the responses.

use std::rc::Rc;

use scsi::{CancelToken, Cancelled, Command, DataIn, DataOut, ExpectedLengths, Initiator, Nexus, Status};
use seam::sim::{SimBlock, SimSeam};
use seam::{Block, Nanos, Piece, Seam};

use crate::codes::{POWER_ON, READ_16, TEST_UNIT_READY, WRITE_16};
use crate::fixture::Fixture;

/// An initiator that is logged in.
#[derive(Clone)]
pub struct Client {
    pub fixture: Rc<Fixture>,
    pub nexus: Nexus,
}

/// Response to a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: Status,
    pub data: Vec<u8>,
    pub transfer_bytes: u64,
}

impl Response {
    /// Data of a successful command.
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.status, Status::Good);
        self.data
    }

    /// Sense key, code and qualifier (fixed format).
    pub fn sense(&self) -> (u8, u8, u8) {
        let sense = self.status.sense();
        assert_eq!(sense.len(), 18, "{:?}", self.status);
        (sense[2], sense[12], sense[13])
    }
}

/// Data of a command, delivered with random delays.
pub struct DelayedData {
    pub seam: SimSeam,
    pub out: Vec<u8>,
    pub taken: usize,
}

impl DataOut for DelayedData {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Cancelled> {
        self.seam.sleep(Nanos::from_micros(self.seam.random() % 50)).await;
        into.extend_from_slice(&self.out[self.taken..self.taken + len]);
        self.taken += len;
        Ok(())
    }
}

/// Collects the data sent to the initiator.
#[derive(Default)]
pub struct Sink(pub Vec<u8>);

impl DataIn<SimSeam> for Sink {
    async fn reserve_buffers(&mut self, len: usize) -> Result<(), Cancelled> {
        assert!(len <= scsi::SENT_AT_ONCE_BYTES_MAX);
        Ok(())
    }

    async fn send(&mut self, pieces: &mut Vec<Piece<SimBlock>>) -> Result<(), Cancelled> {
        for piece in pieces.drain(..) {
            let at = self.0.len();
            self.0.resize(at + piece.len(), 0);
            piece.block.read_bytes(piece.start(), &mut self.0[at..]);
        }
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Cancelled> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl Client {
    /// Logs in and consumes the power-on attentions.
    pub async fn new(fixture: &Rc<Fixture>, name: &str) -> Client {
        let client = Self::fresh(fixture, name);
        for lun in fixture.target.luns() {
            let started = client.send_to(lun.number(), &TEST_UNIT_READY, 0, &[]).await;
            if started.status != Status::Good {
                assert_eq!(started.sense(), POWER_ON);
            }
        }
        client
    }

    /// Logs in.
    pub fn fresh(fixture: &Rc<Fixture>, name: &str) -> Client {
        let nexus = fixture.target.add_nexus(Initiator::new(name, [1; 6]), 1);
        Client { fixture: Rc::clone(fixture), nexus }
    }

    /// Sends a command to unit 0 with the data `out` and an expected response of `expected_len` bytes.
    pub async fn send(&self, cdb: &[u8], expected_len: u64, out: &[u8]) -> Response {
        self.send_to(0, cdb, expected_len, out).await
    }

    /// Like [`Client::send`], to another unit.
    pub async fn send_to(&self, lun: u16, cdb: &[u8], expected_len: u64, out: &[u8]) -> Response {
        let cancel = CancelToken::default();
        self.send_cancellable(crate::fixture::lun(lun).encode(), cdb, expected_len, out, &cancel).await
    }

    /// Like [`Client::send`], with an address and a cancellation.
    pub async fn send_cancellable(
        &self,
        lun: [u8; 8],
        cdb: &[u8],
        expected_len: u64,
        out: &[u8],
        cancel: &CancelToken,
    ) -> Response {
        let expected = ExpectedLengths { out_bytes: out.len() as u64, in_bytes: expected_len };
        let mut data_out = DelayedData { seam: self.fixture.seam.clone(), out: out.to_vec(), taken: 0 };
        let mut sink = Sink::default();
        let command = Command { lun, cdb, expected, cancel };
        let outcome = self.fixture.target.execute(&self.nexus, command, &mut data_out, &mut sink).await;
        assert!(sink.0.len() as u64 <= expected_len, "the response exceeds the expected length");
        Response { status: outcome.status, data: sink.0, transfer_bytes: outcome.transfer_bytes }
    }

    /// READ(16).
    pub async fn read(&self, lun: u16, first: u64, count: u32) -> Response {
        self.send_to(lun, &cdb16(READ_16, 0, first, count), u64::from(count) * 512, &[]).await
    }

    /// WRITE(16).
    pub async fn write(&self, lun: u16, first: u64, data: &[u8]) -> Response {
        self.send_to(lun, &cdb16(WRITE_16, 0, first, (data.len() / 512) as u32), 0, data).await
    }
}

/// A CDB of sixteen bytes.
pub fn cdb16(code: u8, flags: u8, first: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&first.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// A CDB of ten bytes.
pub fn cdb10(code: u8, flags: u8, first: u32, count: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&first.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Content of blocks, each filled with its own tag.
pub fn content(tags: impl IntoIterator<Item = u64>) -> Vec<u8> {
    tags.into_iter().flat_map(|tag| tag.to_le_bytes().repeat(64)).collect()
}
