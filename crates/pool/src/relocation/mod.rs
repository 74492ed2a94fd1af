//! Relocation: plans moves from the demand of an open pool's slices, and carries them out in the background.

mod input;
mod pace;
mod plan;
mod run;
mod settings;

pub use plan::{GroupLoad, PlannedMove, RelocationPlan};
pub use settings::{MoveRate, RelocationSettings, RelocationWindows};

pub(crate) use pace::Pacer;
pub(crate) use plan::{heat_histogram, plan};
pub(crate) use run::{relocate, start};
