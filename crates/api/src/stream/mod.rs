//! The stream: one sample a second, serialised once for all clients and kept for a minute.
//!
//! A client holds only a position in the ring, so a slow one costs nothing: it misses samples that have left the ring.
//! A client that reads nothing at all is dropped by the write time-out (`server.rs`). The daemon takes the samples,
//! for the history as well. They are serialised only while a client follows, or has lately.

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
use messages::{Sampled, unix_time};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use self::ring::{Ring, Start};
use self::sample::Sample;
use crate::problem::Problem;

/// Clients at once.
const CLIENTS_MAX: usize = 128;
/// Volumes that all clients together may follow, so that a minute of samples stays small.
const VOLUMES_MAX: usize = 256;
/// Time for which a volume, and the stream itself, is still sampled after its last client has gone: it may come back.
const LINGER: Duration = Duration::from_secs(60);

/// State that all clients share.
pub struct Hub {
    samples: watch::Receiver<Arc<Sampled>>,
    held: Mutex<Held>,
    /// Number of the newest sample.
    newest: watch::Sender<u64>,
    clients: Arc<Semaphore>,
    woken: Notify,
}

struct Held {
    ring: Ring,
    /// Volumes that a client follows, or followed lately.
    wanted: BTreeMap<String, Want>,
    /// When a client left last; `None` before the first.
    seen: Option<Instant>,
}

struct Want {
    clients: usize,
    seen: Instant,
}

/// A client of the stream.
struct Follower {
    hub: Arc<Hub>,
    volumes: BTreeSet<String>,
    /// Number of the next sample to send.
    next: u64,
    newest: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
}

impl Hub {
    /// A hub for the daemon's samples.
    pub fn new(samples: watch::Receiver<Arc<Sampled>>) -> Hub {
        let life = unix_time::now().as_millis() as u64;
        let held = Held { ring: Ring::new(life), wanted: BTreeMap::new(), seen: None };
        let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
        Hub { samples, held: Mutex::new(held), newest: watch::Sender::new(0), clients, woken: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // No statement that can panic leaves the state inconsistent, so a poisoned lock is safe to use.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts samples into the ring until the daemon ends or the task is aborted.
    pub async fn sample(self: Arc<Self>) {
        let mut samples = self.samples.clone();
        let mut told = newest(&samples.borrow());
        while samples.changed().await.is_ok() {
            let is_alone = self.clients.available_permits() == CLIENTS_MAX;
            if is_alone && self.held().seen.is_none_or(|seen| seen.elapsed() > LINGER) {
                self.held().ring.clear();
                // The next client gets the latest sample at once.
                self.woken.notified().await;
                // Events of the meantime are not sent; clients query them.
                told = newest(&samples.borrow());
            }
            let sampled = samples.borrow_and_update().clone();
            let mut held = self.held();
            held.wanted.retain(|_, want| want.clients > 0 || want.seen.elapsed() < LINGER);
            let wanted: BTreeSet<&str> = held.wanted.keys().map(String::as_str).collect();
            let sample = Sample::new(&sampled, told, &wanted);
            told = newest(&sampled);
            let number = held.ring.push(sample);
            drop(held);
            self.newest.send_replace(number);
        }
    }

    /// Events for a client that follows `volumes`, from the one after `after` on, while `may_go_on` returns true.
    pub fn follow(
        self: Arc<Self>,
        volumes: BTreeSet<String>,
        after: Option<&str>,
        may_go_on: impl Fn() -> bool + Send + 'static,
    ) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static, Problem> {
        let full = |what: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, what).retry_after(5);
        let permit = self.clients.clone().try_acquire_owned();
        let permit =
            permit.map_err(|_| full(format!("{CLIENTS_MAX} clients follow the stream already; end one of them")))?;
        let newest = self.newest.subscribe();
        let start = {
            let mut held = self.held();
            let fresh = volumes.iter().filter(|name| !held.wanted.contains_key(*name)).count();
            if held.wanted.len() + fresh > VOLUMES_MAX {
                return Err(full(format!("{VOLUMES_MAX} volumes are followed already; follow fewer")));
            }
            let now = Instant::now();
            for name in &volumes {
                held.wanted.entry(name.clone()).or_insert(Want { clients: 0, seen: now }).clients += 1;
            }
            held.ring.start(after)
        };
        let Start { next } = start;
        self.woken.notify_one();
        let follower = Follower { hub: self, volumes, next, newest, _permit: permit };
        Ok(unfold((follower, may_go_on), async |(mut follower, may_go_on)| {
            let event = follower.next().await?;
            may_go_on().then_some((Ok(event), (follower, may_go_on)))
        }))
    }
}

/// Number of the newest event in a sample.
fn newest(sampled: &Sampled) -> u64 {
    sampled.events.last().map_or(0, |event| event.number)
}

impl Follower {
    /// Waits for the next event.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            {
                let held = self.hub.held();
                if let Some((number, id, sample)) = held.ring.from(self.next) {
                    self.next = number + 1;
                    return Some(sample.event(&id, &self.volumes));
                }
            }
            self.newest.changed().await.ok()?;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut held = self.hub.held();
        let now = Instant::now();
        held.seen = Some(now);
        for name in &self.volumes {
            if let Some(want) = held.wanted.get_mut(name) {
                want.clients = want.clients.saturating_sub(1);
                want.seen = now;
            }
        }
    }
}
