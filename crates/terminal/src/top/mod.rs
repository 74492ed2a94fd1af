//! `hotset top`: the overview and the volumes on a terminal, live.
//!
//! ```text
//! poller.rs    a thread that polls the daemon, and reconnects to it
//! interval.rs  differences between two samples of the counters
//! model.rs     the daemon's state, and the user's choices
//! columns.rs   the table's columns: title, key to sort by, cell
//! view.rs      the model on a terminal
//! ```

mod columns;
mod interval;
mod model;
mod poller;
mod view;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use self::model::Model;
use self::poller::StatusPoller;
use self::view::Palette;
use crate::Failure;

/// Interval of redraws while no key is pressed.
const TICK: Duration = Duration::from_millis(100);

/// Runs on the terminal until the user quits, and restores the terminal.
pub fn run(socket: PathBuf, interval: Duration) -> Result<(), Failure> {
    let poller = StatusPoller::start(socket, interval);
    let failed = |error: std::io::Error| Failure::failed(format!("cannot use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = run_loop(&mut terminal, &poller, Model::new(Instant::now()));
    ratatui::restore();
    result.map_err(failed)
}

fn run_loop(terminal: &mut DefaultTerminal, poller: &StatusPoller, mut model: Model) -> std::io::Result<()> {
    let palette = Palette::from_environment();
    loop {
        for result in poller.results() {
            model.apply(result, Instant::now());
        }
        terminal.draw(|frame| view::draw(frame, &mut model, palette, Instant::now()))?;
        if event::poll(TICK)? {
            match event::read()? {
                Event::Key(key) if !key.is_release() && model.press(key) => return Ok(()),
                // A resize, too: the next round redraws.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
