//! One front end: what it has told of its guest, message by message.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use engine::Volume;
use front::{Account, Clients};
use rustix::net::SendFlags;
use seam::real::FaultFlag;
use seam::{Bell, Seam};

use crate::config::{QUEUES_MAX, SPACE_BYTES, WRITE_CACHE_AT, feature, features, space};
use crate::device::Device;
use crate::inflight::{Area, area_bytes, make_area};
use crate::memory::{DirtyLog, Memory, MemoryError, Place, Region};
use crate::message::{self, MEM_SLOTS, Message, Reply, Which, protocol};
use crate::queue::{Addresses, Queue};
use crate::room::{Orphans, Room, Waiting};

/// Entries that a queue may have.
const QUEUE_SIZE_MAX: u32 = 1 << 15;

/// How a descriptor becomes a bell: by the world that it comes from.
pub type MakeBell = fn(OwnedFd) -> io::Result<Rc<dyn Bell>>;

/// What all front ends of a volume share with those of others.
pub struct Shared {
    pub(crate) clients: Rc<Clients>,
    pub(crate) room: Rc<Room>,
    /// The number of this daemon; earlier ones had lower numbers.
    pub(crate) daemon: u64,
}

impl Shared {
    /// For a core with such limits; `payload_bytes` of writes wait for the engine at most. `daemon` is a number above those that earlier ones had.
    pub fn new(limits: front::Limits, pool_bytes: usize, payload_bytes: usize, daemon: u64) -> Shared {
        let clients = Rc::new(Clients::new(limits, pool_bytes));
        Shared { clients, room: Rc::new(Room::new(payload_bytes)), daemon }
    }
}

/// What the front ends of one volume leave behind.
#[derive(Clone, Default)]
pub struct Left(pub(crate) Rc<Orphans>);

/// One front end.
pub struct Session<S: Seam> {
    device: Rc<Device<S>>,
    queues: Vec<Rc<Queue<S>>>,
    protocol: Cell<u64>,
    /// What daemons of lower numbers acknowledged may be lost.
    lost_before: u64,
    /// Where the device speaks first.
    own_socket: RefCell<Option<OwnedFd>>,
    make_bell: MakeBell,
}

/// A message that is well formed and cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A queue that there is not.
    #[error("there is no queue {0}: a driver may use {QUEUES_MAX}")]
    Queue(u32),
    /// Entries that a queue cannot have.
    #[error("a queue of {0} entries: it has a power of two, {QUEUE_SIZE_MAX} at most")]
    Size(u32),
    /// Features that were not offered.
    #[error("features {0:#x} were never offered")]
    Features(u64),
    /// A message that wants a feature that was not agreed on.
    #[error("{0} was not agreed on")]
    NotAgreed(&'static str),
    /// What is not possible while queues are served.
    #[error("{0} cannot change while the queue is served")]
    Served(&'static str),
    /// The part of the configuration that is named cannot be read or written.
    #[error("{1} bytes of the configuration space at {0} are none that can be had or changed")]
    Config(u32, usize),
    /// A queue without its bell would have to be looked at all the time.
    #[error("a queue without an eventfd for its kicks is not served")]
    NoKick,
    /// A descriptor that is no bell.
    #[error("a bell is no eventfd: {0}")]
    Bell(io::Error),
    /// Memory that cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory for what is under way cannot be made.
    #[error("memory for what is under way cannot be made: {0}")]
    Inflight(io::Error),
}

impl<S: Seam> Session<S> {
    /// A front end of `volume` that has said nothing yet. `lost_before`: what daemons of lower numbers acknowledged may be
    /// lost.
    pub fn new(
        seam: S,
        volume: Volume<S>,
        shared: &Shared,
        left: &Left,
        lost_before: u64,
        make_bell: MakeBell,
    ) -> Session<S> {
        let device = Rc::new(Device {
            seam,
            volume,
            memory: RefCell::default(),
            log: RefCell::default(),
            features: Cell::default(),
            area: RefCell::default(),
            in_doubt: Cell::default(),
            daemon: shared.daemon,
            write_through: Cell::default(),
            clients: shared.clients.clone(),
            account: Account::new(&shared.clients),
            room: shared.room.clone(),
            orphans: left.0.clone(),
            fault: FaultFlag::default(),
            lost_memory: Waiting::default(),
            has_ended: Cell::default(),
        });
        let queues = (0..QUEUES_MAX).map(|_| Queue::new(device.clone())).collect();
        let (protocol, own_socket) = Default::default();
        Session { device, queues, protocol, lost_before, own_socket, make_bell }
    }

    fn queue(&self, index: u32) -> Result<&Rc<Queue<S>>, Refused> {
        self.queues.get(index as usize).ok_or(Refused::Queue(index))
    }

    fn agreed(&self, feature: u64, name: &'static str) -> Result<(), Refused> {
        if self.protocol.get() & feature != 0 { Ok(()) } else { Err(Refused::NotAgreed(name)) }
    }

    /// True when the front end may ask for a word to each message.
    pub fn acknowledges(&self) -> bool {
        self.protocol.get() & protocol::REPLY_ACK != 0
    }

    /// Does what a message asks. `hurry` ends waits for what is under way.
    pub async fn handle(&self, message: Message, hurry: impl Fn(&Context<'_>) -> bool) -> Result<Reply, Refused> {
        let device = &self.device;
        match message {
            Message::GetFeatures => return Ok(Reply::U64(features(device.volume.spec().read_only))),
            Message::SetFeatures(wanted) => self.set_features(wanted)?,
            Message::SetOwner | Message::SetLogFd => {}
            Message::Reset => {
                self.stop(&hurry).await;
                device.write_through.set(false);
            }
            Message::SetMemTable(list) => {
                let regions = list.into_iter().map(|(place, file)| Region::map(place, file, &device.fault));
                self.set_memory(Memory::new(regions.collect::<Result<_, _>>()?)?);
            }
            Message::AddMemReg(place, file) => {
                self.agreed(protocol::CONFIGURE_MEM_SLOTS, "memory region by region")?;
                self.set_memory(device.memory().with(Region::map(place, file, &device.fault)?)?);
            }
            Message::RemMemReg(place) => {
                self.agreed(protocol::CONFIGURE_MEM_SLOTS, "memory region by region")?;
                self.remove_memory(place)?;
            }
            Message::GetMaxMemSlots => return Ok(Reply::U64(MEM_SLOTS)),
            Message::SetLogBase { len, offset, file } => {
                self.agreed(protocol::LOG_SHMFD, "a shared log of dirty memory")?;
                *device.log.borrow_mut() = Some(Rc::new(DirtyLog::map(file, offset, len, &device.fault)?));
                return Ok(Reply::Log);
            }
            Message::SetVringNum { index, size } => {
                let queue = self.queue(index)?;
                if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
                    return Err(Refused::Size(size));
                }
                if queue.is_running() {
                    return Err(Refused::Served("the size of a queue"));
                }
                queue.size.set(size as u16);
            }
            Message::SetVringAddr { index, is_logged, descriptors, used, available, log } => {
                let queue = self.queue(index)?;
                let logged_at = is_logged.then_some(log);
                let old = queue.addresses.get();
                let moves = (old.descriptors, old.used, old.available) != (descriptors, used, available);
                if queue.is_running() && moves {
                    return Err(Refused::Served("the place of a queue"));
                }
                queue.addresses.set(Addresses { descriptors, available, used, logged_at });
            }
            Message::SetVringBase { index, base } => {
                let queue = self.queue(index)?;
                if queue.is_running() {
                    return Err(Refused::Served("where a queue begins"));
                }
                queue.base.set(base as u16);
            }
            Message::GetVringBase { index } => {
                let base = self.queue(index)?.stop(&hurry).await;
                return Ok(Reply::VringState { index, base: u32::from(base) });
            }
            Message::SetVringBell { which, index, fd } => self.set_bell(which, index, fd)?,
            Message::GetProtocolFeatures => return Ok(Reply::U64(protocol::OFFERED)),
            Message::SetProtocolFeatures(wanted) if wanted & !protocol::OFFERED != 0 => {
                return Err(Refused::Features(wanted & !protocol::OFFERED));
            }
            Message::SetProtocolFeatures(wanted) => self.protocol.set(wanted),
            Message::GetQueueNum => return Ok(Reply::U64(QUEUES_MAX as u64)),
            Message::SetVringEnable { index, enabled } => {
                let queue = self.queue(index)?;
                queue.enabled.set(enabled);
                queue.wake();
            }
            Message::SetBackendReqFd(socket) => {
                self.agreed(protocol::BACKEND_REQ, "that the device speaks first")?;
                *self.own_socket.borrow_mut() = Some(socket);
            }
            Message::GetConfig { offset, len } => return self.config(offset, len as usize),
            Message::SetConfig { offset, bytes } => self.set_config(offset, &bytes)?,
            Message::GetInflightFd { queues, size } => {
                self.agreed(protocol::INFLIGHT_SHMFD, "that what is under way is kept")?;
                if usize::from(queues) > QUEUES_MAX || !size.is_power_of_two() {
                    return Err(Refused::Size(size.into()));
                }
                let file = make_area(queues, size).map_err(|error| Refused::Inflight(error.into()))?;
                return Ok(Reply::Inflight { len: area_bytes(queues, size), queues, size, file });
            }
            Message::SetInflightFd { len, offset, queues, size, file } => {
                self.agreed(protocol::INFLIGHT_SHMFD, "that what is under way is kept")?;
                if self.queues.iter().any(|queue| queue.is_running()) {
                    return Err(Refused::Served("the memory for what is under way"));
                }
                let area = Area::map(file, (offset, len), (queues, size), &device.fault)?;
                device.adopt(area, self.lost_before);
            }
        }
        Ok(Reply::Done)
    }

    fn set_features(&self, wanted: u64) -> Result<(), Refused> {
        let device = &self.device;
        let unknown = wanted & !features(device.volume.spec().read_only);
        if unknown != 0 {
            return Err(Refused::Features(unknown));
        }
        device.features.set(wanted);
        // Without the protocol's own features queues are served as soon as they have a bell.
        if wanted & feature::PROTOCOL == 0 {
            self.queues.iter().for_each(|queue| queue.enabled.set(true));
        }
        if wanted & feature::LOG_ALL == 0 {
            device.log.take();
        }
        Ok(())
    }

    fn set_memory(&self, memory: Memory) {
        *self.device.memory.borrow_mut() = Rc::new(memory);
        self.queues.iter().for_each(|queue| queue.remap());
    }

    fn remove_memory(&self, place: Place) -> Result<(), Refused> {
        self.set_memory(self.device.memory().without(place)?);
        Ok(())
    }

    fn set_bell(&self, which: Which, index: u32, fd: Option<OwnedFd>) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        let bell = fd.map(self.make_bell).transpose().map_err(Refused::Bell)?;
        match which {
            Which::Call => *queue.call.borrow_mut() = bell,
            Which::Err => *queue.err.borrow_mut() = bell,
            Which::Kick => {
                let area = self.device.area.borrow();
                let inflight = area.as_ref().and_then(|area| area.queue(index as usize, queue.size.get()));
                queue.start(bell.ok_or(Refused::NoKick)?, inflight);
            }
        }
        Ok(())
    }

    fn config(&self, offset: u32, len: usize) -> Result<Reply, Refused> {
        let space = space(&self.device.volume, !self.device.write_through.get());
        let end = (offset as usize).checked_add(len).filter(|end| *end <= SPACE_BYTES);
        let end = end.ok_or(Refused::Config(offset, len))?;
        Ok(Reply::Config { offset, bytes: space[offset as usize..end].to_vec() })
    }

    fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), Refused> {
        let (WRITE_CACHE_AT, [value @ (0 | 1)]) = (offset as usize, bytes) else {
            return Err(Refused::Config(offset, bytes.len()));
        };
        let write_through = *value == 0;
        self.device.write_through.set(write_through);
        if let Some(area) = &*self.device.area.borrow() {
            area.set_write_through(write_through);
        }
        Ok(())
    }

    /// Tells the front end that the volume has another size, if it wants to know.
    pub fn tell_size(&self) {
        if let Some(socket) = &*self.own_socket.borrow() {
            // A front end that does not listen finds the size when it asks.
            let _ = rustix::net::send(
                socket.as_fd(),
                &message::config_changed(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
    }

    /// Takes nothing more from any queue, and waits for what is under way unless `hurry` says not to.
    pub async fn stop(&self, hurry: impl Fn(&Context<'_>) -> bool) {
        for queue in &self.queues {
            queue.stop(&hurry).await;
        }
    }

    /// True once a page of the memory that it shares could not be had.
    pub fn has_lost_memory(&self) -> bool {
        self.device.fault.is_set()
    }

    /// Returns once a page of the memory that it shares could not be had.
    pub async fn lost_memory(&self) {
        poll_fn(|context| match self.device.fault.is_set() {
            true => Poll::Ready(()),
            false => {
                self.device.lost_memory.register(context);
                Poll::Pending
            }
        })
        .await;
    }

    /// What drivers did that no driver may, and in which queue.
    pub fn broken(&self) -> impl Iterator<Item = (usize, crate::Broken)> {
        self.queues.iter().enumerate().filter_map(|(index, queue)| Some((index, queue.broken()?)))
    }
}

impl<S: Seam> Drop for Session<S> {
    /// The front end has gone: its guest's memory is not touched any more, and who comes next waits for what is under way.
    fn drop(&mut self) {
        let device = &self.device;
        device.orphans.add(self.queues.iter().map(|queue| queue.under_way()).sum());
        device.has_ended.set(true);
        self.queues.iter().for_each(|queue| queue.abandon());
        device.account.end();
        device.room.wake();
    }
}
