//! Settings and limits of the ownership.

use crate::ids::{NodeId, NodeLock};
use crate::sabotage::Sabotage;
use seam::Nanos;

/// Time from the start of the last completed renewal after which no request is acknowledged.
pub(crate) const LEASE: Nanos = Nanos::from_secs(6);
/// Time from the start of the last completed renewal after which the front ends are closed.
pub(crate) const CLOSE_AFTER: Nanos = Nanos::from_secs(10);
/// Pause between two renewals.
pub(crate) const RENEW_PERIOD: Nanos = Nanos::from_secs(2);
/// Time after which an owner's operation without an answer is repeated under another number.
pub(crate) const OPERATION_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time after which the order to open a session is repeated.
pub(crate) const SESSION_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Time after which the order to fence the session of an owner that has released the volume is repeated.
pub(crate) const FENCE_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Orders to fence such a session that may be without an answer at the same time: the answer to any of them suffices,
/// however late it comes.
pub(crate) const FENCE_ORDERS_MAX: usize = 8;
/// Longest time for which a clock may stand still while its lease is believed.
pub(crate) const CLOCK_MARGIN: Nanos = Nanos::from_secs(2);
/// Pause between two looks at the owner, or two requests for a hand-over, while requests wait.
pub(crate) const RETRY_PERIOD: Nanos = Nanos::from_secs(1);
/// Pause before a request is forwarded again that the owner could not take.
pub(crate) const BUSY_PAUSE: Nanos = Nanos::from_millis(100);
/// Time for which another living client with the lock is left alone by an order to take over.
pub(crate) const RIVAL_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Time without progress after which an attempt that has not written the owner's record is abandoned.
pub(crate) const ATTEMPT_TIMEOUT: Nanos = Nanos::from_secs(30);

/// Settings of a volume at a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// The lock that this process holds.
    pub lock: NodeLock,
    /// This machine can be restored from a snapshot of its memory: a virtual machine.
    pub is_restorable: bool,
    /// Take over without a command when the owner's watch has expired.
    pub takes_over_automatically: bool,
    /// Writes that may wait on connections from which the volume was taken; more of them fail. Other requests of
    /// clients never fail for their number.
    pub superseded_writes_max: usize,
    /// Unanswered requests of other nodes; more of them are sent back, and repeated by the other node.
    pub forwarded_requests_max: usize,
    /// Waiting requests at which the front ends stop reading from the volume's connections. They resume at half.
    pub waiting_requests_max: usize,
    /// Time for which a request may wait for the ownership.
    pub queue_time_max: Nanos,
    /// A deliberate fault.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

impl Settings {
    /// The defaults, at `node`, for a process that has its lock.
    pub const fn new(node: NodeId, lock: NodeLock) -> Settings {
        Settings {
            node,
            lock,
            is_restorable: true,
            takes_over_automatically: false,
            superseded_writes_max: 64,
            forwarded_requests_max: 64,
            waiting_requests_max: 64,
            queue_time_max: Nanos::from_secs(30),
            sabotage: Sabotage::None,
        }
    }
}
