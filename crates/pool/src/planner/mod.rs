//! Planner of moves between tiers.
