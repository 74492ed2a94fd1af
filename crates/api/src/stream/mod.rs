//! The stream: one sample per second, serialised once for all clients and kept for a minute.
//!
//! A client holds only a position in the ring, so a slow one costs nothing: it misses samples that have left the ring.
//! A client that reads nothing at all is dropped by the write time-out (`server.rs`). The daemon takes the samples,
//! for the history as well. They are serialised only while a client follows the stream, or followed it within the last
//! minute.

mod ring;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use futures_util::Stream;
use futures_util::stream::unfold;
use messages::{StatusSample, unix_time};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use self::ring::{Ring, Start};
use self::sample::Sample;
use crate::problem::Problem;

/// Clients at once.
const CLIENTS_MAX: usize = 128;
/// Volumes that all clients together may follow, so that a minute of samples stays small.
const VOLUMES_MAX: usize = 256;
/// Time for which a volume, and the stream itself, is still sampled after its last client has disconnected: it may
/// reconnect.
const LINGER_TIME: Duration = Duration::from_secs(60);

/// State that all clients share.
pub struct Hub {
    samples: watch::Receiver<Arc<StatusSample>>,
    state: Mutex<State>,
    /// Number of the newest sample.
    newest_sample: watch::Sender<u64>,
    clients: Arc<Semaphore>,
    /// Wakes [`Hub::sample`] when a client begins to follow the stream.
    client_joined: Notify,
}

struct State {
    ring: Ring,
    /// Volumes that a client follows, or followed lately.
    followed: BTreeMap<String, Followers>,
    /// When a client disconnected last; `None` before the first.
    last_seen: Option<Instant>,
}

/// The clients that follow one volume.
struct Followers {
    clients: usize,
    /// When a client of the volume connected first or disconnected last.
    last_seen: Instant,
}

/// A client of the stream.
struct Follower {
    hub: Arc<Hub>,
    volumes: BTreeSet<String>,
    /// Number of the next sample to send.
    next: u64,
    newest_sample: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
}

impl Hub {
    /// A hub for the daemon's samples.
    pub fn new(samples: watch::Receiver<Arc<StatusSample>>) -> Hub {
        let start_id = unix_time::now().as_millis() as u64;
        let state = State { ring: Ring::new(start_id), followed: BTreeMap::new(), last_seen: None };
        let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
        Hub {
            samples,
            state: Mutex::new(state),
            newest_sample: watch::Sender::new(0),
            clients,
            client_joined: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No statement that can panic leaves the state inconsistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts samples into the ring until the daemon ends or the task is aborted.
    pub async fn sample(self: Arc<Self>) {
        let mut samples = self.samples.clone();
        let mut last_event_sent = newest_event(&samples.borrow());
        while samples.changed().await.is_ok() {
            let has_no_clients = self.clients.available_permits() == CLIENTS_MAX;
            if has_no_clients && self.state().last_seen.is_none_or(|last_seen| last_seen.elapsed() > LINGER_TIME) {
                self.state().ring.clear();
                // The next client gets the latest sample at once.
                self.client_joined.notified().await;
                // Events logged meanwhile are not sent; clients query them.
                last_event_sent = newest_event(&samples.borrow());
            }
            let sampled = samples.borrow_and_update().clone();
            let mut state = self.state();
            state.followed.retain(|_, followers| followers.clients > 0 || followers.last_seen.elapsed() < LINGER_TIME);
            let followed: BTreeSet<&str> = state.followed.keys().map(String::as_str).collect();
            let sample = Sample::new(&sampled, last_event_sent, &followed);
            last_event_sent = newest_event(&sampled);
            let number = state.ring.push(sample);
            drop(state);
            self.newest_sample.send_replace(number);
        }
    }

    /// Events for a client that follows `volumes`, from the one after `after` on, while `may_continue` returns true.
    pub fn follow(
        self: Arc<Self>,
        volumes: BTreeSet<String>,
        after: Option<&str>,
        may_continue: impl Fn() -> bool + Send + 'static,
    ) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static, Problem> {
        let refuse = |text: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, text).retry_after(5);
        let permit = self.clients.clone().try_acquire_owned();
        let permit =
            permit.map_err(|_| refuse(format!("{CLIENTS_MAX} clients follow the stream already; end one of them")))?;
        let newest_sample = self.newest_sample.subscribe();
        let start = {
            let mut state = self.state();
            let added = volumes.iter().filter(|name| !state.followed.contains_key(*name)).count();
            if state.followed.len() + added > VOLUMES_MAX {
                return Err(refuse(format!("{VOLUMES_MAX} volumes are followed already; follow fewer")));
            }
            let now = Instant::now();
            for name in &volumes {
                state.followed.entry(name.clone()).or_insert(Followers { clients: 0, last_seen: now }).clients += 1;
            }
            state.ring.start(after)
        };
        let Start { next } = start;
        self.client_joined.notify_one();
        let follower = Follower { hub: self, volumes, next, newest_sample, _permit: permit };
        Ok(unfold((follower, may_continue), async |(mut follower, may_continue)| {
            let event = follower.next().await?;
            may_continue().then_some((Ok(event), (follower, may_continue)))
        }))
    }
}

/// Number of the newest event in a sample.
fn newest_event(sampled: &StatusSample) -> u64 {
    sampled.events.last().map_or(0, |event| event.number)
}

impl Follower {
    /// Waits for the next event.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            {
                let state = self.hub.state();
                if let Some((number, id, sample)) = state.ring.first_from(self.next) {
                    self.next = number + 1;
                    return Some(sample.event(&id, &self.volumes));
                }
            }
            self.newest_sample.changed().await.ok()?;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let now = Instant::now();
        state.last_seen = Some(now);
        for name in &self.volumes {
            if let Some(followers) = state.followed.get_mut(name) {
                followers.clients = followers.clients.saturating_sub(1);
                followers.last_seen = now;
            }
        }
    }
}
