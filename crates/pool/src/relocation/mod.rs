//! Relocation: plans moves from the demand of an open pool's slices, and carries them out in the background.

mod input;
mod pace;
mod plan;
mod run;
mod settings;
mod volume_cells;

pub use plan::{GroupLoad, RelocationPlan};
pub use settings::{MoveRate, RelocationSettings, RelocationWindows};
pub use volume_cells::{VolumeCell, VolumeCells};

pub(crate) use pace::Pacer;
pub(crate) use plan::{heat_histogram, plan, utilisation};
pub(crate) use run::{relocate, start};
pub(crate) use volume_cells::volume_cells;
