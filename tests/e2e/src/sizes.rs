//! Sizes of tests, which environment variables replace for long runs.

use std::fmt::Debug;
use std::str::FromStr;

/// The number in the environment variable `name`, or `default` without it.
pub fn size<T: FromStr<Err: Debug>>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name} is {text}, which is no number: {error:?}"))
    })
}
