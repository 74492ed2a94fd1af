//! Messages between cores, and from the control thread to a core: bounded, from many senders.
//!
//! The queue itself is tokio's, which needs no runtime of tokio: it wakes whoever waits through the standard waker, across threads in the
//! real world and on the one thread of the simulated one. Order is kept for each sender.

use tokio::sync::mpsc;

/// A mailbox with room for `room` messages.
pub fn mailbox<T>(room: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(room);
    (Sender { queue: sender }, Receiver { queue: receiver })
}

/// An end that messages go in at; may be sent to other threads.
pub struct Sender<T> {
    queue: mpsc::Sender<T>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { queue: self.queue.clone() }
    }
}

impl<T> Sender<T> {
    /// Sends, waiting for room; the message comes back if the receiver is gone.
    pub async fn send(&self, message: T) -> Result<(), T> {
        self.queue.send(message).await.map_err(|error| error.0)
    }

    /// As [`Sender::send`], for a thread that is no core and may wait.
    pub fn send_waiting(&self, message: T) -> Result<(), T> {
        self.queue.blocking_send(message).map_err(|error| error.0)
    }
}

/// The end that messages come out at; stays on one core.
pub struct Receiver<T> {
    queue: mpsc::Receiver<T>,
}

impl<T> Receiver<T> {
    /// The next message; `None` when all senders are gone and nothing is left.
    pub async fn receive(&mut self) -> Option<T> {
        self.queue.recv().await
    }

    /// The next message, if there is one now.
    pub fn try_receive(&mut self) -> Option<T> {
        self.queue.try_recv().ok()
    }
}
