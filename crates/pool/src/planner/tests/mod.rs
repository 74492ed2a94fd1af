//! Tests of the planner, on pools in memory.

mod alternation;
mod balancing;
pub mod fixture;
mod policies;
mod promotion;
mod properties;

use super::*;
