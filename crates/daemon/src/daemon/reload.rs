//! Reload of the configuration: changes are applied live or reported as needing a restart, and errors keep the old
//! configuration.

use std::cell::Cell;
use std::path::PathBuf;

use control::ProgressSender;
use engine::DatastoreSpec;
use messages::{ErrorKind, Failure};
use seam::real::{PATH_TIMEOUT, PathCall};

use super::super::reload_outcome::ReloadOutcome;
use super::super::volumes::VolumeStatus;
use super::Daemon;
use super::fleet::release_removed;
use config::{Config, LOOK_UP_TIMEOUT, LogConfig, VolumeConfig};
use logging::{self as log, CONFIG};

/// Order of reloads. Only the newest one changes volumes: an older one that waits for the destage of a volume would go
/// on with a file that is out of date.
#[derive(Default)]
pub struct Reloads {
    /// Held while the file is read and while other settings than those of volumes are applied.
    settings: tokio::sync::Mutex<()>,
    /// Number of the newest reload whose file has no errors.
    newest: Cell<u64>,
}

impl Reloads {
    fn begin(&self) -> u64 {
        self.newest.set(self.newest.get() + 1);
        self.newest.get()
    }
}

impl Daemon {
    /// SIGHUP and `reload`: returns one outcome per changed setting: applied, or needs a restart.
    pub async fn reload(&self) -> Result<Vec<ReloadOutcome>, Failure> {
        let applying = self.reloads.settings.lock().await;
        let fresh = load_configuration(self.settings.current().file.clone()).await.map_err(|problems| {
            let text = format!("{problems}\nnothing was changed; the previous configuration stays in effect");
            Failure::new(ErrorKind::Invalid, text)
        })?;
        let number = self.reloads.begin();
        self.flash.set_file_devices(fresh.flash.as_ref().map(|flash| flash.devices.clone()).unwrap_or_default());
        let is_newest = || self.reloads.newest.get() == number;
        let old = Config::clone(&self.settings.current());
        let mut outcomes: Vec<ReloadOutcome> =
            restart_messages(&old, &fresh).into_iter().map(ReloadOutcome::General).collect();
        // Compares with the served volumes, not with the old file, so that a failed removal is retried.
        let is_in_file = |name: &String| fresh.volumes.iter().any(|volume| volume.name == *name);
        let from_file = self.volumes.map(|known| known.from_file.then(|| known.config.name.clone()));
        let from_file: Vec<String> = from_file.into_iter().flatten().collect();
        outcomes.extend(
            self.cores
                .reload_datastores(&old.datastores, &fresh.datastores)
                .await
                .into_iter()
                .map(ReloadOutcome::General),
        );
        if old.qos != fresh.qos {
            outcomes.push(ReloadOutcome::General(format!("[[qos]]: {} rules applied", fresh.qos.len())));
        }
        if old.log.filter != fresh.log.filter {
            log::set_filter(&fresh.log.filter);
            outcomes.push(ReloadOutcome::General("[log]: level and filter applied".to_owned()));
        }
        // A newer reload compares its file with what is in force by now. Datastores stay until no volume names them.
        let is_replaced = |old: &&DatastoreSpec| fresh.datastores.iter().any(|fresh| fresh.name == old.name);
        let left = old.datastores.iter().filter(|old| !is_replaced(old));
        let datastores = fresh.datastores.iter().chain(left).cloned().collect();
        let log = LogConfig { filter: fresh.log.filter.clone(), ..old.log.clone() };
        self.settings.replace(Config { datastores, log, ..old.clone() });
        drop(applying);
        for name in from_file.iter().filter(|name| !is_in_file(name)) {
            if is_newest() {
                outcomes.push(self.remove_volume(name).await);
            }
        }
        if is_newest() {
            self.units.set_fixed_luns(&fresh.volumes);
        }
        for volume in &fresh.volumes {
            if is_newest() {
                outcomes.extend(self.reload_volume(volume).await);
            }
        }
        let _applying = self.reloads.settings.lock().await;
        if !is_newest() {
            outcomes.push(ReloadOutcome::General("a newer reload applies the rest of the configuration".to_owned()));
            return Ok(outcomes);
        }
        outcomes.extend(self.volume_settings.reload_rules(&fresh.qos).await);
        self.cores.remove_datastores(&old.datastores, &fresh.datastores).await;
        let (mut api, mut nbd) = (old.api.clone(), old.nbd.clone());
        if let (Some(files), Some(fresh_files)) = (&mut api.tls, fresh.api.tls) {
            outcomes.extend(self.certificates.reload("api", &fresh_files).map(ReloadOutcome::General));
            *files = fresh_files;
        }
        if let (Some(tls), Some(fresh_tls)) = (&mut nbd.tls, fresh.nbd.tls)
            && tls.files.client_ca.is_some() == fresh_tls.files.client_ca.is_some()
        {
            outcomes.extend(self.certificates.reload("nbd", &fresh_tls.files).map(ReloadOutcome::General));
            tls.files = fresh_tls.files;
        }
        let mut fleet = old.fleet.clone();
        if let (Some(link), Some(fresh_link)) = (&mut fleet.link, fresh.fleet.link) {
            outcomes.extend(self.certificates.reload("fleet", &fresh_link.files).map(ReloadOutcome::General));
            link.files = fresh_link.files;
        }
        // Settings that need a restart keep their values from the start, so that the next reload reports them again.
        let written = old.written.after_reload(fresh.written);
        self.settings.replace(Config {
            volumes: fresh.volumes,
            backing_problems: fresh.backing_problems,
            datastores: fresh.datastores,
            qos: fresh.qos,
            api,
            nbd,
            fleet,
            log: LogConfig { filter: fresh.log.filter, ..old.log },
            written,
            ..old
        });
        if outcomes.is_empty() {
            outcomes.push(ReloadOutcome::General("configuration reloaded; nothing has changed".to_owned()));
        }
        Ok(outcomes)
    }

    /// Removes a volume whose entry is gone from the file.
    async fn remove_volume(&self, name: &str) -> ReloadOutcome {
        let of_volume = |text: &str| ReloadOutcome::Volume(name.to_owned(), text.to_owned());
        let (progress, _) = ProgressSender::new();
        let Ok(_guard) = self.volumes.lock_for_change(name) else {
            return of_volume("not removed: another change of it is in progress; the next reload retries");
        };
        let known = self.volumes.find(name);
        let Some(known) = known.filter(|known| known.from_file) else {
            return of_volume("removed from the file; the volume was already removed");
        };
        if let VolumeStatus::Serving(placement) = &known.status {
            self.volumes.set_status(name, VolumeStatus::Removing(placement.clone()));
            let held = self.hold_image(&known.config);
            if let Err(failure) = self.attachments.detach(name, placement.core, &progress).await {
                self.volumes.set_status(name, VolumeStatus::Serving(placement.clone()));
                return ReloadOutcome::Failed(name.to_owned(), failure);
            }
            release_removed(name, held).await;
            // The volume's record stays: the entry may return.
            if let Err(error) = self.records.change(|state| state.mark_clean(placement.volume_id)) {
                log::error!(target: CONFIG, "{error}");
            }
        }
        if let Err(failure) = self.units.remove_absent(name).await {
            return ReloadOutcome::Failed(name.to_owned(), failure);
        }
        if let Err(failure) = self.forwarding.remove(name).await {
            return of_volume(&failure.message);
        }
        self.volumes.remove(name);
        // Without its entry, a volume that was added by command before it was put into the file would return.
        let recorded = self.records.change(|state| {
            state.volumes.iter_mut().filter(|record| record.name == name).for_each(|record| record.added = None);
        });
        if let Err(error) = recorded {
            log::error!(target: CONFIG, "{error}");
        }
        if self.memory.persisted_images_of(name).await.is_ok_and(|images| !images.is_empty()) {
            return of_volume(
                "removed from the file, but its dirty data exists only in persisted memory and is lost at a reboot",
            );
        }
        if self.records.may_be_on_flash(name) {
            return of_volume("removed from the file; the flash log may still hold dirty data of it");
        }
        of_volume("removed; its backing is complete")
    }

    /// Adds the volume of an entry, or applies the entry to the volume that is served.
    async fn reload_volume(&self, fresh: &VolumeConfig) -> Vec<ReloadOutcome> {
        let name = &fresh.name;
        let of_volume = |text: &str| vec![ReloadOutcome::Volume(name.clone(), text.to_owned())];
        let Ok(_guard) = self.volumes.lock_for_change(name) else {
            return of_volume("skipped: another change of it is in progress; the next reload retries");
        };
        let known = self.volumes.find(name);
        let removed = self.records.view().removed.get(name) == Some(&fresh.entry());
        match known {
            None if removed => Vec::new(),
            None => vec![self.add_volume(fresh).await],
            Some(known) if !known.from_file => of_volume("skipped: a volume of this name was added by command"),
            Some(known) if known.refusal().is_some() => vec![self.add_volume(fresh).await],
            Some(known) => self.volume_settings.reload(&known.config, fresh).await,
        }
    }

    async fn add_volume(&self, fresh: &VolumeConfig) -> ReloadOutcome {
        // An entry that changed after its volume was removed by command is added again.
        let saved = self.records.change(|state| state.removed.remove(&fresh.name));
        if let Err(error) = saved {
            return ReloadOutcome::Volume(fresh.name.clone(), format!("not added: {error}"));
        }
        match self.attachments.attach(fresh.clone(), true, state::Acceptance::default()).await {
            Ok(()) => ReloadOutcome::Volume(fresh.name.clone(), "added".to_owned()),
            Err(failure) => ReloadOutcome::Failed(fresh.name.clone(), failure),
        }
    }
}

/// Reads and checks the file on a helper thread, because the file systems of the file and of the paths in it may hang.
async fn load_configuration(file: PathBuf) -> Result<Config, String> {
    let load = PathCall::start(&file, {
        let file = file.clone();
        move |_| Config::load_within(&file, LOOK_UP_TIMEOUT)
    });
    let loaded = load.answer(PATH_TIMEOUT, tokio::time::sleep).await.map_err(|hung| hung.to_string())?;
    loaded.map_err(|problems| problems.to_string())
}

/// Messages about changed settings that need a restart.
fn restart_messages(old: &Config, fresh: &Config) -> Vec<String> {
    // The struct is destructured so that the compiler reports a new field that is missing here.
    let Config {
        file: _,
        cores,
        state_directory,
        memory_bytes,
        keep_in,
        flash,
        control_socket,
        api,
        history,
        alerts,
        log,
        nbd,
        iscsi,
        vhost_user,
        fleet,
        arrays,
        pools,
        datastores: _,
        qos: _,
        volumes: _,
        backing_problems: _,
        written: _,
    } = old;
    let changed = [
        ("cores", *cores != fresh.cores),
        ("[state] directory", *state_directory != fresh.state_directory),
        ("[memory] size", *memory_bytes != fresh.memory_bytes),
        ("[memory] keep_in", *keep_in != fresh.keep_in),
        ("[flash]", *flash != fresh.flash),
        ("[control] socket", *control_socket != fresh.control_socket),
        ("[api]", api.needs_restart(&fresh.api)),
        ("[history]", *history != fresh.history),
        ("[alerts]", *alerts != fresh.alerts),
        ("[log] format", log.format != fresh.log.format),
        ("[nbd]", nbd.needs_restart(&fresh.nbd)),
        ("[iscsi]", *iscsi != fresh.iscsi),
        ("[vhost_user]", *vhost_user != fresh.vhost_user),
        ("[fleet]", fleet.needs_restart(&fresh.fleet)),
        ("[[array]]", *arrays != fresh.arrays),
        ("[[pool]]", *pools != fresh.pools),
    ];
    let changed = changed.iter().filter(|(_, changed)| *changed);
    changed.map(|(setting, _)| format!("{setting} has changed; restart the daemon to apply it")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("/etc/hotset.toml"), text).expect("a configuration without errors")
    }

    #[test]
    fn changed_setting_that_needs_a_restart_is_named() {
        let cases = [
            ("cores = [0]", "cores"),
            ("[state]\ndirectory = \"/elsewhere\"", "[state] directory"),
            ("[memory]\nsize = \"32 MiB\"", "[memory] size"),
            ("[memory]\nkeep_in = \"none\"", "[memory] keep_in"),
            ("[flash]\ndevices = [\"/dev/f0\", \"/dev/f1\"]", "[flash]"),
            ("[control]\nsocket = \"/elsewhere.sock\"", "[control] socket"),
            ("[api]\nnames = [\"cache.example\"]", "[api]"),
            ("[api]\ntls_certificate = \"/a.crt\"\ntls_key = \"/a.key\"", "[api]"),
            ("[history]\nsize = \"64 MiB\"", "[history]"),
            ("[alerts]\ndirty_age = \"1min\"", "[alerts]"),
            ("[alerts]\nwebhook = \"http://127.0.0.1:9000/hook\"", "[alerts]"),
            ("[log]\nformat = \"json\"", "[log] format"),
            ("[nbd]\nsocket_mode = \"0600\"", "[nbd]"),
            ("[nbd]\ntls = \"required\"\ntls_certificate = \"/a.crt\"\ntls_key = \"/a.key\"", "[nbd]"),
            ("[iscsi]\nlisten = [\"127.0.0.1\"]\ntarget = \"iqn.2026-11.a:b\"", "[iscsi]"),
            ("[vhost_user]\nsocket_mode = \"0600\"", "[vhost_user]"),
            ("[fleet]\nhost = \"elsewhere-7\"", "[fleet]"),
            ("[[array]]\nname = \"shelf\"", "[[array]]"),
        ];
        for (text, setting) in cases {
            let expected = vec![format!("{setting} has changed; restart the daemon to apply it")];
            assert_eq!(
                (restart_messages(&config(""), &config(text)), restart_messages(&config(text), &config(text))),
                (expected, vec![])
            );
        }
    }

    #[test]
    fn volume_applies_only_keys_that_need_no_restart() {
        let volume = |text: &str| {
            let datastores = "[[datastore]]\nname = \"a\"\n[[datastore]]\nname = \"b\"\n";
            config(&format!("{datastores}[[volume]]\nname = \"v\"\n{text}")).volumes.remove(0)
        };
        let old = volume("backing = \"sim://raid5?size=1GiB\"\ndatastore = \"a\"\n");
        let live = "policy = \"write-through\"\ndatastore = \"b\"\nlabels = { vm = \"x\" }\nmemory_min = \"1 MiB\"\n\
                    shares = \"high\"\nlimit_iops = 500\nreservation_iops = 300\n\
                    memory_max = \"2 MiB\"\nflash_min = \"1 MiB\"\nflash_max = \"2 MiB\"\nacl = [\"iqn.a:b\"]\n\
                    declared_lost = true\n";
        let fresh = volume(&format!("backing = \"sim://raid5?size=2GiB\"\nread_only = true\nflash = false\n{live}"));
        assert_eq!(old.after_reload(&fresh), volume(&format!("backing = \"sim://raid5?size=1GiB\"\n{live}")));
    }

    #[test]
    fn live_changes_are_not_reported_as_needing_a_restart() {
        let tls = |name| config(&format!("[api]\ntls_certificate = \"/{name}.crt\"\ntls_key = \"/{name}.key\""));
        assert_eq!(restart_messages(&tls("a"), &tls("b")), Vec::<String>::new());
        let nbd = |name, extra_keys| {
            config(&format!(
                "[nbd]\ntls = \"allowed\"\ntls_certificate = \"/{name}.crt\"\ntls_key = \"/{name}.key\"\n{extra_keys}"
            ))
        };
        assert_eq!(restart_messages(&nbd("a", ""), &nbd("b", "")), Vec::<String>::new());
        // Adding a CA for client certificates needs a restart.
        assert_eq!(restart_messages(&nbd("a", ""), &nbd("a", "tls_client_ca = \"/ca.crt\"")).len(), 1);
        assert_eq!(
            restart_messages(&config(""), &config("[log]\nlevel = \"debug\"\nfilter = \"flash=warn\"")).len(),
            0
        );
        let fresh = config(
            "[[datastore]]\nname = \"shelf\"\nwrite_cost = 4\n[[qos]]\nmatch = { vm = \"*\" }\nshares = 5\n[[volume]]\n\
             name = \"v\"\nbacking = \"sim://raid5?size=1GiB\"\n",
        );
        assert_eq!(restart_messages(&config(""), &fresh), Vec::<String>::new());
    }
}
