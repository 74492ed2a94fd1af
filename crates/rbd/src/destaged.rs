//! The names of data that other hosts had flushed to their logs, and that take-overs have destaged from there: a list
//! in the image's metadata. A host that returns finds its own data in it, and drops the copy in its log.

use rbd::{parse_mark_id, show_mark_id};

use super::ffi::{CephError, Image};

/// Names that the list keeps. A host whose data is not in it any more is refused, and asks its administrator.
const NAMES_MAX: usize = 32;

/// The list. That of another image, of which this one is a clone or a copy, says nothing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Destaged(Vec<u64>);

impl Destaged {
    /// The list in a metadata value of the image with that ID.
    fn parse(text: &str, image_id: &str) -> Destaged {
        let mut words = text.split(' ');
        let is_own = words.next() == Some(image_id);
        Destaged(words.filter(|_| is_own).filter_map(parse_mark_id).collect())
    }

    fn encode(&self, image_id: &str) -> String {
        let names: String = self.0.iter().map(|id| format!(" {}", show_mark_id(*id))).collect();
        format!("{image_id}{names}")
    }

    /// Adds a name, and drops the oldest one beyond the maximum.
    fn add(&mut self, id: u64) {
        self.0.retain(|known| *known != id);
        self.0.push(id);
        let excess = self.0.len().saturating_sub(NAMES_MAX);
        self.0.drain(..excess);
    }
}

/// True if the image has all data of the mark with that number.
pub fn is_destaged(image: &Image, id: u64) -> Result<bool, CephError> {
    Ok(read(image)?.0.contains(&id))
}

/// Records that the image has all data of the mark with that number.
pub fn record_destaged(image: &Image, id: u64) -> Result<(), CephError> {
    let mut list = read(image)?;
    list.add(id);
    image.set_destaged(&list.encode(&image.id()?))
}

fn read(image: &Image) -> Result<Destaged, CephError> {
    let text = image.destaged()?.unwrap_or_default();
    Ok(Destaged::parse(&text, &image.id()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_belongs_to_one_image_and_is_bounded() {
        let mut list = Destaged::parse("", "a1");
        assert_eq!(list, Destaged::default());
        (1..=NAMES_MAX as u64 + 2).for_each(|id| list.add(id));
        list.add(5);
        assert_eq!((list.0.len(), list.0.first(), list.0.last()), (NAMES_MAX, Some(&3), Some(&5)));
        assert_eq!(Destaged::parse(&list.encode("a1"), "a1"), list);
        assert_eq!(Destaged::parse(&list.encode("a1"), "a2"), Destaged::default(), "it is a clone");
        assert_eq!(Destaged::parse("a1 x 0000000000000007", "a1"), Destaged(vec![7]), "a damaged name is none");
    }
}
