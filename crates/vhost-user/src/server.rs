//! Sockets of volumes and who is connected to them: accepts front ends, counts them, ends them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use engine::Volume;
use front::{Control, Limits, Stop};
use rustix::net::Shutdown;
use seam::mailbox::{Receiver, mailbox};
use seam::real::{RealBell, RealListener, RealSeam};
use seam::{Listener, Nanos, Seam};

use crate::Broken;
use crate::session::{Left, Session, Shared};
use crate::socket::{Answered, Asked, talk};

/// Front ends of one volume: its guest's, and one that the guest moves to.
const SESSIONS_MAX: usize = 8;
/// Bytes of a front end's thread's stack.
const STACK_BYTES: usize = 256 << 10;
/// How often a stopping server looks whether all have left.
const STOP_POLL: Nanos = Nanos::from_millis(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);
/// Time that a front end's thread has to end once its socket is shut down. One whose last descriptor lies on a file system that hangs takes
/// longer: it keeps its place among the volume's front ends, and holds up nobody.
const THREAD_PATIENCE: Nanos = Nanos::from_secs(1);
/// Messages of one front end that wait.
const INBOX_ROOM: usize = 1;
/// Bytes of one guest's reads that are held without standing in line.
const HELD_BYTES_MAX: usize = 4 << 20;
/// Bytes of writes that wait for the engine, of all guests together.
const PAYLOAD_BYTES: usize = 16 << 20;

/// Told what happened that an administrator should know.
pub type Report = Rc<dyn Fn(String)>;

struct Served {
    /// The accepting task, whether it is there, and a number that tells this serving from a later one.
    accepting: Rc<Control>,
    accepts: bool,
    number: u64,
    lost_before: u64,
    sessions: BTreeMap<u64, (Rc<Control>, Rc<Session<RealSeam>>)>,
    /// Threads of front ends that have gone, which have not ended.
    lingering: Rc<Cell<usize>>,
    left: Left,
}

struct Inner {
    seam: RealSeam,
    shared: Shared,
    volumes: RefCell<BTreeMap<String, Served>>,
    /// Numbers are given once.
    next: Cell<u64>,
    report: Report,
}

/// The vhost-user server of one core. A clone is another handle to the same.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

impl Server {
    /// A server without volumes. `daemon` is a number above those that earlier ones had.
    pub fn new(seam: RealSeam, daemon: u64, report: Report) -> Server {
        let limits = Limits { held_bytes_max: HELD_BYTES_MAX, stall_timeout: Nanos::from_secs(5) };
        let shared = Shared::new(limits, seam.blocks_total() * seam::BLOCK_BYTES, PAYLOAD_BYTES, daemon);
        Server(Rc::new(Inner { seam, shared, volumes: RefCell::default(), next: Cell::new(0), report }))
    }

    fn number(&self) -> u64 {
        self.0.next.replace(self.0.next.get() + 1)
    }

    /// Serves `volume` to whoever connects to `listener`. `lost_before`: what daemons of lower numbers
    /// acknowledged may be lost.
    pub fn add(&self, volume: Volume<RealSeam>, listener: RealListener, lost_before: u64) {
        let (accepting, number) = (Rc::new(Control::default()), self.number());
        let (sessions, lingering, left) = Default::default();
        let accepts = true;
        let served = Served { accepting: accepting.clone(), accepts, number, lost_before, sessions, lingering, left };
        let before = self.0.volumes.borrow_mut().insert(volume.name().to_owned(), served);
        assert!(before.is_none(), "a volume is served once");
        let server = self.clone();
        self.0.seam.spawn(async move { server.accept(volume, listener, number, accepting).await });
    }

    async fn accept(&self, volume: Volume<RealSeam>, listener: RealListener, number: u64, control: Rc<Control>) {
        while let Some(accepted) = control.until(pending(), listener.accept()).await {
            match accepted {
                Ok(stream) => self.begin(&volume, number, stream.into_fd()),
                Err(_) => self.0.seam.sleep(ACCEPT_PAUSE).await,
            }
        }
        let name = volume.name().to_owned();
        drop((volume, listener));
        if let Some(served) = self.0.volumes.borrow_mut().get_mut(&name).filter(|served| served.number == number) {
            served.accepts = false;
        }
    }

    /// One front end more, if there is room for it.
    fn begin(&self, volume: &Volume<RealSeam>, number: u64, socket: OwnedFd) {
        let name = volume.name().to_owned();
        let mut volumes = self.0.volumes.borrow_mut();
        let Some(served) = volumes.get_mut(&name).filter(|served| served.number == number) else { return };
        if served.sessions.len() + served.lingering.get() >= SESSIONS_MAX {
            (self.0.report)(format!("volume {name}: a vhost-user front end was sent away, there are {SESSIONS_MAX}"));
            return;
        }
        let (id, control, socket) = (self.number(), Rc::new(Control::default()), Arc::new(socket));
        let (to_core, inbox) = mailbox::<Asked>(INBOX_ROOM);
        let (ended, has_ended) = mailbox::<String>(1);
        let theirs = socket.clone();
        let body = move || {
            if let Err(why) = talk(&theirs, &to_core) {
                // Nobody listens once the core has ended.
                let _ = ended.send_waiting(why.to_string());
            }
        };
        let thread = std::thread::Builder::new().name("vhost-user".to_owned()).stack_size(STACK_BYTES).spawn(body);
        if let Err(error) = thread {
            (self.0.report)(format!("volume {name}: a vhost-user front end was sent away: no thread for it: {error}"));
            return;
        }
        let make_bell = |fd| RealBell::new(fd).map(|bell| Rc::new(bell) as Rc<dyn seam::Bell>);
        let session = Session::new(
            self.0.seam.clone(),
            volume.clone(),
            &self.0.shared,
            &served.left,
            served.lost_before,
            make_bell,
        );
        let session = Rc::new(session);
        served.sessions.insert(id, (control.clone(), session.clone()));
        self.0.shared.clients.add(id, &control);
        let (server, lingering) = (self.clone(), served.lingering.clone());
        self.0.seam.spawn(async move {
            server.serve(&name, &session, &control, inbox).await;
            // The thread ends when it hears of that.
            let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
            server.tell_end(&name, &session, has_ended, lingering).await;
            server.0.shared.clients.remove(id);
            if let Some(served) = server.0.volumes.borrow_mut().get_mut(&name).filter(|served| served.number == number)
            {
                served.sessions.remove(&id);
            }
        });
    }

    /// Obeys one front end until it leaves, is to leave, or has lost memory that it shares.
    async fn serve(&self, name: &str, session: &Session<RealSeam>, control: &Rc<Control>, mut inbox: Receiver<Asked>) {
        let hurry = |context: &Context<'_>| {
            control.register(context);
            control.stop() == Stop::Now
        };
        while let Some(asked) = control.until(session.lost_memory(), inbox.receive()).await {
            let Some(Asked { message, answer }) = asked else { return };
            let result = match message {
                Ok(message) => session.handle(message, hurry).await.map_err(|refused| refused.to_string()),
                Err(why) => Err(why),
            };
            if let Err(why) = &result {
                (self.0.report)(format!("volume {name}: a vhost-user front end was refused something: {why}"));
            }
            let answered = Answered { result, acknowledges: session.acknowledges() };
            // Its thread may have ended meanwhile.
            let _ = answer.try_send(answered);
        }
        if session.has_lost_memory() {
            control.ask(Stop::Now);
        }
        session.stop(hurry).await;
    }

    /// Says what went wrong with a front end that has left.
    async fn tell_end(
        &self,
        name: &str,
        session: &Session<RealSeam>,
        mut has_ended: Receiver<String>,
        lingering: Rc<Cell<usize>>,
    ) {
        if session.has_lost_memory() {
            let why = Broken::Lost;
            (self.0.report)(format!("volume {name}: a vhost-user front end was sent away: {why}"));
        }
        for (queue, broken) in session.broken().filter(|(_, broken)| *broken != Broken::Lost) {
            (self.0.report)(format!("volume {name}: queue {queue} of a guest was not served any more: {broken}"));
        }
        let patience = self.0.seam.sleep(THREAD_PATIENCE);
        match Control::default().until(patience, has_ended.receive()).await {
            Some(Some(why)) => {
                (self.0.report)(format!("volume {name}: a vhost-user front end was sent away: {why}"));
            }
            Some(None) => {}
            None => {
                lingering.set(lingering.get() + 1);
                self.0.seam.spawn(async move {
                    has_ended.receive().await;
                    lingering.set(lingering.get() - 1);
                });
            }
        }
    }

    /// Front ends of that volume now.
    pub fn clients_of(&self, name: &str) -> usize {
        self.0.volumes.borrow().get(name).map_or(0, |served| served.sessions.len())
    }

    /// Tells the guests of a volume that it has another size.
    pub fn resized(&self, name: &str) {
        if let Some(served) = self.0.volumes.borrow().get(name) {
            served.sessions.values().for_each(|(_, session)| session.tell_size());
        }
    }

    fn ask(&self, name: &str, stop: Stop) {
        if let Some(served) = self.0.volumes.borrow().get(name) {
            served.accepting.ask(stop);
            served.sessions.values().for_each(|(control, _)| control.ask(stop));
        }
    }

    /// Serves a volume no longer: what is under way is finished and given back, for at most `patience`. A guest keeps what it has not been
    /// given back, and asks for it again where it is served next.
    pub async fn remove(&self, name: &str, patience: Nanos) {
        self.ask(name, Stop::Drain);
        let is_used = |served: &Served| served.accepts || !served.sessions.is_empty();
        let is_left = || self.0.volumes.borrow().get(name).is_some_and(is_used);
        let deadline = self.0.seam.now() + patience;
        while is_left() && self.0.seam.now() < deadline {
            self.0.seam.sleep(STOP_POLL).await;
        }
        self.ask(name, Stop::Now);
        while is_left() {
            self.0.seam.sleep(STOP_POLL).await;
        }
        self.0.volumes.borrow_mut().remove(name);
    }

    /// Serves no volume any longer.
    pub async fn stop(&self, patience: Nanos) {
        let names: Vec<String> = self.0.volumes.borrow().keys().cloned().collect();
        names.iter().for_each(|name| self.ask(name, Stop::Drain));
        let deadline = self.0.seam.now() + patience;
        for name in &names {
            self.remove(name, deadline.since(self.0.seam.now())).await;
        }
    }
}
