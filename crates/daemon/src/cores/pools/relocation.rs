//! Relocation of an open pool: when it runs, and how fast.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use config::{PoolConfig, RateSetting, RelocationTimes};
use messages::report::PoolRelocationState;
use pool::planner::WeekMinute;
use pool::{RelocationSettings, RelocationWindows};
use seam::real::LocalTime;

use super::RealPool;
use super::classes::TierClass;

/// Relocation of a pool.
pub struct Relocation {
    classes: Vec<TierClass>,
    times: RelocationTimes,
    rate: RateSetting,
    is_paused: Cell<bool>,
    /// Ends all moves that were started with it.
    stop: RefCell<Rc<Cell<bool>>>,
}

impl Relocation {
    /// Relocation that has not started.
    pub fn new(classes: Vec<TierClass>, config: &PoolConfig, is_paused: bool) -> Relocation {
        Relocation {
            classes,
            times: config.relocation.clone(),
            rate: config.rate,
            is_paused: Cell::new(is_paused),
            stop: RefCell::new(Rc::new(Cell::new(is_paused))),
        }
    }

    /// The classes of the tiers, the fastest first.
    pub fn classes(&self) -> &[TierClass] {
        &self.classes
    }

    /// Times of the configuration.
    pub fn times(&self) -> &RelocationTimes {
        &self.times
    }

    /// Rate of the configuration.
    pub fn rate(&self) -> RateSetting {
        self.rate
    }

    /// True while a command has paused all moves.
    pub fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    /// Settings of moves that the background task or a plan makes: they keep to the windows.
    pub fn settings(&self) -> RelocationSettings {
        let windows = match &self.times {
            RelocationTimes::Windows(windows) => {
                Some(RelocationWindows { windows: windows.clone(), clock: Rc::new(week_minute) })
            }
            RelocationTimes::Continuous | RelocationTimes::Off => None,
        };
        RelocationSettings { windows, ..self.settings_of_command() }
    }

    /// Settings of moves that a command has asked for: they begin now.
    pub fn settings_of_command(&self) -> RelocationSettings {
        let costs = self.classes.iter().map(TierClass::cost).collect();
        let settings = RelocationSettings::new(costs, self.rate.move_rate());
        RelocationSettings { stop: Rc::clone(&self.stop.borrow()), ..settings }
    }

    /// Starts the background task, if the configuration and the administrator permit.
    pub fn start(&self, pool: &RealPool) {
        if self.times != RelocationTimes::Off && !self.is_paused() {
            pool.start_relocation(self.settings());
        }
    }

    /// True once the moves have been ended, by a pause or for good.
    pub fn is_stopped(&self) -> bool {
        self.stop.borrow().get()
    }

    /// Ends all moves. A move that is copying is cancelled before its next copy.
    pub fn stop(&self) {
        self.stop.borrow().set(true);
    }

    /// Ends all moves until [`Relocation::resume`].
    pub fn pause(&self) {
        self.is_paused.set(true);
        self.stop();
    }

    /// Lets slices move again.
    pub fn resume(&self, pool: &RealPool) {
        if self.is_paused.replace(false) {
            self.stop.replace(Rc::default());
            self.start(pool);
        }
    }

    /// State for reports.
    pub fn state(&self, is_moving: bool) -> PoolRelocationState {
        match &self.times {
            _ if is_moving => PoolRelocationState::Moving,
            _ if self.is_paused() => PoolRelocationState::Paused,
            RelocationTimes::Off => PoolRelocationState::Off,
            RelocationTimes::Windows(windows) if !windows.allows(week_minute()) => PoolRelocationState::Waiting,
            _ => PoolRelocationState::Idle,
        }
    }
}

/// The present minute of the week in local time.
fn week_minute() -> WeekMinute {
    let LocalTime { day, hour, minute } = LocalTime::now();
    WeekMinute::new(day, hour, minute).expect("a time of the week")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::Config;

    use super::*;

    fn relocation(keys: &str, is_paused: bool) -> Relocation {
        let text = format!("[[pool]]\nname = \"a\"\ntier = [{{ name = \"t\", devices = [\"/dev/x\"] }}]\n{keys}\n");
        let config = Config::parse(Path::new("/etc/hotset.toml"), &text).expect("a configuration without errors");
        Relocation::new(Vec::new(), &config.pools[0], is_paused)
    }

    #[test]
    fn state_names_the_reason_why_nothing_moves() {
        assert_eq!(relocation("", false).state(false), PoolRelocationState::Idle);
        assert_eq!(relocation("", false).state(true), PoolRelocationState::Moving);
        assert_eq!(relocation("", true).state(false), PoolRelocationState::Paused);
        assert_eq!(relocation("relocation = \"off\"", false).state(false), PoolRelocationState::Off);
        let always = relocation("relocation = \"00:00-24:00\"", false);
        assert_eq!(always.state(false), PoolRelocationState::Idle);
    }

    #[test]
    fn pause_ends_moves_in_progress_and_not_those_after_a_resume() {
        let relocation = relocation("rate = \"20 MiB/s\"", false);
        let before = relocation.settings();
        relocation.pause();
        assert!(before.stop.get() && relocation.is_paused());
        assert_eq!(before.rate, pool::MoveRate::Bytes(20 << 20));
        assert!(relocation.settings_of_command().stop.get());
    }
}
