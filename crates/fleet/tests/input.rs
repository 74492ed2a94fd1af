//! Events in any order and with any numbers: the state machine does not panic, and answers a request once.

use std::collections::BTreeSet;

use fleet::{
    Action, Command, CommandId, ConnectionId, Epoch, Event, Header, ImageId, MachineGeneration, NodeId, NodeLock, OpId,
    Owner, OwnerRecord, Ownership, PeerMessage, RequestError, RequestId, RequestKind, Settings, StorageAnswer,
    StorageClient, StorageError,
};
use seam::Nanos;

/// Random numbers (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn epoch(&mut self) -> Epoch {
        Epoch(if self.below(50) == 0 { u64::MAX - self.below(2) } else { self.below(6) })
    }

    fn client(&mut self) -> StorageClient {
        StorageClient(self.below(6))
    }

    fn owner(&mut self) -> Owner {
        let (lock, generation) = (NodeLock(self.below(2).into()), MachineGeneration(self.below(2).into()));
        Owner { node: NodeId(self.below(3) as u32), client: self.client(), lock, generation }
    }

    fn record(&mut self) -> OwnerRecord {
        let owner = (self.below(4) > 0).then(|| self.owner());
        let (epoch, mark) = (self.epoch(), self.below(3));
        OwnerRecord {
            image: ImageId((self.below(20) == 0).into()),
            epoch,
            owner,
            mark,
            is_released: self.below(2) == 0,
            lost_epoch: self.epoch(),
            is_restorable: self.below(2) == 0,
            unfenced: (self.below(3) == 0).then(|| self.client()),
        }
    }

    fn kind(&mut self) -> RequestKind {
        [RequestKind::Read, RequestKind::Write, RequestKind::Flush][self.below(3) as usize]
    }

    fn error(&mut self) -> StorageError {
        let (timed_out, other) = (StorageError::TimedOut, StorageError::Other);
        [StorageError::Blocked, StorageError::LockedByOther, StorageError::Stale, timed_out, other]
            [self.below(5) as usize]
    }

    fn result(&mut self) -> Result<(), RequestError> {
        [Ok(()), Ok(()), Err(RequestError::NotOwner), Err(RequestError::Failed)][self.below(4) as usize]
    }

    fn answer(&mut self, written: Option<OwnerRecord>) -> StorageAnswer {
        let record = written.filter(|_| self.below(4) > 0).unwrap_or_else(|| self.record());
        match self.below(6) {
            0 => StorageAnswer::Header(Header {
                image: ImageId(0),
                record,
                lock_owner: None,
                watchers: vec![self.client()],
            }),
            1 => StorageAnswer::Record(record),
            2 => StorageAnswer::RecordWritten,
            3 => StorageAnswer::LogReplayed { epoch: record.epoch, last_append: Epoch(0) },
            _ => StorageAnswer::Done,
        }
    }

    fn event(&mut self, last_op: OpId, written: Option<OwnerRecord>) -> Event {
        let (node, request) = (NodeId(self.below(3) as u32), RequestId(self.below(90)));
        let connection = ConnectionId(self.below(3));
        match self.below(22) {
            0 => Event::Connected(connection),
            1 => Event::Closed(connection),
            2 | 3 => Event::Request { connection, request, kind: self.kind() },
            4 => Event::Forwarded { from: node, epoch: self.epoch(), request, kind: self.kind() },
            5 => Event::Executed { request, result: self.result() },
            6 => Event::ForwardAnswered { request, result: self.result() },
            7 => Event::DestageWanted,
            8 => Event::DataPathRefused { client: self.client(), error: self.error() },
            9 => Event::ClientReplaced(self.client()),
            10 if self.below(2) == 0 => Event::Progress { op: last_op },
            10 => Event::ClientLost(self.client()),
            11 => {
                let (epoch, is_first_write) = (self.epoch(), self.below(2) == 0);
                Event::Peer { from: node, message: PeerMessage::HandOverRequest { epoch, is_first_write } }
            }
            12 => Event::Peer { from: node, message: PeerMessage::ClientsGone },
            13 => Event::Peer { from: node, message: PeerMessage::Released(self.epoch()) },
            14 => {
                let (epoch, owner, is_dead) =
                    (self.epoch(), (self.below(3) > 0).then(|| self.owner()), self.below(2) == 0);
                Event::Command { id: CommandId(0), command: Command::TakeOver { epoch, owner, is_dead } }
            }
            15 => Event::Command { id: CommandId(0), command: Command::Move { to: node } },
            16 => Event::Tick,
            17 => Event::Storage { op: last_op, result: Err(self.error()) },
            _ => Event::Storage { op: last_op, result: Ok(self.answer(written)) },
        }
    }
}

#[test]
fn events_in_any_order_never_panic() {
    for seed in 0..2_000 {
        let mut rng = Rng(seed);
        let mut ownership =
            Ownership::new(Settings::new(NodeId(1), NodeLock(1)), MachineGeneration(0), StorageClient(1));
        let (mut now, mut open, mut written) = (Nanos::default(), BTreeSet::new(), None);
        let mut generation = MachineGeneration(0);
        let (mut last_op, mut last_command, mut commands) = (OpId(0), 0, BTreeSet::new());
        for _ in 0..500 {
            now += Nanos::from_millis([0, 1, 100, 1_500, 9_000][rng.below(5) as usize]);
            generation.0 += u128::from(rng.below(100) == 0);
            let mut event = rng.event(last_op, written);
            if let Event::Command { id, .. } = &mut event {
                last_command += 1;
                *id = CommandId(last_command);
                commands.insert(*id);
            }
            if let Event::Request { request, .. } | Event::Forwarded { request, .. } = event {
                open.insert(request);
            }
            for action in ownership.handle(now, generation, event) {
                match action {
                    Action::Answer { request, .. } => {
                        assert!(open.remove(&request), "seed {seed}: {request:?} is answered twice");
                    }
                    Action::AnswerCommand { id, .. } => assert!(commands.remove(&id), "seed {seed}: {id:?}"),
                    Action::WriteRecord { op, new, .. } => (last_op, written) = (op, Some(new)),
                    Action::ReadHeader { op }
                    | Action::ReadRecord { op }
                    | Action::Fence { op, .. }
                    | Action::AcquireLock { op }
                    | Action::ReplayLog { op, .. }
                    | Action::Quiesce { op }
                    | Action::ReleaseLock { op } => last_op = op,
                    _ => {}
                }
            }
            assert!(commands.len() <= 1, "seed {seed}: orders without an answer: {commands:?}");
        }
    }
}
