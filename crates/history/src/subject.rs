//! Subjects of figures, and the names of their rows.

use messages::{ErrorKind, Failure};

/// Subject of figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// The whole daemon.
    #[default]
    Whole,
    /// A volume.
    Volume(String),
    /// The volumes of a datastore; an empty name selects volumes without one.
    Datastore(String),
    /// A pool.
    Pool(String),
}

impl Subject {
    /// Name of the subject's rows, in memory and in the file. Names contain no slash.
    pub fn row_name(&self) -> String {
        match self {
            Subject::Whole => String::new(),
            Subject::Volume(name) => name.clone(),
            Subject::Datastore(name) => format!("/{name}"),
            Subject::Pool(name) => format!("//{name}"),
        }
    }

    /// The error for an unknown subject; `None` for the whole daemon.
    pub fn unknown_error(&self) -> Option<Failure> {
        match self {
            Subject::Whole => None,
            Subject::Volume(name) => Some(Failure::no_volume(name)),
            Subject::Datastore(name) => {
                let text =
                    format!("there is no datastore named \"{name}\"; the volumes of `hotset status` name theirs");
                Some(Failure::new(ErrorKind::NotFound, text))
            }
            Subject::Pool(name) => {
                let text = format!("there is no pool named \"{name}\"; `hotset pool list` names them");
                Some(Failure::new(ErrorKind::NotFound, text))
            }
        }
    }
}
