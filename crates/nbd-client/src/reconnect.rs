//! Connects and reconnects, with growing pauses, for as long as the disk is in use.

use std::rc::Rc;

use seam::{BufferedReader, ByteStream, DiskError, DiskResult, Nanos, Seam};

use crate::link::Link;
use crate::negotiate::{NegotiateError, negotiate};
use crate::shared::SharedConnection;
use crate::{NbdOptions, NbdTarget};
use task_sync::within;

/// Bytes received from the socket in one call.
const RECEIVE_BYTES: usize = 256 << 10;

type Reader<S> = <<S as Seam>::Stream as ByteStream<S>>::Reader;
type Writer<S> = <<S as Seam>::Stream as ByteStream<S>>::Writer;
/// A connection over the seam's stream type.
pub type SeamLink<S> = Link<S, Reader<S>, Writer<S>>;

/// Makes one connection attempt.
pub async fn connect<S: Seam>(seam: &S, target: &NbdTarget, options: &NbdOptions) -> DiskResult<SeamLink<S>> {
    let attempt = async {
        let stream = seam.connect(&target.address).await?;
        if options.refuses_own_exports && stream.connects_to_self() {
            return Err(NegotiateError::Own);
        }
        let (reader, mut writer) = stream.split();
        let mut incoming = BufferedReader::new(reader, RECEIVE_BYTES);
        let export_info = negotiate(&mut incoming, &mut writer, &target.export).await?;
        Ok(Link { incoming, writer, export_info })
    };
    let failed = |reason: &dyn std::fmt::Display| Err(DiskError::Open(format!("cannot connect to {target}: {reason}")));
    match within(seam.sleep(options.attempt_timeout), attempt).await {
        Some(done) => done.or_else(|error| failed(&error)),
        None => failed(&format!("no answer in {}", options.attempt_timeout)),
    }
}

/// Keeps a disk connected until its last handle is dropped.
pub async fn keep_connected<S: Seam>(shared: Rc<SharedConnection<S>>, first: SeamLink<S>) {
    let mut link = first;
    loop {
        link.run(&shared).await;
        let repeats_writes = shared.record_loss();
        let lost_at = shared.seam.now();
        match reconnect(&shared).await {
            Some(next) => link = next,
            None => return,
        }
        if repeats_writes {
            shared.seam.sleep_until(lost_at + shared.options.settle_time).await;
        }
    }
}

/// Retries until it succeeds; `None` if the disk is closing, or its storage is lost.
async fn reconnect<S: Seam>(shared: &SharedConnection<S>) -> Option<SeamLink<S>> {
    let lost_at = shared.seam.now();
    let mut pause = shared.options.pause_min;
    loop {
        if shared.is_closing.get() {
            shared.fail_all(&DiskError::Gone);
            return None;
        }
        if let Some(lost) = shared.lost() {
            shared.fail_all(lost);
            return None;
        }
        let reason = match connect(&shared.seam, &shared.target, &shared.options).await {
            Ok(link) => match shared.accept(link.export_info) {
                Ok(()) => return Some(link),
                Err(refusal) => refusal,
            },
            Err(_) => DiskError::Gone,
        };
        // A dedicated server that is started again is awaited like a hung disk, unless it cannot be started.
        let failure = match &shared.server {
            Some(server) => server.failure(),
            None => (shared.seam.now().since(lost_at) >= shared.options.reconnect_timeout).then_some(reason),
        };
        if let Some(failure) = failure {
            shared.fail_all(&failure);
        }
        let jitter = Nanos(shared.seam.random() % (pause.0 / 4 + 1));
        shared.seam.sleep(pause + jitter).await;
        pause = Nanos(pause.0 * 2).min(shared.options.pause_max);
    }
}
