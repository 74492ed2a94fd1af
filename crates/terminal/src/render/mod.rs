//! Reports as text for a terminal: tables, units, optional colours.

pub mod bars;
pub mod datastore;
pub mod events;
pub mod iscsi;
pub mod past;
pub mod reasons;
pub mod screen;
pub mod style;
pub mod table;
pub mod volume;

use style::only_own_codes;

/// Prints a page to standard output. All escape sequences but our own colours are made harmless.
pub fn print(page: &str) {
    print!("{}", only_own_codes(page));
}

#[cfg(test)]
mod tests;
