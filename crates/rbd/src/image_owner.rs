//! The ownership that an image's metadata records (key `hotset.owner`): one value, replaced as a whole by each owner,
//! and by the release of the last one.

use rbd::{Release, host_word};

/// Host of an owner in a damaged record, or one of an earlier version that has none.
const UNKNOWN: &str = "unknown";

/// The ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOwner {
    /// Number of the ownership, from 1 on.
    pub epoch: u64,
    /// Its token.
    pub token: u64,
    /// The host of the owner.
    pub host: String,
    /// Its address as a RADOS client.
    pub address: String,
    /// The ID of the image: a clone or a copy has the same metadata. `None` in records of earlier versions.
    pub image_id: Option<String>,
    /// The owner has given the image up: its data is complete.
    pub release: Option<Release>,
}

impl ImageOwner {
    /// The ownership in a metadata value; a damaged one is that of an unknown owner.
    pub fn parse_or_unknown(text: &str) -> ImageOwner {
        ImageOwner::parse(text).unwrap_or_else(|| ImageOwner {
            epoch: 0,
            token: 0,
            host: UNKNOWN.to_owned(),
            address: UNKNOWN.to_owned(),
            image_id: None,
            release: None,
        })
    }

    /// The ownership in a metadata value; `None` if it is damaged.
    pub fn parse(text: &str) -> Option<ImageOwner> {
        let mut words = text.split(' ');
        let epoch = words.next()?.parse().ok()?;
        let token = u64::from_str_radix(words.next()?, 16).ok()?;
        let (mut host, mut address, mut image_id, mut release) = (UNKNOWN, UNKNOWN, None, None);
        words.next().filter(|word| *word == "host")?;
        host = words.next().unwrap_or(host);
        while let Some((key, value)) = words.next().zip(words.next()) {
            match key {
                "at" => address = value,
                "image" => image_id = Some(value.to_owned()),
                // A release that cannot be read is none: the owner stays the owner.
                "released" => release = Release::parse(value),
                _ => {}
            }
        }
        Some(ImageOwner { epoch, token, host: host.to_owned(), address: address.to_owned(), image_id, release })
    }

    /// The metadata value. Earlier versions read it too.
    pub fn encode(&self) -> String {
        let ImageOwner { epoch, token, host, address, image_id, release } = self;
        let mut text = format!("{epoch} {token:016x} host {} at {}", host_word(host), host_word(address));
        image_id.iter().for_each(|id| text += &format!(" image {id}"));
        release.iter().for_each(|release| text += &format!(" released {}", release.encode()));
        text
    }

    /// The owner, for messages.
    pub fn description(&self) -> String {
        format!("host {} at {}", self.host, self.address)
    }

    /// True if it is an ownership of the image with that ID, as far as the record knows.
    pub fn is_of(&self, image_id: &str) -> bool {
        self.image_id.as_deref().is_none_or(|id| id == image_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownerships_round_trip_and_those_of_earlier_versions_are_read() {
        let former = "3 0000000000000007 host a at 10.0.0.1:0/1";
        let owner = ImageOwner::parse(former).expect("it is one");
        assert_eq!((owner.epoch, owner.token, owner.host.as_str(), &owner.release), (3, 7, "a", &None));
        assert_eq!(owner.encode(), former);
        assert!(owner.is_of("1234"), "it may be an ownership of this image");
        let image_id = Some("1234".to_owned());
        for release in [None, Some(Release::Any), Some(Release::To("b".to_owned()))] {
            let owner = ImageOwner { image_id: image_id.clone(), release, ..owner.clone() };
            assert_eq!(ImageOwner::parse(&owner.encode()), Some(owner.clone()));
            assert!(owner.is_of("1234") && !owner.is_of("5678"));
        }
    }

    #[test]
    fn damaged_record_means_an_unknown_owner_without_a_release() {
        for text in ["", "x", "3", "3 7", "3 7 released any", "3 zz host a at b released any"] {
            let owner = ImageOwner::parse_or_unknown(text);
            assert_eq!((owner.token, owner.host.as_str(), owner.release), (0, UNKNOWN, None), "{text}");
        }
        assert_eq!(ImageOwner::parse("3 7 host a at b released x").and_then(|owner| owner.release), None);
    }
}
