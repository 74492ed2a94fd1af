//! Delivery of messages to one receiver of alerts: each message is tried again until it is accepted.
//!
//! A thread of its own sends the messages from a bounded queue, so a receiver that does not answer never delays the
//! daemon. While the receiver does not answer, the newest messages are kept. A message that the receiver refuses is
//! dropped after a few attempts, so that it does not block later messages.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use messages::report::DeliveryHealth;

/// Maximum number of queued messages.
pub const QUEUE_MAX: usize = 256;
/// Maximum number of alerts in one message.
pub const ALERTS_MAX: usize = 64;
/// Pauses before the next attempt; the last one repeats until a message is accepted.
pub const RETRY_PAUSES: &[Duration] = &[
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];
/// Attempts after which a refused message is dropped.
const REFUSALS_MAX: u32 = 5;

/// Reason why an attempt failed.
#[derive(Debug, PartialEq, Eq)]
pub enum DeliveryError {
    /// The receiver did not answer, or cannot accept messages at present.
    Temporary(String),
    /// The receiver refused this message.
    Refused(String),
}

impl DeliveryError {
    /// The reason in words.
    pub fn into_text(self) -> String {
        match self {
            DeliveryError::Temporary(reason) | DeliveryError::Refused(reason) => reason,
        }
    }
}

/// A receiver of messages.
pub trait Transport: Send + 'static {
    /// A message.
    type Message: Send + 'static;

    /// Tries to deliver the message once. After a failure `message` is what the next attempt has to deliver.
    fn deliver(&self, message: &mut Self::Message) -> Result<(), DeliveryError>;
}

/// Queue of messages to one receiver.
pub struct Queue<M> {
    messages: SyncSender<M>,
    health: Arc<Mutex<DeliveryHealth>>,
}

impl<M: Send + 'static> Queue<M> {
    /// Starts the delivery thread `name`; `to` is the destination as reports show it.
    pub fn start(
        name: &str,
        to: String,
        transport: impl Transport<Message = M>,
        pauses: &'static [Duration],
    ) -> io::Result<Queue<M>> {
        let health = Arc::new(Mutex::new(DeliveryHealth { to, ..DeliveryHealth::default() }));
        let (messages, received) = sync_channel(QUEUE_MAX);
        let delivery =
            Delivery { transport, health: health.clone(), waiting: VecDeque::new(), failed_attempts: 0, refusals: 0 };
        let body = move || delivery.run(&received, pauses);
        std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Queue { messages, health })
    }

    /// Queues a message; one that does not fit is dropped and counted.
    pub fn push(&self, message: M) {
        let mut health = lock(&self.health);
        match self.messages.try_send(message) {
            Ok(()) => health.waiting += 1,
            Err(_) => health.dropped += 1,
        }
    }

    /// Health of the delivery, for the status report.
    pub fn health(&self) -> DeliveryHealth {
        lock(&self.health).clone()
    }
}

fn lock(health: &Mutex<DeliveryHealth>) -> MutexGuard<'_, DeliveryHealth> {
    // A panic cannot leave the health half-changed, so a poisoned lock is safe to use.
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the delivery thread.
struct Delivery<T: Transport> {
    transport: T,
    health: Arc<Mutex<DeliveryHealth>>,
    waiting: VecDeque<T::Message>,
    /// Consecutive failed attempts.
    failed_attempts: usize,
    /// Attempts at the first message that the receiver refused.
    refusals: u32,
}

impl<T: Transport> Delivery<T> {
    fn run(mut self, messages: &mpsc::Receiver<T::Message>, pauses: &[Duration]) {
        let mut next_attempt = Instant::now();
        loop {
            let message = match self.waiting.is_empty() {
                true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(next_attempt.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(message) => self.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // A new message does not shorten the pause before the next attempt.
            if Instant::now() < next_attempt {
                continue;
            }
            self.attempt();
            let pause = if self.failed_attempts == 0 {
                Duration::ZERO
            } else {
                pauses[self.failed_attempts.min(pauses.len()) - 1]
            };
            next_attempt = Instant::now() + pause;
        }
    }

    fn push(&mut self, message: T::Message) {
        if self.waiting.len() == QUEUE_MAX {
            self.waiting.pop_front();
            self.refusals = 0;
            let mut health = lock(&self.health);
            health.dropped += 1;
            health.waiting -= 1;
        }
        self.waiting.push_back(message);
    }

    /// Tries to deliver the oldest message.
    fn attempt(&mut self) {
        let Some(message) = self.waiting.front_mut() else { return };
        let result = self.transport.deliver(message);
        let mut health = lock(&self.health);
        let is_done = match result {
            Ok(()) => {
                (self.failed_attempts, self.refusals, health.failed) = (0, 0, None);
                health.delivered += 1;
                true
            }
            Err(error) => {
                self.failed_attempts += 1;
                health.failures += 1;
                self.refusals += u32::from(matches!(error, DeliveryError::Refused(_)));
                health.failed = Some(error.into_text());
                let gives_up = self.refusals == REFUSALS_MAX;
                if gives_up {
                    self.refusals = 0;
                    health.dropped += 1;
                }
                gives_up
            }
        };
        if is_done {
            health.waiting -= 1;
            self.waiting.pop_front();
        }
    }
}
