//! `hotset state rebuild`: restores the records of the state directory from their copies on the flash devices.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use engine::VolumeId;
use flash::{BlockNo, MemberDisk, StoreError, SuperblockSummary};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{DiskOpen, Seam};
use serde_json::json;
use state::{Holding, State, StateDir, StateError, StoreInventory, rebuild, show_uuid};

use super::confirm::is_confirmed;
use super::flash_offline::with_paths;
use super::memory_files::{MemoryFile, find_memory_files};
use config::Config;
use terminal::{Failure, print_json};
use units::{show_bytes, show_counted};

/// Memory for reading the devices.
const POOL_BYTES: usize = 16 << 20;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Restore the records from the flash devices after the directory was lost, damaged, or restored from an older copy
    Rebuild {
        /// The configuration that names the state directory and the flash devices
        #[arg(long, default_value = "/etc/hotset/hotset.toml")]
        config: PathBuf,
        /// Flash device to use instead of the configured ones; may be repeated
        #[arg(long, value_name = "PATH")]
        device: Vec<PathBuf>,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// Runs the subcommand; no daemon may hold the directory.
pub fn run(action: Action, json: bool) -> Result<(), Failure> {
    let Action::Rebuild { config, device, yes } = action;
    let config = Config::load(&config).map_err(|problems| Failure::usage(problems.to_string()))?;
    let configured = config.flash.as_ref().map(|flash| flash.devices.clone()).unwrap_or_default();
    // A lost or damaged directory has no list.
    let recorded = StateDir::peek(&config.state_directory).ok().flatten();
    let (devices, source) = choose_devices(device, configured, recorded.as_ref());
    if devices.is_empty() {
        return Err(Failure::usage("the configuration has no [flash]; specify the devices: --device PATH"));
    }
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    let (mut directory, previous_records) = StateDir::open_for_rebuild(&config.state_directory)
        .map_err(|error| Failure::failed(describe(&error, &config.file)))?;
    let result = run_core(RealCoreSpec::new(POOL_BYTES), |seam| read_inventory(seam, devices.clone()));
    let (inventory, warnings) = result.map_err(|error| failed(&error))?.map_err(Failure::failed)?;
    let (rebuilt, holdings) = rebuild(directory.state().clone(), &inventory).map_err(|error| failed(&error))?;
    let memory_files = find_memory_files(&config.keep_in, &rebuilt.memory_images);
    let summary = Summary {
        devices: &devices,
        source,
        inventory: &inventory,
        warnings: &warnings,
        volumes: rebuilt.volumes.len(),
        holdings: &holdings,
        memory_files: &memory_files,
    };
    if json {
        print_json(&summary.json())?;
    } else {
        summary.print();
    }
    let shown = config.state_directory.display();
    if !yes && !std::io::stdin().is_terminal() {
        return Err(Failure::usage("no terminal for the confirmation: check the list above, then add --yes"));
    }
    if !yes && !is_confirmed(&format!("Write these records to {shown}?"))? {
        return Err(Failure::failed("nothing was changed"));
    }
    directory.change(|state| *state = rebuilt).map_err(|error| failed(&error))?;
    if !json {
        if let Some(path) = previous_records {
            println!("the previous records are in {}", path.display());
        }
        println!("the records are written; start the daemon");
    }
    Ok(())
}

/// The place that names the devices to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceSource {
    CommandLine,
    StateDirectory,
    Configuration,
}

impl DeviceSource {
    /// Its code in JSON.
    fn code(self) -> &'static str {
        match self {
            DeviceSource::CommandLine => "command-line",
            DeviceSource::StateDirectory => "state-directory",
            DeviceSource::Configuration => "configuration",
        }
    }

    fn show(self) -> &'static str {
        match self {
            DeviceSource::CommandLine => "as given by --device",
            DeviceSource::StateDirectory => "as changed by commands, recorded in the state directory",
            DeviceSource::Configuration => "as listed in the configuration",
        }
    }
}

/// The devices to read: the given ones, or else the list as changed by commands while it is in force, or else the
/// configured ones.
fn choose_devices(
    given: Vec<PathBuf>,
    configured: Vec<PathBuf>,
    recorded: Option<&State>,
) -> (Vec<PathBuf>, DeviceSource) {
    if !given.is_empty() {
        return (given, DeviceSource::CommandLine);
    }
    match recorded.and_then(|state| state.flash_devices_by_command(&configured)) {
        Some(changed) => (changed.to_vec(), DeviceSource::StateDirectory),
        None => (configured, DeviceSource::Configuration),
    }
}

/// Why the directory cannot be opened, with the remedy. `config` is the configuration file.
fn describe(error: &StateError, config: &Path) -> String {
    match error {
        StateError::Locked { path, holder } => format!(
            "state directory {} is in use by a daemon (process {holder}); stop it (`hotset stop`), then repeat the \
             command",
            path.display()
        ),
        error => error.describe(config),
    }
}

struct Summary<'a> {
    /// The devices that were to be read.
    devices: &'a [PathBuf],
    source: DeviceSource,
    inventory: &'a StoreInventory,
    warnings: &'a [String],
    volumes: usize,
    holdings: &'a [Holding],
    memory_files: &'a [MemoryFile],
}

impl Summary<'_> {
    fn json(&self) -> serde_json::Value {
        let to_json = |holding: &Holding| {
            json!({ "volume": holding.volume, "incarnation": holding.volume_id, "backing": holding.backing,
                    "dirty_bytes": holding.blocks * seam::BLOCK_BYTES as u64 })
        };
        let dirty: Vec<_> = self.holdings.iter().map(to_json).collect();
        let memory_files: Vec<_> = self.memory_files.iter().map(MemoryFile::json).collect();
        json!({
            "store": self.inventory.store, "devices": self.devices, "devices_from": self.source.code(),
            "volumes": self.volumes, "warnings": self.warnings, "dirty": dirty, "memory_files": memory_files
        })
    }

    fn print(&self) {
        let devices: Vec<String> = self.devices.iter().map(|device| device.display().to_string()).collect();
        println!("devices read, {}: {}; to read others, specify --device PATH", self.source.show(), devices.join(", "));
        println!("flash store {}: records of {}", self.inventory.store, show_counted(self.volumes as u64, "volume"));
        for holding in self.holdings {
            let bytes = show_bytes(holding.blocks * seam::BLOCK_BYTES as u64);
            match &holding.volume {
                Some(name) => {
                    println!("  {name} ({}, on {}): {bytes} of dirty data on flash", holding.volume_id, holding.backing)
                }
                None => println!(
                    "  {}: {bytes} of dirty data on flash, of a volume without a record; \
                     `hotset flash rescue` copies it to a file",
                    holding.volume_id
                ),
            }
        }
        self.memory_files.iter().for_each(|file| println!("  {}", file.describe()));
        self.warnings.iter().for_each(|warning| println!("  warning: {warning}"));
        println!(
            "The records contain no tokens and no changes made after they were copied to flash. Unflushed writes of a \
             killed daemon are not restored from persisted memory that no record names."
        );
    }
}

/// Reads the inventory of the store from the devices, without changing them.
async fn read_inventory(seam: RealSeam, paths: Vec<PathBuf>) -> Result<(StoreInventory, Vec<String>), String> {
    let (mut disks, mut warnings) = (Vec::new(), Vec::new());
    let mut opened = Vec::new();
    for path in paths {
        let open = DiskOpen { path: path.clone(), create_bytes: None, read_only: true, lock_wait_ms: 1_000 };
        match seam.open_disk(&open).await {
            Ok(disk) => {
                disks.push(MemberDisk::Local(disk));
                opened.push(path);
            }
            Err(error) => warnings.push(error.to_string()),
        }
    }
    let (devices, inspection) = flash::inspect(&seam, &disks).await;
    let show = |error: &StoreError| with_paths(error.to_string(), &devices, &opened);
    let inspection = inspection.map_err(|error| show(&error))?;
    warnings.extend(inspection.problem.as_ref().map(show));
    let is_of_store = |superblock: &&SuperblockSummary| superblock.store == inspection.store;
    let superblocks = devices.iter().filter_map(|device| device.superblock.as_ref().ok()).filter(is_of_store);
    let newest = superblocks.max_by_key(|superblock| (superblock.generation, superblock.ownership.epoch));
    let newest = newest.ok_or("no device has a valid superblock")?;
    let mut dirty_blocks: BTreeMap<VolumeId, u64> = BTreeMap::new();
    for record in &inspection.dirty_blocks {
        *dirty_blocks.entry(record.address.volume_id).or_default() += BlockNo::count(&record.blocks());
    }
    let manifest = flash::read_manifest(&seam, &disks, inspection.store).await.map_err(|error| show(&error))?;
    let inventory = StoreInventory {
        store: show_uuid(&inspection.store),
        ownership: newest.ownership,
        generation: newest.generation,
        manifest: manifest.map(|manifest| manifest.payload),
        dirty_blocks,
    };
    Ok((inventory, warnings))
}

#[cfg(test)]
mod tests {
    use state::FlashDevices;

    use super::*;

    #[test]
    fn rebuild_reads_the_recorded_devices_before_the_configured_ones() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (file, changed) = (paths(&["/f0", "/f1"]), paths(&["/f0", "/f2"]));
        let saved = FlashDevices { file: file.clone(), reloaded: None, devices: changed.clone() };
        let state = State { flash_devices: Some(saved), ..State::default() };
        let choose = |given: &[&str], configured: &[PathBuf], recorded| {
            choose_devices(paths(given), configured.to_vec(), recorded)
        };
        assert_eq!(choose(&[], &file, Some(&state)), (changed, DeviceSource::StateDirectory));
        assert_eq!(choose(&["/d"], &file, Some(&state)), (paths(&["/d"]), DeviceSource::CommandLine));
        let edited = paths(&["/f3"]);
        assert_eq!(choose(&[], &edited, Some(&state)), (edited, DeviceSource::Configuration), "the file was edited");
        assert_eq!(choose(&[], &file, None), (file.clone(), DeviceSource::Configuration), "the directory is lost");
    }
}
