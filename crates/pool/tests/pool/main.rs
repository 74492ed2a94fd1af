//! Tests of the pool in the simulated world: crashes at every I/O, random lives with faults, moves, groups, damage.

mod checkpoints;
mod contradictions;
mod crash_points;
mod failed_flushes;
mod give_up;
mod heat_image;
mod hung_groups;
mod import;
mod journal;
mod late_metadata;
mod membership;
mod metadata_copies;
mod model;
mod moves;
mod relocation;
mod reservations;
mod sabotage;
mod seeds;
mod service;
mod snapshot_workload;
mod snapshots;
mod timelines;
mod workload;
mod world;
