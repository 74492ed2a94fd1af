//! The looks of a host on standby. The image is open for reading only, so that its owner sees no other client. The
//! process is ready to serve the image at an order: its libraries are loaded, and it is connected to the cluster.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rbd::{Claim, ImageSpec, Invocation, Status, TakeOver, boot_ms};

use super::StartError;
use super::control::Control;
use super::ffi::Image;
use super::lock::{LockError, Site, look};
use super::owner_record::{KnownRecord, Sighting};
use super::record_file::RecordFile;
use super::standing::{AbsenceClock, Facts, Standing, report_of, standing};
use super::undestaged::mark_of;

/// Pause between two reads of the owner's record, one operation each: a release is seen so soon.
const RECORD_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two complete looks, at the owner's record, the lock, the clients and the mark.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// Looks at the image, and reports what has changed, until the daemon orders this process to serve it. Returns that
/// order and the image; `None` if the daemon closes the control channel.
pub fn watch(
    spec: &str,
    Site { folder, host, .. }: Site<'_>,
    take_over: TakeOver,
    control: &Control,
    orders: &Receiver<Invocation>,
) -> Result<Option<(Invocation, Image)>, StartError> {
    let spec: ImageSpec = spec.parse()?;
    let image = Image::open_read_only(&super::connect(&spec)?, &spec)?;
    let identity = super::identity_of(&image, &spec)?;
    let (mut clock, mut looked_at, mut owner_seen) = (AbsenceClock::default(), None, None);
    loop {
        let owner = image.owner()?;
        let is_due = looked_at.is_none_or(|at: Instant| at.elapsed() >= LOOK_PAUSE);
        if is_due || owner != owner_seen {
            let known = peek(folder, &identity)?;
            // The clock counts from before the look: the owner may have ended just before it.
            let began_ms = boot_ms();
            let (now, mark) = (look(&image)?, mark_of(&image)?);
            let token = now.recorded.as_ref().map_or(0, |owner| owner.token);
            let absent_for = clock.look(began_ms, token, !now.clients.is_empty());
            let claim = claim_of((known.as_ref(), &now), (take_over, absent_for), host);
            // Sent with each look: the daemon knows by it that this process works.
            control.send(&Status::Standby(report_of(&identity, &now, mark, claim)));
            (looked_at, owner_seen) = (Some(Instant::now()), owner);
        }
        match orders.recv_timeout(RECORD_PAUSE) {
            Ok(invocation) => return Ok(Some((invocation, image))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn peek(folder: &Path, identity: &str) -> Result<Option<KnownRecord>, LockError> {
    RecordFile::peek(folder, identity).map_err(|error| LockError::Record(folder.display().to_string(), error))
}

/// The reason for which this host may claim the image now without a command.
fn claim_of(
    (known, now): (Option<&KnownRecord>, &Sighting),
    (take_over, absent_for): (TakeOver, Duration),
    host: &str,
) -> Option<Claim> {
    let facts = Facts::of(known, now);
    let is_permitted = |claim: &Claim| standing(&facts, claim, host) != Standing::Standby;
    let absent = match (take_over, facts.recorded) {
        (TakeOver::After(margin), Some(owner)) if absent_for >= margin => Some(Claim::Absent(owner.token)),
        _ => None,
    };
    [Some(Claim::Record), absent].into_iter().flatten().find(is_permitted)
}

/// Refuses a first start of a host that has to stay on standby. `image` is open for reading only.
pub fn check_standing(
    image: &Image,
    identity: &str,
    Site { folder, host, .. }: Site<'_>,
    claim: &Claim,
) -> Result<(), LockError> {
    let (known, now) = (peek(folder, identity)?, look(image)?);
    match standing(&Facts::of(known.as_ref(), &now), claim, host) {
        Standing::Standby => Err(LockError::Standby(Box::new(report_of(identity, &now, mark_of(image)?, None)))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rbd::Release;

    use super::super::image_owner::ImageOwner;
    use super::*;

    fn sighting(release: Option<Release>, clients: &[&str]) -> Sighting {
        let (host, address) = ("alpha".to_owned(), "a:0/1".to_owned());
        Sighting {
            recorded: Some(ImageOwner { epoch: 3, token: 7, host, address, image_id: None, release }),
            clients: clients.iter().map(|client| (*client).to_owned()).collect(),
            ..Sighting::default()
        }
    }

    #[test]
    fn claim_without_a_command_needs_a_release_or_the_margin() {
        let (minute, short) = (Duration::from_secs(60), Duration::from_secs(59));
        let claim = |now: &Sighting, take_over, absent| claim_of((None, now), (take_over, absent), "beta");
        let (owned, automatic) = (sighting(None, &[]), TakeOver::After(minute));
        assert_eq!(claim(&owned, TakeOver::Command, Duration::from_secs(9999)), None);
        assert_eq!(claim(&owned, automatic, short), None);
        assert_eq!(claim(&owned, automatic, minute), Some(Claim::Absent(7)));
        assert_eq!(claim(&sighting(None, &["a:0/2"]), automatic, minute), None);
        assert_eq!(claim(&sighting(Some(Release::Any), &[]), TakeOver::Command, short), Some(Claim::Record));
        let elsewhere = sighting(Some(Release::To("gamma".to_owned())), &[]);
        assert_eq!(claim(&elsewhere, TakeOver::Command, minute), None);
    }
}
