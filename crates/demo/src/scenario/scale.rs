//! The factors by which a scenario's bytes and time are divided, so that it fits into the available time.

use std::time::Duration;

use lab::scenario::Demo;

/// A shorter demo has the bytes of one of this length, because arrays and flash below a certain size are meaningless.
const SECONDS_MIN: u64 = 60;

/// The scale of a demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Divisor of all bytes.
    pub byte_divisor: u64,
    /// Duration of a minute of the publication.
    pub minute: Duration,
    /// True if the publication states times.
    pub timed: bool,
    /// Length of the demo.
    pub seconds: u64,
}

impl Scale {
    /// The scale of a demo of `seconds`.
    pub fn of(demo: &Demo, seconds: u64) -> Scale {
        let minutes = (demo.setup)(demo.byte_divisor_min).minutes();
        let time_divisor = (minutes * 60).div_ceil(seconds.max(SECONDS_MIN));
        let byte_divisor = if demo.timed { time_divisor.max(demo.byte_divisor_min) } else { demo.byte_divisor_min };
        let count = u32::try_from(minutes).expect("a publication's minutes can be counted");
        Scale { byte_divisor, minute: Duration::from_secs(seconds) / count, timed: demo.timed, seconds }
    }

    /// True if the demo is too short for the publication's times.
    pub fn is_short(&self) -> bool {
        self.timed && self.seconds < SECONDS_MIN
    }
}

#[cfg(test)]
mod tests {
    use lab::scenario::{ALL, find};

    use super::*;

    fn scale(name: &str, seconds: u64) -> Scale {
        Scale::of(find(name).expect("a scenario").demo(), seconds)
    }

    fn time_divisor(scale: &Scale) -> f64 {
        60.0 / scale.minute.as_secs_f64()
    }

    #[test]
    fn an_hour_fits_three_minutes_with_a_twentieth_of_the_bytes() {
        let hour = scale("autocache", 180);
        assert_eq!((hour.byte_divisor, hour.minute, hour.is_short()), (20, Duration::from_secs(3), false));
        assert_eq!(time_divisor(&hour), 20.0);
    }

    #[test]
    fn bytes_and_time_are_scaled_alike_and_all_minutes_fit() {
        for scenario in ALL.iter().filter(|scenario| scenario.demo.as_ref().is_some_and(|demo| demo.timed)) {
            let scale = Scale::of(scenario.demo(), 180);
            let ratio = scale.byte_divisor as f64 / time_divisor(&scale);
            assert!((1.0..1.05).contains(&ratio), "{}: {scale:?}", scenario.name);
            let minutes = (scenario.demo().setup)(scale.byte_divisor).minutes() as u32;
            assert!((scale.minute * minutes).abs_diff(Duration::from_secs(180)) < Duration::from_millis(1));
        }
    }

    #[test]
    fn more_time_than_needed_leaves_the_bytes_bounded() {
        for scenario in ALL.iter().filter(|scenario| scenario.demo.is_some()) {
            let scale = Scale::of(scenario.demo(), 3600);
            assert_eq!(scale.byte_divisor, scenario.demo().byte_divisor_min, "{}", scenario.name);
            let setup = (scenario.demo().setup)(scale.byte_divisor);
            assert!(setup.with.memory_bytes <= 512 << 20, "{}: {} of memory", scenario.name, setup.with.memory_bytes);
        }
    }

    #[test]
    fn too_short_demo_has_the_bytes_of_the_shortest_and_a_flag() {
        let (short, shortest) = (scale("autocache", 6), scale("autocache", 60));
        assert_eq!((short.byte_divisor, short.minute), (shortest.byte_divisor, Duration::from_millis(100)));
        assert!(short.is_short() && !shortest.is_short());
    }

    #[test]
    fn scenario_without_times_fills_the_available_time() {
        let [short, long] = [10, 100].map(|seconds| scale("deferred-writes", seconds));
        assert_eq!(short.byte_divisor, long.byte_divisor);
        assert!(!short.is_short() && long.minute == short.minute * 10);
    }
}
