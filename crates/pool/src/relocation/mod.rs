//! Relocation: plans moves from the demand of an open pool's slices, and carries them out in the background.

mod input;
mod pace;
mod plan;
mod run;
mod settings;

pub use plan::{GroupLoad, PlannedMove, RelocationPlan};
pub use run::{RelocationEnd, RelocationReport};
pub use settings::{RelocationSettings, RelocationWindows};

pub(crate) use plan::plan;
pub(crate) use run::{relocate, start};
