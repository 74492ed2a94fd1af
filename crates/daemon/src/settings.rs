//! The configuration in force. A reload replaces it as a whole; a reader continues with the configuration that it has.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use events::ChannelsConfig;
use events::alerts::Limits;

use config::Config;

/// The machine's host name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The alert channels that a configuration specifies.
pub fn alert_channels(config: &Config) -> ChannelsConfig {
    ChannelsConfig {
        webhook: config.alerts.webhook.clone(),
        mail: config.alerts.mail.clone(),
        host: std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned(),
        console_url: config.api.console_url(),
    }
}

/// The configuration in force.
pub struct Settings(RefCell<Rc<Config>>);

impl Settings {
    /// The configuration as it was read at the start.
    pub fn new(config: Config) -> Settings {
        Settings(RefCell::new(Rc::new(config)))
    }

    /// The configuration in force now.
    pub fn current(&self) -> Rc<Config> {
        self.0.borrow().clone()
    }

    /// Puts another configuration in force.
    pub fn replace(&self, config: Config) {
        self.0.replace(Rc::new(config));
    }

    /// Absolute path of the configuration file.
    pub fn file(&self) -> PathBuf {
        absolute(&self.0.borrow().file)
    }

    /// Size of the memory cache in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.borrow().memory_bytes
    }

    /// True with an iSCSI target.
    pub fn has_target(&self) -> bool {
        self.0.borrow().iscsi.is_some()
    }

    /// The flash devices that the file lists.
    pub fn flash_devices(&self) -> Vec<PathBuf> {
        self.0.borrow().flash.as_ref().map(|flash| flash.devices.clone()).unwrap_or_default()
    }

    /// True when the flash log may answer flushes from one copy.
    pub fn allows_single_copy(&self) -> bool {
        self.0.borrow().flash.as_ref().is_some_and(|flash| flash.allow_single_copy)
    }

    /// Thresholds of the alerts of a daemon with `cores` data cores.
    pub fn alert_limits(&self, cores: usize) -> Limits {
        let config = self.0.borrow();
        Limits {
            dirty_age: config.alerts.dirty_age,
            endurance_until: config.alerts.endurance_until,
            metrics_volumes: config.api.listen.map(|_| config.api.metrics_volumes as usize),
            cores,
        }
    }
}

/// The path as an absolute one, valid in the working directory of any command.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
