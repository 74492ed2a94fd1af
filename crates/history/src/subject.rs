//! Whose figures are kept, and what the line of each is called.

use control::{ErrorKind, Failure};

/// Whose figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// Of all together.
    #[default]
    Whole,
    /// Of a volume.
    Volume(String),
    /// Of a datastore's volumes; an empty name is of those without one.
    Datastore(String),
}

impl Subject {
    /// What its line is called, here and in the file: no volume has a slash in its name.
    pub fn line(&self) -> String {
        match self {
            Subject::Whole => String::new(),
            Subject::Volume(name) => name.clone(),
            Subject::Datastore(name) => format!("/{name}"),
        }
    }

    /// Why nothing is told of one that is not known.
    pub fn unknown(&self) -> Option<Failure> {
        match self {
            Subject::Whole => None,
            Subject::Volume(name) => Some(Failure::no_volume(name)),
            Subject::Datastore(name) => {
                let text =
                    format!("there is no datastore named \"{name}\"; the volumes of `hotset status` name theirs");
                Some(Failure::new(ErrorKind::NotFound, text))
            }
        }
    }
}
