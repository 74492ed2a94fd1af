//! `hotset check-config`: every error of a configuration at once, with line and remedy, and the settings that commands
//! have changed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use messages::report::OverrideReport;
use rustix::fs::Access;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::json;

use super::machine_checks::{port_warnings, space_warnings};
use config::{BackingSpec, Config, FlashConfig, Problem, Problems, RuleValue, is_device, read_chap};
use daemon::override_reports;
use seam::real::{PATH_TIMEOUT, PathCall, PathTarget};
use state::{READ_ONLY_REMEDY, StateDir};
use terminal::{EXIT_USAGE, Failure};
use units::show_bytes;

/// Checks `file` and prints its errors, or that it is valid. With `any_devices` absent devices are no error, as for the
/// daemon.
pub fn run(file: &Path, any_devices: bool, json: bool) -> Result<(), Failure> {
    let check_devices = |config| if any_devices { Ok(config) } else { check_devices_exist(config) };
    let checked = Config::load(file)
        .and_then(check_devices)
        .and_then(check_state_directory)
        .and_then(check_flash_minima)
        .and_then(check_secrets);
    let overrides = checked.as_ref().map(overrides).unwrap_or_default();
    let rule_settings = checked.as_ref().map(rule_settings).unwrap_or_default();
    let flash_devices_by_command = checked.as_ref().ok().and_then(flash_devices_by_command);
    let iscsi = checked.as_ref().ok().and_then(|config| config.iscsi.as_ref());
    let chap = iscsi.into_iter().flat_map(|iscsi| &iscsi.chap);
    let mut warnings: Vec<_> = chap.flat_map(|chap| chap.warnings()).collect();
    warnings.extend(checked.as_ref().map(Config::exposed_secrets).unwrap_or_default());
    let in_force = checked.as_ref().map(|config| with_devices(config, flash_devices_by_command.as_deref()));
    let (environment_warnings, creation_notes) = in_force.map(compare_with_machine).unwrap_or_default();
    warnings.extend(environment_warnings);
    warnings.extend(checked.as_ref().map(port_warnings).unwrap_or_default());
    let file_flash = checked.as_ref().ok().and_then(|config| config.flash.as_ref());
    if file_flash.is_some_and(|flash| flash.devices.len() == 1 && !flash.allow_single_copy)
        && flash_devices_by_command.is_none()
    {
        let text = "[flash] names one device, and allow_single_copy is not set: the daemon does not use it; name a \
                    second device, or set allow_single_copy = true";
        warnings.push(text.to_owned());
    }
    if json {
        let problems = checked.as_ref().err().map(|problems| problems.problems.as_slice()).unwrap_or_default();
        let valid = checked.is_ok();
        let result = json!({
            "file": file, "valid": valid, "problems": problems, "warnings": warnings, "to_be_created": creation_notes,
            "overrides": overrides, "flash_devices_by_command": flash_devices_by_command, "by_qos": rule_settings
        });
        println!("{result:#}");
    } else {
        match &checked {
            Ok(config) => {
                print!("{}", summary(config, &overrides, &rule_settings));
                if let Some(devices) = &flash_devices_by_command {
                    let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
                    println!(
                        "flash devices changed by command (in force until `devices` changes in the file): {}",
                        devices.join(", ")
                    );
                }
                creation_notes.iter().for_each(|text| println!("note: {text}"));
                warnings.iter().for_each(|warning| println!("warning: {warning}"));
            }
            Err(problems) => eprintln!("{problems}"),
        }
    }
    // The problems are printed above.
    let without_message = |_: Problems| Failure { message: String::new(), code: EXIT_USAGE };
    checked.map(|_| ()).map_err(without_message)
}

/// The configuration with the flash devices that commands have changed, if such a list is in force.
fn with_devices(config: &Config, by_command: Option<&[PathBuf]>) -> Config {
    let mut config = config.clone();
    if let (Some(flash), Some(devices)) = (&mut config.flash, by_command) {
        flash.devices = devices.to_vec();
    }
    config
}

/// Warnings about the paths of a configuration and the free space, and the files and directories that the daemon will
/// create. A path that hangs leaves both unknown.
fn compare_with_machine(config: Config) -> (Vec<String>, Vec<String>) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let warnings = config.environment_warnings();
        let (missing, config) = without_known_files(config);
        let warnings = [warnings, missing, space_warnings(&config)].concat();
        drop(sender.send((warnings, config.creation_notes())));
    });
    receiver.recv_timeout(PATH_TIMEOUT).unwrap_or_else(|_| {
        let text = "a path does not answer, so sizes, free space and missing directories were not checked";
        (vec![text.to_owned()], Vec::new())
    })
}

/// The configuration without flash devices of known stores and without known volumes, whose files the daemon never
/// creates again; and a warning of each missing file of such a volume.
fn without_known_files(mut config: Config) -> (Vec<String>, Config) {
    let Some(state) = StateDir::peek(&config.state_directory).ok().flatten() else { return (Vec::new(), config) };
    if let Some(flash) = &mut config.flash {
        flash.devices.retain(|device| state.store_of_device(device).is_none());
    }
    let (known, new): (Vec<_>, Vec<_>) =
        config.volumes.into_iter().partition(|volume| state.by_name(&volume.name).is_some());
    config.volumes = new;
    let missing = known.iter().filter_map(|volume| match &volume.backing {
        BackingSpec::Path(path) if !path.exists() && !is_device(path) => Some(format!(
            "volume {}: its file {} does not exist, and the daemon creates no new file for a volume that had one; \
             mount its file system, or restore the file",
            volume.name,
            path.display()
        )),
        _ => None,
    });
    (missing.collect(), config)
}

/// Reports absent flash devices and backings, which a daemon would start without.
fn check_devices_exist(config: Config) -> Result<Config, Problems> {
    let state = StateDir::peek(&config.state_directory).ok().flatten();
    let device_fault = |flash: &FlashConfig, device: &Path| {
        let (flash, path) = (flash.clone(), device.to_owned());
        let of_store = state.as_ref().and_then(|state| state.store_of_device(device));
        let find_fault = move || {
            let lost = of_store.and_then(|of_store| FlashConfig::lost_file_fault(&path, &of_store));
            lost.or_else(|| flash.missing_device_fault(&path))
        };
        match PathCall::start(device, move |_| find_fault()).wait(PATH_TIMEOUT) {
            Ok(fault) => fault,
            Err(hung) => Some(split_remedy(&hung.to_string())),
        }
    };
    let flash =
        config.flash.iter().flat_map(|flash| flash.devices.iter().filter_map(move |path| device_fault(flash, path)));
    let problem = |(fault, remedy)| Problem { line: 0, column: 0, fault, remedy };
    let problems: Vec<Problem> = config.backing_problems.iter().cloned().chain(flash.map(problem)).collect();
    if problems.is_empty() { Ok(config) } else { Err(Problems { file: config.file, problems }) }
}

/// Requires the state directory to be writable, as far as that is known: another user may run the daemon.
fn check_state_directory(config: Config) -> Result<Config, Problems> {
    let directory = config.state_directory.clone();
    let look_up = PathCall::start(&config.state_directory, move |_| state_directory_fault(&directory));
    let Some((fault, remedy)) = look_up.wait(PATH_TIMEOUT).ok().flatten() else { return Ok(config) };
    Err(Problems { file: config.file, problems: vec![Problem { line: 0, column: 0, fault, remedy }] })
}

/// Fault and remedy of a state directory that the daemon cannot write; the nearest existing directory counts if it is
/// still to be created.
fn state_directory_fault(directory: &Path) -> Option<(String, String)> {
    let shown = directory.display();
    let existing = directory.ancestors().find(|path| path.is_dir())?;
    if rustix::fs::access(existing, Access::WRITE_OK) == Err(Errno::ROFS) {
        let fault = format!("the state directory {shown} is on a file system that is mounted read-only");
        return Some((fault, READ_ONLY_REMEDY.to_owned()));
    }
    let owner = existing.metadata().ok().filter(|meta| existing == directory && meta.uid() != 0)?;
    let has_access = owner.mode() & 0o300 == 0o300;
    let fault = format!("the state directory {shown} is read-only for its owner, user {}", owner.uid());
    (!has_access).then(|| (fault, format!("run `chmod u+rwx {shown}`, or correct `directory` in [state]")))
}

/// Requires the sum of `flash_min` to fit on the devices. A daemon would reduce each minimum.
fn check_flash_minima(config: Config) -> Result<Config, Problems> {
    let clean_bytes = |flash: &FlashConfig| {
        let (path, flash) = (flash.devices.first()?.clone(), flash.clone());
        PathCall::start(&path, move |_| flash.estimate_clean_bytes()).wait(PATH_TIMEOUT).ok().flatten()
    };
    let Some(flash_bytes) = config.flash.as_ref().and_then(clean_bytes) else { return Ok(config) };
    let on_flash = config.volumes.iter().filter(|volume| volume.flash);
    let sum = on_flash.fold(0_u64, |sum, volume| sum.saturating_add(volume.flash_min.bytes_of(flash_bytes)));
    if sum <= flash_bytes {
        return Ok(config);
    }
    let fault = format!(
        "the sum of the volumes' flash_min is {}, but the devices hold only about {} of clean pages",
        show_bytes(sum),
        show_bytes(flash_bytes)
    );
    let problem = Problem { line: 0, column: 0, fault, remedy: "lower some, or add a device".to_owned() };
    Err(Problems { file: config.file, problems: vec![problem] })
}

/// Requires the CHAP secrets and the mail password to be readable. Without the secrets initiators cannot log in and the
/// daemon does not start; without the password it starts, but sends no mail.
fn check_secrets(config: Config) -> Result<Config, Problems> {
    let chap = config.iscsi.as_ref().and_then(|iscsi| read_chap(&iscsi.chap).err());
    let login = config.alerts.mail.as_ref().and_then(|mail| mail.server.login.as_ref());
    let password = login.and_then(|login| login.password().err());
    let problem = |error: String| {
        let (fault, remedy) = split_remedy(&error);
        Problem { line: 0, column: 0, fault, remedy }
    };
    let problems: Vec<Problem> = chap.into_iter().chain(password).map(problem).collect();
    if problems.is_empty() { Ok(config) } else { Err(Problems { file: config.file, problems }) }
}

/// Fault and remedy of an error.
fn split_remedy(error: &str) -> (String, String) {
    let (fault, remedy) = error.split_once("; ").expect("the error names a remedy");
    (fault.to_owned(), remedy.to_owned())
}

/// Settings changed by command, from the state directory; none if it cannot be read.
fn overrides(config: &Config) -> Vec<OverrideReport> {
    let Ok(Some(state)) = StateDir::peek(&config.state_directory) else { return Vec::new() };
    let file_value = |name: &str, key: &str| {
        let volume = config.volumes.iter().find(|volume| volume.name == name)?;
        Some(volume.setting(key))
    };
    override_reports(&state, file_value)
}

/// The list of flash devices that commands have changed, if it is in force and names other devices than the file.
fn flash_devices_by_command(config: &Config) -> Option<Vec<PathBuf>> {
    let state = StateDir::peek(&config.state_directory).ok()??;
    let in_file = config.flash.as_ref().map(|flash| flash.devices.as_slice()).unwrap_or_default();
    let devices = state.flash_devices_by_command(in_file)?;
    (targets_of(devices) != targets_of(in_file)).then(|| devices.to_vec())
}

/// The targets of the paths; a path that does not answer counts as written.
fn targets_of(paths: &[PathBuf]) -> BTreeSet<PathTarget> {
    let calls: Vec<_> = paths.iter().map(|path| PathTarget::look_up(path)).collect();
    calls.into_iter().map(|call| call.wait(PATH_TIMEOUT).unwrap_or_else(PathTarget::from)).collect()
}

/// A key of a volume with the value that a `[[qos]]` table gives it.
#[derive(Serialize)]
struct RuleSetting {
    volume: String,
    key: &'static str,
    value: String,
    /// Line of the `[[qos]]` table.
    line: usize,
}

/// The keys of all volumes that `[[qos]]` tables set.
fn rule_settings(config: &Config) -> Vec<RuleSetting> {
    let mut settings = Vec::new();
    for volume in &config.volumes {
        let values = config.rule_values(volume).into_iter();
        settings.extend(values.map(|RuleValue { key, value, line }| RuleSetting {
            volume: volume.name.clone(),
            key,
            value,
            line,
        }));
    }
    settings
}

fn summary(config: &Config, overrides: &[OverrideReport], rule_settings: &[RuleSetting]) -> String {
    let counted = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let mut text = format!("{}: valid, {}", config.file.display(), counted(config.volumes.len(), "volume"));
    if !config.pools.is_empty() {
        text += &format!(", {}", counted(config.pools.len(), "pool"));
    }
    text.push('\n');
    if !rule_settings.is_empty() {
        text += "set by [[qos]]:\n";
        for RuleSetting { volume, key, value, line } in rule_settings {
            text += &format!("    {volume}: {key} = {value} (line {line})\n");
        }
    }
    if !overrides.is_empty() {
        text += "settings changed by command (dropped when the key changes in the file):\n";
        for setting in overrides {
            text += &format!("    {}: {} = {} (file: {})\n", setting.volume, setting.key, setting.value, setting.file);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use state::FlashDevices;

    use super::*;

    #[test]
    fn state_directory_that_its_owner_cannot_write_is_a_problem() {
        const OTHER_USER: u32 = 65_534;
        let folder = tempfile::tempdir().expect("a folder for the test");
        let directory = folder.path().join("state");
        assert_eq!(state_directory_fault(&directory), None, "the daemon creates it");
        std::fs::create_dir(&directory).expect("the folder can be written");
        // Root writes to any of its own directories.
        let _ = std::os::unix::fs::chown(&directory, Some(OTHER_USER), None);
        let set_mode = |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode));
        set_mode(0o700).expect("permitted");
        assert_eq!(state_directory_fault(&directory), None);
        set_mode(0o555).expect("permitted");
        let (fault, remedy) = state_directory_fault(&directory).expect("it cannot be written");
        assert!(fault.contains("read-only for its owner") && remedy.contains("chmod u+rwx"), "{fault}; {remedy}");
        set_mode(0o700).expect("permitted");
    }

    #[test]
    fn flash_device_named_by_another_link_is_no_change_by_command() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = |name: &str| folder.path().join(name);
        for name in ["f0", "f1", "f2"] {
            std::fs::write(path(name), "x").expect("the folder can be written");
        }
        std::os::unix::fs::symlink("f1", path("by-id")).expect("the folder can be written");
        let text = "[state]\ndirectory = \"state\"\n[flash]\ndevices = [\"f0\", \"by-id\"]\n[[volume]]\nname = \"a\"\n\
                    backing = \"sim://raid5?size=1GiB\"\n";
        let config = Config::parse(&path("hotset.toml"), text).expect("the configuration is valid");
        let mut directory = StateDir::open(&path("state")).expect("a new state directory");
        let mut changed_to = |names: &[&str]| {
            let devices: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
            let (file, reloaded) = (vec![path("f0"), path("by-id")], None);
            let saved = FlashDevices { file, reloaded, devices };
            directory.change(|state| state.flash_devices = Some(saved)).expect("the directory can be written");
            flash_devices_by_command(&config)
        };
        assert_eq!(changed_to(&["f1", "f0"]), None, "the file names the same devices");
        assert_eq!(changed_to(&["f0", "f2"]), Some(vec![path("f0"), path("f2")]));
    }

    #[test]
    fn missing_or_empty_mail_password_is_a_problem() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let text = "[alerts]\nmail_server = \"m.example\"\nmail_user = \"u\"\nmail_password_file = \"secret\"\n\
                    mail_from = \"a@b.example\"\nmail_to = [\"c@b.example\"]\n[[volume]]\nname = \"a\"\n\
                    backing = \"sim://raid5?size=1GiB\"\n";
        let checked = || {
            let config = Config::parse(&folder.path().join("hotset.toml"), text).expect("the configuration is valid");
            check_secrets(config).map(|config| config.exposed_secrets()).map_err(|problems| problems.to_string())
        };
        let missing = checked().expect_err("there is no file");
        assert!(missing.contains("secret cannot be read") && missing.contains("create the file"), "{missing}");
        std::fs::write(folder.path().join("secret"), "\n").expect("written");
        assert!(checked().expect_err("it is empty").contains("has 0 bytes"));
        std::fs::write(folder.path().join("secret"), "s3cret\n").expect("written");
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(folder.path().join("secret"), readable).expect("the test owns the file");
        let warnings = checked().expect("it is readable");
        assert!(warnings.len() == 1 && warnings[0].contains("the mail password in"), "{warnings:?}");
    }
}
