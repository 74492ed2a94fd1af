//! Reports as text for a terminal: tables, units, colours where wanted.

pub mod bars;
pub mod datastore;
pub mod events;
pub mod iscsi;
pub mod past;
pub mod screen;
pub mod style;
pub mod table;
pub mod volume;

#[cfg(test)]
mod tests;
