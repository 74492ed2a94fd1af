//! Live output of samples: redrawn in place on a terminal, otherwise one line each.

use std::io::{IsTerminal, Write};

use super::OutputMode;
use super::screen::{self, Sample};
use terminal::Failure;
use terminal::render::style::Style;

/// The output.
pub struct Terminal {
    /// True if progress is shown.
    live: bool,
    /// True on a terminal: each sample replaces the one before.
    redraw: bool,
    style: Style,
    /// Lines of the last sample on the screen.
    lines: usize,
}

impl Terminal {
    /// An output for `show`.
    pub fn new(show: OutputMode, style: Style) -> Terminal {
        let (live, redraw) = (show == OutputMode::Live, std::io::stdout().is_terminal());
        Terminal { live, redraw, style, lines: 0 }
    }

    /// Shows the newest sample of the sides `names`, and the progress.
    pub fn show(&mut self, samples: &[Sample], names: [&str; 2], progress: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let written = match (self.live, self.redraw, samples.last()) {
            (true, true, _) => {
                let text = screen::live(samples, names, progress, self.style);
                let cursor_up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
                self.lines = text.matches('\n').count();
                write!(out, "{cursor_up}{}", text.replace('\n', "\x1b[K\n"))
            }
            (true, false, Some(sample)) if samples.len().is_multiple_of(2) => writeln!(out, "{}", screen::line(sample)),
            _ => Ok(()),
        };
        written.and_then(|()| out.flush()).map_err(|error| Failure::failed(error.to_string()))
    }
}
