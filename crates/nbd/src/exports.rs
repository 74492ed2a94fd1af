//! Exports: names and their volumes.

use engine::{Core, Volume, VolumeId};
use seam::Seam;

/// An export.
#[derive(Clone)]
pub struct Export<S: Seam> {
    /// Name of the export, also for the default export.
    pub name: String,
    /// Description; may be empty.
    pub description: String,
    /// The volume.
    pub volume: Volume<S>,
    /// Clients may not change the volume.
    pub is_read_only: bool,
}

/// An entry in the list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name of the export.
    pub name: String,
    /// Description; may be empty.
    pub description: String,
}

/// The set of exports. Connections query it anew, so that volumes may come and go.
pub trait Exports<S: Seam>: 'static {
    /// All exports.
    fn list(&self) -> Vec<ExportEntry>;

    /// The export of the name; the empty name selects the only export.
    fn find(&self, name: &str) -> Option<Export<S>>;

    /// The export of the volume with this ID.
    fn find_by_id(&self, volume_id: VolumeId) -> Option<Export<S>>;
}

impl<S: Seam> Exports<S> for Core<S> {
    fn list(&self) -> Vec<ExportEntry> {
        let listed =
            |volume: &Volume<S>| ExportEntry { name: volume.name().to_owned(), description: description(volume) };
        self.volumes_and_standbys().iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export<S>> {
        let volume = match name {
            "" => {
                let mut volumes = self.volumes();
                if volumes.is_empty() {
                    volumes = self.volumes_and_standbys();
                }
                if volumes.len() == 1 { volumes.pop() } else { None }
            }
            name => Core::find(self, name),
        }?;
        Some(export(volume))
    }

    fn find_by_id(&self, volume_id: VolumeId) -> Option<Export<S>> {
        self.volumes_and_standbys().into_iter().find(|volume| volume.spec().volume_id == volume_id).map(export)
    }
}

fn export<S: Seam>(volume: Volume<S>) -> Export<S> {
    let (volume, is_read_only) = (volume.for_client(), volume.spec().read_only);
    Export { name: volume.name().to_owned(), description: description(&volume), volume, is_read_only }
}

fn description<S: Seam>(volume: &Volume<S>) -> String {
    match volume.spec().labels.get("vm") {
        Some(vm) => format!("disk of {vm}, {}", volume.policy()),
        None => volume.policy().to_string(),
    }
}
