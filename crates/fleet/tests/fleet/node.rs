//! A simulated node: for each volume a state machine, a data path, and a session with the storage.

use std::collections::BTreeMap;

use fleet::{MachineGeneration, NodeLock, OpId, Ownership, RequestId, Settings, StorageClient};
use seam::Nanos;

use crate::data_path::{DataOp, DataPath};
use crate::events::{ClientOp, Session};
use crate::storage::{Log, StorageOp};

/// Purpose of a storage operation.
#[derive(Clone, Debug)]
pub enum Purpose {
    Ownership(OpId),
    /// A look at the record and at the end of the log, which was at least at this position.
    Look(OpId, u64),
    Data(DataOp),
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    Connection { connection: u64, tag: usize },
    Peer { node: usize, session: Session, request: RequestId },
}

/// A volume at a node. A snapshot of the node's memory copies it.
#[derive(Clone, Debug)]
pub struct Instance {
    pub ownership: Ownership,
    /// The generation of the machine that the instance has seen.
    pub generation: MachineGeneration,
    pub data: Option<DataPath>,
    pub client: StorageClient,
    pub map: u64,
    pub last_number: u64,
    pub outstanding: BTreeMap<u64, (Purpose, StorageOp)>,
    /// Operations of the state machine in earlier sessions, whose results may still come.
    pub abandoned: BTreeMap<(StorageClient, u64), Purpose>,
    /// The operation that replays the log for the present claim.
    pub replay_op: Option<OpId>,
    pub requests: BTreeMap<RequestId, (Origin, ClientOp)>,
    pub values: BTreeMap<RequestId, u32>,
    pub last_request: u64,
    pub replayed: Log,
    /// A new session is being opened.
    pub is_replacing: bool,
    /// The front ends do not read from connections.
    pub is_reading_stopped: bool,
}

impl Instance {
    pub fn new(settings: Settings, generation: MachineGeneration, client: StorageClient) -> Instance {
        Instance {
            ownership: Ownership::new(settings, generation, client),
            generation,
            data: None,
            client,
            map: 0,
            last_number: 0,
            outstanding: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            replay_op: None,
            requests: BTreeMap::new(),
            values: BTreeMap::new(),
            last_request: 0,
            replayed: Log::default(),
            is_replacing: false,
            is_reading_stopped: false,
        }
    }

    /// The end of the log as the data path knows it, without and with an append in flight.
    pub fn log_end(&self) -> (u64, u64) {
        self.data.as_ref().map_or((self.replayed.next_seq, self.replayed.next_seq), DataPath::log_end)
    }

    pub fn add_request(&mut self, origin: Origin, op: ClientOp) -> RequestId {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        self.requests.insert(request, (origin, op));
        request
    }

    /// Ends the session: results for the data path are lost with it.
    pub fn end_session(&mut self) {
        for (number, (purpose, _)) in std::mem::take(&mut self.outstanding) {
            if !matches!(purpose, Purpose::Data(_)) {
                self.abandoned.insert((self.client, number), purpose);
            }
        }
    }

    /// Drops the operations of the data path, whose results have no meaning any more.
    pub fn discard(&mut self) {
        self.data = None;
        self.outstanding.retain(|_, (purpose, _)| !matches!(purpose, Purpose::Data(_)));
    }
}

/// A node's `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// World time minus the clock's.
    behind: i64,
    stopped_at: Option<u64>,
}

impl Clock {
    pub fn now(&self, world: u64) -> Nanos {
        let world = self.stopped_at.unwrap_or(world);
        Nanos((world as i64 - self.behind) as u64)
    }

    pub fn stop(&mut self, world: u64) {
        self.stopped_at.get_or_insert(world);
    }

    pub fn start(&mut self, world: u64) {
        if let Some(stopped_at) = self.stopped_at.take() {
            self.behind += (world - stopped_at) as i64;
        }
    }

    /// Continues from `now`, as a restored machine does.
    pub fn set(&mut self, world: u64, now: Nanos) {
        *self = Clock { behind: world as i64 - now.0 as i64, stopped_at: None };
    }
}

/// A process of a node.
pub struct Node {
    /// Number of the node.
    pub id: usize,
    pub instances: Vec<Instance>,
    pub is_running: bool,
    /// An administrator has declared the node dead: it never starts again.
    pub is_gone: bool,
    pub session: Session,
    pub paused_until: u64,
    pub storage_cut_until: u64,
    pub clock: Clock,
    pub generation: MachineGeneration,
    pub lock: NodeLock,
    pub snapshot: Option<(Vec<Instance>, Nanos)>,
}
