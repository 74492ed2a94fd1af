//! Counters of clients: latencies in histograms, whose memory does not grow with time.

use std::sync::{Arc, Mutex};

use engine::FineLatencyHistogram;
use lab::scenario::test_bed::FAST_WRITE;
use seam::Nanos;

/// Completed requests.
#[derive(Default)]
pub struct ClientCounters {
    /// Latencies of reads.
    pub reads: FineLatencyHistogram,
    /// Latencies of writes.
    pub writes: FineLatencyHistogram,
    /// Writes that did not wait for the storage.
    pub fast_writes: u64,
    /// Requests of an earlier phase; they are counted nowhere else.
    pub late: u64,
    /// Failed requests; they are counted nowhere else.
    pub errors: u64,
}

impl ClientCounters {
    /// Counts a request.
    pub fn record(&mut self, write: bool, latency: Nanos) {
        if write {
            self.writes.add(latency);
            self.fast_writes += u64::from(latency < FAST_WRITE);
        } else {
            self.reads.add(latency);
        }
    }

    /// Adds the requests of `other`.
    pub fn add(&mut self, other: &ClientCounters) {
        self.reads.add_all(&other.reads);
        self.writes.add_all(&other.writes);
        self.fast_writes += other.fast_writes;
        self.late += other.late;
        self.errors += other.errors;
    }
}

/// Counters that a client increments and an observer reads and resets.
#[derive(Clone, Default)]
pub struct Meter(Arc<Mutex<ClientCounters>>);

impl Meter {
    /// Returns the counters since the last call and resets them.
    pub fn take(&self) -> ClientCounters {
        std::mem::take(&mut self.0.lock().expect("no thread panics while it holds the lock"))
    }

    /// Counts a request.
    pub fn record(&self, write: bool, latency: Nanos) {
        self.0.lock().expect("no thread panics while it holds the lock").record(write, latency);
    }

    /// Counts a request of an earlier phase.
    pub fn record_late(&self) {
        self.0.lock().expect("no thread panics while it holds the lock").late += 1;
    }

    /// Counts a failed request.
    pub fn record_error(&self) {
        self.0.lock().expect("no thread panics while it holds the lock").errors += 1;
    }
}
