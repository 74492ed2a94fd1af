//! Reload of the configuration: changes are applied live or reported as needing a restart, and errors keep the old
//! configuration.

use control::{ErrorKind, Failure, ProgressSender};

use super::daemon::{Daemon, Standing};
use config::{Config, LogConfig, VolumeConfig};
use logging::{self as log, CONFIG};

impl Daemon {
    /// SIGHUP and `reload`: returns a sentence for each change that was or was not applied.
    pub async fn reload(&self) -> Result<Vec<String>, Failure> {
        let file = self.config.borrow().file.clone();
        let fresh = Config::load(&file).map_err(|problems| {
            let text = format!("{problems}\nnothing was changed; the old configuration stays in force");
            Failure::new(ErrorKind::Invalid, text)
        })?;
        let old = self.config.borrow().clone();
        let mut said = not_live(&old, &fresh);
        // The comparison is with the served volumes, not with the old file: a removal that failed earlier is tried
        // again.
        let is_fresh = |name: &String| fresh.volumes.iter().any(|volume| volume.name == *name);
        let known: Vec<String> = {
            let volumes = self.volumes.borrow();
            volumes.iter().filter(|(_, known)| known.from_file).map(|(name, _)| name.clone()).collect()
        };
        said.extend(self.reload_datastores(&old.datastores, &fresh.datastores).await);
        if old.qos != fresh.qos {
            said.push(format!("[[qos]]: {} taken over", fresh.qos.len()));
        }
        if old.log.filter != fresh.log.filter {
            log::set_filter(&fresh.log.filter);
            said.push("[log]: level and filter taken over".to_owned());
        }
        for gone in known.iter().filter(|name| !is_fresh(name)) {
            said.push(self.reload_gone(gone).await);
        }
        self.fix_luns(&fresh.volumes);
        for volume in &fresh.volumes {
            said.extend(self.reload_volume(volume).await);
        }
        said.extend(self.reload_added(&fresh.qos).await);
        self.forget_datastores(&old.datastores, &fresh.datastores).await;
        let (mut api, mut nbd) = (old.api.clone(), old.nbd.clone());
        if let (Some(files), Some(now)) = (&mut api.tls, fresh.api.tls) {
            said.extend(self.reload_certificate("api", &now));
            *files = now;
        }
        if let (Some(tls), Some(now)) = (&mut nbd.tls, fresh.nbd.tls)
            && tls.files.client_ca.is_some() == now.files.client_ca.is_some()
        {
            said.extend(self.reload_certificate("nbd", &now.files));
            tls.files = now.files;
        }
        // Values that need a restart stay as they were at the start, so that the next reload reports them again.
        let written = old.written.renewed(fresh.written);
        *self.config.borrow_mut() = Config {
            volumes: fresh.volumes,
            absent: fresh.absent,
            datastores: fresh.datastores,
            qos: fresh.qos,
            api,
            nbd,
            log: LogConfig { filter: fresh.log.filter, ..old.log },
            written,
            ..old
        };
        if said.is_empty() {
            said.push("the configuration was read again; nothing has changed".to_owned());
        }
        Ok(said)
    }

    async fn reload_gone(&self, name: &str) -> String {
        let (progress, _) = ProgressSender::new();
        let Ok(_busy) = self.begin(name) else {
            return format!("volume {name}: not removed, it is being changed right now; the next reload tries again");
        };
        let known = self.volumes.borrow().get(name).cloned();
        let Some(known) = known.filter(|known| known.from_file) else {
            return format!("volume {name}: gone from the file, and removed before");
        };
        if let Standing::Serving(placed) = &known.standing {
            self.stand(name, Standing::Removing(placed.clone()));
            if let Err(failure) = self.detach(name, placed.core, &progress).await {
                self.stand(name, Standing::Serving(placed.clone()));
                return failure.message;
            }
            // The volume's record stays: the entry may return.
            if let Err(error) = self.state.borrow_mut().change(|state| state.mark_clean(placed.incarnation)) {
                log::error!(target: CONFIG, "{error}");
            }
        }
        if let Err(failure) = self.forget_absent(name).await {
            return failure.message;
        }
        self.volumes.borrow_mut().remove(name);
        if self.left_in_memory(name).await.is_ok_and(|left| !left.is_empty()) {
            return format!(
                "volume {name}: gone from the file; data of it is in memory alone, which keeps it until the machine \
                 ends"
            );
        }
        if self.may_be_on_flash(name) {
            return format!("volume {name}: gone from the file; data of it may lie in the flash log, which keeps it");
        }
        format!("volume {name}: removed; its backing is complete")
    }

    async fn reload_volume(&self, now: &VolumeConfig) -> Vec<String> {
        let name = &now.name;
        let Ok(_busy) = self.begin(name) else {
            let text =
                format!("volume {name}: not looked at, it is being changed right now; the next reload tries again");
            return vec![text];
        };
        let known = self.volumes.borrow().get(name).cloned();
        let removed = self.state.borrow().state().removed.get(name) == Some(&now.entry());
        match known {
            None if removed => Vec::new(),
            None => vec![self.reload_fresh(now).await],
            Some(known) if !known.from_file => {
                vec![format!("volume {name}: not looked at, one of that name was added by command")]
            }
            Some(known) if matches!(known.standing, Standing::Refused(_)) => vec![self.reload_fresh(now).await],
            Some(known) => self.reload_served(&known.config, now).await,
        }
    }

    async fn reload_fresh(&self, now: &VolumeConfig) -> String {
        // An entry that changed after its volume was removed by command is added again.
        let forgotten = self.state.borrow_mut().change(|state| state.removed.remove(&now.name));
        if let Err(error) = forgotten {
            return format!("volume {}: not added: {error}", now.name);
        }
        match self.attach(now.clone(), true, state::Acceptance::default()).await {
            Ok(()) => format!("volume {}: added", now.name),
            Err(failure) => failure.message,
        }
    }

    async fn reload_served(&self, old: &VolumeConfig, now: &VolumeConfig) -> Vec<String> {
        let name = &now.name;
        let mut said = Vec::new();
        let mut applied = old.renewed(now);
        if applied != *now {
            said.push(format!(
                "volume {name}: a changed backing, size, defer, read_only, flash or lun needs a restart to take effect"
            ));
        }
        if old.policy != now.policy {
            let result = self.reload_policy(old, now).await;
            if result.is_err() {
                applied.policy = old.policy;
            }
            said.push(result.unwrap_or_else(|text| text));
        }
        let shares = |of: &VolumeConfig| (of.memory_min, of.memory_max, of.flash_min, of.flash_max);
        if shares(old) != shares(now) {
            let changed = match self.placed(name) {
                Ok(placed) => self.reload_share(&placed, now).await,
                Err(failure) => Err(failure),
            };
            match changed {
                Ok(()) => said.push(format!("volume {name}: what it may have of memory and flash was taken over")),
                Err(failure) => {
                    (applied.memory_min, applied.memory_max, applied.flash_min, applied.flash_max) = shares(old);
                    said.push(failure.message);
                }
            }
        }
        if old.datastore != now.datastore || old.labels != now.labels {
            said.push(self.reload_datastore(now).await);
        }
        if old.qos != now.qos {
            let changed = match self.placed(name) {
                Ok(placed) => self.reload_qos(&placed, now).await,
                Err(failure) => Err(failure),
            };
            match changed {
                Ok(()) => said.push(format!("volume {name}: its shares, limits and reservation were taken over")),
                Err(failure) => {
                    applied.qos = old.qos;
                    said.push(failure.message);
                }
            }
        }
        if old.acl != now.acl || old.declared_lost != now.declared_lost {
            let changed = match self.placed(name) {
                Ok(placed) => self.reload_unit(&placed, &applied).await,
                Err(failure) => Err(failure),
            };
            match changed {
                Ok(()) => {
                    said.push(format!("volume {name}: who may see its LUN, and whether it is lost, was taken over"))
                }
                Err(failure) => {
                    (applied.acl, applied.declared_lost) = (old.acl.clone(), old.declared_lost);
                    said.push(failure.message);
                }
            }
        }
        if let Some(known) = self.volumes.borrow_mut().get_mut(name) {
            known.config = applied;
        }
        said
    }

    /// Changes a volume's policy; returns a message either way.
    async fn reload_policy(&self, old: &VolumeConfig, now: &VolumeConfig) -> Result<String, String> {
        let (name, policy) = (&now.name, now.policy);
        let Ok(placed) = self.placed(name) else { return Err(format!("volume {name}: not served")) };
        let noted = self.state.borrow_mut().change(|state| {
            state.expire_override(placed.incarnation, state::POLICY, &policy.to_string());
        });
        let (progress, _) = ProgressSender::new();
        match (noted, self.change_policy(name, &placed, policy, &progress).await) {
            (Ok(()), Ok(())) => Ok(format!("volume {name}: policy {} became {policy}", old.policy)),
            (Err(error), _) => Err(format!("volume {name}: {error}")),
            (_, Err(failure)) => Err(failure.message),
        }
    }
}

/// Messages for differences that need a restart.
fn not_live(old: &Config, fresh: &Config) -> Vec<String> {
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
        arrays,
        datastores: _,
        qos: _,
        volumes: _,
        absent: _,
        written: _,
    } = old;
    let changed = [
        ("cores", *cores != fresh.cores),
        ("[state] directory", *state_directory != fresh.state_directory),
        ("[memory] size", *memory_bytes != fresh.memory_bytes),
        ("[memory] keep_in", *keep_in != fresh.keep_in),
        ("[flash]", *flash != fresh.flash),
        ("[control] socket", *control_socket != fresh.control_socket),
        ("[api]", api.differs_for_good(&fresh.api)),
        ("[history]", *history != fresh.history),
        ("[alerts]", *alerts != fresh.alerts),
        ("[log] format", log.format != fresh.log.format),
        ("[nbd]", nbd.differs_for_good(&fresh.nbd)),
        ("[iscsi]", *iscsi != fresh.iscsi),
        ("[vhost_user]", *vhost_user != fresh.vhost_user),
        ("[[array]]", *arrays != fresh.arrays),
    ];
    let changed = changed.iter().filter(|(_, changed)| *changed);
    changed.map(|(what, _)| format!("{what} has changed: that needs a restart to take effect")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("/etc/hotset.toml"), text).expect("a configuration without errors")
    }

    #[test]
    fn changed_part_that_needs_a_restart_is_named() {
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
            ("[[array]]\nname = \"shelf\"", "[[array]]"),
        ];
        for (text, part) in cases {
            let said = vec![format!("{part} has changed: that needs a restart to take effect")];
            assert_eq!((not_live(&config(""), &config(text)), not_live(&config(text), &config(text))), (said, vec![]));
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
        assert_eq!(old.renewed(&fresh), volume(&format!("backing = \"sim://raid5?size=1GiB\"\n{live}")));
    }

    #[test]
    fn live_change_is_not_reported_as_needing_a_restart() {
        let tls = |name| config(&format!("[api]\ntls_certificate = \"/{name}.crt\"\ntls_key = \"/{name}.key\""));
        assert_eq!(not_live(&tls("a"), &tls("b")), Vec::<String>::new());
        let nbd = |name, rest| {
            config(&format!(
                "[nbd]\ntls = \"allowed\"\ntls_certificate = \"/{name}.crt\"\ntls_key = \"/{name}.key\"\n{rest}"
            ))
        };
        assert_eq!(not_live(&nbd("a", ""), &nbd("b", "")), Vec::<String>::new());
        // Adding a CA for client certificates needs a restart.
        assert_eq!(not_live(&nbd("a", ""), &nbd("a", "tls_client_ca = \"/ca.crt\"")).len(), 1);
        assert_eq!(not_live(&config(""), &config("[log]\nlevel = \"debug\"\nfilter = \"flash=warn\"")).len(), 0);
        let fresh = config(
            "[[datastore]]\nname = \"shelf\"\nwrite_cost = 4\n[[qos]]\nmatch = { vm = \"*\" }\nshares = 5\n[[volume]]\n\
             name = \"v\"\nbacking = \"sim://raid5?size=1GiB\"\n",
        );
        assert_eq!(not_live(&config(""), &fresh), Vec::<String>::new());
    }
}
