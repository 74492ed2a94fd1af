//! Opening the backings of volumes that are to be attached, and the messages if one cannot be opened.

use std::collections::BTreeMap;
use std::path::Path;

use messages::{ErrorKind, Failure};
use seam::DiskError;

use super::super::cores::{OpenBacking, OpenPlan, Opened};
use super::super::overlap::{OwnVolumes, check_target};
use super::super::volumes::WantedVolume;
use super::super::volumes::open_attempts::remedy;
use super::Attachments;
use config::{BackingSpec, VolumeConfig, is_device};

impl Attachments {
    /// Opens all backings, each on its volume's home core.
    pub(super) async fn open_all(&self, wanted: &[WantedVolume], adopt: bool) -> Vec<Result<Opened, Failure>> {
        let homes = self.volumes.choose_cores(wanted, self.cores.count());
        let mut opened: Vec<_> = wanted.iter().map(|(config, _)| self.open_plan(config, adopt).map(Some)).collect();
        let mut results: BTreeMap<usize, Result<Opened, Failure>> = BTreeMap::new();
        for core in self.cores.iter() {
            let on_core = opened.iter_mut().enumerate().filter(|(at, _)| homes[*at] == core.index());
            let (places, plans): (Vec<usize>, Vec<OpenPlan>) =
                on_core.filter_map(|(at, plan)| Some((at, plan.as_mut().ok()?.take()?))).unzip();
            match self.cores.open(core.index(), plans).await {
                Ok(each) => results.extend(places.into_iter().zip(each).map(|(at, found)| {
                    let found = found.map_err(|error| self.open_failure(&wanted[at].0, &error, wanted));
                    (at, found.map(|(number, facts)| Opened { core: core.index(), number, facts }))
                })),
                Err(failure) => results.extend(places.into_iter().map(|at| (at, Err(failure.clone())))),
            }
        }
        let own = OwnVolumes::new(&self.records.view());
        let mut each = Vec::with_capacity(wanted.len());
        for (at, plan) in opened.into_iter().enumerate() {
            let found = plan.and_then(|_| results.remove(&at).expect("every volume has a core"));
            each.push(match found {
                Ok(opened) => match own.check(&wanted[at].0.backing, &opened.facts.nbd_under) {
                    Err(text) => Err(self.cores.close(&opened, Failure::new(ErrorKind::Conflict, text)).await),
                    Ok(()) => Ok(opened),
                },
                Err(failure) => Err(failure),
            });
        }
        each
    }

    /// The plan for opening a volume's backing. A missing file is created only if a size is given and no volume of that
    /// name was ever served. Otherwise the file may be on a file system that is not mounted, and an empty file would be
    /// served in its place.
    fn open_plan(&self, config: &VolumeConfig, adopt: bool) -> Result<OpenPlan, Failure> {
        let content_file = || {
            let folder = self.records.folder().join("sim");
            let made = std::fs::create_dir_all(&folder);
            made.map_err(|error| Failure::new(ErrorKind::Failed, format!("{}: {error}", folder.display())))?;
            Ok(folder.join(format!("{}.img", config.name)))
        };
        let backing = match &config.backing {
            BackingSpec::Path(path) => OpenBacking::Path(path.clone()),
            BackingSpec::Nbd(target) => {
                check_target(target, &self.settings.current().nbd.listen)?;
                OpenBacking::Nbd(target.clone())
            }
            BackingSpec::Sim(array, _) => OpenBacking::OwnArray { array: *array, content: content_file()? },
            BackingSpec::SimArray(name) => {
                let arrays = &self.settings.current().arrays;
                let array = arrays.iter().find(|array| array.name == *name).map(|array| array.spec);
                let none = || {
                    Failure::new(
                        ErrorKind::Invalid,
                        format!("no [[array]] is named \"{name}\"; add it to the configuration"),
                    )
                };
                OpenBacking::SharedArray {
                    name: name.clone(),
                    array: array.ok_or_else(none)?,
                    content: content_file()?,
                }
            }
        };
        let may_create = match &config.backing {
            BackingSpec::Path(path) => {
                let state = self.records.view();
                let is_known = state.by_name(&config.name).is_some() || state.displaced(&config.name).is_some();
                !is_device(path) && (adopt || !is_known)
            }
            _ => true,
        };
        let size_bytes = config.size_bytes.filter(|_| may_create);
        Ok(OpenPlan { backing, size_bytes, read_only: config.read_only })
    }

    /// The reason why a backing could not be opened, and the remedy.
    fn unavailable(&self, config: &VolumeConfig, error: &DiskError) -> Failure {
        let is_known = self.records.view().by_name(&config.name).is_some();
        let text = match error {
            // The error itself names the remedy: the holder of the lock has to close the disk.
            DiskError::Busy(_) => error.to_string(),
            _ => format!("{error}; {}", remedy(&config.backing, config.size_bytes.is_some(), is_known)),
        };
        Failure::new(ErrorKind::Unavailable, text)
    }

    /// The reason why a backing cannot be opened, with the name of the present holder of its storage.
    fn open_failure(&self, config: &VolumeConfig, error: &DiskError, wanted: &[WantedVolume]) -> Failure {
        let DiskError::Shared { path, other, on } = error else { return self.unavailable(config, error) };
        let text = format!(
            "its backing {} lies on the same storage as {} ({on}), which {} uses; two writers destroy the data: give \
             it a backing of its own",
            path.display(),
            other.display(),
            self.name_of_device(other, wanted)
        );
        Failure::new(ErrorKind::Conflict, text)
    }

    /// Name of the volume or flash device at that path.
    fn name_of_device(&self, path: &Path, wanted: &[WantedVolume]) -> String {
        if self.flash.devices().iter().any(|device| device == path) {
            return "the flash log".to_owned();
        }
        let starting = || {
            let starting = wanted.iter().map(|(config, _)| config).find(|config| is_at(&config.backing, path));
            starting.map(|config| config.name.clone())
        };
        let holder = self.volumes.name_at_path(path).or_else(starting);
        holder.map_or_else(|| "this daemon".to_owned(), |name| format!("volume {name}"))
    }
}

fn is_at(backing: &BackingSpec, other: &Path) -> bool {
    matches!(backing, BackingSpec::Path(path) if path == other)
}
