//! The looks at an image that another host owns: a process of `hotset-rbd` that reads the owner's record every second.

use std::io::BufReader;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rbd::{Invocation, Purpose, StandbyReport, Status};

use super::HelperPlan;
use super::supervisor::{end, records_folder, spawn_helper};
use logging::{self as log, VOLUME};

/// Time without a report after which the process counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// State that the handle shares with the thread that reads the reports.
struct Shared {
    report: Option<StandbyReport>,
    ended: bool,
}

/// The looks. Dropping it ends the process.
pub struct StandbyWatch {
    plan: HelperPlan,
    shared: Arc<Mutex<Shared>>,
    control: UnixStream,
    started_at: Instant,
}

impl StandbyWatch {
    /// Starts to look at the image of the plan.
    pub fn start(plan: &HelperPlan) -> std::io::Result<StandbyWatch> {
        let (control, its_end) = UnixStream::pair()?;
        let invocation = Invocation {
            image: plan.image.to_string(),
            folder: records_folder(&plan.folder),
            host: plan.host.clone(),
            log: None,
            purpose: Purpose::Standby(plan.take_over),
        };
        let child = spawn_helper(&invocation, std::process::Stdio::null(), its_end)?;
        let reports = control.try_clone()?;
        reports.set_read_timeout(Some(SILENCE_MAX))?;
        let shared = Arc::new(Mutex::new(Shared { report: None, ended: false }));
        let (of_thread, image) = (Arc::clone(&shared), plan.image.to_string());
        let body = move || follow(&image, child, reports, &of_thread);
        std::thread::Builder::new().name("rbd standby".to_owned()).spawn(body)?;
        Ok(StandbyWatch { plan: plan.clone(), shared, control, started_at: Instant::now() })
    }

    /// The last report.
    pub fn report(&self) -> Option<StandbyReport> {
        self.shared().report.clone()
    }

    /// True if the process has ended or hangs.
    pub fn has_ended(&self) -> bool {
        self.shared().ended
    }

    /// Time since its start.
    pub fn age(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// True if it looks as the plan says.
    pub fn is_by(&self, plan: &HelperPlan) -> bool {
        (&self.plan.image, self.plan.take_over, &self.plan.host) == (&plan.image, plan.take_over, &plan.host)
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StandbyWatch {
    fn drop(&mut self) {
        // A process that has ended needs no message.
        let (Ok(()) | Err(_)) = self.control.shutdown(Shutdown::Both);
    }
}

/// Reads the reports until the process ends or the handle is dropped.
fn follow(image: &str, child: Child, reports: UnixStream, shared: &Mutex<Shared>) {
    let mut reports = BufReader::new(reports);
    while let Ok(Some(line)) = rbd::read_line(&mut reports) {
        match Status::parse(&line) {
            Some(Status::Standby(report)) => {
                shared.lock().unwrap_or_else(PoisonError::into_inner).report = Some(report);
            }
            Some(Status::Failed(text)) => {
                log::debug!(target: VOLUME, "{image}: its looks on standby have ended: {text}");
            }
            _ => {}
        }
    }
    shared.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
    let (Ok(()) | Err(_)) = reports.get_ref().shutdown(Shutdown::Both);
    end(child);
}
