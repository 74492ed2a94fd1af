//! What a connection's replies have borrowed of the core's buffers, from before they are read until they are sent.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use seam::{BLOCK_BYTES, Seam};

use super::Connection;
use crate::budget::Place;
use crate::control::{Shares, WATCH_PAUSE};

/// Buffers that the answer to a read may fill; given back when dropped.
pub(super) struct Loan<'a, S: Seam> {
    connection: &'a Connection<S>,
    bytes: usize,
}

impl<S: Seam> Loan<'_, S> {
    /// Lets the queued reply have it.
    pub(super) fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl<S: Seam> Drop for Loan<'_, S> {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes);
    }
}

/// Bytes of the buffers that a range lies in.
pub(super) fn buffer_bytes(offset: u64, len: usize) -> usize {
    (offset as usize % BLOCK_BYTES + len).next_multiple_of(BLOCK_BYTES)
}

impl<S: Seam> Connection<S> {
    /// Borrows `bytes` of buffers if that needs no waiting. Who gets them gives them to a reply or back.
    pub(super) fn borrow_now(&self, bytes: usize) -> bool {
        self.borrow_at(bytes, None)
    }

    /// As [`Connection::borrow_now`], within the connection's share alone: for what its client may take its time with.
    pub(super) fn borrow_of_share(&self, bytes: usize) -> bool {
        self.lent_bytes.get() + bytes <= self.shares.share_bytes() && self.borrow_now(bytes)
    }

    fn borrow_at(&self, bytes: usize, place: Option<&Place<'_>>) -> bool {
        let (held, share) = (self.lent_bytes.get(), self.shares.share_bytes());
        let lends = self.shares.budget.lend(bytes, held, share, place);
        if lends {
            self.lent_bytes.set(held + bytes);
        }
        lends
    }

    /// Borrows `bytes` of buffers as soon as they may be had; `None` when nothing is sent any more.
    pub(super) async fn borrow(&self, bytes: usize) -> Option<Loan<'_, S>> {
        let mut place = Place::new(&self.shares.budget, !self.has_taken.get());
        poll_fn(|context| {
            if self.ended.get() {
                return Poll::Ready(None);
            }
            if self.borrow_at(bytes, Some(&place)) {
                return Poll::Ready(Some(Loan { connection: self, bytes }));
            }
            let mut room = self.room.borrow_mut();
            if !room.iter().any(|waker| waker.will_wake(context.waker())) {
                room.push(context.waker().clone());
            }
            // Whose own replies hold it up keeps nobody else from his turn.
            if self.lent_bytes.get() == 0 {
                place.stand(context.waker());
                watch(&self.seam, &self.shares);
            } else {
                place.leave();
            }
            Poll::Pending
        })
        .await
    }

    /// Gives back what was borrowed.
    pub(super) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            let left = self.lent_bytes.get().checked_sub(bytes).expect("what is given back was borrowed");
            self.lent_bytes.set(left);
            self.shares.budget.take_back(bytes);
            self.release_room();
        }
    }
}

/// As long as somebody is in line, ends connections whose clients have taken nothing for too long.
fn watch<S: Seam>(seam: &S, shares: &Rc<Shares>) {
    if shares.watched.replace(true) {
        return;
    }
    let (watching, shares) = (seam.clone(), Rc::clone(shares));
    seam.spawn(async move {
        while shares.budget.is_waited_for() {
            watching.sleep(WATCH_PAUSE).await;
            shares.end_stalled();
        }
        shares.watched.set(false);
    });
}
