//! Torture: the engine in a hostile simulated world, checked against the promises. Everything follows from one seed.

pub mod content;
pub mod history;
pub mod model;
