//! The connection of one front end: its setup, message by message.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use connection::{BufferAccount, Clients};
use engine::Volume;
use rustix::net::SendFlags;
use seam::real::FaultFlag;
use seam::{Bell, Seam};

use crate::config::{QUEUES_MAX, SPACE_BYTES, config_space, feature, field, offered_features};
use crate::device::Device;
use crate::inflight::{InflightArea, area_bytes, create_area};
use crate::memory::{DirtyLog, Memory, MemoryError, Region, RegionLayout};
use crate::message::{self, MEM_SLOTS, Message, Reply, VringFdKind, protocol};
use crate::payload_pool::{PayloadPool, UnfinishedCount, WakerList};
use crate::queue::{Addresses, Queue};

/// Maximum number of entries of a queue.
const QUEUE_SIZE_MAX: u32 = 1 << 15;

/// Converts a file descriptor to an eventfd of the real or the simulated seam.
pub type MakeEventfd = fn(OwnedFd) -> io::Result<Rc<dyn Bell>>;

/// State shared by the front ends of all volumes.
pub struct Shared {
    pub(crate) clients: Rc<Clients>,
    pub(crate) payload_pool: Rc<PayloadPool>,
    /// Generation of this daemon, higher than those of earlier ones.
    pub(crate) daemon_generation: u64,
}

impl Shared {
    /// Limits of a core; at most `payload_bytes` of write data wait for the engine. `daemon_generation` is
    /// higher than those of earlier daemons.
    pub fn new(limits: connection::Limits, pool_bytes: usize, payload_bytes: usize, daemon_generation: u64) -> Shared {
        let clients = Rc::new(Clients::new(limits, pool_bytes));
        Shared { clients, payload_pool: Rc::new(PayloadPool::new(payload_bytes)), daemon_generation }
    }
}

/// Inflight requests of one volume whose front ends have disconnected.
#[derive(Clone, Default)]
pub struct UnfinishedRequests(pub(crate) Rc<UnfinishedCount>);

/// One front end.
pub struct Session<S: Seam> {
    device: Rc<Device<S>>,
    queues: Vec<Rc<Queue<S>>>,
    /// Protocol features that the front end accepted.
    protocol_features: Cell<u64>,
    /// Generation of a daemon: writes acknowledged by daemons of lower generations may be lost.
    lost_before: u64,
    /// Channel for messages of the device.
    backend_channel: RefCell<Option<OwnedFd>>,
    make_eventfd: MakeEventfd,
}

/// Reason for refusing a well-formed message.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Queue index out of range.
    #[error("queue {0} does not exist: the limit is {QUEUES_MAX} queues")]
    Queue(u32),
    /// Invalid queue size.
    #[error("queue size {0} is not a power of two up to {QUEUE_SIZE_MAX}")]
    Size(u32),
    /// Features that are not offered.
    #[error("features {0:#x} are not offered")]
    Features(u64),
    /// A message that needs a feature that is not negotiated.
    #[error("{0} was not negotiated")]
    NotNegotiated(&'static str),
    /// A change that is not possible while queues run.
    #[error("{0} cannot change while the queue is served")]
    Served(&'static str),
    /// Range of the configuration space out of bounds or read-only.
    #[error("{1} bytes of the configuration space at {0} are out of bounds or read-only")]
    Config(u32, usize),
    /// A queue without a kick eventfd, which would need polling.
    #[error("a queue without an eventfd for kicks is not served")]
    NoKick,
    /// A file descriptor that is not an eventfd.
    #[error("the descriptor of a kick, call or error notification is not an eventfd: {0}")]
    Eventfd(io::Error),
    /// Memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Inflight memory cannot be created.
    #[error("memory for inflight requests cannot be created: {0}")]
    Inflight(io::Error),
}

impl<S: Seam> Session<S> {
    /// A new front end of `volume`. `lost_before`: writes acknowledged by daemons of lower generations may be lost.
    pub fn new(
        seam: S,
        volume: Volume<S>,
        shared: &Shared,
        unfinished_requests: &UnfinishedRequests,
        lost_before: u64,
        make_eventfd: MakeEventfd,
    ) -> Session<S> {
        let device = Rc::new(Device {
            seam,
            volume,
            memory: RefCell::default(),
            dirty_log: RefCell::default(),
            features: Cell::default(),
            inflight_area: RefCell::default(),
            has_lost_writes: Cell::default(),
            daemon_generation: shared.daemon_generation,
            write_through: Cell::default(),
            clients: shared.clients.clone(),
            buffer_account: BufferAccount::new(&shared.clients),
            payload_pool: shared.payload_pool.clone(),
            unfinished_requests: unfinished_requests.0.clone(),
            fault: FaultFlag::default(),
            lost_memory: WakerList::default(),
            has_ended: Cell::default(),
        });
        let queues = (0..QUEUES_MAX).map(|_| Queue::new(device.clone())).collect();
        Session {
            device,
            queues,
            protocol_features: Default::default(),
            lost_before,
            backend_channel: Default::default(),
            make_eventfd,
        }
    }

    fn queue(&self, index: u32) -> Result<&Rc<Queue<S>>, Refused> {
        self.queues.get(index as usize).ok_or(Refused::Queue(index))
    }

    fn check_negotiated(&self, feature: u64, name: &'static str) -> Result<(), Refused> {
        if self.protocol_features.get() & feature != 0 { Ok(()) } else { Err(Refused::NotNegotiated(name)) }
    }

    /// True if the front end may request an acknowledgement of each message.
    pub fn supports_acknowledgements(&self) -> bool {
        self.protocol_features.get() & protocol::REPLY_ACK != 0
    }

    /// Handles a message. Once `stop_now` is true, it no longer waits for inflight requests.
    pub async fn handle(&self, message: Message, stop_now: impl Fn(&Context<'_>) -> bool) -> Result<Reply, Refused> {
        let device = &self.device;
        match message {
            Message::GetFeatures => return Ok(Reply::U64(offered_features(device.volume.spec().read_only))),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetOwner | Message::SetLogFd => {}
            Message::Reset => {
                self.stop(&stop_now).await;
                device.write_through.set(false);
            }
            Message::SetMemTable(list) => {
                let regions = list.into_iter().map(|(layout, file)| Region::map(layout, file, &device.fault));
                self.set_memory(Memory::new(regions.collect::<Result<_, _>>()?)?);
            }
            Message::AddMemReg(layout, file) => {
                self.check_negotiated(protocol::CONFIGURE_MEM_SLOTS, "adding and removing memory regions")?;
                self.set_memory(device.memory().with(Region::map(layout, file, &device.fault)?)?);
            }
            Message::RemMemReg(layout) => {
                self.check_negotiated(protocol::CONFIGURE_MEM_SLOTS, "adding and removing memory regions")?;
                self.remove_memory(layout)?;
            }
            Message::GetMaxMemSlots => return Ok(Reply::U64(MEM_SLOTS)),
            Message::SetLogBase { len, offset, file } => {
                self.check_negotiated(protocol::LOG_SHMFD, "a shared dirty log")?;
                *device.dirty_log.borrow_mut() = Some(Rc::new(DirtyLog::map(file, offset, len, &device.fault)?));
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
            Message::SetVringAddr { index, is_logged, descriptor_table, used, available, log } => {
                let queue = self.queue(index)?;
                let logged_at = is_logged.then_some(log);
                let old = queue.addresses.get();
                let is_moved = (old.descriptor_table, old.used, old.available) != (descriptor_table, used, available);
                if queue.is_running() && is_moved {
                    return Err(Refused::Served("the addresses of a queue"));
                }
                queue.addresses.set(Addresses { descriptor_table, available, used, logged_at });
            }
            Message::SetVringBase { index, base } => {
                let queue = self.queue(index)?;
                if queue.is_running() {
                    return Err(Refused::Served("the first index of a queue"));
                }
                queue.base.set(base as u16);
            }
            Message::GetVringBase { index } => {
                let base = self.queue(index)?.stop(&stop_now).await;
                return Ok(Reply::VringState { index, base: u32::from(base) });
            }
            Message::SetVringFd { kind, index, fd } => self.set_vring_fd(kind, index, fd)?,
            Message::GetProtocolFeatures => return Ok(Reply::U64(protocol::OFFERED)),
            Message::SetProtocolFeatures(features) if features & !protocol::OFFERED != 0 => {
                return Err(Refused::Features(features & !protocol::OFFERED));
            }
            Message::SetProtocolFeatures(features) => self.protocol_features.set(features),
            Message::GetQueueNum => return Ok(Reply::U64(QUEUES_MAX as u64)),
            Message::SetVringEnable { index, enabled } => {
                let queue = self.queue(index)?;
                queue.enabled.set(enabled);
                queue.wake();
            }
            Message::SetBackendReqFd(socket) => {
                self.check_negotiated(protocol::BACKEND_REQ, "the back-end request channel")?;
                *self.backend_channel.borrow_mut() = Some(socket);
            }
            Message::GetConfig { offset, len } => return self.config(offset, len as usize),
            Message::SetConfig { offset, bytes } => self.set_config(offset, &bytes)?,
            Message::GetInflightFd { queues, size } => {
                self.check_negotiated(protocol::INFLIGHT_SHMFD, "shared inflight memory")?;
                if usize::from(queues) > QUEUES_MAX || !size.is_power_of_two() {
                    return Err(Refused::Size(size.into()));
                }
                let file = create_area(queues, size).map_err(|error| Refused::Inflight(error.into()))?;
                return Ok(Reply::Inflight { len: area_bytes(queues, size), queues, size, file });
            }
            Message::SetInflightFd { len, offset, queues, size, file } => {
                self.check_negotiated(protocol::INFLIGHT_SHMFD, "shared inflight memory")?;
                if self.queues.iter().any(|queue| queue.is_running()) {
                    return Err(Refused::Served("the inflight memory"));
                }
                let area = InflightArea::map(file, (offset, len), (queues, size), &device.fault)?;
                device.set_inflight_area(area, self.lost_before);
            }
        }
        Ok(Reply::Done)
    }

    fn set_features(&self, requested: u64) -> Result<(), Refused> {
        let device = &self.device;
        let not_offered = requested & !offered_features(device.volume.spec().read_only);
        if not_offered != 0 {
            return Err(Refused::Features(not_offered));
        }
        device.features.set(requested);
        // Without protocol features a queue is enabled from the start.
        if requested & feature::PROTOCOL_FEATURES == 0 {
            self.queues.iter().for_each(|queue| queue.enabled.set(true));
        }
        if requested & feature::LOG_ALL == 0 {
            device.dirty_log.take();
        }
        Ok(())
    }

    fn set_memory(&self, memory: Memory) {
        *self.device.memory.borrow_mut() = Rc::new(memory);
        self.queues.iter().for_each(|queue| queue.remap());
    }

    fn remove_memory(&self, layout: RegionLayout) -> Result<(), Refused> {
        self.set_memory(self.device.memory().without(layout)?);
        Ok(())
    }

    fn set_vring_fd(&self, kind: VringFdKind, index: u32, fd: Option<OwnedFd>) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        let eventfd = fd.map(self.make_eventfd).transpose().map_err(Refused::Eventfd)?;
        match kind {
            VringFdKind::Call => *queue.call.borrow_mut() = eventfd,
            VringFdKind::Err => *queue.err.borrow_mut() = eventfd,
            VringFdKind::Kick => {
                let area = self.device.inflight_area.borrow();
                let inflight = area.as_ref().and_then(|area| area.queue(index as usize, queue.size.get()));
                queue.start(eventfd.ok_or(Refused::NoKick)?, inflight);
            }
        }
        Ok(())
    }

    fn config(&self, offset: u32, len: usize) -> Result<Reply, Refused> {
        let space = config_space(&self.device.volume, !self.device.write_through.get());
        let end = (offset as usize).checked_add(len).filter(|end| *end <= SPACE_BYTES);
        let end = end.ok_or(Refused::Config(offset, len))?;
        Ok(Reply::Config { offset, bytes: space[offset as usize..end].to_vec() })
    }

    fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), Refused> {
        let (field::WRITEBACK, [value @ (0 | 1)]) = (offset as usize, bytes) else {
            return Err(Refused::Config(offset, bytes.len()));
        };
        let write_through = *value == 0;
        self.device.write_through.set(write_through);
        if let Some(area) = &*self.device.inflight_area.borrow() {
            area.set_write_through(write_through);
        }
        Ok(())
    }

    /// Notifies the front end of the volume's new size, if it has opened a channel.
    pub fn notify_resize(&self) {
        if let Some(socket) = &*self.backend_channel.borrow() {
            // A front end that does not read the channel gets the size from the configuration space.
            let _ = rustix::net::send(
                socket.as_fd(),
                &message::config_changed(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
    }

    /// Stops all queues and waits for inflight requests, unless `stop_now` is true.
    pub async fn stop(&self, stop_now: impl Fn(&Context<'_>) -> bool) {
        for queue in &self.queues {
            queue.stop(&stop_now).await;
        }
    }

    /// True once a page of the front end's memory is missing.
    pub fn has_lost_memory(&self) -> bool {
        self.device.fault.is_set()
    }

    /// Waits until a page of the front end's memory is missing.
    pub async fn wait_for_lost_memory(&self) {
        poll_fn(|context| match self.device.fault.is_set() {
            true => Poll::Ready(()),
            false => {
                self.device.lost_memory.register(context);
                Poll::Pending
            }
        })
        .await;
    }

    /// Errors of stopped queues, with the queue index.
    pub fn broken_queues(&self) -> impl Iterator<Item = (usize, crate::QueueError)> {
        self.queues.iter().enumerate().filter_map(|(index, queue)| Some((index, queue.broken()?)))
    }
}

impl<S: Seam> Drop for Session<S> {
    /// Ends all access to the guest's memory; new front ends wait for the inflight requests.
    fn drop(&mut self) {
        let device = &self.device;
        device.unfinished_requests.add(self.queues.iter().map(|queue| queue.in_flight_count()).sum());
        device.has_ended.set(true);
        self.queues.iter().for_each(|queue| queue.abandon());
        device.buffer_account.end();
        device.payload_pool.wake();
    }
}
