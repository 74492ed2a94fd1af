//! Random lives: random shapes, faults, several boots, each ended by a crash.
