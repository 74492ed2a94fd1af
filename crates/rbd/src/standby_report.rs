//! The report of a host on standby about an image and its owner.

use super::invocation::Claim;
use super::mark::{Mark, parse_mark_id, show_mark_id};
use super::release::Release;

/// The owner of an image, as another host sees it. Its text form is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyReport {
    /// Identity of the image: its cluster, pool, namespace and ID.
    pub image: String,
    /// The owner's host.
    pub owner: String,
    /// Number of the ownership.
    pub epoch: u64,
    /// A client has the image open: the owner may be alive.
    pub has_client: bool,
    /// The owner has released the image.
    pub release: Option<Release>,
    /// The image lacks flushed writes that a host may have.
    pub mark: Option<Mark>,
    /// The reason for which this host may claim the image now without a command.
    pub claim: Option<Claim>,
}

impl StandbyReport {
    /// The report as a line without its end.
    pub fn encode(&self) -> String {
        let StandbyReport { image, owner, epoch, has_client, release, mark, claim } = self;
        let (release, claim) = (release.as_ref().map(Release::encode), claim.as_ref().map(Claim::encode));
        let none = || "-".to_owned();
        let mark = mark.as_ref().map_or_else(none, |mark| format!("{} {}", show_mark_id(mark.id), mark.encode_place()));
        let (release, claim) = (release.unwrap_or_else(none), claim.unwrap_or_else(none));
        format!("{epoch} {has_client} {release} {claim} {image} {owner} {mark}")
    }

    /// Parses the line; `None` if it is none.
    pub fn parse(line: &str) -> Option<StandbyReport> {
        let mut words = line.splitn(8, ' ');
        let epoch = words.next()?.parse().ok()?;
        let has_client = words.next()?.parse().ok()?;
        let mut optional = || words.next().map(|word| Some(word).filter(|word| *word != "-"));
        let (release, claim) = (optional()?, optional()?);
        let release = release.map(|word| Release::parse(word).ok_or(())).transpose().ok()?;
        let claim = claim.map(|word| Claim::parse(word).ok_or(())).transpose().ok()?;
        let (image, owner) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mark = match words.next()? {
            "-" => None,
            id => Some(Mark::parse(parse_mark_id(id)?, words.next()?)),
        };
        Some(StandbyReport { image, owner, epoch, has_client, release, mark, claim })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip() {
        let plain = StandbyReport {
            image: "rbd:fsid/2/web".to_owned(),
            owner: "alpha".to_owned(),
            epoch: 3,
            has_client: true,
            release: None,
            mark: None,
            claim: None,
        };
        let full = StandbyReport {
            has_client: false,
            release: Some(Release::To("beta".to_owned())),
            mark: Some(Mark::parse(9, "alpha vms/log")),
            claim: Some(Claim::Absent(5)),
            ..plain.clone()
        };
        for report in [plain, full] {
            assert_eq!(StandbyReport::parse(&report.encode()), Some(report));
        }
        assert_eq!(StandbyReport::parse("3 true - - image alpha"), None);
    }
}
