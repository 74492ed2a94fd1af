//! The server: accepts, counts and ends connections.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use connection::{Control, Stop};
use engine::{UnflushedLoss, VolumeId};
use seam::{BufferedReader, ByteStream, Listener, Nanos, Seam, StreamReader, StreamWriter};

use crate::connection::Connection;
use crate::half_open::{HandshakeConnections, HandshakeGuard};
use crate::handover::{HandedOverClient, NegotiatedTerms, TakeOverError};
use crate::handshake::{self, HANDSHAKE_BYTES, HandshakeError, Outcome};
use crate::negotiation::{Negotiated, TlsState};
use crate::options::RECEIVE_BYTES;
use crate::shared_limits::SharedLimits;
use crate::{Exports, Options};

/// Poll interval of a stopping server.
const STOP_POLL: Nanos = Nanos::from_millis(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Current connections, including the handshake phase.
    pub connections: u64,
    /// Accepted connections.
    pub accepted: u64,
    /// Connections refused at the limit.
    pub refused: u64,
    /// Connections that failed in the handshake phase: time-out, malformed message, loss.
    pub failed_handshakes: u64,
}

/// A client in the transmission phase.
#[derive(Clone)]
struct TransmittingClient {
    /// Name of its export.
    export: String,
    control: Rc<Control>,
    /// True if [`Server::take_over`] can continue its connection.
    can_be_handed_over: bool,
}

struct Inner<S: Seam> {
    seam: S,
    exports: Rc<dyn Exports<S>>,
    limits: Rc<SharedLimits>,
    /// The clients in the transmission phase, by client number.
    transmitting_clients: RefCell<BTreeMap<u64, TransmittingClient>>,
    /// Names of exports that admit no client, one for each [`ClosedExport`].
    closed_exports: RefCell<Vec<String>>,
    half_open: HandshakeConnections,
    stats: Cell<ServerStats>,
    is_stopping: Cell<bool>,
    /// Clients to be handed over to a successor.
    handed_over: RefCell<Vec<HandedOverClient<S>>>,
    listeners: RefCell<Vec<Rc<Control>>>,
}

/// The NBD server of one core. A clone is another handle to the same server.
pub struct Server<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for Server<S> {
    fn clone(&self) -> Self {
        Server(Rc::clone(&self.0))
    }
}

/// An export that admits no client until this is dropped ([`Server::close_export`]).
pub struct ClosedExport<S: Seam> {
    server: Server<S>,
    name: String,
}

impl<S: Seam> Drop for ClosedExport<S> {
    fn drop(&mut self) {
        let mut closed = self.server.0.closed_exports.borrow_mut();
        let index = closed.iter().position(|name| *name == self.name).expect("each closed export has an entry");
        closed.swap_remove(index);
    }
}

impl<S: Seam> Server<S> {
    /// A server for `exports`.
    pub fn new(seam: S, exports: impl Exports<S>, options: Options) -> Self {
        let half_open = HandshakeConnections::new(options.handshakes_max);
        let limits = Rc::new(SharedLimits::new(options, seam.blocks_total() * seam::BLOCK_BYTES));
        Server(Rc::new(Inner {
            seam,
            exports: Rc::new(exports),
            limits,
            transmitting_clients: RefCell::default(),
            closed_exports: RefCell::default(),
            half_open,
            stats: Cell::default(),
            is_stopping: Cell::new(false),
            handed_over: RefCell::default(),
            listeners: RefCell::default(),
        }))
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        ServerStats { connections: self.connections() as u64, ..self.0.stats.get() }
    }

    /// Number of clients of an export.
    pub fn clients_of(&self, export: &str) -> usize {
        self.0.transmitting_clients.borrow().values().filter(|client| client.export == export).count()
    }

    /// Number of clients of an export that [`Server::release`] would disconnect: they use TLS.
    pub fn fixed_clients_of(&self, export: &str) -> usize {
        let clients = self.0.transmitting_clients.borrow();
        clients.values().filter(|client| client.export == export && !client.can_be_handed_over).count()
    }

    /// Accepts connections from `listener`, a task each, until the server is stopped.
    pub async fn accept(&self, listener: S::Listener) {
        self.accept_from(listener, true).await;
    }

    /// Like [`Server::accept`], for a listener whose clients all run on this machine, and therefore do not outlive it.
    pub async fn accept_local(&self, listener: S::Listener) {
        self.accept_from(listener, false).await;
    }

    async fn accept_from(&self, listener: S::Listener, may_outlive_host: bool) {
        let control = Rc::new(Control::default());
        self.0.listeners.borrow_mut().push(Rc::clone(&control));
        while !self.0.is_stopping.get() {
            let accepted = control.until(std::future::pending(), listener.accept()).await;
            match accepted {
                Some(Ok(stream)) => {
                    let server = self.clone();
                    self.0.seam.spawn(async move { server.serve_from(stream, may_outlive_host).await });
                }
                Some(Err(_)) => self.0.seam.sleep(ACCEPT_PAUSE).await,
                None => break,
            }
        }
        drop(listener);
        self.0.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, &control));
    }

    /// Serves one connection of any origin to its end.
    pub async fn serve(&self, stream: S::Stream) {
        self.serve_from(stream, true).await;
    }

    async fn serve_from(&self, stream: S::Stream, may_outlive_host: bool) {
        let is_local = stream.local_address().is_none();
        let is_full = self.is_full(is_local);
        self.update_stats(|stats| if is_full { stats.refused += 1 } else { stats.accepted += 1 });
        if is_full || self.0.is_stopping.get() {
            return drop(stream.split());
        }
        let id = self.0.stats.get().accepted;
        self.serve_connection(stream, id, (is_local, may_outlive_host), &Rc::default()).await;
        self.remove_client(id);
    }

    /// True while no further client is accepted.
    fn is_full(&self, is_local: bool) -> bool {
        let options = &self.0.limits.options;
        let reserved_for_local = if is_local { 0 } else { options.local_connections.min(options.connections_max / 2) };
        self.0.limits.clients.count() >= options.connections_max - reserved_for_local
    }

    /// Current connections.
    fn connections(&self) -> usize {
        self.0.limits.clients.count() + self.0.half_open.count()
    }

    /// Takes over a client of a predecessor, or one from [`Server::release`], in a task of its own, or disconnects it.
    pub fn take_over(&self, client: HandedOverClient<S>) -> Result<(), TakeOverError> {
        let renewed = match self.0.is_stopping.get() {
            true => Err(TakeOverError::Stopping),
            false => client.terms.renew(&*self.0.exports),
        };
        let negotiated = match renewed {
            Ok(negotiated) => negotiated,
            Err(reason) => {
                drop(client.stream.split());
                return Err(reason);
            }
        };
        self.update_stats(|stats| stats.accepted += 1);
        let (server, id, control) = (self.clone(), self.0.stats.get().accepted, Rc::default());
        self.0.limits.clients.add(id, &control);
        self.0.seam.spawn(async move {
            let (reader, writer) = client.stream.split();
            let incoming = BufferedReader::new(reader, RECEIVE_BYTES);
            let unreported_loss = client.terms.unreported_loss;
            server.transmit_or_hand_over(negotiated, incoming, writer, (id, &control, unreported_loss)).await;
            server.remove_client(id);
        });
        Ok(())
    }

    fn remove_client(&self, id: u64) {
        self.0.transmitting_clients.borrow_mut().remove(&id);
        self.0.limits.clients.remove(id);
    }

    /// Admits no client of an export until the returned object is dropped: connections end after their handshake.
    /// Current clients stay.
    pub fn close_export(&self, name: &str) -> ClosedExport<S> {
        self.0.closed_exports.borrow_mut().push(name.to_owned());
        ClosedExport { server: self.clone(), name: name.to_owned() }
    }

    /// True if a client of this export is admitted: the export is not closed, and its volume was not replaced since the
    /// handshake.
    fn is_open(&self, negotiated: &Negotiated<S>) -> bool {
        let export = &negotiated.export;
        !self.0.closed_exports.borrow().contains(&export.name)
            && self.0.exports.find_by_id(export.volume.spec().volume_id).is_some()
    }

    /// Disconnects all current clients of an export and waits for their end: requests in flight are completed and
    /// answered, for at most `drain_timeout`. Clients that connect meanwhile stay.
    pub async fn disconnect(&self, export: &str, drain_timeout: Nanos) {
        self.stop_clients_of(export, Stop::Drain, drain_timeout).await;
    }

    /// Like [`Server::disconnect`], but returns the clients that [`Server::take_over`] can continue: their connections
    /// stay open, and their next requests wait. `volume_id` is the volume ID of the export.
    pub async fn release(&self, export: &str, volume_id: VolumeId, drain_timeout: Nanos) -> Vec<HandedOverClient<S>> {
        self.stop_clients_of(export, Stop::HandOver, drain_timeout).await;
        let mut handed_over = self.0.handed_over.borrow_mut();
        let (released, others) = handed_over.drain(..).partition(|client| client.terms.volume_id == volume_id);
        *handed_over = others;
        released
    }

    async fn stop_clients_of(&self, export: &str, stop: Stop, drain_timeout: Nanos) {
        let mut stopping = self.0.transmitting_clients.borrow().clone();
        stopping.retain(|_, client| client.export == export);
        let are_gone = || !stopping.keys().any(|number| self.0.limits.clients.has(*number));
        stopping.values().for_each(|client| client.control.request_stop(stop));
        let deadline = self.0.seam.now() + drain_timeout;
        while !are_gone() && self.0.seam.now() < deadline {
            self.0.seam.sleep(STOP_POLL).await;
        }
        stopping.values().for_each(|client| client.control.request_stop(Stop::Now));
        while !are_gone() {
            self.0.seam.sleep(STOP_POLL).await;
        }
    }

    /// Accepts no further client and disconnects all: requests in flight are completed and answered, for at most
    /// `drain_timeout`.
    pub async fn stop(&self, drain_timeout: Nanos) {
        self.shut_down(Stop::Drain, drain_timeout).await;
    }

    /// Like [`Server::stop`], but returns the clients that a successor can take over: clients without TLS in the
    /// transmission phase, whose partly sent requests are complete and whose replies have been received.
    pub async fn hand_over(&self, drain_timeout: Nanos) -> Vec<HandedOverClient<S>> {
        self.shut_down(Stop::HandOver, drain_timeout).await;
        self.0.handed_over.take()
    }

    async fn shut_down(&self, stop: Stop, drain_timeout: Nanos) {
        self.0.is_stopping.set(true);
        self.0.listeners.borrow().iter().for_each(|listener| listener.request_stop(Stop::Drain));
        let deadline = self.0.seam.now() + drain_timeout;
        // Clients in the handshake phase have no requests in flight.
        self.0.half_open.disconnect_all();
        self.0.limits.clients.request_stop_all(stop);
        while self.connections() > 0 && self.0.seam.now() < deadline {
            self.0.seam.sleep(STOP_POLL).await;
        }
        self.0.limits.clients.request_stop_all(Stop::Now);
        while self.connections() > 0 || !self.0.listeners.borrow().is_empty() {
            self.0.seam.sleep(STOP_POLL).await;
        }
    }

    async fn serve_connection(
        &self,
        stream: S::Stream,
        id: u64,
        (is_local, may_outlive_host): (bool, bool),
        control: &Rc<Control>,
    ) {
        let handshake_guard = self.0.half_open.enter(control, is_local);
        let (reader, mut writer) = stream.split();
        let mut incoming = BufferedReader::new(reader, HANDSHAKE_BYTES);
        let tls = self.0.limits.options.tls.clone();
        let deadline = self.0.seam.now() + self.0.limits.options.handshake_timeout;

        let offered = match &tls {
            None => TlsState::Off,
            Some(tls) if tls.is_required() => TlsState::Required,
            Some(_) => TlsState::Offered,
        };
        let negotiated = self.negotiate(&mut incoming, &mut writer, offered, &handshake_guard);
        let outcome = control.until(self.0.seam.sleep_until(deadline), negotiated).await;
        let (no_zeroes, outcome) = match outcome {
            Some(Ok(done)) => done,
            Some(Err(_)) | None => return self.update_stats(|stats| stats.failed_handshakes += 1),
        };
        let tls = match (outcome, tls) {
            (Outcome::Transmit(negotiated), _) => {
                if self.enter_transmission(handshake_guard, id, is_local, control) {
                    incoming.grow(RECEIVE_BYTES);
                    let unreported_loss = has_unreported_loss(&negotiated, may_outlive_host);
                    self.transmit_or_hand_over(negotiated, incoming, writer, (id, control, unreported_loss)).await;
                }
                return;
            }
            (Outcome::StartTls, Some(tls)) => tls,
            (Outcome::StartTls, None) | (Outcome::Closed, _) => return,
        };

        // Clear text received after the StartTls option must not be treated as TLS data.
        let Some(reader) = incoming.into_reader() else {
            return self.update_stats(|stats| stats.failed_handshakes += 1);
        };
        let tls_negotiation = async {
            let (reader, mut writer) = tls.accept(reader, writer).await?;
            let mut incoming = BufferedReader::new(reader, HANDSHAKE_BYTES);
            let exports = &*self.0.exports;
            let outcome =
                handshake::negotiate_options(&mut incoming, &mut writer, exports, no_zeroes, TlsState::On).await?;
            Ok::<_, HandshakeError>((outcome, incoming, writer))
        };
        match control.until(self.0.seam.sleep_until(deadline), tls_negotiation).await {
            Some(Ok((Outcome::Transmit(negotiated), mut incoming, writer))) => {
                if self.enter_transmission(handshake_guard, id, is_local, control) {
                    incoming.grow(RECEIVE_BYTES);
                    // A TLS connection cannot be handed over: the successor lacks the keys.
                    let unreported_loss = has_unreported_loss(&negotiated, may_outlive_host);
                    drop(self.transmit(negotiated, incoming, writer, (id, control, unreported_loss), false).await);
                }
            }
            Some(Ok(_)) => (),
            Some(Err(_)) | None => self.update_stats(|stats| stats.failed_handshakes += 1),
        }
    }

    /// Moves a connection from the handshake phase to the transmission phase, unless the limit of clients is reached.
    fn enter_transmission(
        &self,
        handshake_guard: HandshakeGuard<'_>,
        id: u64,
        is_local: bool,
        control: &Rc<Control>,
    ) -> bool {
        drop(handshake_guard);
        let is_admitted = !self.is_full(is_local);
        match is_admitted {
            true => self.0.limits.clients.add(id, control),
            false => self.update_stats(|stats| stats.refused += 1),
        }
        is_admitted
    }

    async fn negotiate<R: StreamReader<S>, W: StreamWriter<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        writer: &mut W,
        tls: TlsState,
        handshake_guard: &HandshakeGuard<'_>,
    ) -> Result<(bool, Outcome<S>), HandshakeError> {
        let no_zeroes = handshake::greet(incoming, writer).await?;
        handshake_guard.record_reply();
        Ok((no_zeroes, handshake::negotiate_options(incoming, writer, &*self.0.exports, no_zeroes, tls).await?))
    }

    async fn transmit<R: StreamReader<S>, W: StreamWriter<S>>(
        &self,
        negotiated: Negotiated<S>,
        incoming: BufferedReader<S, R>,
        writer: W,
        (id, control, unreported_loss): (u64, &Rc<Control>, bool),
        can_be_handed_over: bool,
    ) -> Option<(R, W, bool)> {
        if !self.is_open(&negotiated) {
            return None;
        }
        let (export, control) = (negotiated.export.name.clone(), Rc::clone(control));
        let client = TransmittingClient { export, control: Rc::clone(&control), can_be_handed_over };
        self.0.transmitting_clients.borrow_mut().insert(id, client);
        let limits = Rc::clone(&self.0.limits);
        let connection = Connection::new(self.0.seam.clone(), negotiated, control, limits, unreported_loss);
        let (reader, writer) = Rc::clone(&connection).run(incoming, writer).await?;
        Some((reader, writer, connection.has_unreported_loss()))
    }

    async fn transmit_or_hand_over(
        &self,
        negotiated: Negotiated<S>,
        incoming: BufferedReader<S, <S::Stream as ByteStream<S>>::Reader>,
        writer: <S::Stream as ByteStream<S>>::Writer,
        (id, control, unreported_loss): (u64, &Rc<Control>, bool),
    ) {
        let terms = negotiated.clone();
        let transmitted = self.transmit(negotiated, incoming, writer, (id, control, unreported_loss), true).await;
        let Some((reader, writer, unreported_loss)) = transmitted else { return };
        // The volume that serves the client may be another one than at the negotiation.
        let terms = NegotiatedTerms::of(&terms, unreported_loss);
        // If the halves cannot be joined again, the connection ends.
        if control.stop() == Stop::HandOver
            && let Ok(stream) = S::Stream::join(reader, writer)
        {
            self.0.handed_over.borrow_mut().push(HandedOverClient { stream, terms });
        }
    }

    fn update_stats(&self, change: impl FnOnce(&mut ServerStats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }
}

/// True if the client may have outlived a daemon whose acknowledged writes are lost. A new client cannot
/// be distinguished from one that reconnected, so both get the error.
fn has_unreported_loss<S: Seam>(negotiated: &Negotiated<S>, may_outlive_host: bool) -> bool {
    match negotiated.export.volume.spec().unflushed_loss {
        UnflushedLoss::None => false,
        UnflushedLoss::RemoteClients => may_outlive_host,
        UnflushedLoss::AllClients => true,
    }
}
