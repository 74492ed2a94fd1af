//! Recording of a volume's requests: the control thread's part.

use engine::Volume;
use engine::telemetry::OpKind;
use engine::volume::tap::{TappedBatch, TappedRequest};
use messages::report::{TraceOpened, Traced};
use messages::{Answer, ErrorKind, Failure};
use seam::real::RealSeam;
use trace::Op;

use super::Daemon;
use logging::{self as log, TRACE};

/// Requests fetched from a core at once: copying them delays its clients by some ten microseconds.
const TAKE_MAX: usize = 8_192;

impl Daemon {
    /// Runs `work` with the volume on its core. `work` is synchronous and must not block.
    pub(super) async fn on_core_of<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(Volume<RealSeam>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.cores.with_volume(name, &self.volumes.placement(name)?, work).await
    }

    /// Starts a recording for `trace record`.
    pub async fn open_trace(&self, name: &str) -> Result<Answer, Failure> {
        let opened = self.on_core_of(name, |volume| (volume.open_tap(), volume.size_bytes())).await?;
        let (Some(recorder), size_bytes) = opened else {
            let text = format!("volume {name} is already being recorded; a volume has one recorder at a time");
            return Err(Failure::new(ErrorKind::Conflict, text));
        };
        log::info!(target: TRACE, volume = name, "volume {name}: recording of requests started");
        Ok(Answer::TraceOpened(TraceOpened { recorder, size_bytes }))
    }

    /// Fetches recorded requests for `trace record`.
    pub async fn take_trace(&self, name: &str, recorder: u64) -> Result<Answer, Failure> {
        let taken = self.on_core_of(name, move |volume| volume.take_tapped(recorder, TAKE_MAX)).await?;
        taken.map(|taken| Answer::Traced(traced(&taken))).ok_or_else(|| {
            let text = format!("recording of volume {name} has ended: no client fetched its requests for ten seconds");
            Failure::new(ErrorKind::Conflict, text)
        })
    }

    /// Ends a recording for `trace record`.
    pub async fn close_trace(&self, name: &str, recorder: u64) -> Result<Answer, Failure> {
        self.on_core_of(name, move |volume| volume.close_tap(recorder)).await?;
        log::info!(target: TRACE, volume = name, "volume {name}: recording of requests ended");
        Ok(Answer::Said(Vec::new()))
    }
}

fn traced(taken: &TappedBatch) -> Traced {
    let to_traced = |tapped: &TappedRequest| {
        let op = match tapped.op {
            OpKind::Read => Op::Read,
            OpKind::Write => Op::Write,
            OpKind::Zero => Op::Discard,
            OpKind::Flush => Op::Flush,
        };
        (tapped.elapsed.0, op as u8, tapped.at.0, tapped.len_bytes)
    };
    Traced {
        requests: taken.requests.iter().map(to_traced).collect(),
        lost: taken.dropped_requests,
        more: taken.has_more,
    }
}
