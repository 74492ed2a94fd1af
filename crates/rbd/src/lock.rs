//! Ownership of the image: its managed exclusive lock, which this process acquires once and never again, and the record
//! of the owner in the image's metadata.
//!
//! The helpers of one daemon must continue one lineage ([`owner_record`](super::owner_record)): the daemon holds dirty
//! data, which must not overwrite what another client has written meanwhile. The lock of a predecessor is broken, which
//! first blocks its client in the cluster: none of its writes in flight can land later.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rbd::{Claim, Expected, LEASE, Mark, Purpose, Release, StandbyReport, Status, boot_ms, show_mark_id};

use super::control::Control;
use super::destaged::{is_destaged, record_destaged};
use super::ffi::{CephError, Image};
use super::image_owner::ImageOwner;
use super::lease::Lease;
use super::locality::Locality;
use super::owner_record::{
    ACQUISITION_MAX, CLIENTS_WAIT_MAX, Interruption, KnownRecord, OwnerRecord, Sighting, continues, has_owner_lock,
    is_free, is_handed_over, is_undisturbed, living_owner, released_version, stranger,
};
use super::record_file::RecordFile;
use super::standing::{Facts, Standing, report_of, standing};
use super::undestaged::{UndestagedMark, keep_mark, mark_of, remove_mark};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// Reserve after the lease of a former owner, whose clock may run slower by 1 %.
const LEASE_RESERVE: Duration = Duration::from_secs(1);

/// Why the lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The image cannot be locked.
    #[error("the image has no exclusive lock; enable it with `rbd feature enable {0} exclusive-lock`")]
    NoFeature(String),
    /// Another client has the lock.
    #[error(
        "another client has the exclusive lock of the image: {0}. Two writers destroy its data: stop that client (a \
         virtual machine, another hotset, `rbd map`); `rbd status` and `rbd lock ls` list the clients"
    )]
    Owned(String),
    /// Another client has the image open, and could have the lock for a moment.
    #[error(
        "another client has the image open, though not its lock: {0}; it may be a process of this daemon that was \
         killed, so its end is waited for, up to {wait} s. If it stays, it may have written to the image: close it, or \
         dirty data is refused", wait = CLIENTS_WAIT_MAX.as_secs()
    )]
    Open(String),
    /// Another process of this daemon serves the image.
    #[error(
        "another hotset-rbd of this state directory has the image: that of another volume, possibly under another \
         address, or one of an earlier daemon that hangs; remove the volume, or kill the process"
    )]
    Served,
    /// Another client may have written since the daemon served the image last.
    #[error("the exclusive lock of the image was lost while its process was restarted: {0}")]
    Interrupted(Interruption),
    /// The image of that name is another one now.
    #[error("it is another image now: {found} instead of {expected}")]
    OtherImage {
        /// The identity of the image at the first start.
        expected: String,
        /// Its identity now.
        found: String,
    },
    /// Another host owns the image, and nothing permits to claim it.
    #[error("host {} owns the image", .0.owner)]
    Standby(Box<StandbyReport>),
    /// The owner that is to be replaced has the image open without the lock, so it cannot be blocked with it.
    #[error("the owner has the image open without its lock: {0}; it closes it, or ends within 30 s: try again then")]
    Unlocked(String),
    /// The image's data is not complete, so it cannot be released.
    #[error("the image has its mark of undestaged data still")]
    Marked,
    /// Another host may have flushed writes that the image lacks.
    #[error("the image lacks flushed writes that host {} may have", .0.host)]
    Undestaged(Mark),
    /// The daemon has closed the control channel.
    #[error("the daemon has ended the process")]
    Stopped,
    /// A call failed.
    #[error(transparent)]
    Ceph(#[from] CephError),
    /// The record of the owner cannot be read or written.
    #[error("the record of the image's owner in {0} failed: {1}; check the state directory")]
    Record(String, io::Error),
}

impl LockError {
    /// True if the daemon can never serve the image again in its life.
    pub fn is_final(&self) -> bool {
        matches!(self, LockError::Interrupted(_) | LockError::OtherImage { .. })
    }
}

/// The host and its records.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Folder of the records of owners.
    pub folder: &'a Path,
    /// Name of the host.
    pub host: &'a str,
    /// The image with its flash log, if the log lies on one.
    pub log: Option<&'a str>,
}

/// The start of a helper.
pub enum HelperStart {
    /// The first one of a daemon for the image, as [`Purpose::First`].
    First {
        /// The reason for which the image may be claimed.
        claim: Claim,
        /// The names of data that may be lost.
        given_up: Vec<String>,
        /// The daemon destages undestaged data from a log on an image.
        reads_log: bool,
    },
    /// A start after a crash, as [`Purpose::Again`].
    Again {
        /// The ownership that the daemon has.
        expected: Expected,
        /// The daemon destages undestaged data from a log on an image.
        reads_log: bool,
    },
}

impl HelperStart {
    /// The start of a process with that purpose; `None` for one that only looks.
    pub fn new(purpose: Purpose) -> Option<HelperStart> {
        match purpose {
            Purpose::First { claim, given_up, reads_log } => Some(HelperStart::First { claim, given_up, reads_log }),
            Purpose::Again { expected, reads_log } => Some(HelperStart::Again { expected, reads_log }),
            Purpose::Standby(_) => None,
        }
    }

    /// The ownership that the daemon has.
    pub fn expected(&self) -> Option<&Expected> {
        match self {
            HelperStart::Again { expected, .. } => Some(expected),
            HelperStart::First { .. } => None,
        }
    }

    /// Checks the mark of another host: its data is an obstacle, unless it may be lost or is destaged next. That needs
    /// proof that the data `is_newest`: no other client can have written to the image since. A start after a crash goes
    /// on with the destage.
    fn check(&self, mark: Option<UndestagedMark>, is_newest: bool) -> Result<Option<ForeignData>, LockError> {
        let Some(UndestagedMark { mark, .. }) = mark else { return Ok(None) };
        match self {
            HelperStart::First { given_up, .. } if given_up.contains(&show_mark_id(mark.id)) => {
                Ok(Some(ForeignData::GivenUp(mark.id)))
            }
            HelperStart::First { reads_log, .. } if !reads_log || mark.log.is_none() || !is_newest => {
                Err(LockError::Undestaged(mark))
            }
            // The daemon serves the volume: the mark was made by a host that is no owner any more.
            HelperStart::Again { reads_log: false, .. } => Ok(None),
            HelperStart::First { .. } | HelperStart::Again { reads_log: true, .. } => {
                Ok(Some(ForeignData::InLog(mark)))
            }
        }
    }

    /// True if the end of the former owner's lease matters: it may answer reads from its cache until then. A log is
    /// only read, and a host that is off answers nothing.
    fn waits_for_lease(&self) -> bool {
        let is_without = |claim: &Claim| matches!(claim, Claim::LogOf(_) | Claim::Command { is_fenced: true, .. });
        !matches!(self, HelperStart::First { claim, .. } if is_without(claim))
    }

    /// Applies the rule of claims to a look at the image. A start after a crash continues its ownership, or fails.
    fn standing(
        &self,
        (image, identity): (&Image, &str),
        host: &str,
        known: Option<&KnownRecord>,
        now: &Sighting,
    ) -> Result<Standing, LockError> {
        let HelperStart::First { claim, .. } = self else { return Ok(Standing::Owner) };
        match standing(&Facts::of(known, now), claim, host) {
            Standing::Standby => Err(LockError::Standby(Box::new(report_of(identity, now, mark_of(image)?, None)))),
            standing => Ok(standing),
        }
    }
}

/// The fate of the data of another host's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ForeignData {
    /// It is lost.
    GivenUp(u64),
    /// The daemon destages it from that host's log. The mark stays until then.
    InLog(Mark),
}

/// An acquired lock.
pub struct OwnedLock {
    file: RecordFile,
    record: OwnerRecord,
    /// The ownership in the image's metadata.
    owner: ImageOwner,
    /// The data of another host's mark.
    foreign: Option<ForeignData>,
    /// Version of the header when the release of the image was found.
    released_version: Option<u64>,
    /// The data of the mark that the record names was destaged by another host. The number is used up.
    is_destaged: bool,
    /// The data of that mark is of an earlier lineage: nobody else may destage it.
    is_outdated: bool,
    /// The image with the flash log of this host.
    log: Option<String>,
    folder: String,
}

/// Refuses a first start while another host may have flushed writes that the image lacks. `image` may be open for
/// reading only: that host does not see this client, then, and is alone with the image when it starts again.
pub fn check_mark(image: &Image, identity: &str, folder: &Path, start: &HelperStart) -> Result<(), LockError> {
    let known = RecordFile::peek(folder, identity);
    let known = known.map_err(|error| LockError::Record(folder.display().to_string(), error))?;
    // With a client, possibly the owner of the lock, the acquisition decides.
    if !image.watchers()?.is_empty() {
        return Ok(());
    }
    // Whether the data is the newest is decided with the lock.
    start.check(mark_of(image)?.filter(|mark| !mark.has_number_of(known.as_ref())), true).map(drop)
}

/// Acquires the lock of the image with this identity. The lease begins before the look that decides about the lineage.
pub fn acquire(
    image: &Image,
    identity: &str,
    Site { folder, host, log }: Site<'_>,
    start: &HelperStart,
    control: &Arc<Control>,
) -> Result<(OwnedLock, Lease), LockError> {
    let expected = start.expected();
    if let Some(Expected { identity: known, .. }) = expected.filter(|expected| expected.identity != identity) {
        return Err(LockError::OtherImage { expected: known.clone(), found: identity.to_owned() });
    }
    if !image.has_exclusive_lock()? {
        return Err(LockError::NoFeature(image.name().to_owned()));
    }
    let folder_text = folder.display().to_string();
    let failed = |error| LockError::Record(folder_text.clone(), error);
    let wait = || {
        control.send(&Status::Progress("waiting for the predecessor's end".to_owned()));
        !control.is_closed()
    };
    let file = RecordFile::open(folder, identity, wait).map_err(failed)?.ok_or(LockError::Served)?;
    let known = file.read().map_err(failed)?;
    // Not waited for: other volumes start meanwhile, and the daemon tries again.
    let own = image.own_address()?;
    let now = look_beside(image, &own)?;
    let of_look = |now: &Sighting| start.standing((image, identity), host, known.as_ref(), now);
    // A command takes the image from its owner, not from a virtual machine that has the lock meanwhile.
    let is_owned = |now: &Sighting, standing| {
        let owner = now.recorded.as_ref().filter(|_| standing == Standing::TakenOver).map(|owner| &owner.address);
        expected.is_none() && living_owner(known.as_ref(), now).is_some_and(|living| Some(living) != owner)
    };
    if is_owned(&now, of_look(&now)?) {
        return Err(LockError::Owned(describe_owner(image)));
    }
    let is_continued = continues(known.as_ref(), &now).is_ok();
    let foreign_mark = |mark: &UndestagedMark, is_continued| !mark.is_own(known.as_ref(), is_continued);
    let found = mark_of(image)?.filter(|mark| foreign_mark(mark, is_continued));
    start.check(found, is_continued || has_owner_lock(&now))?;
    let new_token = random_number().map_err(failed)?;
    // A crash from here on leaves a client that is known to be unconfirmed.
    let mut claimed =
        known.as_ref().map_or_else(|| OwnerRecord::unowned(file.id().clone()), |known| known.record.clone());
    claimed.add_claim(own.clone());
    file.write(&claimed).map_err(failed)?;
    // From the deciding look to the look after the acquisition there is nothing but round trips to the cluster.
    let (mut before, began) = wait_until_alone(image, &own, known.as_ref(), expected.is_some(), control)?;
    let mut interruption = continues(known.as_ref(), &before).err();
    if let Some(expected) = expected {
        let is_same = known.as_ref().is_some_and(|known| known.record.lineage == expected.lineage);
        let is_released = before.recorded.as_ref().is_some_and(|owner| owner.release.is_some());
        let released = || is_released.then(|| Interruption::Token(before.recorded.clone()));
        let unknown = || (!is_same).then_some(Interruption::Unknown);
        if let Some(interruption) = interruption.or_else(released).or_else(unknown) {
            return Err(LockError::Interrupted(interruption));
        }
        interruption = None;
    }
    let standing = of_look(&before)?;
    let is_continued = interruption.is_none();
    let found = match expected {
        None => mark_of(image)?.filter(|mark| foreign_mark(mark, is_continued)),
        Some(_) => None,
    };
    let found = start.check(found, is_continued || has_owner_lock(&before))?;
    if is_owned(&before, standing) {
        return Err(LockError::Owned(describe_owner(image)));
    }
    let first = before.clone();
    let is_taken = standing == Standing::TakenOver;
    let former = before.recorded.as_ref().filter(|owner| is_taken && before.clients.contains(&owner.address));
    // The former owner may be alive although the cluster does not list its client: that may be blocked already.
    let has_former_owner =
        is_taken && start.waits_for_lease() && before.recorded.as_ref().is_some_and(|owner| owner.release.is_none());
    if let Some(owner) = former.filter(|_| before.lock.is_none()) {
        return Err(LockError::Unlocked(owner.description()));
    }
    // With another client beside it, the acquisition would prove nothing, and end the only proof.
    let is_owner = |address: &String| before.recorded.as_ref().is_some_and(|owner| owner.address == *address);
    if let Some(ForeignData::InLog(_)) = &found
        && let Some(address) = before.clients.iter().find(|address| !is_owner(address))
    {
        return Err(LockError::Open(address.clone()));
    }
    if let Some(Interruption::Client(address)) = &interruption
        && !claimed.has_waited(boot_ms())
    {
        file.write(&claimed).map_err(failed)?;
        return Err(LockError::Open(address.clone()));
    }
    // From the break of a predecessor's lock on, the end of this process would end the lineage.
    let _progress = control.report_progress("acquiring the lock", ACQUISITION_MAX);
    let is_broken = |address: &&String| is_taken || known.as_ref().is_some_and(|known| known.is_own(address));
    if let Some(address) = before.lock.as_ref().filter(is_broken) {
        image.break_lock(address).map_err(|error| match error.errno {
            // That client is not the owner any more.
            libc::ENOENT | libc::EBUSY if expected.is_some() => LockError::Interrupted(Interruption::Broken),
            libc::ENOENT | libc::EBUSY => LockError::Owned(describe_owner(image)),
            _ => LockError::Ceph(error),
        })?;
        let now = look_beside(image, &own)?;
        interruption = interruption.or(is_free(known.as_ref(), &before, &now).err());
        before = now;
    }
    // The former owner's client is blocked, at the header's storage at least: none of its checks that begins now
    // succeeds. A start after a crash waits for the rest, or for all of it after a boot.
    let lease_end_ms = boot_ms() + (LEASE + LEASE_RESERVE).as_millis() as u64;
    let recorded_end_ms = known.as_ref().and_then(|known| known.record.serve_after_ms);
    let serve_after_ms = match has_former_owner {
        true => Some(lease_end_ms),
        false if !start.waits_for_lease() => None,
        false => recorded_end_ms.filter(|end_ms| *end_ms > boot_ms()).map(|end_ms| end_ms.min(lease_end_ms)),
    };
    let header_version = image.header_version()?;
    image.acquire_lock().map_err(|error| match error.errno {
        // The answer of an owner that does not hand its lock over.
        libc::EROFS if expected.is_some() => LockError::Interrupted(Interruption::Lock(describe_owner(image))),
        libc::EROFS => LockError::Owned(describe_owner(image)),
        _ => LockError::Ceph(error),
    })?;
    let is_owner = image.is_lock_owner()?;
    let after = look(image)?;
    if expected.is_none() && (!is_owner || after.lock.as_ref() != Some(&own)) {
        return Err(LockError::Owned(describe_owner(image)));
    }
    // Another claim was faster, and has released the lock again.
    if expected.is_none() && after.recorded != first.recorded {
        image.unlock()?;
        return Err(LockError::Standby(Box::new(report_of(identity, &after, mark_of(image)?, None))));
    }
    let duration = began.elapsed();
    let undisturbed = is_undisturbed(known.as_ref(), &before, header_version, duration, &after, &own);
    interruption = interruption.or(undisturbed.err());
    if expected.is_some()
        && let Some(interruption) = interruption
    {
        return Err(LockError::Interrupted(interruption));
    }
    let mark = mark_of(image)?;
    let own_mark = mark.clone().filter(|mark| mark.is_own(known.as_ref(), interruption.is_none()));
    // A helper that is started again has the mark that its predecessor had, also if it was removed meanwhile.
    let kept_number = expected.and(known.as_ref()).and_then(|known| known.record.undestaged);
    let is_newest = interruption.is_none() || is_handed_over(&first, &before, header_version, duration, &after, &own);
    let is_outdated = own_mark.is_some() && interruption.is_some();
    let released_version = released_version(&before, header_version, duration, &after, &own);
    let foreign = match start.check(mark.filter(|_| own_mark.is_none()), is_newest) {
        Ok(foreign) => foreign,
        Err(error) => {
            image.unlock()?;
            return Err(error);
        }
    };
    let destaged = match known.as_ref().and_then(|known| known.record.undestaged) {
        Some(id) if is_destaged(image, id)? => Some(id),
        Some(_) | None => None,
    };
    // A start after a crash goes on with the ownership that the daemon has: other hosts name it by its number.
    let next = u64::from(expected.is_none());
    let epoch = after.recorded.as_ref().map_or(1, |owner| owner.epoch.saturating_add(next));
    let owner = ImageOwner {
        epoch,
        token: new_token,
        host: host.to_owned(),
        address: own.clone(),
        image_id: Some(image.id()?),
        release: None,
    };
    let (token_before, now_ms) = (after.recorded.as_ref().map_or(0, |owner| owner.token), boot_ms());
    let claims = match &known {
        Some(known) if known.locality == Locality::SameBoot => known.record.claims_of_successor(now_ms),
        _ => Vec::new(),
    };
    let (lineage, reason) = match (known.filter(|known| known.record.lineage != 0), interruption) {
        (Some(KnownRecord { record, .. }), None) => (record.lineage, record.reason),
        // An image that no hotset has owned has no history to interrupt.
        (None, _) if after.recorded.is_none() => (random_number().map_err(failed)?, String::new()),
        (_, interruption) => {
            let reason = interruption.map(|interruption| interruption.to_string()).unwrap_or_default();
            (random_number().map_err(failed)?, reason)
        }
    };
    let record = OwnerRecord {
        lineage,
        reason,
        token: new_token,
        token_before,
        address: own,
        undestaged: own_mark.map(|own| own.mark.id).or(kept_number).or(destaged),
        claims,
        serve_after_ms,
        ..OwnerRecord::unowned(file.id().clone())
    };
    let (is_destaged, log) = (destaged.is_some(), log.map(str::to_owned));
    let lock = OwnedLock {
        file,
        record,
        owner,
        foreign,
        released_version,
        is_destaged,
        is_outdated,
        log,
        folder: folder_text.clone(),
    };
    // Before the ownership is recorded: it would prove to a later take-over that data of the log is the newest.
    if lock.given_up().is_some() {
        remove_mark(image)?;
    }
    if is_outdated {
        lock.keep_mark(image)?;
    }
    // The record is first: a crash or an error between the two leaves an ownership that is proven by its lock.
    lock.file.write(&lock.record).map_err(failed)?;
    image.set_owner(&lock.owner.encode())?;
    lock.keep_mark(image)?;
    Ok((lock, began))
}

impl OwnedLock {
    /// The ownership.
    pub fn record(&self) -> &OwnerRecord {
        &self.record
    }

    /// The mark of another host whose data was given up.
    pub fn given_up(&self) -> Option<u64> {
        match self.foreign {
            Some(ForeignData::GivenUp(id)) => Some(id),
            Some(ForeignData::InLog(_)) | None => None,
        }
    }

    /// The mark of another host from whose log the daemon destages data before it serves the image.
    pub fn log_to_read(&self) -> Option<&Mark> {
        match &self.foreign {
            Some(ForeignData::InLog(mark)) => Some(mark),
            Some(ForeignData::GivenUp(_)) | None => None,
        }
    }

    /// Version of the header when the release of the image was found ([`released_version`]).
    pub fn released_version(&self) -> Option<u64> {
        self.released_version
    }

    /// True if another host has destaged all data that this host had marked as undestaged before.
    pub fn is_destaged(&self) -> bool {
        self.is_destaged
    }

    /// Marks the image as lacking flushed writes that only this host may have, or removes the mark. The record has the
    /// number of the mark first: after a crash between the two, a mark is known as the host's own. A mark of another
    /// host is removed once the daemon has destaged its data, and the image names that data first: after a crash
    /// between the two, the data is destaged again.
    pub fn mark_undestaged(&mut self, image: &Image, is_marked: bool) -> Result<(), LockError> {
        let failed = |error| LockError::Record(self.folder.clone(), error);
        if let Some(mark) = self.log_to_read().cloned() {
            if is_marked {
                return Err(LockError::Undestaged(mark));
            }
            record_destaged(image, mark.id)?;
            remove_mark(image)?;
            self.foreign = None;
            return Ok(());
        }
        // The data of a mark is in the log that it names.
        let is_present = |present: &UndestagedMark| {
            self.record.undestaged == Some(present.mark.id) && present.mark.log == self.log_of_mark()
        };
        let present = mark_of(image)?.filter(is_present);
        match (is_marked, present) {
            (true, Some(_)) if !self.is_destaged => {}
            (true, _) => {
                self.record.undestaged = Some(random_number().map_err(failed)?);
                self.file.write(&self.record).map_err(failed)?;
                self.is_destaged = false;
                self.keep_mark(image)?;
            }
            (false, _) => {
                remove_mark(image)?;
                (self.is_destaged, self.is_outdated) = (false, false);
                if self.record.undestaged.take().is_some() {
                    self.file.write(&self.record).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the mark that the record names again, if it is missing.
    pub fn keep_mark(&self, image: &Image) -> Result<(), LockError> {
        let Some(id) = self.record.undestaged.filter(|_| !self.is_destaged) else { return Ok(()) };
        Ok(keep_mark(image, Mark { id, host: self.owner.host.clone(), log: self.log_of_mark() })?)
    }

    /// The log that a mark of this host names.
    fn log_of_mark(&self) -> Option<String> {
        self.log.clone().filter(|_| !self.is_outdated)
    }

    /// Number of the ownership.
    pub fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// Records in the image that this owner gives it up: its data is complete, and no request is in flight. The lock is
    /// released next; until then no other host claims the image. After a crash between the two, the lock is that of a
    /// dead client.
    pub fn record_release(&mut self, image: &Image, release: &Release) -> Result<(), LockError> {
        let is_own_complete = self.record.undestaged.is_none() || self.is_destaged;
        if !is_own_complete || mark_of(image)?.is_some() {
            return Err(LockError::Marked);
        }
        // librbd writes metadata of other clients' images too: only the present owner may replace its record.
        let recorded = image.owner()?.and_then(|text| ImageOwner::parse(&text));
        if !image.is_lock_owner()? || recorded.as_ref() != Some(&self.owner) {
            return Err(LockError::Interrupted(Interruption::Token(recorded)));
        }
        let released = ImageOwner { release: Some(release.clone()), ..self.owner.clone() };
        image.set_owner(&released.encode())?;
        self.owner = released;
        Ok(())
    }

    /// Releases the lock, and records the header's version: it proves at the next start that no other client has
    /// acquired the lock since. No request may be in flight. After a loss, the caller just closes the image.
    /// Returns the version.
    pub fn release(&mut self, image: &Image) -> Result<Option<u64>, LockError> {
        // Waits for updates of the time stamps in the header too.
        image.flush()?;
        self.record.released = image.unlock()?;
        self.file.write(&self.record).map_err(|error| LockError::Record(self.folder.clone(), error))?;
        Ok(self.record.released)
    }
}

/// The present state of the image.
pub fn look(image: &Image) -> Result<Sighting, CephError> {
    // The version is read first: a change after it counts as one.
    let header_version = image.header_version()?;
    let recorded = image.owner()?.map(|text| ImageOwner::parse_or_unknown(&text));
    let image_id = image.id()?;
    // A clone or a copy has the owner's record of another image.
    let recorded = recorded.filter(|owner| owner.is_of(&image_id));
    let clients = image.watchers()?.into_iter().map(|watcher| watcher.address).collect();
    Ok(Sighting { recorded, lock: image.lock_owner()?, header_version, clients })
}

/// The present state of the image without this process's client at `own`.
fn look_beside(image: &Image, own: &str) -> Result<Sighting, CephError> {
    let mut now = look(image)?;
    now.clients.retain(|address| address != own);
    Ok(now)
}

/// Returns the state of the image, and a lease that began before it was read. If `is_patient`, waits for a time until
/// no other client has the image open.
fn wait_until_alone(
    image: &Image,
    own: &str,
    known: Option<&KnownRecord>,
    is_patient: bool,
    control: &Control,
) -> Result<(Sighting, Lease), LockError> {
    let started_at = Instant::now();
    loop {
        let began = Lease::begin();
        let now = look_beside(image, own)?;
        if control.is_closed() {
            return Err(LockError::Stopped);
        }
        match stranger(known, &now) {
            Some(address) if is_patient && started_at.elapsed() < CLIENTS_WAIT_MAX => {
                control.send(&Status::Progress(format!("waiting for {address} to close the image")));
                std::thread::sleep(PAUSE);
            }
            _ => return Ok((now, began)),
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

/// A random number from the operating system, never 0.
fn random_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
