//! A table of texts, whose columns are as wide as their contents.

use super::style::Style;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For names.
    Left,
    /// For figures.
    Right,
}

/// A table under construction.
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&str, Side)]) -> Table {
        let columns = columns.iter().map(|(head, side)| ((*head).to_owned(), *side)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Appends a row of one cell per column. Control characters in cells are escaped.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has as many cells as the table has columns");
        self.rows.push(cells.into_iter().map(|cell| messages::plain(&cell).into_owned()).collect());
    }

    /// The table as text; each line ends with a newline.
    pub fn render(&self, style: Style) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[&str]| {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((cell, width), (_, side))| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let heads: Vec<&str> = self.columns.iter().map(|(head, _)| head.as_str()).collect();
        let mut text = style.dim(&line(&heads)) + "\n";
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            text += &(line(&cells) + "\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_cells_are_escaped_and_counted() {
        let mut table = Table::new(&[("name", Side::Left), ("count", Side::Right)]);
        table.row(vec!["a\u{1b}[31mb\nc".to_owned(), "1".to_owned()]);
        let text = table.render(Style::PLAIN);
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
        assert!(text.contains(r"a\u{1b}[31mb\u{a}c      1"), "{text}");
    }
}
