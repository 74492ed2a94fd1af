//! Single steps of the ownership: what each rule does, without a simulated world.

use fleet::{
    Action, Command, CommandError, CommandId, ConnectionId, Epoch, Event, Header, ImageId, LossReason,
    MachineGeneration, NodeId, NodeLock, OpId, Owner, OwnerRecord, Ownership, PeerMessage, RequestError, RequestId,
    RequestKind, Settings, StateKind, StorageAnswer, StorageClient, StorageError,
};
use seam::Nanos;

const HERE: NodeId = NodeId(1);
const IMAGE: ImageId = ImageId(0);
const LOCK: NodeLock = NodeLock(7);
const OTHER: Owner = owner(NodeId(2), 20);

const fn owner(node: NodeId, client: u64) -> Owner {
    Owner { node, client: StorageClient(client), lock: LOCK, generation: MachineGeneration(0) }
}

/// A node with its time.
struct Fixture {
    ownership: Ownership,
    now: Nanos,
    generation: MachineGeneration,
}

impl Fixture {
    fn new() -> Fixture {
        let ownership = Ownership::new(Settings::new(HERE, LOCK), MachineGeneration(0), StorageClient(10));
        Fixture { ownership, now: Nanos::from_secs(100), generation: MachineGeneration(0) }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.ownership.handle(self.now, self.generation, event)
    }

    fn request(&mut self, request: u64, kind: RequestKind) -> Vec<Action> {
        let (connection, request) = (ConnectionId(1), RequestId(request));
        self.handle(Event::Request { connection, request, kind })
    }

    fn answer(&mut self, op: OpId, answer: StorageAnswer) -> Vec<Action> {
        self.handle(Event::Storage { op, result: Ok(answer) })
    }

    /// Answers the look at the header with `record`, held by its owner.
    fn read_header(&mut self, actions: &[Action], record: OwnerRecord) -> Vec<Action> {
        let [Action::ReadHeader { op }] = actions else { panic!("no look at the header: {actions:?}") };
        let owner = record.owner.filter(|_| !record.is_released).map(|owner| owner.client);
        let watchers = owner.into_iter().collect();
        self.answer(*op, StorageAnswer::Header(Header { image: IMAGE, record, lock_owner: owner, watchers }))
    }

    /// Continues a claim of `epoch` after its fence.
    fn claim_fenced(&mut self, op: OpId, epoch: Epoch) -> Vec<Action> {
        let actions = self.answer(op, StorageAnswer::Done);
        let [Action::AcquireLock { op }] = actions[..] else { panic!("{actions:?}") };
        self.claim_locked(op, epoch)
    }

    /// Continues a claim of `epoch` after its lock.
    fn claim_locked(&mut self, op: OpId, epoch: Epoch) -> Vec<Action> {
        let actions = self.answer(op, StorageAnswer::Done);
        let [Action::ReplayLog { op, .. }] = actions[..] else { panic!("{actions:?}") };
        let actions = self.answer(op, StorageAnswer::LogReplayed { epoch, last_append: Epoch(0) });
        let [Action::WriteRecord { op, new, .. }] = actions[..] else { panic!("{actions:?}") };
        let actions = self.answer(op, StorageAnswer::RecordWritten);
        let [Action::ReadRecord { op }] = actions[..] else { panic!("{actions:?}") };
        self.answer(op, StorageAnswer::Record(new))
    }

    /// Claims a volume without an owner for the first write of a connection.
    fn own() -> Fixture {
        let mut node = Fixture::new();
        node.handle(Event::Connected(ConnectionId(1)));
        let actions = node.request(1, RequestKind::Write);
        assert_eq!(node.read_header(&actions, OwnerRecord::default()), [Action::ReplaceClient]);
        let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
        let [Action::AcquireLock { op }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::Done);
        let [Action::ReplayLog { op, epoch: Epoch(1) }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::LogReplayed { epoch: Epoch(1), last_append: Epoch(0) });
        let [Action::WriteRecord { op, new, .. }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::RecordWritten);
        let [Action::ReadRecord { op }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::Record(new));
        assert_eq!(actions, [Action::Serve { epoch: Epoch(1) }, Action::Execute { request: RequestId(1) }]);
        node
    }
}

fn take_over(epoch: u64, owner: Owner, is_dead: bool) -> Event {
    let command = Command::TakeOver { epoch: Epoch(epoch), owner: Some(owner), is_dead };
    Event::Command { id: CommandId(1), command }
}

fn command_answer(result: Result<(), CommandError>) -> Action {
    Action::AnswerCommand { id: CommandId(1), result }
}

fn record(owner: Owner) -> OwnerRecord {
    OwnerRecord { epoch: Epoch(4), owner: Some(owner), is_restorable: true, ..OwnerRecord::default() }
}

fn executed(request: u64) -> Event {
    Event::Executed { request: RequestId(request), result: Ok(()) }
}

#[test]
fn answer_after_a_pause_is_withheld_until_a_renewal() {
    let mut node = Fixture::own();
    node.now += Nanos::from_secs(7);
    let actions = node.handle(executed(1));
    let [Action::StopAcknowledging, Action::ReadRecord { op }] = actions[..] else { panic!("{actions:?}") };
    let owner = Some(owner(HERE, 11));
    let record = OwnerRecord { epoch: Epoch(1), owner, is_restorable: true, ..OwnerRecord::default() };
    let actions = node.answer(op, StorageAnswer::Record(record));
    let answer = Action::Answer { request: RequestId(1), result: Ok(()) };
    assert_eq!(actions, [Action::ResumeAcknowledging, answer]);
}

#[test]
fn front_ends_close_ten_seconds_after_the_last_renewal() {
    let mut node = Fixture::own();
    node.now += Nanos::from_secs(10);
    let actions = node.handle(Event::Tick);
    assert!(actions.contains(&Action::CloseFrontEnds), "{actions:?}");
    assert_eq!(node.ownership.state(), StateKind::Owning);
}

#[test]
fn blocked_owner_leaves_at_once() {
    let mut node = Fixture::own();
    let actions = node.handle(Event::DataPathRefused { client: StorageClient(11), error: StorageError::Blocked });
    assert_eq!(actions[0], Action::ReportLoss(LossReason::Blocked));
    assert!(actions.contains(&Action::CloseFrontEnds) && actions.contains(&Action::Discard), "{actions:?}");
    assert_eq!(node.ownership.state(), StateKind::Fenced);
}

#[test]
fn refusal_of_an_earlier_session_is_ignored() {
    let mut node = Fixture::own();
    let actions = node.handle(Event::DataPathRefused { client: StorageClient(10), error: StorageError::Blocked });
    assert_eq!((actions, node.ownership.state()), (vec![], StateKind::Owning));
}

#[test]
fn flush_and_read_at_a_standby_are_forwarded() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Read);
    let actions = node.read_header(&actions, record(OTHER));
    assert_eq!(actions, [Action::Forward { request: RequestId(1), to: OTHER.node, epoch: Epoch(4) }]);
    let actions = node.request(2, RequestKind::Flush);
    assert_eq!(actions, [Action::Forward { request: RequestId(2), to: OTHER.node, epoch: Epoch(4) }]);
}

#[test]
fn living_owner_is_fenced_only_by_command() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    let actions = node.read_header(&actions, record(OTHER));
    assert!(matches!(actions[..], [Action::Send { to: NodeId(2), .. }]), "{actions:?}");
    let actions = node.handle(take_over(4, OTHER, false));
    assert_eq!(node.read_header(&actions, record(OTHER)), [command_answer(Ok(())), Action::ReplaceClient]);
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    assert!(matches!(actions[..], [Action::Fence { client: StorageClient(20), .. }]), "{actions:?}");
}

#[test]
fn take_over_awaits_the_lease_of_a_living_owner() {
    for (is_dead, state) in [(false, StateKind::AwaitingLease), (true, StateKind::Recording)] {
        let mut node = Fixture::new();
        let actions = node.handle(take_over(4, OTHER, is_dead));
        node.read_header(&actions, record(OTHER));
        let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
        let [Action::Fence { op, .. }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::Done);
        let [Action::AcquireLock { op }] = actions[..] else { panic!("{actions:?}") };
        let actions = node.answer(op, StorageAnswer::Done);
        let [Action::ReplayLog { op, .. }] = actions[..] else { panic!("{actions:?}") };
        node.answer(op, StorageAnswer::LogReplayed { epoch: Epoch(5), last_append: Epoch(4) });
        assert_eq!(node.ownership.state(), state);
    }
}

#[test]
fn late_result_of_an_abandoned_attempt_is_ignored() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    node.handle(Event::Closed(ConnectionId(1)));
    assert_eq!(node.ownership.state(), StateKind::Standby);
    assert_eq!(node.read_header(&actions, OwnerRecord::default()), []);
    assert_eq!(node.ownership.state(), StateKind::Standby);
}

#[test]
fn flush_of_a_connection_older_than_a_loss_fails() {
    // The claimer: its client may have acknowledged writes at the owner that is lost.
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Flush);
    node.read_header(&actions, record(OTHER));
    let not_owner = Err(RequestError::NotOwner);
    node.handle(Event::ForwardAnswered { request: RequestId(1), result: not_owner });
    let actions = node.handle(take_over(4, OTHER, true));
    node.read_header(&actions, record(OTHER));
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::Fence { op, .. }] = actions[..] else { panic!("{actions:?}") };
    let actions = node.claim_fenced(op, Epoch(5));
    assert_eq!(actions, [Action::CloseConnection(ConnectionId(1)), Action::Serve { epoch: Epoch(5) }]);
    // Another standby learns it from the record.
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Flush);
    let record = OwnerRecord { epoch: Epoch(5), lost_epoch: Epoch(4), ..record(OTHER) };
    assert_eq!(node.read_header(&actions, record), [Action::CloseConnection(ConnectionId(1))]);
    // A connection that begins afterwards is served.
    node.now += Nanos::from_secs(2);
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(2, RequestKind::Flush);
    let actions = node.read_header(&actions, record);
    assert_eq!(actions, [Action::Forward { request: RequestId(2), to: OTHER.node, epoch: Epoch(5) }]);
}

#[test]
fn request_forwarded_in_another_epoch_is_refused() {
    let mut node = Fixture::own();
    let (from, kind) = (NodeId(2), RequestKind::Flush);
    let actions = node.handle(Event::Forwarded { from, epoch: Epoch(2), request: RequestId(7), kind });
    assert_eq!(actions, [Action::Answer { request: RequestId(7), result: Err(RequestError::NotOwner) }]);
}

#[test]
fn command_that_names_another_owner_is_refused() {
    let third = owner(NodeId(3), 30);
    let later = Owner { client: StorageClient(21), ..OTHER };
    for (epoch, owner) in [(4, third), (3, OTHER), (4, later)] {
        let mut node = Fixture::new();
        let actions = node.handle(take_over(epoch, owner, true));
        let actions = node.read_header(&actions, record(OTHER));
        assert_eq!(actions, [command_answer(Err(CommandError::OtherOwner(record(OTHER))))]);
        assert_eq!(node.ownership.state(), StateKind::Standby);
    }
}

#[test]
fn command_at_a_wrong_time_is_refused() {
    let mut node = Fixture::own();
    assert_eq!(node.handle(take_over(4, OTHER, false)), [command_answer(Err(CommandError::IsOwner))]);
    let move_to = |to| Event::Command { id: CommandId(1), command: Command::Move { to } };
    assert_eq!(node.handle(move_to(HERE)), [command_answer(Err(CommandError::SameNode))]);
    let actions = node.handle(move_to(OTHER.node));
    assert_eq!(actions[0], command_answer(Ok(())));
    assert_eq!(node.handle(move_to(OTHER.node)), [command_answer(Err(CommandError::Busy))]);
    let mut node = Fixture::new();
    assert_eq!(node.handle(move_to(OTHER.node)), [command_answer(Err(CommandError::NotOwner))]);
    node.handle(take_over(4, OTHER, false));
    assert_eq!(node.handle(take_over(4, OTHER, false)), [command_answer(Err(CommandError::Busy))]);
    node.now += Nanos::from_secs(31);
    assert_eq!(node.handle(Event::Tick), [command_answer(Err(CommandError::NoAnswer))]);
}

#[test]
fn living_lock_owner_is_fenced_only_by_command() {
    let header = |record| {
        let lock_owner = StorageClient(99);
        StorageAnswer::Header(Header { image: IMAGE, record, lock_owner: Some(lock_owner), watchers: vec![lock_owner] })
    };
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let mut actions = node.request(1, RequestKind::Write);
    for second in 0..40 {
        if let [.., Action::ReadHeader { op }] = actions[..] {
            let actions = node.answer(op, header(OwnerRecord::default()));
            assert_eq!(actions, [], "a request fences no living client: second {second}");
        }
        node.now += Nanos::from_secs(1);
        actions = node.handle(Event::Tick);
    }
    let mut node = Fixture::new();
    let command = Command::TakeOver { epoch: Epoch(0), owner: None, is_dead: false };
    let mut actions = node.handle(Event::Command { id: CommandId(1), command });
    let mut seconds = 0;
    while node.ownership.state() == StateKind::Claiming {
        if let [Action::ReadHeader { op }] = actions[..] {
            node.answer(op, header(OwnerRecord::default()));
        }
        (node.now, seconds) = (node.now + Nanos::from_secs(1), seconds + 1);
        actions = node.handle(Event::Tick);
    }
    assert!((10..14).contains(&seconds), "{seconds} s");
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    assert!(matches!(actions[..], [Action::Fence { client: StorageClient(99), .. }]), "{actions:?}");
}

#[test]
fn accepted_command_survives_a_failed_claim() {
    let mut node = Fixture::new();
    let actions = node.handle(take_over(4, OTHER, false));
    node.read_header(&actions, record(OTHER));
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::Fence { op, .. }] = actions[..] else { panic!("{actions:?}") };
    let actions = node.handle(Event::Storage { op, result: Err(StorageError::Blocked) });
    assert_eq!(actions, [Action::ReplaceClient]);
    assert_eq!(node.handle(Event::ClientReplaced(StorageClient(12))), [], "a pause bounds the rate of sessions");
    node.now += Nanos::from_secs(1);
    let actions = node.handle(Event::Tick);
    assert_eq!(node.read_header(&actions, record(OTHER)), [Action::ReplaceClient], "the order is answered once");
}

#[test]
fn progress_of_a_long_replay_keeps_the_claim() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    node.read_header(&actions, OwnerRecord::default());
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::AcquireLock { op }] = actions[..] else { panic!("{actions:?}") };
    let actions = node.answer(op, StorageAnswer::Done);
    let [Action::ReplayLog { op, .. }] = actions[..] else { panic!("{actions:?}") };
    for _ in 0..5 {
        node.now += Nanos::from_secs(20);
        node.handle(Event::Progress { op });
        node.handle(Event::Tick);
        assert_eq!(node.ownership.state(), StateKind::Replaying);
    }
    node.now += Nanos::from_secs(30);
    assert_eq!(node.handle(Event::Tick), [Action::ReplaceClient], "the lock goes with the session");
}

#[test]
fn requests_of_other_nodes_leave_room_for_local_ones() {
    let mut node = Fixture::own();
    node.handle(executed(1));
    let forwarded = |number: u64| {
        let (request, kind) = (RequestId(100 + number), RequestKind::Read);
        Event::Forwarded { from: NodeId(2), epoch: Epoch(1), request, kind }
    };
    for number in 0..64_u64 {
        let answers = node.handle(forwarded(number));
        assert!(!answers.iter().any(|action| matches!(action, Action::Answer { .. })), "{answers:?}");
    }
    let busy = Action::Answer { request: RequestId(164), result: Err(RequestError::Busy) };
    assert_eq!(node.handle(forwarded(64)), [busy]);
    assert_eq!(node.request(2, RequestKind::Write), [Action::Execute { request: RequestId(2) }]);
}

#[test]
fn requests_of_a_new_connection_wait_without_a_bound() {
    let mut node = Fixture::own();
    node.handle(executed(1));
    let [Action::ReadRecord { op }] = node.handle(Event::Connected(ConnectionId(2)))[..] else { panic!("no renewal") };
    for request in 2..102_u64 {
        let (connection, request) = (ConnectionId(2), RequestId(request));
        let actions = node.handle(Event::Request { connection, request, kind: RequestKind::Write });
        let expected = if request == RequestId(65) { vec![Action::StopReading] } else { vec![] };
        assert_eq!(actions, expected, "{request:?}");
    }
    let owner = Some(owner(HERE, 11));
    let actions = node.answer(op, StorageAnswer::Record(OwnerRecord { epoch: Epoch(1), owner, ..record(OTHER) }));
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Execute { .. })).count(), 100);
    assert_eq!(actions.last(), Some(&Action::ResumeReading));
}

#[test]
fn request_that_a_busy_owner_returns_is_forwarded_again() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Read);
    node.read_header(&actions, record(OTHER));
    let busy = Event::ForwardAnswered { request: RequestId(1), result: Err(RequestError::Busy) };
    assert_eq!(node.handle(busy), []);
    node.now += Nanos::from_secs(1);
    let forward = Action::Forward { request: RequestId(1), to: OTHER.node, epoch: Epoch(4) };
    assert_eq!(node.handle(Event::Tick), [forward]);
}

#[test]
fn renewal_without_an_answer_is_repeated() {
    for error in [None, Some(StorageError::TimedOut), Some(StorageError::Other)] {
        let mut node = Fixture::own();
        node.now += Nanos::from_secs(2);
        let [Action::ReadRecord { op }] = node.handle(Event::Tick)[..] else { panic!("no renewal") };
        let actions = match error {
            Some(error) => node.handle(Event::Storage { op, result: Err(error) }),
            None => {
                node.now += Nanos::from_secs(5);
                node.handle(Event::Tick)
            }
        };
        assert!(actions.iter().any(|action| matches!(action, Action::ReadRecord { .. })), "{actions:?}");
        assert_eq!(node.ownership.state(), StateKind::Owning);
    }
}

#[test]
fn owner_without_a_session_leaves_and_opens_another() {
    let mut node = Fixture::own();
    let actions = node.handle(Event::ClientLost(StorageClient(11)));
    assert_eq!(actions[0], Action::ReportLoss(LossReason::SessionLost));
    assert_eq!(actions.last(), Some(&Action::ReplaceClient));
    node.now += Nanos::from_secs(10);
    assert_eq!(node.handle(Event::Tick), [Action::ReplaceClient], "the order is repeated");
    node.handle(Event::ClientReplaced(StorageClient(12)));
    assert_eq!(node.ownership.state(), StateKind::Standby);
}

#[test]
fn record_without_an_answer_ends_the_claim() {
    let mut node = Fixture::new();
    let actions = node.handle(take_over(4, OTHER, true));
    node.read_header(&actions, record(OTHER));
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::Fence { mut op, .. }] = actions[..] else { panic!("{actions:?}") };
    for answer in [StorageAnswer::Done, StorageAnswer::Done] {
        op = match node.answer(op, answer)[..] {
            [Action::AcquireLock { op } | Action::ReplayLog { op, .. }] => op,
            ref actions => panic!("{actions:?}"),
        };
    }
    let actions = node.answer(op, StorageAnswer::LogReplayed { epoch: Epoch(5), last_append: Epoch(0) });
    assert!(matches!(actions[..], [Action::WriteRecord { .. }]), "{actions:?}");
    node.now += Nanos::from_secs(30);
    assert_eq!(node.handle(Event::Tick), [Action::ReplaceClient]);
}

#[test]
fn owner_of_a_restored_machine_executes_and_destages_nothing() {
    let mut node = Fixture::own();
    node.handle(executed(1));
    // The mark of a batch of destage is under way when the snapshot is taken, and is written before it is restored.
    let [Action::ReadRecord { op }] = node.handle(Event::DestageWanted)[..] else { panic!("no renewal") };
    let owner = Some(owner(HERE, 11));
    let record = OwnerRecord { epoch: Epoch(1), owner, is_restorable: true, ..OwnerRecord::default() };
    let [Action::WriteRecord { op, .. }] = node.answer(op, StorageAnswer::Record(record))[..] else {
        panic!("no mark")
    };
    node.generation = MachineGeneration(1);
    let actions = node.answer(op, StorageAnswer::RecordWritten);
    assert_eq!(actions[0], Action::ReportLoss(LossReason::Restored));
    assert!(actions.contains(&Action::CloseFrontEnds) && actions.contains(&Action::Discard), "{actions:?}");
    assert_eq!(actions.last(), Some(&Action::ReplaceClient));
    assert_eq!(node.ownership.state(), StateKind::Fenced);
}

#[test]
fn session_opened_before_a_snapshot_is_not_used_after_it() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    assert_eq!(node.read_header(&actions, OwnerRecord::default()), [Action::ReplaceClient]);
    node.generation = MachineGeneration(1);
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    assert_eq!(actions, [Action::CloseFrontEnds, Action::ReplaceClient]);
    assert_eq!(node.ownership.state(), StateKind::Fenced);
}

/// Claims a volume that another node has released, and returns the order to fence that node's session.
fn claim_released(node: &mut Fixture) -> OpId {
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    let released = OwnerRecord { is_released: true, ..record(OTHER) };
    assert_eq!(node.read_header(&actions, released), [Action::ReplaceClient]);
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::AcquireLock { op }] = actions[..] else { panic!("{actions:?}") };
    let actions = node.claim_locked(op, Epoch(5));
    let [Action::Serve { .. }, Action::Fence { op, client: StorageClient(20) }, Action::Execute { .. }] = actions[..]
    else {
        panic!("{actions:?}")
    };
    node.handle(executed(1));
    op
}

#[test]
fn destage_waits_until_the_released_session_is_fenced() {
    let mut node = Fixture::new();
    let op = claim_released(&mut node);
    assert_eq!(node.handle(Event::DestageWanted), []);
    let actions = node.answer(op, StorageAnswer::Done);
    assert!(matches!(actions[..], [Action::ReadRecord { .. }]), "the mark of the destage: {actions:?}");
}

#[test]
fn hand_over_waits_until_the_released_session_is_fenced() {
    let mut node = Fixture::new();
    let fence = claim_released(&mut node);
    let command = Command::Move { to: OTHER.node };
    let actions = node.handle(Event::Command { id: CommandId(1), command });
    let [_, Action::ReadRecord { op }] = actions[..] else { panic!("{actions:?}") };
    let unfenced = Some(StorageClient(20));
    let owner = Some(owner(HERE, 11));
    let record = OwnerRecord { epoch: Epoch(5), owner, is_restorable: true, unfenced, ..OwnerRecord::default() };
    assert_eq!(node.answer(op, StorageAnswer::Record(record)), []);
    let actions = node.answer(fence, StorageAnswer::Done);
    assert!(matches!(actions[..], [Action::Quiesce { .. }]), "{actions:?}");
}

#[test]
fn fence_of_a_released_session_without_an_answer_is_repeated() {
    let mut node = Fixture::new();
    let first = claim_released(&mut node);
    node.now += Nanos::from_secs(10);
    let actions = node.handle(Event::Tick);
    assert!(actions.iter().any(|action| matches!(action, Action::Fence { .. })), "{actions:?}");
    // The first order suffices, if its answer comes late.
    node.answer(first, StorageAnswer::Done);
    node.now += Nanos::from_secs(10);
    let actions = node.handle(Event::Tick);
    assert!(!actions.iter().any(|action| matches!(action, Action::Fence { .. })), "{actions:?}");
}

/// Lets time pass; returns the orders to fence of that time.
fn fences_within(node: &mut Fixture, seconds: u64) -> Vec<OpId> {
    let mut fences = Vec::new();
    for _ in 0..seconds {
        node.now += Nanos::from_secs(1);
        let ordered = |action| if let Action::Fence { op, .. } = action { Some(op) } else { None };
        fences.extend(node.handle(Event::Tick).into_iter().filter_map(ordered));
    }
    fences
}

#[test]
fn fences_of_a_released_session_without_an_answer_are_bounded() {
    const FENCES_MAX: usize = 8;
    let mut node = Fixture::new();
    let first = claim_released(&mut node);
    let fences = fences_within(&mut node, 600);
    assert_eq!(fences.len(), FENCES_MAX - 1, "the first one, and its repetitions");
    // An order that has failed is repeated.
    for fence in &fences[..2] {
        node.handle(Event::Storage { op: *fence, result: Err(StorageError::TimedOut) });
    }
    assert_eq!(fences_within(&mut node, 600).len(), 2);
    node.handle(Event::DestageWanted);
    node.answer(first, StorageAnswer::Done);
    assert_eq!(fences_within(&mut node, 600), [], "the first order suffices, if its answer comes late");
}

#[test]
fn record_copied_with_its_image_names_no_owner() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    let [Action::ReadHeader { op }] = actions[..] else { panic!("{actions:?}") };
    let copied = OwnerRecord { image: ImageId(1), ..record(owner(HERE, 20)) };
    let header = Header { image: IMAGE, record: copied, lock_owner: None, watchers: vec![StorageClient(20)] };
    assert_eq!(node.answer(op, StorageAnswer::Header(header)), [Action::ReplaceClient]);
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    assert!(matches!(actions[..], [Action::AcquireLock { .. }]), "nothing is fenced: {actions:?}");
}

#[test]
fn another_process_of_the_node_is_awaited() {
    let other_lock = Owner { lock: NodeLock(8), ..owner(HERE, 20) };
    let other_generation = Owner { generation: MachineGeneration(1), ..owner(HERE, 20) };
    for other in [other_lock, other_generation] {
        let mut node = Fixture::new();
        node.handle(Event::Connected(ConnectionId(1)));
        let actions = node.request(1, RequestKind::Write);
        assert_eq!(node.read_header(&actions, record(other)), [], "its watch lives");
        node.now += Nanos::from_secs(1);
        let [Action::ReadHeader { op }] = node.handle(Event::Tick)[..] else { panic!("no look at the header") };
        let (record, lock_owner) = (record(other), Some(other.client));
        let header = Header { image: IMAGE, record, lock_owner, watchers: vec![] };
        assert_eq!(node.answer(op, StorageAnswer::Header(header)), [Action::ReplaceClient]);
        let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
        let [Action::Fence { op, .. }] = actions[..] else { panic!("{actions:?}") };
        let [Action::AcquireLock { op }] = node.answer(op, StorageAnswer::Done)[..] else { panic!("no lock") };
        let [Action::ReplayLog { op, .. }] = node.answer(op, StorageAnswer::Done)[..] else { panic!("no replay") };
        node.answer(op, StorageAnswer::LogReplayed { epoch: Epoch(5), last_append: Epoch(4) });
        assert_eq!(node.ownership.state(), StateKind::AwaitingLease);
    }
}

#[test]
fn connection_that_begins_in_a_hand_over_is_not_superseded() {
    let mut node = Fixture::own();
    node.handle(executed(1));
    let command = Command::Move { to: OTHER.node };
    let actions = node.handle(Event::Command { id: CommandId(1), command });
    let [_, Action::ReadRecord { op }] = actions[..] else { panic!("{actions:?}") };
    node.handle(Event::Connected(ConnectionId(2)));
    let owner = Some(owner(HERE, 11));
    let record = OwnerRecord { epoch: Epoch(1), owner, is_restorable: true, ..OwnerRecord::default() };
    let actions = node.answer(op, StorageAnswer::Record(record));
    let quiesce = actions.iter().find_map(|action| match action {
        Action::Quiesce { op } => Some(*op),
        _ => None,
    });
    let renewal = actions.iter().find_map(|action| match action {
        Action::ReadRecord { op } => Some(*op),
        _ => None,
    });
    if let Some(op) = renewal {
        node.answer(op, StorageAnswer::Record(record));
    }
    let actions = node.answer(quiesce.expect("the log is completed"), StorageAnswer::Done);
    let [Action::WriteRecord { op, new, .. }] = actions[..] else { panic!("{actions:?}") };
    let [Action::ReadRecord { op }] = node.answer(op, StorageAnswer::RecordWritten)[..] else { panic!("no read") };
    let [Action::ReleaseLock { op }] = node.answer(op, StorageAnswer::Record(new))[..] else { panic!("no unlock") };
    node.answer(op, StorageAnswer::Done);
    let flush = |connection, request| Event::Request {
        connection: ConnectionId(connection),
        request: RequestId(request),
        kind: RequestKind::Flush,
    };
    let answer = Action::Answer { request: RequestId(2), result: Ok(()) };
    assert_eq!(node.handle(flush(1, 2)), [answer], "the source of the hand-over");
    assert!(!node.handle(flush(2, 3)).iter().any(|action| matches!(action, Action::Answer { .. })));
}

#[test]
fn reader_of_the_owner_does_not_keep_the_volume_from_a_writer() {
    let request = PeerMessage::HandOverRequest { epoch: Epoch(1), is_first_write: false };
    for (kind, state) in [(RequestKind::Read, StateKind::Draining), (RequestKind::Write, StateKind::Owning)] {
        let mut node = Fixture::own();
        node.handle(executed(1));
        node.handle(Event::Connected(ConnectionId(2)));
        node.handle(Event::Closed(ConnectionId(1)));
        let (connection, request_id) = (ConnectionId(2), RequestId(2));
        node.handle(Event::Request { connection, request: request_id, kind });
        node.handle(Event::Peer { from: OTHER.node, message: request });
        assert_eq!(node.ownership.state(), state, "{kind:?}");
    }
}

#[test]
fn take_over_that_has_begun_to_fence_outlasts_its_clients() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let actions = node.request(1, RequestKind::Write);
    let own = owner(HERE, 9);
    let [Action::ReadHeader { op }] = actions[..] else { panic!("{actions:?}") };
    let header = Header { image: IMAGE, record: record(own), lock_owner: None, watchers: vec![] };
    node.answer(op, StorageAnswer::Header(header));
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    let [Action::Fence { op, .. }] = actions[..] else { panic!("{actions:?}") };
    node.handle(Event::Closed(ConnectionId(1)));
    node.claim_fenced(op, Epoch(5));
    assert_eq!(node.ownership.state(), StateKind::Owning);
}

#[test]
fn released_owner_that_keeps_the_lock_is_fenced_in_the_end() {
    let mut node = Fixture::new();
    node.handle(Event::Connected(ConnectionId(1)));
    let mut actions = node.request(1, RequestKind::Read);
    let record = OwnerRecord { is_released: true, ..record(OTHER) };
    let (lock_owner, watchers) = (Some(OTHER.client), vec![OTHER.client]);
    let header = Header { image: IMAGE, record, lock_owner, watchers };
    let mut seconds = 0;
    while node.ownership.state() == StateKind::Claiming {
        if let [.., Action::ReadHeader { op }] = actions[..] {
            node.answer(op, StorageAnswer::Header(header.clone()));
        }
        (node.now, seconds) = (node.now + Nanos::from_secs(1), seconds + 1);
        actions = node.handle(Event::Tick);
    }
    assert!((10..14).contains(&seconds), "{seconds} s");
    let actions = node.handle(Event::ClientReplaced(StorageClient(11)));
    assert!(matches!(actions[..], [Action::Fence { client: StorageClient(20), .. }]), "{actions:?}");
}
