//! Reports as text for a terminal: tables, units, optional colours.

pub mod alerts;
pub mod bars;
pub mod datastore;
pub mod events;
pub mod fleet;
pub mod history;
pub mod iscsi;
pub mod pool;
pub mod reasons;
pub mod screen;
pub mod snapshot;
pub mod style;
pub mod table;
pub mod volume;

use style::escape_foreign_codes;

/// Prints a page to standard output. All escape sequences except the known style codes are escaped.
pub fn print(page: &str) {
    print!("{}", escape_foreign_codes(page));
}

#[cfg(test)]
mod tests;
