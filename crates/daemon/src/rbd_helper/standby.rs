//! The looks at an image that another host owns: a process of `hotset-rbd` that reads the owner's record every second.
//! It can go on as the helper process of the image, which saves the start of one and its connection to the cluster.

use std::io::{BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rbd::{Purpose, StandbyReport, Status};

use super::HelperPlan;
use super::supervisor::{end, invocation_of, listen, spawn_helper};
use logging::{self as log, VOLUME};

/// Time without a report after which the process counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Age of its last report up to which the process can be ordered to serve the image; it reports every five seconds.
const REPORT_AGE_MAX: Duration = Duration::from_secs(15);
/// Time in which an ordered process begins to serve the image.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The processes on standby, for [`order_service`].
static WATCHING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// A process of `hotset-rbd`, and its messages.
pub type Process = (Child, BufReader<UnixStream>);

/// State that the handle shares with the thread that reads the reports.
struct Shared {
    plan: HelperPlan,
    control: UnixStream,
    /// The socket at which the process serves the image if it is ordered to.
    listener: UnixListener,
    socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    report: Option<(StandbyReport, Instant)>,
    ended: bool,
    /// Gets the process, which was ordered to serve the image.
    taker: Option<Sender<Process>>,
    /// The process was ordered to serve the image.
    is_taken: bool,
}

/// The looks. Dropping it ends the process, unless that serves the image by now.
pub struct StandbyWatch {
    shared: Arc<Shared>,
    started_at: Instant,
}

/// A process on standby that was ordered to serve its image.
pub struct OrderedService {
    shared: Arc<Shared>,
    /// Gets the process once it has begun. It fails if the process has ended instead.
    process: Receiver<Process>,
    listener: UnixListener,
}

impl OrderedService {
    /// The path of the socket at which it serves the image.
    pub fn socket(&self) -> PathBuf {
        self.shared.socket.clone()
    }

    /// The socket, and the process once it has begun. One that does not begin is ended.
    pub fn begin(self) -> (UnixListener, Option<Process>) {
        let process = self.process.recv_timeout(BEGIN_TIMEOUT).ok();
        if process.is_none() {
            let taker = self.shared.state().taker.take();
            self.shared.end();
            // Without the taker here, the process has begun just now, or has ended.
            if taker.is_none()
                && let Ok((child, _reports)) = self.process.recv()
            {
                end(child);
            }
        }
        (self.listener, process)
    }
}

impl StandbyWatch {
    /// Starts to look at the image of the plan.
    pub fn start(plan: &HelperPlan) -> std::io::Result<StandbyWatch> {
        let socket = plan.new_socket();
        let started = StandbyWatch::start_at(plan, socket.clone());
        if started.is_err() {
            let (Ok(()) | Err(_)) = std::fs::remove_file(socket);
        }
        started
    }

    fn start_at(plan: &HelperPlan, socket: PathBuf) -> std::io::Result<StandbyWatch> {
        let (control, its_end) = UnixStream::pair()?;
        let reports = control.try_clone()?;
        reports.set_read_timeout(Some(SILENCE_MAX))?;
        let listener = listen(&socket)?;
        let child = spawn_helper(plan, Purpose::Standby(plan.take_over), &listener, its_end)?;
        let shared = Arc::new(Shared { plan: plan.clone(), control, listener, socket, state: Mutex::default() });
        let of_thread = Arc::clone(&shared);
        let (to_thread, process) = channel();
        let body = move || process.recv().map_or_else(|_| (), |process| follow(process, &of_thread));
        if let Err(error) = std::thread::Builder::new().name("rbd standby".to_owned()).spawn(body) {
            shared.end();
            end(child);
            return Err(error);
        }
        let (Ok(()) | Err(_)) = to_thread.send((child, BufReader::new(reports)));
        {
            let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
            watching.retain(|shared| shared.strong_count() > 0);
            watching.push(Arc::downgrade(&shared));
        }
        Ok(StandbyWatch { shared, started_at: Instant::now() })
    }

    /// The last report.
    pub fn report(&self) -> Option<StandbyReport> {
        self.shared.state().report.as_ref().map(|(report, _)| report.clone())
    }

    /// True if the process has ended, hangs, or was ordered to serve the image.
    pub fn has_ended(&self) -> bool {
        let state = self.shared.state();
        state.ended || state.is_taken
    }

    /// Time since its start.
    pub fn age(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// True if it looks as the plan says.
    pub fn is_by(&self, plan: &HelperPlan) -> bool {
        self.shared.is_by(plan) && self.shared.plan.take_over == plan.take_over
    }
}

impl Drop for StandbyWatch {
    fn drop(&mut self) {
        if !self.shared.state().is_taken {
            self.shared.end();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it looks at the image of the plan for the same host and the same records.
    fn is_by(&self, HelperPlan { image, host, folder, .. }: &HelperPlan) -> bool {
        (&self.plan.image, &self.plan.host, &self.plan.folder) == (image, host, folder)
    }

    /// Ends the process.
    fn end(&self) {
        // A process that has ended needs no message.
        let (Ok(()) | Err(_)) = self.control.shutdown(Shutdown::Both);
    }

    /// Orders the process to serve the image; `None` if it does not report, has ended, or was ordered before.
    fn order(self: &Arc<Self>, order: &str) -> Option<OrderedService> {
        let listener = self.listener.try_clone().ok()?;
        let mut state = self.state();
        let reports = state.report.as_ref().is_some_and(|(_, at)| at.elapsed() < REPORT_AGE_MAX);
        if state.ended || state.is_taken || !reports {
            return None;
        }
        (&self.control).write_all(order.as_bytes()).ok()?;
        let (taker, process) = channel();
        (state.taker, state.is_taken, state.report) = (Some(taker), true, None);
        Some(OrderedService { shared: Arc::clone(self), process, listener })
    }
}

/// Orders the process that looks at the image of the plan to serve it, if the plan asks for it and there is one.
pub fn order_service(plan: &HelperPlan) -> Option<OrderedService> {
    if !plan.by_watch {
        return None;
    }
    let order = invocation_of(plan, plan.purpose()).order()?;
    let watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut by_plan = watching.iter().filter_map(Weak::upgrade).filter(|shared| shared.is_by(plan));
    by_plan.find_map(|shared| shared.order(&order))
}

/// Reads the reports until the process ends, begins to serve the image, or the handle is dropped.
fn follow((child, mut reports): Process, shared: &Shared) {
    let image = &shared.plan.image;
    let taker = loop {
        let Ok(Some(line)) = rbd::read_line(&mut reports) else { break None };
        match Status::parse(&line) {
            // Also from before an order to serve the image.
            Some(Status::Standby(report)) => {
                let mut state = shared.state();
                state.report = Some((report, Instant::now())).filter(|_| !state.is_taken);
            }
            Some(Status::Failed(text)) => {
                log::debug!(target: VOLUME, "{image}: its looks on standby have ended: {text}");
            }
            Some(Status::Progress(_)) => {
                if let Some(taker) = shared.state().taker.take() {
                    break Some(taker);
                }
            }
            _ => {}
        }
    };
    let unused = match taker {
        Some(taker) => taker.send((child, reports)).err().map(|refused| refused.0),
        None => Some((child, reports)),
    };
    let mut state = shared.state();
    (state.ended, state.taker) = (true, None);
    drop(state);
    if let Some((child, _reports)) = unused {
        shared.end();
        end(child);
        if !shared.state().is_taken {
            let (Ok(()) | Err(_)) = std::fs::remove_file(&shared.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process on standby that has reported, the end of its channel, and the thread that follows it.
    fn watched(folder: &std::path::Path) -> (Arc<Shared>, UnixStream, std::thread::JoinHandle<()>) {
        let plan = HelperPlan { folder: folder.to_owned(), ..HelperPlan::for_test() };
        let (control, process) = UnixStream::pair().expect("a descriptor is free");
        let reports = BufReader::new(control.try_clone().expect("a descriptor is free"));
        let socket = plan.new_socket();
        let listener = listen(&socket).expect("the folder is writable");
        let shared = Arc::new(Shared { plan, control, listener, socket, state: Mutex::default() });
        let child = Command::new("true").spawn().expect("it is installed");
        let of_thread = Arc::clone(&shared);
        let following = std::thread::spawn(move || follow((child, reports), &of_thread));
        say(&process, &standby());
        while shared.state().report.is_none() {
            std::thread::yield_now();
        }
        (shared, process, following)
    }

    fn standby() -> Status {
        Status::Standby(StandbyReport::parse("3 true any - image alpha -").expect("a report"))
    }

    fn say(mut process: &UnixStream, status: &Status) {
        process.write_all((status.encode() + "\n").as_bytes()).expect("the channel is open");
    }

    #[test]
    fn process_goes_on_with_its_channel_after_reports_from_before_the_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, process, following) = watched(folder.path());
        let ordered = shared.order("serve\tit\n").expect("it has reported");
        assert!(shared.order("serve\tit\n").is_none(), "it is ordered once");
        say(&process, &standby());
        say(&process, &Status::Progress("opening the image".to_owned()));
        let socket = ordered.socket();
        let (_, process_begun) = ordered.begin();
        let (mut child, mut reports) = process_begun.expect("it has begun");
        assert!(shared.state().report.is_none(), "a report from before the order permits no claim");
        drop(StandbyWatch { shared: Arc::clone(&shared), started_at: Instant::now() });
        say(&process, &Status::Released(None));
        let line = rbd::read_line(&mut reports).expect("the channel is open");
        assert_eq!(line.as_deref().map(Status::parse), Some(Some(Status::Released(None))));
        assert!(socket.exists());
        following.join().expect("no panic");
        drop(process);
        child.wait().expect("it has ended");
    }

    #[test]
    fn process_that_ends_instead_is_no_process_to_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, process, following) = watched(folder.path());
        let ordered = shared.order("serve\tit\n").expect("it has reported");
        say(&process, &Status::Failed("the cluster does not answer".to_owned()));
        drop(process);
        let socket = ordered.socket();
        assert!(ordered.begin().1.is_none());
        following.join().expect("no panic");
        assert!(socket.exists(), "the next process listens there");
        assert!(shared.order("serve\tit\n").is_none(), "it has ended");
    }

    #[test]
    fn process_that_does_not_begin_in_time_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, process, following) = watched(folder.path());
        let ordered = shared.order("serve\tit\n").expect("it has reported");
        let (mut orders, mut order) = (BufReader::new(&process), String::new());
        assert!(ordered.begin().1.is_none());
        following.join().expect("no panic");
        std::io::Read::read_to_string(&mut orders, &mut order).expect("the channel is closed");
        assert_eq!(order, "serve\tit\n");
    }

    #[test]
    fn process_without_a_late_report_is_not_ordered() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, process, following) = watched(folder.path());
        let plan = HelperPlan { by_watch: false, ..shared.plan.clone() };
        WATCHING.lock().expect("no panic").push(Arc::downgrade(&shared));
        assert!(order_service(&plan).is_none(), "an attach without an order leaves the watch alone");
        let long_ago = Instant::now().checked_sub(REPORT_AGE_MAX).expect("the clock has run for so long");
        shared.state().report.as_mut().expect("it has reported").1 = long_ago;
        assert!(order_service(&shared.plan).is_none());
        shared.state().report.as_mut().expect("it has reported").1 = Instant::now();
        assert!(order_service(&shared.plan).is_some());
        drop(process);
        following.join().expect("no panic");
    }

    #[test]
    fn dropped_watch_ends_its_process_and_its_socket() {
        let folder = tempfile::tempdir().expect("a folder");
        let (shared, process, following) = watched(folder.path());
        drop(StandbyWatch { shared: Arc::clone(&shared), started_at: Instant::now() });
        following.join().expect("no panic");
        assert!(!shared.socket.exists());
        drop(process);
    }
}
