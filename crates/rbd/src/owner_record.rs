//! The record of an image's ownership on this machine, and the decision whether a new ownership continues the last one.
//!
//! A *lineage* is a sequence of ownerships of one image between which no other client can have written. The daemon
//! keeps the lineage with its dirty data and its clean pages: they belong to no other one. Three facts prove that an
//! ownership continues the last one:
//!
//! 1. The token in the image's metadata is that of the last ownership. Every `hotset-rbd` writes a token of its own
//!    under the lock, so the token detects other hotsets.
//! 2. The lock is still held by the last owner's client, or the header has the version that the release of the lock
//!    gave it. Every acquisition of the lock is a write to the header, also that of a client with librbd's automatic
//!    lock, which writes no token.
//! 3. No other client has the image open around the acquisition. Such a client could acquire the lock after the look at
//!    the header and hand it over again.

use std::fmt;
use std::time::Duration;

use super::image_owner::ImageOwner;
use super::locality::{Locality, LockFileId};

/// Longest time from the last look before an acquisition to the look after it: far below the lease, with room for the
/// time-out of notifications to a dead client.
pub const ACQUISITION_MAX: Duration = Duration::from_secs(12);
/// First line of the file.
const HEADING: &str = "hotset-rbd owner 2";
/// Ended clients that the record lists.
const CLAIMS_MAX: usize = 32;
/// Time after an acquisition for which clients that ended before it are known: the watch of a killed one lives for
/// 30 s.
const CLAIM_MS: u64 = 60_000;
/// Time for which clients that have the image open, but not its lock, are waited for: so long, with a reserve, the
/// watch of a helper lives that was killed before it could write a claim.
pub const CLIENTS_WAIT_MAX: Duration = Duration::from_secs(35);
/// Time after which a wait that a record names has been given up.
const WAIT_FORGOTTEN: Duration = Duration::from_secs(120);

/// The last ownership of an image by this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRecord {
    /// The lock file under which the record was written.
    pub written_under: LockFileId,
    /// The lineage that the ownership belongs to; 0 in a record without an ownership, which lists claims only.
    pub lineage: u64,
    /// Why that lineage began with another one's end; empty for the first one.
    pub reason: String,
    /// The token that the ownership writes into the image's metadata.
    pub token: u64,
    /// The token in the image before; 0 for none. The record is written between the acquisition and the token, so the
    /// image may still have this one, as long as the lock is this ownership's.
    pub token_before: u64,
    /// The address of the owner as a RADOS client.
    pub address: String,
    /// The version of the image's header after the release of the lock; `None` while it is held.
    pub released: Option<u64>,
    /// The number of the mark in the image's metadata that this host has made; `None` if it has made none.
    pub undestaged: Option<u64>,
    /// Other clients of this machine that may have the image open still.
    pub claims: Vec<Claim>,
    /// Since when other clients have been waited for at a start, in milliseconds of this boot.
    pub waiting_since_ms: Option<u64>,
    /// End of the lease of a former owner that was fenced, in milliseconds of this boot: it may answer from its cache
    /// until then.
    pub serve_after_ms: Option<u64>,
}

/// A client of this machine that began to acquire the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its address.
    pub address: String,
    /// When it is forgotten, in milliseconds of this boot; `None` before the next acquisition.
    pub until_ms: Option<u64>,
}

/// A record with what it means to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRecord {
    /// The record.
    pub record: OwnerRecord,
    /// Its locality.
    pub locality: Locality,
}

/// The state of an image at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// The ownership in its metadata.
    pub recorded: Option<ImageOwner>,
    /// The address of the client that holds the lock.
    pub lock: Option<String>,
    /// Version of its header.
    pub header_version: u64,
    /// Addresses of the clients that have it open.
    pub clients: Vec<String>,
}

/// Why an ownership does not continue the last one: another client may have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// This machine has no record of an ownership.
    Unknown,
    /// The token in the image is that of another hotset.
    Token(Option<ImageOwner>),
    /// The record is a copy of one of another state directory, whose owner has not released the lock.
    Copied,
    /// Another client has or had the lock.
    Lock(String),
    /// The lock is free, and the last owner has not released it.
    Broken,
    /// The header has changed since the release.
    Header,
    /// An acquisition was interrupted before it was known to continue the last ownership.
    Acquisition,
    /// The acquisition took so long that another client could have come and gone.
    Slow(Duration),
    /// Another client has the image open, and may have had the lock for a moment.
    Client(String),
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interruption::Unknown => write!(f, "the state directory has no record of the last ownership of the image"),
            Interruption::Token(Some(owner)) => {
                write!(f, "another hotset has owned the image: {}, ownership {}", owner.description(), owner.epoch)
            }
            Interruption::Token(None) => write!(f, "the record of the owner is missing in the image's metadata"),
            Interruption::Copied => write!(
                f,
                "the state directory is a copy, and the daemon of the original has owned the image since: their dirty \
                 data differs"
            ),
            Interruption::Lock(address) => write!(f, "another client has had the image's lock: {address}"),
            Interruption::Broken => write!(f, "the image's lock was broken, and another client may have had it"),
            Interruption::Header => write!(
                f,
                "another client has had the image's lock or changed the image's header (a write, a snapshot, a resize \
                 or its metadata) while this daemon did not own it"
            ),
            Interruption::Slow(duration) => write!(
                f,
                "the acquisition of the image's lock took {} s, and another client may have had it meanwhile",
                duration.as_secs()
            ),
            Interruption::Acquisition => write!(
                f,
                "a process of this daemon was killed while it acquired the image's lock, so it is not known whether \
                 another client has had it just before (`rbd status` lists the clients)"
            ),
            Interruption::Client(address) => {
                write!(f, "another client had the image open while its lock was acquired: {address}")
            }
        }
    }
}

impl OwnerRecord {
    /// The record in the text of its file; `None` if that is damaged.
    pub fn parse(text: &str) -> Option<OwnerRecord> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == HEADING)?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (key, id) = lines.next()?.split_once(' ')?;
        let written_under = LockFileId::parse(id).filter(|_| key == "lock-file")?;
        let mut record = OwnerRecord::unowned(written_under);
        let mut is_complete = false;
        for line in lines {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "lineage" => record.lineage = hex(value)?,
                "reason" => value.clone_into(&mut record.reason),
                "token" => record.token = hex(value)?,
                "token-before" => record.token_before = hex(value)?,
                "address" => value.clone_into(&mut record.address),
                "released" => record.released = Some(value.parse().ok()?),
                "undestaged" => record.undestaged = Some(hex(value)?),
                "claim" => record.claims.push(Claim { address: value.to_owned(), until_ms: None }),
                "former" => {
                    let (until, address) = value.split_once(' ')?;
                    let until_ms = Some(until.parse().ok()?);
                    record.claims.push(Claim { address: address.to_owned(), until_ms });
                }
                "waiting" => record.waiting_since_ms = Some(value.parse().ok()?),
                "serve-after" => record.serve_after_ms = Some(value.parse().ok()?),
                "end" => is_complete = true,
                _ => return None,
            }
        }
        let is_ownership = record.token != 0 && !record.address.is_empty();
        (is_complete && (record.lineage == 0 || is_ownership)).then_some(record)
    }

    /// The text of its file.
    pub fn encode(&self) -> String {
        let OwnerRecord { written_under, lineage, token, token_before, address, .. } = self;
        let reason = self.reason.replace(char::is_control, " ");
        let mut text = format!("{HEADING}\nlock-file {written_under}\nlineage {lineage:016x}\nreason {reason}\n");
        text += &format!("token {token:016x}\ntoken-before {token_before:016x}\naddress {address}\n");
        self.released.iter().for_each(|version| text += &format!("released {version}\n"));
        self.undestaged.iter().for_each(|id| text += &format!("undestaged {id:016x}\n"));
        self.claims.iter().for_each(|Claim { address, until_ms }| match until_ms {
            None => text += &format!("claim {address}\n"),
            Some(until_ms) => text += &format!("former {until_ms} {address}\n"),
        });
        self.waiting_since_ms.iter().for_each(|since_ms| text += &format!("waiting {since_ms}\n"));
        self.serve_after_ms.iter().for_each(|end_ms| text += &format!("serve-after {end_ms}\n"));
        text + "end\n"
    }

    /// A record without an ownership.
    pub fn unowned(written_under: LockFileId) -> OwnerRecord {
        OwnerRecord {
            written_under,
            lineage: 0,
            reason: String::new(),
            token: 0,
            token_before: 0,
            address: String::new(),
            released: None,
            undestaged: None,
            claims: Vec::new(),
            waiting_since_ms: None,
            serve_after_ms: None,
        }
    }

    /// Adds a client that is about to acquire the lock.
    pub fn add_claim(&mut self, address: String) {
        self.claims.push(Claim { address, until_ms: None });
        let excess = self.claims.len().saturating_sub(CLAIMS_MAX);
        self.claims.drain(..excess);
    }

    /// The claims of the record of the ownership that follows at `now_ms`: ended clients, and the owner of this record,
    /// are known for a minute more.
    pub fn claims_of_successor(&self, now_ms: u64) -> Vec<Claim> {
        let until_ms = now_ms + CLAIM_MS;
        let ended =
            self.claims.iter().filter(|claim| claim.until_ms.is_none_or(|until| (now_ms..=until_ms).contains(&until)));
        let mut claims: Vec<Claim> =
            ended.map(|claim| Claim { until_ms: claim.until_ms.or(Some(until_ms)), ..claim.clone() }).collect();
        if !self.address.is_empty() {
            claims.push(Claim { address: self.address.clone(), until_ms: Some(until_ms) });
        }
        claims
    }

    /// True if a start at `now_ms` has waited for other clients for long enough. Sets the beginning of the wait.
    pub fn has_waited(&mut self, now_ms: u64) -> bool {
        let since_ms = self.waiting_since_ms.filter(|since_ms| {
            now_ms.checked_sub(*since_ms).is_some_and(|waited_ms| waited_ms < WAIT_FORGOTTEN.as_millis() as u64)
        });
        self.waiting_since_ms = since_ms.or(Some(now_ms));
        since_ms.is_some_and(|since_ms| now_ms - since_ms >= CLIENTS_WAIT_MAX.as_millis() as u64)
    }

    /// True if the image's metadata have the token of this ownership, or do not have it yet.
    pub fn has_token(&self, now: &Sighting) -> bool {
        let token = now.recorded.as_ref().map_or(0, |owner| owner.token);
        token == self.token || (token == self.token_before && now.lock.as_ref() == Some(&self.address))
    }
}

impl KnownRecord {
    /// True if this is the address of a client whose process was one of this state directory and has ended, although
    /// its watch may live on for half a minute.
    pub fn is_own(&self, address: &str) -> bool {
        let OwnerRecord { address: owner, claims, .. } = &self.record;
        self.locality == Locality::SameBoot && (owner == address || claims.iter().any(|claim| claim.address == address))
    }
}

/// Decides, before the lock is acquired, whether an ownership would continue the one in the record.
pub fn continues(known: Option<&KnownRecord>, now: &Sighting) -> Result<(), Interruption> {
    let KnownRecord { record, locality } = known.ok_or(Interruption::Unknown)?;
    if record.lineage == 0 {
        return Err(Interruption::Unknown);
    }
    if !record.has_token(now) {
        return Err(Interruption::Token(now.recorded.clone()));
    }
    match &now.lock {
        Some(address) if *address == record.address => match locality {
            Locality::SameBoot => {}
            Locality::EarlierBoot if !now.clients.contains(address) => {}
            Locality::EarlierBoot => return Err(Interruption::Lock(address.clone())),
            Locality::Copied => return Err(Interruption::Copied),
        },
        Some(address) if record.claims.iter().any(|claim| claim.address == *address) => {
            return Err(Interruption::Acquisition);
        }
        Some(address) => return Err(Interruption::Lock(address.clone())),
        None => match record.released {
            None => return Err(Interruption::Broken),
            Some(version) if version != now.header_version => return Err(Interruption::Header),
            Some(_) => {}
        },
    }
    stranger(known, now).map_or(Ok(()), |address| Err(Interruption::Client(address)))
}

/// Decides, after the own lock of a predecessor was broken and before the lock is acquired, whether another client may
/// have had it since `before`.
pub fn is_free(known: Option<&KnownRecord>, before: &Sighting, now: &Sighting) -> Result<(), Interruption> {
    if let Some(owner) = &now.lock {
        return Err(Interruption::Lock(owner.clone()));
    }
    if now.recorded != before.recorded {
        return Err(Interruption::Token(now.recorded.clone()));
    }
    stranger(known, now).map_or(Ok(()), |address| Err(Interruption::Client(address)))
}

/// Decides, after the lock was acquired by the client at `own`, whether another client may have had it since `before`.
/// The header had the version `header_version` just before the acquisition, which has taken `duration`.
pub fn is_undisturbed(
    known: Option<&KnownRecord>,
    before: &Sighting,
    header_version: u64,
    duration: Duration,
    after: &Sighting,
    own: &str,
) -> Result<(), Interruption> {
    if duration > ACQUISITION_MAX {
        return Err(Interruption::Slow(duration));
    }
    if header_version != before.header_version {
        return Err(Interruption::Header);
    }
    if after.lock.as_deref() != Some(own) {
        return Err(Interruption::Lock(after.lock.clone().unwrap_or_else(|| "no client".to_owned())));
    }
    if after.recorded != before.recorded {
        return Err(Interruption::Token(after.recorded.clone()));
    }
    let others = Sighting {
        clients: after.clients.iter().filter(|address| *address != own).cloned().collect(),
        ..after.clone()
    };
    stranger(known, &others).map_or(Ok(()), |address| Err(Interruption::Client(address)))
}

/// True if the recorded owner has the lock, alive or dead: no other client has had it since that ownership began.
pub fn has_owner_lock(now: &Sighting) -> bool {
    now.recorded.as_ref().is_some_and(|owner| now.lock.as_ref() == Some(&owner.address))
}

/// True if no client can have had the lock between the recorded owner, which had it at the `first` look, and the client
/// at `own`, which has it `after` its acquisition. `before` is the last look before that; the header had the version
/// `header_version` then. The clients of the owner itself are blocked.
pub fn is_handed_over(
    first: &Sighting,
    before: &Sighting,
    header_version: u64,
    duration: Duration,
    after: &Sighting,
    own: &str,
) -> bool {
    let is_former = |address: &String| first.recorded.as_ref().is_some_and(|owner| owner.address == *address);
    let is_known = |address: &String| address == own || is_former(address);
    has_owner_lock(first)
        && before.lock.as_ref().is_none_or(is_former)
        && after.lock.as_deref() == Some(own)
        && [before, after].iter().all(|look| look.recorded == first.recorded && look.clients.iter().all(is_known))
        && header_version == before.header_version
        && duration <= ACQUISITION_MAX
}

/// Version of the header of a released image, if no client can have had the lock between the look `before` and the
/// client at `own`, which has it `after` its acquisition; the header had the version `header_version` just before that.
/// The former owner may still be closing the image.
pub fn released_version(
    before: &Sighting,
    header_version: u64,
    duration: Duration,
    after: &Sighting,
    own: &str,
) -> Option<u64> {
    let former = before.recorded.as_ref().filter(|owner| owner.release.is_some())?;
    let is_known = |address: &String| address == own || *address == former.address;
    let is_continuous = before.lock.is_none()
        && after.lock.as_deref() == Some(own)
        && after.recorded == before.recorded
        && [before, after].iter().all(|look| look.clients.iter().all(is_known))
        && header_version == before.header_version
        && duration <= ACQUISITION_MAX;
    is_continuous.then_some(header_version)
}

/// A client of another machine or program that has the image open.
pub fn stranger(known: Option<&KnownRecord>, now: &Sighting) -> Option<String> {
    now.clients.iter().find(|address| !is_own(known, address)).cloned()
}

/// The client that has the lock and may be alive: the lock must not be taken from it. An ended process of this state
/// directory is none, although its watch may live on.
pub fn living_owner<'a>(known: Option<&KnownRecord>, now: &'a Sighting) -> Option<&'a String> {
    now.lock.as_ref().filter(|owner| now.clients.contains(owner) && !is_own(known, owner))
}

fn is_own(known: Option<&KnownRecord>, address: &str) -> bool {
    known.is_some_and(|known| known.is_own(address))
}

#[cfg(test)]
mod tests {
    use rbd::Release;

    use super::*;

    const OWN: &str = "10.0.0.1:0/1";
    const OTHER: &str = "10.0.0.2:0/2";

    fn owner(token: u64) -> Option<ImageOwner> {
        ImageOwner::parse(&format!("3 {token:x} host a at 10.0.0.1:0/1"))
    }

    fn claim(address: &str, until_ms: Option<u64>) -> Claim {
        Claim { address: address.to_owned(), until_ms }
    }

    fn record(released: Option<u64>) -> OwnerRecord {
        OwnerRecord {
            written_under: LockFileId { boot: "b".to_owned(), machine: "m".to_owned(), device: 1, inode: 2 },
            lineage: 9,
            reason: String::new(),
            token: 7,
            token_before: 6,
            address: OWN.to_owned(),
            released,
            undestaged: Some(5),
            claims: vec![claim("10.0.0.1:0/5", None), claim("10.0.0.1:0/4", Some(70))],
            waiting_since_ms: None,
            serve_after_ms: Some(11),
        }
    }

    fn unowned() -> OwnerRecord {
        OwnerRecord { waiting_since_ms: Some(8), ..OwnerRecord::unowned(record(None).written_under) }
    }

    fn known(record: OwnerRecord) -> KnownRecord {
        KnownRecord { record, locality: Locality::SameBoot }
    }

    fn sighting(lock: Option<&str>, header_version: u64) -> Sighting {
        Sighting { recorded: owner(7), lock: lock.map(str::to_owned), header_version, clients: Vec::new() }
    }

    #[test]
    fn records_round_trip_and_damaged_ones_are_no_proof() {
        for record in
            [record(None), record(Some(41)), unowned(), OwnerRecord { reason: "a b".to_owned(), ..record(None) }]
        {
            let text = record.encode();
            assert_eq!(OwnerRecord::parse(&text), Some(record));
            assert_eq!(OwnerRecord::parse(&text[..text.len() - 5]), None, "the end is missing");
            assert_eq!(OwnerRecord::parse(&text.replace("owner 2", "owner 1")), None);
        }
    }

    fn undisturbed(
        known: Option<&KnownRecord>,
        before: &Sighting,
        after: &Sighting,
        own: &str,
    ) -> Result<(), Interruption> {
        is_undisturbed(known, before, before.header_version, Duration::from_secs(1), after, own)
    }

    #[test]
    fn former_owner_has_the_newest_data_only_if_it_had_the_lock_last() {
        let own = "10.0.0.3:0/3";
        let dead = Sighting { clients: vec![OWN.to_owned()], ..sighting(Some(OWN), 41) };
        let broken = Sighting { clients: vec![OWN.to_owned()], ..sighting(None, 44) };
        let taken = Sighting { clients: vec![OWN.to_owned(), own.to_owned()], ..sighting(Some(own), 45) };
        let is_newest = |first: &Sighting, before: &Sighting, version, seconds, after: &Sighting| {
            is_handed_over(first, before, version, Duration::from_secs(seconds), after, own)
        };
        assert!(is_newest(&dead, &broken, 44, 1, &taken));
        assert!(is_newest(&dead, &dead, 41, 1, &taken), "librbd breaks the lock of a dead client");
        let released = sighting(None, 41);
        assert!(!is_newest(&released, &released, 41, 1, &taken), "another client may have had the lock");
        assert!(!is_newest(&sighting(Some(OTHER), 41), &broken, 44, 1, &taken), "another client has had it");
        assert!(!is_newest(&dead, &broken, 45, 1, &taken), "another client had it after the break");
        assert!(!is_newest(&dead, &broken, 44, 13, &taken), "one may have come and gone");
        let others = Sighting { clients: vec![OTHER.to_owned()], ..taken.clone() };
        assert!(!is_newest(&dead, &broken, 44, 1, &others));
        assert!(!is_newest(&dead, &broken, 44, 1, &Sighting { lock: None, ..taken.clone() }));
        assert!(!is_newest(&dead, &broken, 44, 1, &Sighting { recorded: owner(8), ..taken }));
    }

    #[test]
    fn release_is_the_last_change_only_if_no_client_came_between() {
        const NEXT: &str = "10.0.0.3:0/3";
        let released = owner(7).map(|owner| ImageOwner { release: Some(Release::Any), ..owner });
        let free = Sighting { recorded: released.clone(), ..sighting(None, 41) };
        let taken = Sighting { recorded: released, clients: vec![NEXT.to_owned()], ..sighting(Some(NEXT), 42) };
        let beside = |look: &Sighting, client: &str| {
            let clients = look.clients.iter().cloned().chain([client.to_owned()]).collect();
            Sighting { clients, ..look.clone() }
        };
        let version = |before: &Sighting, version, seconds, after: &Sighting| {
            released_version(before, version, Duration::from_secs(seconds), after, NEXT)
        };
        assert_eq!(version(&free, 41, 1, &taken), Some(41));
        assert_eq!(version(&beside(&free, OWN), 41, 1, &beside(&taken, OWN)), Some(41), "the former owner closes it");
        assert_eq!(version(&free, 42, 1, &taken), None, "another client has changed the header");
        assert_eq!(version(&free, 41, 13, &taken), None, "one may have come and gone");
        assert_eq!(version(&Sighting { recorded: owner(7), ..free.clone() }, 41, 1, &taken), None, "not released");
        assert_eq!(version(&Sighting { lock: Some(OTHER.to_owned()), ..free.clone() }, 41, 1, &taken), None);
        assert_eq!(version(&beside(&free, OTHER), 41, 1, &taken), None);
        assert_eq!(version(&free, 41, 1, &beside(&taken, OTHER)), None);
        assert_eq!(version(&free, 41, 1, &Sighting { recorded: owner(8), ..taken.clone() }), None);
        assert_eq!(version(&free, 41, 1, &Sighting { lock: Some(OTHER.to_owned()), ..taken }), None);
    }

    #[test]
    fn ownership_continues_under_the_same_lock_or_an_unchanged_header() {
        assert_eq!(continues(Some(&known(record(Some(41)))), &sighting(None, 41)), Ok(()));
        assert_eq!(continues(Some(&known(record(None))), &sighting(Some(OWN), 99)), Ok(()));
        // The watch of a killed predecessor lives for half a minute.
        let watched = Sighting { clients: vec![OWN.to_owned()], ..sighting(Some(OWN), 99) };
        assert_eq!(continues(Some(&known(record(None))), &watched), Ok(()));
    }

    #[test]
    fn every_trace_of_another_client_interrupts_the_ownership() {
        let released = known(record(Some(41)));
        assert_eq!(continues(None, &sighting(None, 41)), Err(Interruption::Unknown));
        assert_eq!(continues(Some(&released), &sighting(None, 43)), Err(Interruption::Header));
        assert_eq!(continues(Some(&known(record(None))), &sighting(None, 41)), Err(Interruption::Broken));
        let locked = continues(Some(&released), &sighting(Some(OTHER), 43));
        assert_eq!(locked, Err(Interruption::Lock(OTHER.to_owned())));
        let pending = continues(Some(&released), &sighting(Some("10.0.0.1:0/5"), 43));
        assert_eq!(pending, Err(Interruption::Acquisition));
        for recorded in [None, owner(8)] {
            let now = Sighting { recorded: recorded.clone(), ..sighting(None, 41) };
            assert_eq!(continues(Some(&released), &now), Err(Interruption::Token(recorded)));
        }
        let open = Sighting { clients: vec![OTHER.to_owned()], ..sighting(None, 41) };
        assert_eq!(continues(Some(&released), &open), Err(Interruption::Client(OTHER.to_owned())));
    }

    #[test]
    fn client_that_was_open_beside_the_acquisition_interrupts_it() {
        let (record, before) = (known(record(None)), sighting(Some(OWN), 41));
        let own = "10.0.0.1:0/6";
        let after = |clients: &[&str]| Sighting {
            clients: clients.iter().map(|address| (*address).to_owned()).collect(),
            ..sighting(Some(own), 44)
        };
        assert_eq!(undisturbed(Some(&record), &before, &after(&[own, OWN]), own), Ok(()));
        let disturbed = undisturbed(Some(&record), &before, &after(&[own, OTHER]), own);
        assert_eq!(disturbed, Err(Interruption::Client(OTHER.to_owned())));
        let other_token = Sighting { recorded: owner(8), ..after(&[own]) };
        let disturbed = undisturbed(Some(&record), &before, &other_token, own);
        assert_eq!(disturbed, Err(Interruption::Token(owner(8))));
        let unlocked = Sighting { lock: None, ..after(&[own]) };
        assert!(undisturbed(Some(&record), &before, &unlocked, own).is_err());
    }

    #[test]
    fn copied_state_directory_neither_takes_nor_continues_a_living_lock() {
        let living = Sighting { clients: vec![OWN.to_owned()], ..sighting(Some(OWN), 99) };
        let dead = sighting(Some(OWN), 99);
        let at = |locality| KnownRecord { record: record(None), locality };
        let (here, rebooted, copy) = (at(Locality::SameBoot), at(Locality::EarlierBoot), at(Locality::Copied));
        assert_eq!(living_owner(Some(&here), &living), None, "an ended process holds no lock that is to be respected");
        assert_eq!(living_owner(Some(&copy), &living), Some(&OWN.to_owned()));
        assert_eq!(living_owner(Some(&rebooted), &living), Some(&OWN.to_owned()));
        assert_eq!(continues(Some(&copy), &living), Err(Interruption::Copied));
        assert_eq!(continues(Some(&copy), &dead), Err(Interruption::Copied), "the original may have gone on");
        assert!(continues(Some(&rebooted), &living).is_err());
        assert_eq!(continues(Some(&rebooted), &dead), Ok(()), "the machine has crashed");
        // A released lock and an unchanged header prove that the original has not gone on.
        let moved = KnownRecord { record: record(Some(41)), locality: Locality::Copied };
        assert_eq!(continues(Some(&moved), &sighting(None, 41)), Ok(()));
    }

    #[test]
    fn client_that_took_the_lock_in_the_acquisition_is_not_adopted() {
        let before = sighting(None, 41);
        let taken = Sighting { clients: vec![OTHER.to_owned()], ..sighting(Some(OTHER), 42) };
        assert_eq!(undisturbed(None, &before, &taken, OWN), Err(Interruption::Lock(OTHER.to_owned())));
    }

    #[test]
    fn change_of_the_header_before_the_acquisition_interrupts_it() {
        let (known, before) = (known(record(Some(41))), sighting(None, 41));
        let after = sighting(Some(OWN), 48);
        let judge = |version, seconds| {
            is_undisturbed(Some(&known), &before, version, Duration::from_secs(seconds), &after, OWN)
        };
        assert_eq!(judge(41, 7), Ok(()), "a dead client delays an acquisition");
        assert_eq!(judge(43, 1), Err(Interruption::Header), "a client has acquired and released the lock");
        assert_eq!(judge(41, 13), Err(Interruption::Slow(Duration::from_secs(13))));
        assert!(ACQUISITION_MAX < Duration::from_secs(15), "far below the lease");
    }

    #[test]
    fn lock_that_is_taken_after_the_break_interrupts_the_acquisition() {
        let (known, before) = (known(record(None)), sighting(Some(OWN), 41));
        assert_eq!(is_free(Some(&known), &before, &sighting(None, 44)), Ok(()));
        let taken = is_free(Some(&known), &before, &sighting(Some(OTHER), 45));
        assert_eq!(taken, Err(Interruption::Lock(OTHER.to_owned())));
        let open = Sighting { clients: vec![OWN.to_owned(), OTHER.to_owned()], ..sighting(None, 44) };
        assert_eq!(is_free(Some(&known), &before, &open), Err(Interruption::Client(OTHER.to_owned())));
        let token = Sighting { recorded: owner(8), ..sighting(None, 44) };
        assert!(is_free(Some(&known), &before, &token).is_err());
    }

    #[test]
    fn ended_helpers_are_known_for_a_minute_after_the_next_acquisition() {
        let claims = record(None).claims_of_successor(100);
        let until = Some(100 + CLAIM_MS);
        assert_eq!(claims, [claim("10.0.0.1:0/5", until), claim(OWN, until)], "the one that is due is forgotten");
        let next = OwnerRecord { address: "10.0.0.1:0/6".to_owned(), claims, ..record(None) };
        let open = Sighting { clients: vec![OWN.to_owned()], ..sighting(Some("10.0.0.1:0/6"), 50) };
        assert_eq!(continues(Some(&known(next.clone())), &open), Ok(()), "its watch outlives two successors");
        assert_eq!(next.claims_of_successor(100 + CLAIM_MS + 1).len(), 1);
    }

    #[test]
    fn ownership_is_proven_before_its_token_is_in_the_image() {
        let untold = |lock, version| Sighting { recorded: owner(6), ..sighting(lock, version) };
        assert_eq!(continues(Some(&known(record(None))), &untold(Some(OWN), 50)), Ok(()));
        assert!(continues(Some(&known(record(Some(41)))), &untold(None, 41)).is_err(), "only under the same lock");
        assert!(continues(Some(&known(record(None))), &untold(Some(OTHER), 50)).is_err());
        let first = OwnerRecord { token_before: 0, ..record(None) };
        let none = Sighting { recorded: None, ..sighting(Some(OWN), 50) };
        assert_eq!(continues(Some(&known(first)), &none), Ok(()), "the image had no token");
        assert_eq!(continues(Some(&known(unowned())), &sighting(None, 41)), Err(Interruption::Unknown));
    }

    #[test]
    fn clients_are_waited_for_until_the_watch_of_a_dead_one_has_ended() {
        assert!(CLIENTS_WAIT_MAX > Duration::from_secs(30));
        let mut record = record(None);
        assert!(!record.has_waited(1_000));
        assert!(!record.has_waited(35_000));
        assert!(record.has_waited(36_000));
        assert!(!record.has_waited(200_000), "a wait of another start does not count");
        assert!(!record.has_waited(100), "nor one of another boot");
    }
}
