//! The server: accepts connections, lists sessions and ends them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use connection::{Control, Stop};
use iscsi_protocol::Framing;
use iscsi_protocol::login::{Negotiated, Refusal, Rules, SessionType};
use scsi::{Initiator, Lun, Target};
use seam::{Address, BufferedReader, ByteStream, Listener, Nanos, Seam, StreamWriter};

use crate::Options;
use crate::login::{CompletedLogin, LoginError, log_in};
use crate::options::PORTAL_GROUP;
use crate::refused_logins::{RefusedLogin, RefusedLogins};
use crate::session::{Session, SessionSpec, Shared, SlowCommand, Task};

/// Poll interval of a stopping server.
const STOP_POLL: Nanos = Nanos::from_millis(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);
/// Time for the final responses after the time for logouts.
const FINAL_RESPONSES_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Maximum number of concurrent discovery sessions.
const DISCOVERY_SESSIONS_MAX: usize = 16;
/// Time for an idle initiator to log out of a stopping server.
const IDLE_LOGOUT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Interval of checks for idle initiators.
const IDLE_CHECK_INTERVAL: Nanos = Nanos::from_secs(5);

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Current sessions.
    pub sessions: u64,
    /// Accepted connections.
    pub accepted: u64,
    /// Current connections in the login phase.
    pub half_open: u64,
    /// Connections that failed in the login phase: time-out, malformed PDU, loss, refusal.
    pub failed_logins: u64,
}

/// State and counters of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStats {
    /// Target session identifying handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's alias; may be empty.
    pub alias: String,
    /// Portal that the initiator connected to.
    pub portal: String,
    /// True for a discovery session.
    pub discovery: bool,
    /// True if the initiator authenticated itself.
    pub authenticated: bool,
    /// Header and data digests in use.
    pub digests: (bool, bool),
    /// Commands received.
    pub commands: u64,
    /// Commands in flight.
    pub commands_in_flight: u64,
    /// Commands aborted.
    pub aborted: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// The slowest commands of the last hour that had to wait, slowest first.
    pub slowest: Vec<SlowCommand>,
}

struct Inner<S: Seam> {
    shared: Rc<Shared<S>>,
    stats: Cell<ServerStats>,
    is_stopping: Cell<bool>,
    listeners: RefCell<Vec<Rc<Control>>>,
    /// Connections in the login phase, oldest first.
    half_open: RefCell<BTreeMap<u64, Rc<Control>>>,
    refused_logins: RefCell<RefusedLogins>,
    /// True while the task runs that pings silent initiators.
    is_watching_sessions: Cell<bool>,
}

/// The iSCSI server of one core. A clone is another handle to the same server.
pub struct Server<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Server<S> {
    fn clone(&self) -> Self {
        Server(Rc::clone(&self.0))
    }
}

impl<S: Seam> Server<S> {
    /// A server for `target`.
    pub fn new(seam: S, target: Target<S>, options: Options) -> Self {
        let shared = Rc::new(Shared::new(seam, target, options));
        let weak = Rc::downgrade(&shared);
        shared.target.set_observer(move |nexus, lun, sense| {
            let sessions = weak.upgrade().map(|shared| shared.sessions()).unwrap_or_default();
            let session = sessions.iter().find(|session| session.nexus().is_some_and(|own| own.is(nexus)));
            if let Some(session) = session {
                session.send_scsi_event(lun, sense);
            }
        });
        Server(Rc::new(Inner {
            shared,
            stats: Cell::default(),
            is_stopping: Cell::new(false),
            listeners: RefCell::default(),
            half_open: RefCell::default(),
            refused_logins: RefCell::default(),
            is_watching_sessions: Cell::new(false),
        }))
    }

    /// The target that the server serves.
    pub fn target(&self) -> &Target<S> {
        &self.0.shared.target
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        let sessions = self.0.shared.sessions.borrow().len() as u64;
        ServerStats { sessions, half_open: self.0.half_open.borrow().len() as u64, ..self.0.stats.get() }
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<SessionStats> {
        self.0.shared.sessions().iter().map(|session| session.stats()).collect()
    }

    /// Logins refused within the last minute, by initiator and reason.
    pub fn refused_logins(&self) -> Vec<RefusedLogin> {
        self.0.refused_logins.borrow_mut().list(self.0.shared.seam.now())
    }

    /// Accepts connections from `listener`, a task each, until the server is stopped.
    pub async fn accept(&self, listener: S::Listener) {
        let control = Rc::new(Control::default());
        self.0.listeners.borrow_mut().push(Rc::clone(&control));
        while !self.0.is_stopping.get() {
            match control.until(std::future::pending(), listener.accept()).await {
                Some(Ok(stream)) => {
                    let server = self.clone();
                    self.0.shared.seam.spawn(async move { server.serve(stream).await });
                }
                Some(Err(_)) => self.0.shared.seam.sleep(ACCEPT_PAUSE).await,
                None => break,
            }
        }
        drop(listener);
        self.0.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, &control));
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: S::Stream) {
        self.update_stats(|stats| stats.accepted += 1);
        if self.0.is_stopping.get() {
            return drop(stream.split());
        }
        let number = self.0.stats.get().accepted;
        let portal = stream.local_address();
        let (reader, mut writer) = stream.split();
        let mut incoming = BufferedReader::new(reader, Framing::default().pdu_bytes_max());
        let control = Rc::new(Control::default());
        let login_connection = LoginConnection::new(self, number, &control);
        let deadline = self.0.shared.seam.now() + self.0.shared.options.login_timeout;
        let login = self.log_in(&mut incoming, &mut writer, portal, &control);
        let outcome = control.until(self.0.shared.seam.sleep_until(deadline), login).await;
        drop(login_connection);
        let session_guard = match outcome {
            Some(Ok(session_guard)) => session_guard,
            failed => {
                // A stopping target refuses every login.
                if let Some(Err(LoginError::Refused { initiator, refusal })) = failed
                    && refusal != Refusal::Unavailable
                {
                    self.0.refused_logins.borrow_mut().add(&initiator, refusal, self.0.shared.seam.now());
                }
                return self.update_stats(|stats| stats.failed_logins += 1);
            }
        };
        self.watch_sessions();
        self.0.shared.clients.add(number, &control);
        let session = Rc::clone(&session_guard.session);
        session.run(&mut incoming, writer).await;
        self.0.shared.clients.remove(number);
        // The buffers are released before the wait for the last commands.
        drop(incoming);
        session.abort_all_tasks().await;
    }

    async fn log_in<R: seam::StreamReader<S>, W: StreamWriter<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        writer: &mut W,
        portal: Option<Address>,
        control: &Rc<Control>,
    ) -> Result<SessionGuard<S>, LoginError> {
        let shared = &self.0.shared;
        let options = &shared.options;
        let credentials_of = |initiator: &str| options.credentials_of(initiator);
        let must_authenticate = !options.chap_users.is_empty();
        let rules = Rules {
            target: shared.target.name(),
            portal_group: PORTAL_GROUP,
            admits: &|name| options.access.admits(name),
            credentials: must_authenticate.then_some(&credentials_of),
        };
        let completed_login = log_in(&shared.seam, incoming, writer, &rules).await?;
        let session_guard = match self.admit(&completed_login, portal, control).await {
            Ok(session_guard) => session_guard,
            Err(refusal) => {
                completed_login.refuse(writer, refusal).await?;
                return Err(LoginError::Refused { initiator: completed_login.negotiated.initiator.clone(), refusal });
            }
        };
        completed_login.accept(writer, session_guard.session.tsih()).await?;
        Ok(session_guard)
    }

    /// Begins a session after a login, replacing the session of the same initiator port (session reinstatement).
    async fn admit(
        &self,
        completed_login: &CompletedLogin,
        portal: Option<Address>,
        control: &Rc<Control>,
    ) -> Result<SessionGuard<S>, Refusal> {
        let (shared, negotiated) = (&self.0.shared, &completed_login.negotiated);
        while let Some(old_session) = self.session_to_reinstate(negotiated)? {
            // The old session's commands must not have an effect after the new session has started.
            old_session.control().request_stop(Stop::Now);
            shared.seam.sleep(STOP_POLL).await;
        }
        if self.0.is_stopping.get() {
            return Err(Refusal::Unavailable);
        }
        let mut sessions = shared.sessions.borrow_mut();
        // Discovery sessions have a limit of their own: without authentication they must not displace normal sessions.
        let is_discovery = negotiated.session == SessionType::Discovery;
        let same_type_count = sessions.values().filter(|session| session.nexus().is_none() == is_discovery).count();
        if same_type_count >= if is_discovery { DISCOVERY_SESSIONS_MAX } else { shared.options.sessions_max } {
            return Err(Refusal::OutOfResources);
        }
        let last_tsih = sessions.last_key_value().map_or(0, |(tsih, _)| *tsih);
        let free_tsih = (last_tsih.wrapping_add(1)..=u16::MAX)
            .chain(1..=last_tsih)
            .find(|tsih| *tsih > 0 && !sessions.contains_key(tsih));
        let tsih = free_tsih.ok_or(Refusal::OutOfResources)?;
        let initiator = Initiator::new(&negotiated.initiator, negotiated.isid);
        let nexus =
            (negotiated.session == SessionType::Normal).then(|| shared.target.add_nexus(initiator, PORTAL_GROUP));
        let session = Session::new(SessionSpec {
            shared: Rc::clone(shared),
            tsih,
            nexus,
            portal: portal.map(|portal| match portal {
                Address::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
                Address::Tcp(host, port) => format!("{host}:{port}"),
                Address::Unix(path) => path.display().to_string(),
            }),
            negotiated: negotiated.clone(),
            cmd_sn: completed_login.cmd_sn,
            stat_sn: completed_login.stat_sn.wrapping_add(1),
            control: Rc::clone(control),
        });
        sessions.insert(tsih, Rc::clone(&session));
        Ok(SessionGuard { shared: Rc::clone(shared), session })
    }

    /// The session that the login reinstates.
    fn session_to_reinstate(&self, negotiated: &Negotiated) -> Result<Option<Rc<Session<S>>>, Refusal> {
        if negotiated.session == SessionType::Discovery {
            return if negotiated.tsih == 0 { Ok(None) } else { Err(Refusal::NoSuchSession) };
        }
        let is_same_port = |session: &&Rc<Session<S>>| session.belongs_to(&negotiated.initiator, negotiated.isid);
        let reinstated = self.0.shared.sessions.borrow().values().find(is_same_port).cloned();
        match &reinstated {
            // A session has one connection and no recovery: only its own connection can reinstate it.
            Some(session) if negotiated.tsih == session.tsih() && negotiated.connection != session.cid() => {
                Err(Refusal::TooManyConnections)
            }
            Some(session) if negotiated.tsih == 0 || negotiated.tsih == session.tsih() => Ok(reinstated),
            None if negotiated.tsih == 0 => Ok(None),
            _ => Err(Refusal::NoSuchSession),
        }
    }

    /// Waits until no command to a removed unit is in flight; aborts remaining commands after `drain_timeout`.
    pub async fn release(&self, lun: Lun, drain_timeout: Nanos) {
        let shared = &self.0.shared;
        let deadline = shared.seam.now() + drain_timeout;
        let is_busy = || shared.sessions.borrow().values().any(|session| session.is_busy_with(lun));
        while is_busy() && shared.seam.now() < deadline {
            shared.seam.sleep(STOP_POLL).await;
        }
        let is_of_unit = |task: &Task| Lun::decode(task.lun) == Some(lun);
        let aborted: Vec<_> = shared.sessions().iter().flat_map(|session| session.abort(is_of_unit)).collect();
        for task in aborted {
            task.wait_until_ended().await;
        }
    }

    /// Stops the server: accepts no connection, requests logouts of all initiators, and completes commands in flight.
    /// Takes at most `drain_timeout` plus a short time for final responses.
    pub async fn stop(&self, drain_timeout: Nanos) {
        let shared = &self.0.shared;
        self.0.is_stopping.set(true);
        self.0.listeners.borrow().iter().for_each(|listener| listener.request_stop(Stop::Drain));
        self.0.half_open.borrow().values().for_each(|control| control.request_stop(Stop::Now));
        let seconds = u16::try_from(drain_timeout.0.div_ceil(1_000_000_000)).unwrap_or(u16::MAX);
        shared.sessions().iter().for_each(|session| session.request_logout(seconds));
        let are_disconnected = || shared.clients.count() == 0;
        let (mut deadline, idle_deadline) =
            (shared.seam.now() + drain_timeout, shared.seam.now() + IDLE_LOGOUT_TIMEOUT.min(drain_timeout));
        while !are_disconnected() && shared.seam.now() < deadline {
            shared.seam.sleep(STOP_POLL).await;
            if shared.seam.now() >= idle_deadline {
                shared
                    .sessions()
                    .iter()
                    .filter(|session| session.is_idle())
                    .for_each(|session| session.control().request_stop(Stop::Drain));
            }
        }
        shared.clients.request_stop_all(Stop::Drain);
        deadline = shared.seam.now() + FINAL_RESPONSES_TIMEOUT;
        while !are_disconnected() && shared.seam.now() < deadline {
            shared.seam.sleep(STOP_POLL).await;
        }
        shared.clients.request_stop_all(Stop::Now);
        while !are_disconnected() || !self.0.listeners.borrow().is_empty() {
            shared.seam.sleep(STOP_POLL).await;
        }
    }

    /// Pings silent initiators while there are sessions.
    fn watch_sessions(&self) {
        if self.0.is_watching_sessions.replace(true) {
            return;
        }
        let server = self.clone();
        self.0.shared.seam.spawn(async move {
            let shared = &server.0.shared;
            while !shared.sessions.borrow().is_empty() {
                shared.seam.sleep(IDLE_CHECK_INTERVAL).await;
                shared.sessions().iter().for_each(|session| session.check_alive());
            }
            server.0.is_watching_sessions.set(false);
        });
    }

    fn update_stats(&self, change: impl FnOnce(&mut ServerStats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }
}

/// A connection in the login phase; beyond the limit the oldest one is closed.
struct LoginConnection<'a, S: Seam> {
    server: &'a Server<S>,
    number: u64,
}

impl<'a, S: Seam> LoginConnection<'a, S> {
    fn new(server: &'a Server<S>, number: u64, control: &Rc<Control>) -> Self {
        let mut half_open = server.0.half_open.borrow_mut();
        half_open.insert(number, Rc::clone(control));
        if half_open.len() > server.0.shared.options.logins_max
            && let Some((_, oldest)) = half_open.pop_first()
        {
            oldest.request_stop(Stop::Now);
        }
        LoginConnection { server, number }
    }
}

impl<S: Seam> Drop for LoginConnection<'_, S> {
    fn drop(&mut self) {
        self.server.0.half_open.borrow_mut().remove(&self.number);
    }
}

/// A session in the list; dropping the guard removes it from the list and from the target.
struct SessionGuard<S: Seam> {
    shared: Rc<Shared<S>>,
    session: Rc<Session<S>>,
}

impl<S: Seam> Drop for SessionGuard<S> {
    fn drop(&mut self) {
        self.shared.sessions.borrow_mut().remove(&self.session.tsih());
        if let Some(nexus) = self.session.nexus() {
            self.shared.target.remove_nexus(nexus);
        }
    }
}
