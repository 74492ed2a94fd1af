//! The server: sockets of volumes and the front ends connected to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use connection::{Control, Limits, Stop};
use engine::Volume;
use rustix::net::Shutdown;
use seam::mailbox::{Receiver, mailbox};
use seam::real::{RealBell, RealListener, RealSeam};
use seam::{Listener, Nanos, Seam};

use crate::QueueError;
use crate::session::{Session, Shared, UnfinishedRequests};
use crate::socket::{FrontEndMessage, MessageResult, serve_socket};

/// Maximum number of front ends of one volume: the guest's, and another one during a migration.
const SESSIONS_MAX: usize = 8;
/// Stack size of a front end's thread, in bytes.
const STACK_BYTES: usize = 256 << 10;
/// Poll interval of a stopping server.
const STOP_POLL: Nanos = Nanos::from_millis(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);
/// Time for a front end's thread to end after the shutdown of its socket. Closing a descriptor on a hanging file system
/// takes longer; the front end then counts towards the volume's limit and blocks nothing else.
const THREAD_END_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Maximum number of waiting messages of one front end.
const INBOX_MESSAGES_MAX: usize = 1;
/// Limit of reply buffers of one guest, in bytes.
const HELD_BYTES_MAX: usize = 4 << 20;
/// Limit of write data waiting for the engine, of all guests, in bytes.
const PAYLOAD_BYTES: usize = 16 << 20;

/// Callback that reports an event to the administrator: the volume's name and the message.
pub type Report = Rc<dyn Fn(&str, String)>;

/// A volume that is served, with the front ends connected to it.
struct ServedVolume {
    /// Control of the accepting task.
    accepting: Rc<Control>,
    /// True while the accepting task runs.
    is_accepting: bool,
    /// Number of this registration of the volume: a task recognises by it that the volume was removed and added again.
    number: u64,
    /// Generation of a daemon: writes acknowledged by daemons of lower generations may be lost.
    lost_before: u64,
    sessions: BTreeMap<u64, (Rc<Control>, Rc<Session<RealSeam>>)>,
    /// Number of threads of disconnected front ends that have not ended.
    lingering_threads: Rc<Cell<usize>>,
    unfinished_requests: UnfinishedRequests,
}

struct Inner {
    seam: RealSeam,
    shared: Shared,
    volumes: RefCell<BTreeMap<String, ServedVolume>>,
    /// Next number of a registration or front end; numbers are unique.
    next_id: Cell<u64>,
    report: Report,
}

/// The vhost-user server of one core. A clone is another handle to the same server.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

impl Server {
    /// A server without volumes. `daemon_generation` is higher than those of earlier daemons.
    pub fn new(seam: RealSeam, daemon_generation: u64, report: Report) -> Server {
        let limits = Limits { held_bytes_max: HELD_BYTES_MAX, stall_timeout: Nanos::from_secs(5) };
        let shared = Shared::new(limits, seam.blocks_total() * seam::BLOCK_BYTES, PAYLOAD_BYTES, daemon_generation);
        Server(Rc::new(Inner { seam, shared, volumes: RefCell::default(), next_id: Cell::new(0), report }))
    }

    fn next_id(&self) -> u64 {
        self.0.next_id.replace(self.0.next_id.get() + 1)
    }

    /// Serves `volume` on `listener`. `lost_before`: writes acknowledged by daemons of lower generations may be lost.
    pub fn add(&self, volume: Volume<RealSeam>, listener: RealListener, lost_before: u64) {
        let (accepting, number) = (Rc::new(Control::default()), self.next_id());
        let is_accepting = true;
        let served = ServedVolume {
            accepting: accepting.clone(),
            is_accepting,
            number,
            lost_before,
            sessions: Default::default(),
            lingering_threads: Default::default(),
            unfinished_requests: Default::default(),
        };
        let replaced = self.0.volumes.borrow_mut().insert(volume.name().to_owned(), served);
        assert!(replaced.is_none(), "a volume is served once");
        let server = self.clone();
        self.0.seam.spawn(async move { server.accept(volume, listener, number, accepting).await });
    }

    async fn accept(&self, volume: Volume<RealSeam>, listener: RealListener, number: u64, control: Rc<Control>) {
        while let Some(accepted) = control.until(pending(), listener.accept()).await {
            match accepted {
                Ok(stream) => self.start_session(&volume, number, stream.into_fd()),
                Err(_) => self.0.seam.sleep(ACCEPT_PAUSE).await,
            }
        }
        let name = volume.name().to_owned();
        drop((volume, listener));
        if let Some(served) = self.0.volumes.borrow_mut().get_mut(&name).filter(|served| served.number == number) {
            served.is_accepting = false;
        }
    }

    /// Serves a new front end, unless the volume's limit of front ends is reached.
    fn start_session(&self, volume: &Volume<RealSeam>, number: u64, socket: OwnedFd) {
        let name = volume.name().to_owned();
        let mut volumes = self.0.volumes.borrow_mut();
        let Some(served) = volumes.get_mut(&name).filter(|served| served.number == number) else { return };
        if served.sessions.len() + served.lingering_threads.get() >= SESSIONS_MAX {
            (self.0.report)(&name, format!("volume {name}: vhost-user front end refused: the limit is {SESSIONS_MAX}"));
            return;
        }
        let (id, control, socket) = (self.next_id(), Rc::new(Control::default()), Arc::new(socket));
        let (to_core, inbox) = mailbox::<FrontEndMessage>(INBOX_MESSAGES_MAX);
        let (end_sender, end_receiver) = mailbox::<String>(1);
        let thread_socket = socket.clone();
        let body = move || {
            if let Err(reason) = serve_socket(&thread_socket, &to_core) {
                // There is no receiver if the core has ended.
                let _ = end_sender.send_waiting(reason.to_string());
            }
        };
        let thread = std::thread::Builder::new().name("vhost-user".to_owned()).stack_size(STACK_BYTES).spawn(body);
        if let Err(error) = thread {
            (self.0.report)(
                &name,
                format!("volume {name}: vhost-user front end refused: cannot start a thread: {error}"),
            );
            return;
        }
        let make_eventfd = |fd| RealBell::new(fd).map(|bell| Rc::new(bell) as Rc<dyn seam::Bell>);
        let session = Session::new(
            self.0.seam.clone(),
            volume.clone(),
            &self.0.shared,
            &served.unfinished_requests,
            served.lost_before,
            make_eventfd,
        );
        let session = Rc::new(session);
        served.sessions.insert(id, (control.clone(), session.clone()));
        self.0.shared.clients.add(id, &control);
        let (server, lingering_threads) = (self.clone(), served.lingering_threads.clone());
        self.0.seam.spawn(async move {
            server.serve(&name, &session, &control, inbox).await;
            // The shutdown ends the thread.
            let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
            server.report_end(&name, &session, end_receiver, lingering_threads).await;
            server.0.shared.clients.remove(id);
            if let Some(served) = server.0.volumes.borrow_mut().get_mut(&name).filter(|served| served.number == number)
            {
                served.sessions.remove(&id);
            }
        });
    }

    /// Serves one front end until it disconnects, must stop, or loses memory.
    async fn serve(
        &self,
        name: &str,
        session: &Session<RealSeam>,
        control: &Rc<Control>,
        mut inbox: Receiver<FrontEndMessage>,
    ) {
        let stop_now = |context: &Context<'_>| {
            control.register(context);
            control.stop() == Stop::Now
        };
        while let Some(received) = control.until(session.wait_for_lost_memory(), inbox.receive()).await {
            let Some(FrontEndMessage { message, reply }) = received else { return };
            let result = match message {
                Ok(message) => session.handle(message, stop_now).await.map_err(|refused| refused.to_string()),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = &result {
                (self.0.report)(name, format!("volume {name}: vhost-user message refused: {reason}"));
            }
            let result = MessageResult { result, supports_acknowledgements: session.supports_acknowledgements() };
            // The thread may have ended meanwhile.
            let _ = reply.try_send(result);
        }
        if session.has_lost_memory() {
            control.request_stop(Stop::Now);
        }
        session.stop(stop_now).await;
    }

    /// Reports errors of a front end that has ended.
    async fn report_end(
        &self,
        name: &str,
        session: &Session<RealSeam>,
        mut end_receiver: Receiver<String>,
        lingering_threads: Rc<Cell<usize>>,
    ) {
        if session.has_lost_memory() {
            let reason = QueueError::Lost;
            (self.0.report)(name, format!("volume {name}: vhost-user front end disconnected: {reason}"));
        }
        for (queue, broken) in session.broken_queues().filter(|(_, broken)| *broken != QueueError::Lost) {
            (self.0.report)(name, format!("volume {name}: queue {queue} of a guest stopped: {broken}"));
        }
        let timeout = self.0.seam.sleep(THREAD_END_TIMEOUT);
        match Control::default().until(timeout, end_receiver.receive()).await {
            Some(Some(reason)) => {
                (self.0.report)(name, format!("volume {name}: vhost-user front end disconnected: {reason}"));
            }
            Some(None) => {}
            None => {
                lingering_threads.set(lingering_threads.get() + 1);
                self.0.seam.spawn(async move {
                    end_receiver.receive().await;
                    lingering_threads.set(lingering_threads.get() - 1);
                });
            }
        }
    }

    /// Number of front ends of a volume.
    pub fn clients_of(&self, name: &str) -> usize {
        self.0.volumes.borrow().get(name).map_or(0, |served| served.sessions.len())
    }

    /// Notifies the guests of a volume of its new size.
    pub fn report_capacity_change(&self, name: &str) {
        if let Some(served) = self.0.volumes.borrow().get(name) {
            served.sessions.values().for_each(|(_, session)| session.notify_resize());
        }
    }

    fn request_stop(&self, name: &str, stop: Stop) {
        if let Some(served) = self.0.volumes.borrow().get(name) {
            served.accepting.request_stop(stop);
            served.sessions.values().for_each(|(control, _)| control.request_stop(stop));
        }
    }

    /// Stops serving a volume: completes and returns requests in flight, for at most `drain_timeout`. A guest keeps
    /// requests that were not returned and submits them again to the next server.
    pub async fn remove(&self, name: &str, drain_timeout: Nanos) {
        self.request_stop(name, Stop::Drain);
        let has_users = |served: &ServedVolume| served.is_accepting || !served.sessions.is_empty();
        let is_in_use = || self.0.volumes.borrow().get(name).is_some_and(has_users);
        let deadline = self.0.seam.now() + drain_timeout;
        while is_in_use() && self.0.seam.now() < deadline {
            self.0.seam.sleep(STOP_POLL).await;
        }
        self.request_stop(name, Stop::Now);
        while is_in_use() {
            self.0.seam.sleep(STOP_POLL).await;
        }
        self.0.volumes.borrow_mut().remove(name);
    }

    /// Stops serving all volumes.
    pub async fn stop(&self, drain_timeout: Nanos) {
        let names: Vec<String> = self.0.volumes.borrow().keys().cloned().collect();
        names.iter().for_each(|name| self.request_stop(name, Stop::Drain));
        let deadline = self.0.seam.now() + drain_timeout;
        for name in &names {
            self.remove(name, deadline.since(self.0.seam.now())).await;
        }
    }
}
