//! Bounded multi-producer queues between cores, and from the control thread to a core.
//!
//! The queue is tokio's channel, which needs no tokio runtime. It wakes the receiver through the standard waker: across
//! threads in the real world, on the one thread of the simulated one. The order of each sender's messages is preserved.

use tokio::sync::mpsc;

/// A mailbox of at most `capacity` messages.
pub fn mailbox<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity);
    (Sender { queue: sender }, Receiver { queue: receiver })
}

/// The sending end; may move to other threads.
pub struct Sender<T> {
    queue: mpsc::Sender<T>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { queue: self.queue.clone() }
    }
}

impl<T> Sender<T> {
    /// Sends, waiting while the queue is full; returns the message if the receiver is gone.
    pub async fn send(&self, message: T) -> Result<(), T> {
        self.queue.send(message).await.map_err(|error| error.0)
    }

    /// Like [`Sender::send`], but blocks the calling thread, which must not be a core's.
    pub fn send_waiting(&self, message: T) -> Result<(), T> {
        self.queue.blocking_send(message).map_err(|error| error.0)
    }
}

/// The receiving end; stays on one core.
pub struct Receiver<T> {
    queue: mpsc::Receiver<T>,
}

impl<T> Receiver<T> {
    /// The next message; `None` after all senders are gone and the queue is empty.
    pub async fn receive(&mut self) -> Option<T> {
        self.queue.recv().await
    }

    /// The next message, if the queue holds one.
    pub fn try_receive(&mut self) -> Option<T> {
        self.queue.try_recv().ok()
    }
}
