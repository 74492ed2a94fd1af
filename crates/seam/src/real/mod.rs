//! The real world: io_uring through compio, direct I/O, aligned pooled buffers, and one single-threaded core per
//! thread.
//!
//! [`run_core`] turns a thread into a core. Only messages of [`crate::mailbox`] leave a core's thread.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "here the seam meets the operating system")]

mod bell;
mod block;
mod claims;
mod core;
mod descriptor_shortage;
mod disk;
mod disk_open;
mod fault;
mod file_identity;
mod footprint;
mod huge_pages;
mod inherited;
mod listen;
mod local_time;
mod op;
mod path_call;
mod path_target;
mod permits;
mod persist;
mod pool;
mod preallocate;
mod self_connection;
mod signals;
mod spin;
mod storage_use;
mod stream;
mod submitter;

use std::io;
use std::rc::Rc;

pub use self::bell::{RealBell, check_eventfd};
pub use self::block::{RealBlock, RealBlockMut};
pub use self::core::{DRAIN_TIMEOUT, RealCoreSpec, SPIN_NS, run_core};
pub use self::descriptor_shortage::{count_accept_error, descriptor_shortages};
pub use self::disk::RealDisk;
pub use self::disk_open::report_lock_waits;
pub use self::fault::{FaultFlag, FaultGuard, GUARDS_MAX};
pub use self::footprint::KernelNbdDevice;
pub use self::inherited::take_inherited;
pub use self::listen::RealListener;
pub use self::local_time::LocalTime;
pub use self::path_call::{CallState, PATH_TIMEOUT, PathCall, PathHung};
pub use self::path_target::{PathTarget, resolve_links};
pub use self::persist::{PersistFile, PersistedPool, PersistedPoolError, tmpfs_free_bytes};
pub use self::self_connection::has_client;
pub use self::signals::{Signal, apply_default_action, block_signals, exit_now, wait_for_signal};
pub use self::storage_use::{find_shared_storage, mount_point_on};
pub use self::stream::{RealReader, RealStream, RealWriter};
use crate::{Address, BlockTag, DiskOpen, DiskResult, Nanos, RangeTag, Seam};

/// Reason why a core cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// The kernel or a sandbox refuses io_uring.
    #[error(
        "io_uring is forbidden here ({error}): allow it with `sysctl kernel.io_uring_disabled=0`; in a container also \
         let the seccomp profile pass io_uring_setup, io_uring_enter and io_uring_register (Docker and Podman: \
         `--security-opt seccomp=PROFILE.json` or, to try, `--security-opt seccomp=unconfined`; systemd: \
         `SystemCallFilter=@io-event`)"
    )]
    IoUringForbidden {
        /// Error of the kernel.
        error: io::Error,
    },
    /// The kernel is too old.
    #[error("io_uring lacks required features ({error}): Linux 6.1 or newer is required")]
    IoUringTooOld {
        /// Error of the kernel.
        error: io::Error,
    },
    /// The ring could not be created because a limit is reached.
    #[error(
        "cannot set up io_uring ({error}): check the limits on locked memory (`ulimit -l`) and open files (`ulimit -n`)"
    )]
    IoUringLimits {
        /// Error of the kernel.
        error: io::Error,
    },
    /// The pool's address space could not be reserved.
    #[error("cannot reserve {bytes} bytes for the memory cache ({error}): lower [memory] size, or raise `ulimit -v`")]
    Memory {
        /// Requested bytes.
        bytes: usize,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The file for persisted memory could not be created.
    #[error("cannot make {} for the memory cache ({error}): see [memory] file", path.display())]
    PersistFile {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The thread could not be pinned to its processor.
    #[error("cannot run on processor {cpu} ({error}): specify one in `cores` that this process may use, or \"auto\"")]
    Pin {
        /// Number of the processor.
        cpu: usize,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl RealError {
    fn io_uring(error: io::Error) -> RealError {
        match error.raw_os_error() {
            // A seccomp profile returns EPERM or ENOSYS, the sysctl EPERM, and a kernel without io_uring ENOSYS.
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => RealError::IoUringForbidden { error },
            Some(libc::EINVAL) => RealError::IoUringTooOld { error },
            _ if error.kind() == io::ErrorKind::Unsupported => RealError::IoUringTooOld { error },
            _ => RealError::IoUringLimits { error },
        }
    }
}

/// A handle to the core of this thread.
#[derive(Clone)]
pub struct RealSeam {
    core: Rc<core::Core>,
}

impl Seam for RealSeam {
    type Block = RealBlock;
    type BlockMut = RealBlockMut;
    type Disk = RealDisk;
    type Stream = RealStream;
    type Listener = RealListener;

    fn now(&self) -> Nanos {
        core::now()
    }

    async fn sleep_until(&self, at: Nanos) {
        compio::runtime::time::sleep_until(core::instant(at)).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.core.spawn(task);
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return std::task::Poll::Ready(());
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }

    fn random(&self) -> u64 {
        self.core.random()
    }

    fn spend(&self, _: Nanos) {}

    #[inline]
    fn alloc(&self) -> Option<RealBlockMut> {
        self.core.pool.alloc()
    }

    fn blocks_free(&self) -> usize {
        self.core.pool.free()
    }

    fn blocks_total(&self) -> usize {
        self.core.pool.total()
    }

    fn zero_block(&self) -> RealBlock {
        self.core.pool.zero_block()
    }

    #[inline]
    fn survives_restart(&self) -> bool {
        self.core.pool.file().is_some()
    }

    #[inline]
    fn tag(&self, block: &RealBlock, tag: BlockTag) -> u64 {
        self.core.pool.file().map_or(0, |file| file.tag(block.index(), tag))
    }

    #[inline]
    fn tag_of(&self, block: &RealBlock) -> u64 {
        self.core.pool.file().map_or(0, |file| file.tag_of(block.index()))
    }

    #[inline]
    fn untag(&self, block: &RealBlock, number: u64) {
        if let Some(file) = self.core.pool.file() {
            file.untag(block.index(), number);
        }
    }

    fn tag_range(&self, tag: RangeTag) -> Option<u32> {
        self.core.pool.file().and_then(|file| file.tag_range(tag))
    }

    fn untag_range(&self, index: u32) {
        if let Some(file) = self.core.pool.file() {
            file.untag_range(index);
        }
    }

    async fn open_disk(&self, spec: &DiskOpen) -> DiskResult<RealDisk> {
        RealDisk::open_within(self, spec, PATH_TIMEOUT).await
    }

    async fn connect(&self, to: &Address) -> io::Result<RealStream> {
        stream::connect(to).await
    }

    async fn listen(&self, at: &Address) -> io::Result<RealListener> {
        listen::listen(at).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_ring_names_the_required_permissions() {
        let text = |errno| RealError::io_uring(io::Error::from_raw_os_error(errno)).to_string();
        for errno in [libc::EPERM, libc::ENOSYS] {
            let text = text(errno);
            assert!(["kernel.io_uring_disabled=0", "--security-opt seccomp="].iter().all(|part| text.contains(part)));
        }
        assert!(text(libc::EINVAL).contains("Linux 6.1"));
        assert!(text(libc::ENOMEM).contains("ulimit -l"));
    }
}
