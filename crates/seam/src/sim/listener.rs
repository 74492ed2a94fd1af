//! Listeners, and the simulated network connections of their clients.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use super::SimSeam;
use super::disk_spec::Latency;
use super::stream::{Pipe, SimStream};
use super::world::{World, WorldState};
use crate::{Address, Listener, Nanos};

/// Behaviour of a world's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSpec {
    /// Time from a send to the arrival of each chunk; chunks of one direction never overtake each other.
    pub delay: Latency,
    /// A send arrives in chunks of random sizes up to this; [`usize::MAX`]: in one chunk.
    pub chunk_bytes_max: usize,
    /// Bytes in flight or unread in one direction, beyond which a send waits.
    pub window_bytes: usize,
}

impl Default for WireSpec {
    fn default() -> Self {
        WireSpec { delay: Latency::fixed(Nanos::from_micros(5)), chunk_bytes_max: usize::MAX, window_bytes: 256 << 10 }
    }
}

/// All listeners and connections of a world.
#[derive(Default)]
pub(super) struct Network {
    spec: Cell<WireSpec>,
    listeners: RefCell<BTreeMap<String, Rc<AcceptQueue>>>,
    /// Both directions of every connection, with the address that the client connected to.
    connections: RefCell<Vec<(String, [Weak<Pipe>; 2])>>,
}

/// Clients that have connected to a listener and are not yet accepted.
#[derive(Default)]
struct AcceptQueue {
    clients: RefCell<VecDeque<SimStream>>,
    /// Wakers of pending accepts.
    waiting: RefCell<Vec<Waker>>,
}

impl Network {
    /// Drops all connections and waiting clients at the end of the world.
    pub(super) fn clear(&self) {
        let connections = self.connections.take();
        connections.iter().flat_map(|(_, pipes)| pipes).filter_map(Weak::upgrade).for_each(|pipe| pipe.discard());
        let listeners = self.listeners.take();
        listeners.values().for_each(|queue| {
            drop(queue.clients.take());
            drop(queue.waiting.take());
        });
    }
}

/// A simulated listening socket.
pub struct SimListener {
    world: Rc<WorldState>,
    name: String,
    queue: Rc<AcceptQueue>,
}

impl Listener<SimSeam> for SimListener {
    async fn accept(&self) -> io::Result<SimStream> {
        let next = poll_fn(|context| {
            if let Some(stream) = self.queue.clients.borrow_mut().pop_front() {
                return Poll::Ready(stream);
            }
            self.queue.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        });
        Ok(next.await)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.network.listeners.borrow_mut().remove(&self.name);
        drop(self.queue.clients.take());
    }
}

pub(super) fn listen(world: &Rc<WorldState>, at: &Address) -> io::Result<SimListener> {
    let name = at.to_string();
    let mut listeners = world.network.listeners.borrow_mut();
    if listeners.contains_key(&name) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let queue = Rc::new(AcceptQueue::default());
    listeners.insert(name.clone(), Rc::clone(&queue));
    Ok(SimListener { world: Rc::clone(world), name, queue })
}

pub(super) async fn connect(world: &Rc<WorldState>, to: &Address) -> io::Result<SimStream> {
    let name = to.to_string();
    let spec = world.network.spec.get();
    let delay = world.wire_rng.between(spec.delay.min, spec.delay.max);
    super::timer::Sleep::new(Rc::clone(world), world.now() + delay).await;
    let queue = world.network.listeners.borrow().get(&name).cloned();
    let queue = queue.ok_or(io::ErrorKind::ConnectionRefused)?;
    let (to_server, to_client) = (Pipe::new(world, spec), Pipe::new(world, spec));
    let mut connections = world.network.connections.borrow_mut();
    connections.retain(|(_, pipes)| pipes.iter().any(|pipe| pipe.strong_count() > 0));
    connections.push((name, [Rc::downgrade(&to_server), Rc::downgrade(&to_client)]));
    drop(connections);
    queue.clients.borrow_mut().push_back(SimStream::new(Rc::clone(&to_server), Rc::clone(&to_client), to));
    queue.waiting.take().into_iter().for_each(Waker::wake);
    Ok(SimStream::new(to_client, to_server, to))
}

impl World {
    /// Changes the behaviour of future connections.
    pub fn set_wires(&self, spec: WireSpec) {
        assert!(spec.chunk_bytes_max > 0 && spec.window_bytes > 0, "a wire must carry at least one byte");
        self.shared.network.spec.set(spec);
    }

    /// Cuts every connection that was made to `to`, like a pulled cable: both sides get an error, unread bytes are
    /// lost.
    pub fn cut(&self, to: &Address) {
        let name = to.to_string();
        let pipes: Vec<Rc<Pipe>> = {
            let connections = self.shared.network.connections.borrow();
            connections
                .iter()
                .filter(|(at, _)| *at == name)
                .flat_map(|(_, pipes)| pipes)
                .filter_map(Weak::upgrade)
                .collect()
        };
        pipes.iter().for_each(|pipe| pipe.cut());
    }
}
