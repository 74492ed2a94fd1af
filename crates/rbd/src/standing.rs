//! The rule by which a host may claim an image, and the clock of an absent owner.
//!
//! The last owner of an image goes on by itself. Another host claims the image only if the image never had an owner, if
//! its owner has released it, if an administrator orders it, or, where that is configured, if the owner was absent for
//! a time. Otherwise the volume is on standby there. The exclusive lock decides between two hosts that claim at once.

use std::time::Duration;

use rbd::{Claim, StandbyReport};

use super::image_owner::ImageOwner;
use super::locality::Locality;
use super::owner_record::{KnownRecord, Sighting, continues, living_owner};
use super::undestaged::UndestagedMark;

/// Longest pause between two looks of one absence: the owner could come and go in a longer one.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Relation of this state directory to the recorded owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// Another host is the owner.
    Other,
    /// This one is: the image has its token.
    Owner,
    /// This one has the lock, and was ended before its token was in the image.
    Begun,
}

impl Tie {
    /// The relation by the record of the state directory.
    pub fn of(known: Option<&KnownRecord>, now: &Sighting) -> Tie {
        let Some(known) = known.filter(|known| known.record.lineage != 0 && known.record.has_token(now)) else {
            return Tie::Other;
        };
        // The original of a copied directory may go on, unless nobody has since its release.
        if known.locality == Locality::Copied && continues(Some(known), now).is_err() {
            return Tie::Other;
        }
        let token = now.recorded.as_ref().map_or(0, |owner| owner.token);
        if token == known.record.token { Tie::Owner } else { Tie::Begun }
    }
}

/// The facts that the rule depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The owner of this image in its metadata.
    pub recorded: Option<&'a ImageOwner>,
    /// This host's relation to it.
    pub tie: Tie,
    /// Another client has the image open.
    pub has_client: bool,
    /// One of them has the lock.
    pub has_living_owner: bool,
}

impl<'a> Facts<'a> {
    /// The facts of a look at the image, of whose clients this process is none.
    pub fn of(known: Option<&KnownRecord>, now: &'a Sighting) -> Facts<'a> {
        Facts {
            recorded: now.recorded.as_ref(),
            tie: Tie::of(known, now),
            has_client: !now.clients.is_empty(),
            has_living_owner: living_owner(known, now).is_some(),
        }
    }
}

/// Decision of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This host is the last owner, and goes on.
    Owner,
    /// The image never had an owner.
    Unowned,
    /// Its owner has released it for this host.
    Released,
    /// It is taken from its owner, who was absent, or whose data was adopted. A living owner stays the owner.
    Inherited,
    /// It is taken from its owner by command, alive or not.
    TakenOver,
    /// Another host stays the owner, or this one until it claims the image that it has released.
    Standby,
}

/// Applies the rule for the host of that name.
pub fn standing(facts: &Facts<'_>, claim: &Claim, host: &str) -> Standing {
    let Some(owner) = facts.recorded else {
        return if facts.tie == Tie::Begun { Standing::Owner } else { Standing::Unowned };
    };
    if facts.tie == Tie::Begun || facts.tie == Tie::Owner && owner.release.is_none() {
        return Standing::Owner;
    }
    // Its data is in the image before the owner records the release, and no request of it comes after. The lock goes
    // last.
    let is_released_for = |host| owner.release.as_ref().is_some_and(|release| release.is_for(host));
    if facts.tie == Tie::Other && is_released_for(host) && !facts.has_living_owner {
        return Standing::Released;
    }
    let is_meant = |from: &Option<String>| from.as_ref().is_none_or(|from| *from == owner.host);
    match claim {
        Claim::Command { from, .. } if is_meant(from) => Standing::TakenOver,
        Claim::Absent(token) if *token == owner.token && facts.tie == Tie::Other && !facts.has_client => {
            Standing::Inherited
        }
        Claim::Adoption if facts.tie != Tie::Other && !facts.has_living_owner => Standing::Inherited,
        Claim::LogOf(host) if *host == owner.host => Standing::TakenOver,
        Claim::Log | Claim::LogOf(_) if !facts.has_living_owner => Standing::Inherited,
        Claim::Record | Claim::Command { .. } | Claim::Absent(_) | Claim::Adoption | Claim::Log | Claim::LogOf(_) => {
            Standing::Standby
        }
    }
}

/// The report of a look at the image of this identity.
pub fn report_of(identity: &str, now: &Sighting, mark: Option<UndestagedMark>, claim: Option<Claim>) -> StandbyReport {
    let owner = now.recorded.as_ref();
    StandbyReport {
        image: identity.to_owned(),
        owner: owner.map_or_else(|| "unknown".to_owned(), |owner| owner.host.clone()),
        epoch: owner.map_or(0, |owner| owner.epoch),
        has_client: !now.clients.is_empty(),
        release: owner.and_then(|owner| owner.release.clone()),
        mark: mark.map(|mark| mark.mark),
        claim,
    }
}

/// Measures for how long the looks of this host have found no client of the image.
#[derive(Debug, Default)]
pub struct AbsenceClock {
    run: Option<Run>,
}

/// Looks without a client.
#[derive(Debug)]
struct Run {
    token: u64,
    first_ms: u64,
    last_ms: u64,
}

impl AbsenceClock {
    /// Counts a look at `now_ms` of this boot. Returns for how long the owner with `token` has been absent.
    pub fn look(&mut self, now_ms: u64, token: u64, has_client: bool) -> Duration {
        let is_same =
            |run: &Run| run.token == token && now_ms.saturating_sub(run.last_ms) <= LOOK_PAUSE_MAX.as_millis() as u64;
        let first_ms = self.run.take().filter(is_same).map_or(now_ms, |run| run.first_ms);
        if has_client {
            return Duration::ZERO;
        }
        self.run = Some(Run { token, first_ms, last_ms: now_ms });
        Duration::from_millis(now_ms.saturating_sub(first_ms))
    }
}

#[cfg(test)]
mod tests {
    use rbd::Release;

    use super::super::locality::LockFileId;
    use super::super::owner_record::OwnerRecord;
    use super::*;

    const HOST: &str = "beta";
    const TOKEN: u64 = 7;
    const ALIVE: &str = "10.0.0.1:0/1";

    fn owner(release: Option<Release>) -> ImageOwner {
        let address = ALIVE.to_owned();
        ImageOwner { epoch: 3, token: TOKEN, host: "alpha".to_owned(), address, image_id: None, release }
    }

    fn facts(recorded: Option<&ImageOwner>) -> Facts<'_> {
        Facts { recorded, tie: Tie::Other, has_client: false, has_living_owner: false }
    }

    fn command(from: Option<&str>) -> Claim {
        Claim::Command { from: from.map(str::to_owned), is_fenced: false }
    }

    #[test]
    fn image_without_an_owner_is_claimed() {
        for claim in [Claim::Record, Claim::Absent(TOKEN), command(None), Claim::Adoption] {
            assert_eq!(standing(&facts(None), &claim, HOST), Standing::Unowned);
        }
    }

    #[test]
    fn image_of_another_host_is_on_standby() {
        let owner = owner(None);
        for has_client in [false, true] {
            let facts = Facts { has_client, ..facts(Some(&owner)) };
            assert_eq!(standing(&facts, &Claim::Record, HOST), Standing::Standby, "its lock is free during a restart");
        }
    }

    #[test]
    fn last_owner_goes_on() {
        let owner = owner(None);
        for claim in [Claim::Record, command(Some("gamma"))] {
            let facts = Facts { tie: Tie::Owner, ..facts(Some(&owner)) };
            assert_eq!(standing(&facts, &claim, HOST), Standing::Owner);
        }
    }

    #[test]
    fn released_image_is_claimed_by_the_named_host_once_the_lock_is_free() {
        for (release, expected) in [
            (Release::Any, Standing::Released),
            (Release::To(HOST.to_owned()), Standing::Released),
            (Release::To("gamma".to_owned()), Standing::Standby),
        ] {
            let owner = owner(Some(release));
            assert_eq!(standing(&facts(Some(&owner)), &Claim::Record, HOST), expected);
            let locked = Facts { has_client: true, has_living_owner: true, ..facts(Some(&owner)) };
            assert_eq!(standing(&locked, &Claim::Record, HOST), Standing::Standby, "it is being handed over");
        }
    }

    #[test]
    fn host_that_has_released_its_image_takes_it_back_by_command_alone() {
        let owner = owner(Some(Release::Any));
        let released = Facts { tie: Tie::Owner, ..facts(Some(&owner)) };
        for claim in [Claim::Record, Claim::Absent(TOKEN)] {
            assert_eq!(standing(&released, &claim, "alpha"), Standing::Standby, "{claim:?}");
        }
        assert_eq!(standing(&released, &command(Some("alpha")), "alpha"), Standing::TakenOver);
        // The next ownership of this host had begun, but its token was not in the image yet.
        let begun = Facts { tie: Tie::Begun, ..released };
        assert_eq!(standing(&begun, &Claim::Record, HOST), Standing::Owner);
    }

    #[test]
    fn command_takes_the_image_of_the_owner_that_was_seen() {
        let owner = owner(None);
        let alive = Facts { has_client: true, has_living_owner: true, ..facts(Some(&owner)) };
        for (from, expected) in
            [(None, Standing::TakenOver), (Some("alpha"), Standing::TakenOver), (Some("gamma"), Standing::Standby)]
        {
            assert_eq!(standing(&alive, &command(from), HOST), expected);
        }
        let released = self::owner(Some(Release::To("gamma".to_owned())));
        assert_eq!(standing(&facts(Some(&released)), &command(None), HOST), Standing::TakenOver);
    }

    #[test]
    fn absent_owner_is_inherited_from_while_no_client_has_the_image_open() {
        let owner = owner(None);
        let judge = |facts, token| standing(&facts, &Claim::Absent(token), HOST);
        assert_eq!(judge(facts(Some(&owner)), TOKEN), Standing::Inherited);
        assert_eq!(judge(facts(Some(&owner)), 8), Standing::Standby, "that was another owner");
        let open = Facts { has_client: true, ..facts(Some(&owner)) };
        assert_eq!(judge(open, TOKEN), Standing::Standby);
    }

    #[test]
    fn adoption_leaves_a_living_owner_the_owner() {
        let owner = owner(None);
        assert_eq!(standing(&facts(Some(&owner)), &Claim::Log, HOST), Standing::Inherited);
        // The refusal that an adoption answers is outdated once another host has become the owner.
        assert_eq!(standing(&facts(Some(&owner)), &Claim::Adoption, HOST), Standing::Standby);
        let alive = Facts { has_client: true, has_living_owner: true, ..facts(Some(&owner)) };
        assert_eq!(standing(&alive, &Claim::Log, HOST), Standing::Standby);
    }

    #[test]
    fn log_of_a_host_is_taken_from_that_host_alone_while_its_owner_lives() {
        let owner = owner(None);
        let log_of = |host: &str| Claim::LogOf(host.to_owned());
        let alive = Facts { has_client: true, has_living_owner: true, ..facts(Some(&owner)) };
        assert_eq!(standing(&alive, &log_of("alpha"), HOST), Standing::TakenOver);
        assert_eq!(standing(&alive, &log_of("gamma"), HOST), Standing::Standby, "another host reads it");
        assert_eq!(standing(&facts(Some(&owner)), &log_of("gamma"), HOST), Standing::Inherited, "that host died");
    }

    #[test]
    fn owner_is_known_by_its_token_and_not_by_a_copied_record() {
        let file = LockFileId { boot: "b".to_owned(), machine: "m".to_owned(), device: 1, inode: 2 };
        let known = |locality, token, released| KnownRecord {
            record: OwnerRecord {
                lineage: 9,
                token,
                token_before: 6,
                address: ALIVE.to_owned(),
                released,
                ..OwnerRecord::unowned(file.clone())
            },
            locality,
        };
        let now = |token, lock: Option<&str>| Sighting {
            recorded: Some(ImageOwner { token, ..owner(None) }),
            lock: lock.map(str::to_owned),
            header_version: 41,
            clients: Vec::new(),
        };
        let here = |token| known(Locality::SameBoot, token, None);
        assert_eq!(Tie::of(None, &now(TOKEN, None)), Tie::Other);
        assert_eq!(Tie::of(Some(&here(TOKEN)), &now(TOKEN, None)), Tie::Owner);
        assert_eq!(Tie::of(Some(&here(TOKEN)), &now(8, None)), Tie::Other);
        assert_eq!(Tie::of(Some(&here(TOKEN)), &now(6, Some(ALIVE))), Tie::Begun);
        assert_eq!(Tie::of(Some(&here(TOKEN)), &now(6, None)), Tie::Other);
        let rebooted = known(Locality::EarlierBoot, TOKEN, None);
        assert_eq!(Tie::of(Some(&rebooted), &now(TOKEN, Some(ALIVE))), Tie::Owner);
        let copied = |released| known(Locality::Copied, TOKEN, released);
        assert_eq!(Tie::of(Some(&copied(None)), &now(TOKEN, None)), Tie::Other, "the original may go on");
        assert_eq!(Tie::of(Some(&copied(Some(41))), &now(TOKEN, None)), Tie::Owner, "the directory was moved");
        assert_eq!(Tie::of(Some(&copied(Some(40))), &now(TOKEN, None)), Tie::Other);
    }

    #[test]
    fn absence_begins_again_with_a_client_another_owner_or_a_missed_look() {
        let mut clock = AbsenceClock::default();
        let seconds = |clock: &mut AbsenceClock, second: u64, token, has_client| {
            clock.look(second * 1000, token, has_client).as_secs()
        };
        assert_eq!(seconds(&mut clock, 100, TOKEN, false), 0);
        assert_eq!(seconds(&mut clock, 105, TOKEN, false), 5);
        assert_eq!(seconds(&mut clock, 115, TOKEN, false), 15);
        assert_eq!(seconds(&mut clock, 116, TOKEN, true), 0);
        assert_eq!(seconds(&mut clock, 117, TOKEN, false), 0, "a client was there");
        assert_eq!(seconds(&mut clock, 120, TOKEN, false), 3);
        assert_eq!(seconds(&mut clock, 121, 8, false), 0, "another owner was there");
        assert_eq!(seconds(&mut clock, 124, 8, false), 3);
        assert_eq!(seconds(&mut clock, 135, 8, false), 0, "this host was stopped, or the cluster silent");
        assert_eq!(seconds(&mut clock, 140, 8, false), 5);
    }
}
