//! The pace of relocation: bytes per second over all its moves, behind the requests of clients.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use seam::{Disk, Nanos, Seam};

use super::settings::RelocationSettings;
use crate::mover::{CopyRequest, Flow, Pace};
use crate::state::Inner;
use task_sync::BoxFuture;

/// Longest pause of one copy while clients use its groups: a busy group must not stop a move for ever.
const GIVE_WAY_MAX: Nanos = Nanos::from_millis(20);
/// Time between two looks at the requests in flight.
const GIVE_WAY_STEP: Nanos = Nanos::from_millis(1);

/// A pace for all moves of one relocation together.
pub(super) fn pace<S: Seam, D: Disk<S>>(inner: &Weak<Inner<S, D>>, seam: &S, settings: &RelocationSettings) -> Pace {
    let (inner, seam, settings) = (inner.clone(), seam.clone(), settings.clone());
    // The time at which the rate permits the next copy.
    let next = Rc::new(Cell::new(Nanos::ZERO));
    Rc::new(move |request| {
        let (inner, seam, settings, next) = (inner.clone(), seam.clone(), settings.clone(), Rc::clone(&next));
        let decision: BoxFuture<'static, Flow> = Box::pin(async move {
            let start = next.get().max(seam.now());
            next.set(start + copy_time(request.bytes, settings.rate_bytes));
            seam.sleep_until(start).await;
            let end = seam.now() + GIVE_WAY_MAX;
            while !settings.stop.get() && seam.now() < end && has_requests(&inner, &request) {
                seam.sleep(GIVE_WAY_STEP).await;
            }
            if settings.stop.get() || !settings.is_window_open() { Flow::Cancel } else { Flow::Continue }
        });
        decision
    })
}

/// Time that copies of these bytes take at a rate.
pub(super) fn copy_time(bytes: u64, rate_bytes: u64) -> Nanos {
    let time = u128::from(bytes) * 1_000_000_000;
    let time = time.div_ceil(u128::from(rate_bytes.max(1)));
    Nanos(u64::try_from(time).unwrap_or(u64::MAX))
}

/// True if clients have requests in flight on the source or the target.
fn has_requests<S: Seam, D: Disk<S>>(inner: &Weak<Inner<S, D>>, request: &CopyRequest) -> bool {
    let Some(inner) = inner.upgrade() else { return false };
    let state = inner.state.borrow();
    [request.source, request.target].iter().any(|group| state.groups[group.index()].requests > 0)
}
