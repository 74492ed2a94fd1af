//! Running commands of a unit, so that a reset or a preemption by one initiator can end another's commands.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::exchange::CancelToken;

/// The running commands of a unit.
#[derive(Default)]
pub struct Tasks {
    running: RefCell<BTreeMap<u64, Entry>>,
    next_number: Cell<u64>,
    /// Wakers of resets and preemptions that wait for commands.
    waiting: RefCell<Vec<Waker>>,
}

struct Entry {
    nexus: u64,
    cancel: CancelToken,
    /// True if the command changes nothing or waits for its initiator: it checks for cancellation before its next
    /// effect.
    is_harmless: bool,
}

impl Tasks {
    /// Registers a command. `may_change`: the command may change the medium.
    pub fn begin(self: &Rc<Self>, nexus: u64, cancel: &CancelToken, may_change: bool) -> RunningCommand {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let entry = Entry { nexus, cancel: cancel.clone(), is_harmless: !may_change };
        self.running.borrow_mut().insert(number, entry);
        RunningCommand { tasks: Rc::clone(self), number, may_change }
    }

    /// Cancels the commands of the nexuses that match, except the command `except`, and waits until none can have an
    /// effect. True if any matched.
    pub async fn cancel_and_wait(&self, matches: impl Fn(u64) -> bool, except: Option<u64>) -> bool {
        let cancelled = self.cancel(matches, except);
        self.wait_until_ended(&cancelled).await;
        !cancelled.is_empty()
    }

    /// Cancels the commands of the nexuses that match, except the command `except`; returns their numbers.
    pub fn cancel(&self, matches: impl Fn(u64) -> bool, except: Option<u64>) -> Vec<u64> {
        let running = self.running.borrow();
        let matching = running.iter().filter(|(number, entry)| matches(entry.nexus) && Some(**number) != except);
        matching.inspect(|(_, entry)| entry.cancel.cancel()).map(|(number, _)| *number).collect()
    }

    /// Waits until none of the commands `cancelled` can have an effect.
    pub async fn wait_until_ended(&self, cancelled: &[u64]) {
        poll_fn(|context| {
            let running = self.running.borrow();
            if cancelled.iter().all(|number| running.get(number).is_none_or(|entry| entry.is_harmless)) {
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

/// A running command; dropping it removes the command.
pub struct RunningCommand {
    tasks: Rc<Tasks>,
    number: u64,
    may_change: bool,
}

impl RunningCommand {
    /// The command's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Records that the command starts or stops waiting for its initiator.
    pub fn set_waiting_for_initiator(&self, is_waiting: bool) {
        if !self.may_change {
            return;
        }
        let mut running = self.tasks.running.borrow_mut();
        running.get_mut(&self.number).expect("a command is registered until it is dropped").is_harmless = is_waiting;
        drop(running);
        if is_waiting {
            self.tasks.wake();
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.tasks.running.borrow_mut().remove(&self.number);
        self.tasks.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn cancellation_waits_only_for_commands_that_may_change_data() {
        let tasks = Rc::new(Tasks::default());
        let (writes, reads, other, sender) =
            (CancelToken::default(), CancelToken::default(), CancelToken::default(), CancelToken::default());
        let writing = tasks.begin(1, &writes, true);
        let _reading = tasks.begin(1, &reads, false);
        let _other = tasks.begin(2, &other, true);
        let ending = tasks.begin(1, &sender, true);
        let mut end = pin!(tasks.cancel_and_wait(|nexus| nexus == 1, Some(ending.number())));
        let mut poll = || end.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert!(writes.is_cancelled() && reads.is_cancelled() && !other.is_cancelled() && !sender.is_cancelled());
        writing.set_waiting_for_initiator(true);
        assert_eq!(poll(), Poll::Ready(true));
    }

    #[test]
    fn cancellation_does_not_wait_for_completed_commands() {
        let tasks = Rc::new(Tasks::default());
        let writing = tasks.begin(1, &CancelToken::default(), true);
        let mut end = pin!(tasks.cancel_and_wait(|_| true, None));
        assert!(end.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(writing);
        assert_eq!(end.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(true));
        assert!(tasks.running.borrow().is_empty());
    }
}
