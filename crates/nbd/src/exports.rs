//! What can be connected to: names and the volumes behind them.

use engine::{Core, Volume};
use seam::Seam;

/// A volume as a client sees it.
pub struct Export<S: Seam> {
    /// Its own name, also where a client asked for the default export.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
    /// What serves it.
    pub volume: Volume<S>,
}

/// An export in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
}

/// Names and the volumes behind them; asked anew for each client, so that volumes may come and go.
pub trait Exports<S: Seam>: 'static {
    /// All of them.
    fn list(&self) -> Vec<Listed>;

    /// The export of that name; the empty name means the only one there is.
    fn find(&self, name: &str) -> Option<Export<S>>;

    /// The export of the volume of that incarnation.
    fn of_incarnation(&self, incarnation: u64) -> Option<Export<S>>;
}

impl<S: Seam> Exports<S> for Core<S> {
    fn list(&self) -> Vec<Listed> {
        let listed = |volume: &Volume<S>| Listed { name: volume.name().to_owned(), description: description(volume) };
        self.volumes().iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export<S>> {
        let volume = match name {
            "" => {
                let mut all = self.volumes();
                if all.len() == 1 { all.pop() } else { None }
            }
            name => Core::find(self, name),
        }?;
        Some(export(volume))
    }

    fn of_incarnation(&self, incarnation: u64) -> Option<Export<S>> {
        self.volumes().into_iter().find(|volume| volume.spec().incarnation == incarnation).map(export)
    }
}

fn export<S: Seam>(volume: Volume<S>) -> Export<S> {
    Export { name: volume.name().to_owned(), description: description(&volume), volume }
}

fn description<S: Seam>(volume: &Volume<S>) -> String {
    match volume.spec().labels.get("vm") {
        Some(vm) => format!("disk of {vm}, {}", volume.policy()),
        None => volume.policy().to_string(),
    }
}
