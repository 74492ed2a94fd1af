//! The commands under way at a unit, so that one initiator may end another's: by a reset, or by taking its reservation away.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::exchange::Cancel;

/// The commands under way at a unit.
#[derive(Default)]
pub struct Tasks {
    under_way: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

struct Entry {
    nexus: u64,
    cancel: Cancel,
    /// It changes nothing, or waits for its initiator: whatever comes of that, it looks whether it is still wanted first.
    harmless: bool,
}

impl Tasks {
    /// One more command. `changes`: it may change the medium.
    pub fn begin(self: &Rc<Self>, nexus: u64, cancel: &Cancel, changes: bool) -> Running {
        let number = self.next.get();
        self.next.set(number + 1);
        let entry = Entry { nexus, cancel: cancel.clone(), harmless: !changes };
        self.under_way.borrow_mut().insert(number, entry);
        Running { tasks: Rc::clone(self), number, changes }
    }

    /// Ends the commands of those initiators, but for one; returns when none of them can have an effect any more. True if there were any.
    pub async fn end(&self, of: impl Fn(u64) -> bool, but: Option<u64>) -> bool {
        let ended = self.call_off(of, but);
        self.until_ended(&ended).await;
        !ended.is_empty()
    }

    /// Calls the commands of those initiators off, but for one: their numbers.
    pub fn call_off(&self, of: impl Fn(u64) -> bool, but: Option<u64>) -> Vec<u64> {
        let under_way = self.under_way.borrow();
        let which = under_way.iter().filter(|(number, entry)| of(entry.nexus) && Some(**number) != but);
        which.inspect(|(_, entry)| entry.cancel.cancel()).map(|(number, _)| *number).collect()
    }

    /// Waits until none of these can have an effect any more.
    pub async fn until_ended(&self, ended: &[u64]) {
        poll_fn(|context| {
            let under_way = self.under_way.borrow();
            if ended.iter().all(|number| under_way.get(number).is_none_or(|entry| entry.harmless)) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn wake(&self) {
        for waker in self.waiting.take() {
            waker.wake();
        }
    }
}

/// A command under way; ends when it is dropped.
pub struct Running {
    tasks: Rc<Tasks>,
    number: u64,
    changes: bool,
}

impl Running {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// It begins or ceases to wait for its initiator.
    pub fn waits_outside(&self, outside: bool) {
        if !self.changes {
            return;
        }
        let mut under_way = self.tasks.under_way.borrow_mut();
        under_way.get_mut(&self.number).expect("it is under way until it is dropped").harmless = outside;
        drop(under_way);
        if outside {
            self.tasks.wake();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.under_way.borrow_mut().remove(&self.number);
        self.tasks.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn whoever_ends_commands_waits_for_those_that_could_still_change_something() {
        let tasks = Rc::new(Tasks::default());
        let (writes, reads, other, own) = (Cancel::default(), Cancel::default(), Cancel::default(), Cancel::default());
        let writing = tasks.begin(1, &writes, true);
        let _reading = tasks.begin(1, &reads, false);
        let _other = tasks.begin(2, &other, true);
        let ending = tasks.begin(1, &own, true);
        let mut end = pin!(tasks.end(|nexus| nexus == 1, Some(ending.number())));
        let mut poll = || end.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert!(writes.is_cancelled() && reads.is_cancelled() && !other.is_cancelled() && !own.is_cancelled());
        writing.waits_outside(true);
        assert_eq!(poll(), Poll::Ready(true));
    }

    #[test]
    fn a_command_that_ends_is_not_waited_for() {
        let tasks = Rc::new(Tasks::default());
        let writing = tasks.begin(1, &Cancel::default(), true);
        let mut end = pin!(tasks.end(|_| true, None));
        assert!(end.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(writing);
        assert_eq!(end.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(true));
        assert!(tasks.under_way.borrow().is_empty());
    }
}
