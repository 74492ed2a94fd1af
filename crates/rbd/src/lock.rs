//! Ownership of the image: its managed exclusive lock, which this process acquires once and never again.
//!
//! A predecessor is an earlier `hotset-rbd` of the same daemon that was killed. The daemon may still hold dirty data,
//! so the lock passes on only if no other client can have had it meanwhile: it must still be the predecessor's. The
//! cluster then blocks the predecessor's client, so that none of its writes in flight can land later.

use std::time::{Duration, Instant};

use rbd::Status;

use super::control::Control;
use super::ffi::{CephError, Image};

/// Time for which an occupied lock is waited for: a predecessor of the daemon that was just stopped still releases it.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Why the lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The image cannot be locked.
    #[error("the image has no exclusive lock; enable it with `rbd feature enable POOL/IMAGE exclusive-lock`")]
    NoFeature,
    /// Another client has the lock.
    #[error(
        "another client has the exclusive lock of the image: {0}. Two writers destroy its data: stop that client (a \
         virtual machine, another hotset, `rbd map`); `rbd status` and `rbd lock ls` list the clients"
    )]
    Owned(String),
    /// The lock of the predecessor is not there any more.
    #[error("the exclusive lock of the image was lost while its process was restarted: {0}")]
    LostInRestart(String),
    /// A call failed.
    #[error(transparent)]
    Ceph(#[from] CephError),
}

/// Acquires the lock, and returns its owner's address: this process. `predecessors` are the possible addresses of a
/// killed predecessor; empty at the first start.
pub fn acquire(image: &Image, predecessors: &[String], control: &Control) -> Result<String, LockError> {
    if !image.has_exclusive_lock()? {
        return Err(LockError::NoFeature);
    }
    if predecessors.is_empty() {
        wait_until_free(image, control)?
    } else {
        take_over(image, predecessors)?
    }
    control.send(&Status::Claiming(image.cluster().own_addresses()?));
    image.acquire_lock().map_err(|error| match error.errno {
        // The answer of an owner that does not hand its lock over.
        libc::EROFS => LockError::Owned(describe_owner(image)),
        _ => LockError::Ceph(error),
    })?;
    match image.lock_owner()? {
        Some(owner) if image.is_lock_owner()? => Ok(owner),
        owner => Err(LockError::Owned(owner.unwrap_or_else(|| "unknown".to_owned()))),
    }
}

/// Waits until no living client has the lock. The lock of a dead one is left to librbd, which blocks that client.
fn wait_until_free(image: &Image, control: &Control) -> Result<(), LockError> {
    let started_at = Instant::now();
    while let Some(owner) = image.lock_owner()? {
        let is_alive = image.watchers()?.iter().any(|watcher| watcher.address == owner);
        if !is_alive {
            return Ok(());
        }
        if started_at.elapsed() >= WAIT_MAX {
            return Err(LockError::Owned(describe_owner(image)));
        }
        control.send(&Status::Progress(format!("waiting for the exclusive lock of {owner}")));
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Breaks the lock of a killed predecessor.
fn take_over(image: &Image, predecessors: &[String]) -> Result<(), LockError> {
    match image.lock_owner()? {
        Some(owner) if predecessors.contains(&owner) => Ok(image.break_lock(&owner)?),
        Some(_) => Err(LockError::LostInRestart(format!("now {} has it", describe_owner(image)))),
        None => {
            Err(LockError::LostInRestart("no client has it, so another one may have had it and written".to_owned()))
        }
    }
}

/// The owner of the lock, for messages.
fn describe_owner(image: &Image) -> String {
    let Ok(Some(owner)) = image.lock_owner() else { return "unknown".to_owned() };
    let watchers = image.watchers().unwrap_or_default();
    let watcher = watchers.iter().find(|watcher| watcher.address == owner);
    watcher.map_or_else(|| owner.clone(), |watcher| format!("client.{} at {owner}", watcher.id))
}
