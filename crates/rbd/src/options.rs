//! The options of librbd that the guarantees of a volume depend on. This process sets them, but a setting of the image
//! or of its pool prevails.

use super::ffi::{CephError, Image, ImageOption, OptionLevel};

/// The options with the values that they must have. A version of librbd without one of them has no such mechanism, or
/// has it under its former name.
const REQUIRED: [(&str, &str, &str); 4] = [
    ("rbd_cache", "false", "a second cache would hold data that a flush has to write"),
    ("rbd_blocklist_on_break_lock", "true", "a client that has lost the lock could still write"),
    ("rbd_blacklist_on_break_lock", "true", "a client that has lost the lock could still write"),
    ("rbd_persistent_cache_mode", "disabled", "flushed data would lie in a cache of one host"),
];

/// Why the options of an image do not permit to serve it.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// An option has another value.
    #[error("the option {setting}, but hotset needs {required}: {reason}; remove the setting with `{remedy}`")]
    Forbidden {
        /// The option, its value, and where it is set.
        setting: String,
        /// The value that it must have.
        required: &'static str,
        /// Why.
        reason: &'static str,
        /// The command that removes the setting.
        remedy: String,
    },
    /// The options cannot be read.
    #[error(transparent)]
    Ceph(#[from] CephError),
}

/// Checks the options in effect for an image.
pub fn check(image: &Image) -> Result<(), OptionError> {
    find_forbidden(&image.options()?, image.name()).map_or(Ok(()), Err)
}

/// The first option with a value that does not permit to serve the image `name`.
fn find_forbidden(options: &[ImageOption], name: &str) -> Option<OptionError> {
    let pool = name.split('/').next().unwrap_or(name);
    REQUIRED.iter().find_map(|(key, required, reason)| {
        let option = options.iter().find(|option| option.name == *key && option.value != *required)?;
        let (place, remedy) = match option.level {
            OptionLevel::Image => (format!("for the image {name}"), format!("rbd config image rm {name} {key}")),
            OptionLevel::Pool => (format!("for the pool {pool}"), format!("rbd config pool rm {pool} {key}")),
            OptionLevel::Client => ("for the client".to_owned(), format!("ceph config rm client {key}")),
        };
        Some(OptionError::Forbidden { setting: format!("{key} is {} {place}", option.value), required, reason, remedy })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(name: &str, value: &str, level: OptionLevel) -> ImageOption {
        ImageOption { name: name.to_owned(), value: value.to_owned(), level }
    }

    #[test]
    fn forbidden_option_is_named_with_its_level_and_the_remedy() {
        let good =
            [option("rbd_cache", "false", OptionLevel::Client), option("rbd_op_threads", "1", OptionLevel::Pool)];
        assert!(find_forbidden(&good, "vms/web").is_none());
        let harmless = [option("rbd_cache", "false", OptionLevel::Image)];
        assert!(find_forbidden(&harmless, "vms/web").is_none());
        for (name, value, level, remedy) in [
            ("rbd_cache", "true", OptionLevel::Image, "rbd config image rm vms/web rbd_cache"),
            (
                "rbd_blocklist_on_break_lock",
                "false",
                OptionLevel::Pool,
                "rbd config pool rm vms rbd_blocklist_on_break",
            ),
            (
                "rbd_persistent_cache_mode",
                "ssd",
                OptionLevel::Client,
                "ceph config rm client rbd_persistent_cache_mode",
            ),
        ] {
            let error = find_forbidden(&[option(name, value, level)], "vms/web").expect("it is forbidden").to_string();
            assert!(error.contains(remedy) && error.contains(name) && error.contains(value), "{error}");
        }
    }
}
