//! Tests of the planner, on pools in memory.

mod balancing;
pub mod fixture;
mod policies;
mod promotion;
mod properties;

use super::*;
