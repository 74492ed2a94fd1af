//! Recording of a volume's requests: the control thread's part.

use std::rc::Rc;

use control::report::{TraceOpened, Traced};
use control::{Answer, ErrorKind, Failure};
use engine::Volume;
use engine::pages::slow::Asked;
use engine::volume::tap::{Taken, Tapped};
use seam::real::RealSeam;
use trace::Op;

use super::daemon::{Daemon, core_gone};
use super::data_core::Local;
use logging::{self as log, TRACE};

/// Requests fetched from a core at once: copying them delays its clients by some ten microseconds.
const TAKEN_MAX: usize = 8_192;

impl Daemon {
    /// Runs `work` with the volume on its core; `work` cannot wait there.
    pub(super) async fn with_volume<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(Volume<RealSeam>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let placed = self.placed(name)?;
        let volume = name.to_owned();
        let called = self.cores[placed.core].call(async move |local: Rc<Local>| local.engine.find(&volume).map(work));
        called.await.map_err(core_gone)?.ok_or_else(|| Failure::no_volume(name))
    }

    /// Starts a recording for `trace record`.
    pub async fn open_trace(&self, name: &str) -> Result<Answer, Failure> {
        let opened = self.with_volume(name, |volume| (volume.open_tap(), volume.size_bytes())).await?;
        let (Some(recorder), size_bytes) = opened else {
            let text = format!("volume {name} is being recorded already; one recorder at a time");
            return Err(Failure::new(ErrorKind::Conflict, text));
        };
        log::info!(target: TRACE, volume = name, "volume {name}: its requests are being recorded");
        Ok(Answer::TraceOpened(TraceOpened { recorder, size_bytes }))
    }

    /// Fetches recorded requests for `trace record`.
    pub async fn take_trace(&self, name: &str, recorder: u64) -> Result<Answer, Failure> {
        let taken = self.with_volume(name, move |volume| volume.take_tapped(recorder, TAKEN_MAX)).await?;
        taken.map(|taken| Answer::Traced(traced(&taken))).ok_or_else(|| {
            let text = format!("recording volume {name} has ended: nobody came for its requests in ten seconds");
            Failure::new(ErrorKind::Conflict, text)
        })
    }

    /// Ends a recording for `trace record`.
    pub async fn close_trace(&self, name: &str, recorder: u64) -> Result<Answer, Failure> {
        self.with_volume(name, move |volume| volume.close_tap(recorder)).await?;
        log::info!(target: TRACE, volume = name, "volume {name}: its requests are no longer recorded");
        Ok(Answer::Said(Vec::new()))
    }
}

fn traced(taken: &Taken) -> Traced {
    let one = |tapped: &Tapped| {
        let op = match tapped.asked {
            Asked::Read => Op::Read,
            Asked::Write => Op::Write,
            Asked::Zero => Op::Discard,
            Asked::Flush => Op::Flush,
        };
        (tapped.time.0, op as u8, tapped.at, tapped.len)
    };
    Traced { requests: taken.requests.iter().map(one).collect(), lost: taken.lost, more: taken.more }
}
