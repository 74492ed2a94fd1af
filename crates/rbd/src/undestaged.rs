//! The mark of an image that lacks flushed writes: they may be in the flash log of one host alone.
//!
//! The daemon orders the mark before its log answers a first flush for the volume, and its removal once the image has
//! all data. An image with a mark of another host is not opened.

use rbd::{Mark, parse_mark_id, show_mark_id};

use super::destaged::is_destaged;
use super::ffi::{CephError, Image};
use super::locality::Locality;
use super::owner_record::KnownRecord;

/// The mark, in the image's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndestagedMark {
    /// The mark. The owner's record of the host that made it has the same number.
    pub mark: Mark,
    /// The ID of the image: a clone or a copy of it has the same metadata.
    pub image_id: String,
}

/// The mark of undestaged data. That of another image, of which this one is a clone or a copy, is none, and neither is
/// one whose data a take-over has destaged.
pub fn mark_of(image: &Image) -> Result<Option<UndestagedMark>, CephError> {
    let Some(text) = image.undestaged()? else { return Ok(None) };
    let image_id = image.id()?;
    let found = UndestagedMark::parse(&text, &image_id);
    let is_mark = found.image_id == image_id && !is_destaged(image, found.mark.id)?;
    Ok(is_mark.then_some(found))
}

/// Makes the mark, unless the image has it. A mark that is there names the log of its data, unless it is to name none.
pub fn keep_mark(image: &Image, mark: Mark) -> Result<(), CephError> {
    let present = mark_of(image)?.filter(|found| found.mark.id == mark.id);
    if present.is_some_and(|found| mark.log.is_some() || found.mark.log.is_none()) {
        return Ok(());
    }
    let mark = UndestagedMark { mark, image_id: image.id()? };
    image.set_undestaged(Some(&mark.encode()))
}

/// Removes the mark, also that of another image that a clone has. It may be gone already.
pub fn remove_mark(image: &Image) -> Result<(), CephError> {
    match image.undestaged()? {
        Some(_) => image.set_undestaged(None),
        None => Ok(()),
    }
}

impl UndestagedMark {
    /// The mark in a metadata value; a damaged one is the mark of an unknown host.
    pub fn parse(text: &str, image_id: &str) -> UndestagedMark {
        let mut words = text.splitn(3, ' ');
        let id = words.next().and_then(parse_mark_id);
        let parsed = id.zip(words.next().zip(words.next()));
        let (id, image_id, place) = match parsed {
            Some((id, (image_id, place))) => (id, image_id, place),
            None => (u64::MAX, image_id, "UNKNOWN"),
        };
        UndestagedMark { mark: Mark::parse(id, place), image_id: image_id.to_owned() }
    }

    /// The metadata value.
    pub fn encode(&self) -> String {
        format!("{} {} {}", show_mark_id(self.mark.id), self.image_id, self.mark.encode_place())
    }

    /// True if the record has the number of the mark. The record may be a copy.
    pub fn has_number_of(&self, known: Option<&KnownRecord>) -> bool {
        known.is_some_and(|known| known.record.undestaged == Some(self.mark.id))
    }

    /// True if this host made the mark of this image: its state directory knows which data its log has. A copied record
    /// is the host's own if the ownership `is_continued`: the original has not gone on.
    pub fn is_own(&self, known: Option<&KnownRecord>, is_continued: bool) -> bool {
        let is_local = known.is_some_and(|known| known.locality != Locality::Copied);
        self.has_number_of(known) && (is_local || is_continued)
    }
}

#[cfg(test)]
mod tests {
    use super::super::locality::LockFileId;
    use super::super::owner_record::OwnerRecord;
    use super::*;

    #[test]
    fn mark_belongs_to_the_state_directory_that_made_it() {
        let mark = UndestagedMark { mark: Mark::parse(7, "alpha vms/log"), image_id: "a1".to_owned() };
        assert_eq!(UndestagedMark::parse(&mark.encode(), "a1"), mark);
        assert_eq!(mark.mark.log.as_deref(), Some("vms/log"));
        assert_eq!(UndestagedMark::parse("7 a1 alpha", "a1").mark, Mark { log: None, ..mark.mark.clone() });
        let file = LockFileId { boot: "b".to_owned(), machine: "m".to_owned(), device: 1, inode: 2 };
        let known = |undestaged, locality| KnownRecord {
            record: OwnerRecord { undestaged, ..OwnerRecord::unowned(file.clone()) },
            locality,
        };
        assert!(mark.is_own(Some(&known(Some(7), Locality::SameBoot)), false));
        assert!(mark.is_own(Some(&known(Some(7), Locality::EarlierBoot)), false));
        assert!(!mark.is_own(Some(&known(Some(7), Locality::Copied)), false), "the original has gone on");
        assert!(mark.is_own(Some(&known(Some(7), Locality::Copied)), true), "the directory was moved");
        assert!(!mark.is_own(Some(&known(Some(8), Locality::SameBoot)), false));
        assert!(!mark.is_own(Some(&known(None, Locality::SameBoot)), true) && !mark.is_own(None, false));
        for damaged in ["", "x", "7", "7 a1"] {
            assert!(
                !UndestagedMark::parse(damaged, "a1").is_own(Some(&known(Some(7), Locality::SameBoot)), false),
                "{damaged}"
            );
        }
    }
}
