//! `hotset pool …`: creation and checks of a pool without a daemon, and the state of the pools of the daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use config::{Config, DEFAULT_CONFIG, PoolConfig, name_devices};
use messages::report::{PoolGroupReport, PoolReport, PoolTierReport};
use messages::{Answer, Request};
use pool::{CreateOptions, Pool, PoolError, TierSpec};
use seam::real::{RealCoreSpec, RealDisk, RealSeam, run_core};
use seam::{Disk, DiskOpen, Seam};
use state::State;

use super::confirm::is_confirmed;
use super::daemon::{send_request, unexpected};
use super::flash::{absolute_path, absolute_path_or_number};
use super::pool_export::{export_script, is_same_file};
use super::pool_missing::accept_missing;
use terminal::render::pool::{details, lost, plan, tables};
use terminal::render::style::Style;
use terminal::{Failure, print_json};
use units::{show_bytes, show_counted};

/// Memory for the metadata.
const MEMORY_BYTES: usize = 64 << 20;
const LOCK_WAIT_MS: u64 = 1_000;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List the pools of the daemon: tiers, groups, volumes and their fill
    List,
    /// Show a pool of the daemon: tiers, groups, volumes, and the moves of slices between tiers
    Show(Open),
    /// Show the load of a pool's slices, and the moves that would follow from it now; nothing moves
    Plan(Open),
    /// List the ranges of volumes on absent devices: requests to them fail
    Lost(Open),
    /// Plan and move slices now, also outside of the windows
    Relocate(Open),
    /// Stop moves of slices, also of drains; this holds across a restart
    Pause(Open),
    /// Move slices again
    Resume(Open),
    /// Add an empty device to a tier while volumes are in service
    Add {
        /// Name of the pool
        name: String,
        /// The device, partition or file
        device: PathBuf,
        /// Name of the tier
        #[arg(long)]
        tier: String,
        /// Destroy its content
        #[arg(long)]
        force: bool,
    },
    /// Make a volume of a device full of data; its slices stay in place, except those of its start and its end
    Import {
        /// Name of the pool
        name: String,
        /// The device, partition or file
        device: PathBuf,
        /// Name of the tier
        #[arg(long)]
        tier: String,
        /// Name of the new volume
        #[arg(long)]
        volume: String,
        /// Import a device with a signature of md, LVM, ZFS or another storage stack, as on a virtual machine's disk
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Move all slices of a device to others in the background, then remove it from the pool
    Drain {
        /// Name of the pool
        name: String,
        /// Path of the device, or number of its group in `pool show`
        device: String,
        /// Return a draining device to service; it keeps the slices that it has
        #[arg(long)]
        cancel: bool,
    },
    /// Add a device to the tier of another one, and move that one's slices away in the background
    Replace {
        /// Name of the pool
        name: String,
        /// Path of the device that leaves, or number of its group in `pool show`
        device: String,
        /// The new device, partition or file; optional with --lost
        new_device: Option<PathBuf>,
        /// Destroy the content of the new device
        #[arg(long)]
        force: bool,
        /// Give up a device that is absent: requests to its slices fail until they are discarded
        #[arg(long)]
        lost: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Change the tier policy of a volume; its slices move at the pool's rate
    SetPolicy {
        /// Name of the pool
        name: String,
        /// The volume
        volume: String,
        /// auto, start-high, highest, lowest, or the name of a tier
        policy: String,
    },
    /// Delete a volume that is not served any more, with its data in the pool
    DeleteVolume {
        /// Name of the pool
        name: String,
        /// The volume
        volume: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Create the pool of a [[pool]] in the configuration on its devices, which must be empty
    Create {
        #[command(flatten)]
        pool: Named,
        /// Destroy the content of the devices
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Open a pool without missing devices that may have a newer state of it, such as one of two
    AcceptMissing {
        #[command(flatten)]
        pool: Named,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Check the metadata of a pool that no daemon uses; writes nothing
    Check(Named),
    /// Print where each slice of each volume lies: volume, slice, device, byte offset, length; writes nothing
    ExportMap {
        #[command(flatten)]
        pool: Named,
        /// Print a shell script instead whose `dd` commands rebuild this volume as a plain disk
        #[arg(long, requires = "to")]
        volume: Option<String>,
        /// Device or file to write; a device of the pool must hold only slices of this volume, in place
        #[arg(long, requires = "volume")]
        to: Option<PathBuf>,
    },
}

/// An open pool of the daemon.
#[derive(clap::Args)]
pub struct Open {
    /// Name of the pool
    name: String,
}

/// A pool of the configuration.
#[derive(clap::Args)]
pub struct Named {
    /// Name of the [[pool]]
    name: String,
    /// Configuration file
    #[arg(long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl Named {
    fn find(&self) -> Result<PoolConfig, Failure> {
        self.find_with_state().map(|(pool, _)| pool)
    }

    /// The pool, and the state directory of the configuration.
    fn find_with_state(&self) -> Result<(PoolConfig, PathBuf), Failure> {
        let config = Config::load_settings(&self.config).map_err(|problems| Failure::failed(problems.to_string()))?;
        let directory = config.state_directory;
        let pool = config.pools.into_iter().find(|pool| pool.name == self.name);
        let unknown = || {
            let file = self.config.display();
            Failure::failed(format!("{file} has no [[pool]] named \"{}\"; add it, or correct the name", self.name))
        };
        pool.map(|pool| (pool, directory)).ok_or_else(unknown)
    }
}

/// Runs a subcommand.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    match action {
        Action::List => {
            let Answer::Pools(pools) = send_request(socket, &Request::PoolList {})? else {
                return Err(unexpected());
            };
            match json {
                true => print_json(&pools)?,
                false => terminal::render::print(&tables(&pools, Style::of_stdout())),
            }
            Ok(())
        }
        Action::Show(Open { name }) => show(socket, &Request::PoolShow { name }, json),
        Action::Plan(Open { name }) => show_plan(socket, &Request::PoolPlan { name }, json),
        Action::Lost(Open { name }) => show_lost(socket, &name, json),
        Action::Relocate(Open { name }) => show_plan(socket, &Request::PoolRelocate { name }, json),
        Action::Pause(Open { name }) => show(socket, &Request::PoolPause { name }, json),
        Action::Resume(Open { name }) => show(socket, &Request::PoolResume { name }, json),
        Action::Add { name, device, tier, force } => {
            let path = absolute_path(&device)?;
            change_devices(socket, &Request::PoolAdd { name, tier, path, force }, json)
        }
        Action::Import { name, device, tier, volume, force, yes } => {
            let path = absolute_path(&device)?;
            if !yes {
                println!(
                    "{path} becomes volume {volume} of pool {name}. Its start and a last partial slice are copied to \
                     other devices of the pool, two blocks of 4 KiB at its start are overwritten, and later its \
                     slices move. Afterwards only the pool reads it; `hotset pool export-map {name} --volume {volume} \
                     --to TARGET` prints the way back."
                );
                if !is_confirmed(&format!("Import {path}?"))? {
                    return Err(Failure::failed("nothing was changed"));
                }
            }
            change_devices(
                socket,
                &Request::PoolImport { name: name.clone(), tier, path, volume: volume.clone(), force },
                json,
            )?;
            if !json {
                println!("serve the volume with `hotset volume add {volume} --backing pool://{name}`");
            }
            Ok(())
        }
        Action::Drain { name, device, cancel } => {
            let device = absolute_path_or_number(&device)?;
            change_devices(socket, &Request::PoolDrain { name, device, cancel }, json)
        }
        Action::Replace { name, device, new_device, force, lost, yes } => {
            let device = absolute_path_or_number(&device)?;
            let path = new_device.map(|path| absolute_path(&path)).transpose()?;
            if lost && !yes {
                show_lost(socket, &name, false)?;
                if !is_confirmed(&format!("Give up what {device} holds?"))? {
                    return Err(Failure::failed("nothing was changed"));
                }
            }
            change_devices(socket, &Request::PoolReplace { name, device, path, force, lost }, json)
        }
        Action::SetPolicy { name, volume, policy } => {
            show(socket, &Request::PoolSetPolicy { name, volume, tier_policy: policy }, json)
        }
        Action::DeleteVolume { name, volume, yes } => {
            if !yes {
                println!("The data of volume {volume} in pool {name} will be destroyed.");
                if !is_confirmed(&format!("Delete volume {volume}?"))? {
                    return Err(Failure::failed("nothing was changed"));
                }
            }
            show(socket, &Request::PoolDeleteVolume { name, volume }, json)
        }
        Action::Create { pool, force, yes } => create(&pool.find()?, force, yes),
        Action::AcceptMissing { pool, yes } => {
            let (pool, directory) = pool.find_with_state()?;
            accept_missing(&pool, &directory, yes)
        }
        Action::Check(pool) => check(&pool.find()?),
        Action::ExportMap { pool, volume: Some(volume), to: Some(to) } => {
            print!("{}", export_script(pool.find_with_state()?, &volume, &to)?);
            Ok(())
        }
        Action::ExportMap { pool, .. } => {
            let map = on_disks(paths_of(&pool.find()?), true, async |seam, disks| {
                let paths = disks.paths.clone();
                let map = Pool::export_map(&seam, &disks.disks).await?;
                Ok(name_devices(&map, &paths))
            })?;
            print!("{map}");
            Ok(())
        }
    }
}

/// Sends a request whose answer is a pool, and prints the pool.
fn show(socket: Option<&Path>, request: &Request, json: bool) -> Result<(), Failure> {
    let Answer::Pool(pool) = send_request(socket, request)? else { return Err(unexpected()) };
    match json {
        true => print_json(&*pool)?,
        false => terminal::render::print(&details(&pool, Style::of_stdout())),
    }
    Ok(())
}

/// Sends a request that changes the devices of a pool. Prints the pool and the lines of the configuration to change.
fn change_devices(socket: Option<&Path>, request: &Request, json: bool) -> Result<(), Failure> {
    let Answer::Pool(pool) = send_request(socket, request)? else { return Err(unexpected()) };
    if json {
        return print_json(&*pool);
    }
    terminal::render::print(&details(&pool, Style::of_stdout()));
    terminal::render::print(&configuration_lines(&pool, request));
    Ok(())
}

/// The lines of the configuration after a change of a pool's devices.
fn configuration_lines(pool: &PoolReport, request: &Request) -> String {
    let stays = |group: &&PoolGroupReport| !matches!(group.state.as_str(), "removed" | "lost" | "draining");
    let changed = |tier: &&PoolTierReport| match request {
        Request::PoolAdd { tier: added, .. } | Request::PoolImport { tier: added, .. } => tier.name == *added,
        Request::PoolDrain { device, .. } | Request::PoolReplace { device, .. } => {
            let is_named = |group: &PoolGroupReport| {
                group.number.to_string() == *device || is_same_file(Path::new(&group.device), Path::new(device))
            };
            tier.groups.iter().any(is_named)
        }
        _ => false,
    };
    let when = match request {
        Request::PoolDrain { cancel: false, .. } | Request::PoolReplace { lost: false, .. } => "once it has left, ",
        _ => "",
    };
    let mut text = String::new();
    for tier in pool.tiers.iter().filter(changed) {
        let devices: Vec<_> = tier.groups.iter().filter(stays).map(|group| format!("\"{}\"", group.device)).collect();
        let lines = match devices.is_empty() {
            true => format!(
                "{when}take the [[pool.tier]] \"{}\" of pool {} out of the configuration: this is its last device",
                tier.name, pool.name
            ),
            false => format!(
                "{when}change the configuration of pool {} to\n\n[[pool.tier]]\nname = \"{}\"\ndevices = [{}]",
                pool.name,
                tier.name,
                devices.join(", ")
            ),
        };
        text += &format!("{lines}\n");
    }
    text
}

/// Prints the ranges of volumes on absent devices.
fn show_lost(socket: Option<&Path>, name: &str, json: bool) -> Result<(), Failure> {
    let Answer::PoolLost(report) = send_request(socket, &Request::PoolLost { name: name.to_owned() })? else {
        return Err(unexpected());
    };
    match json {
        true => print_json(&*report)?,
        false => terminal::render::print(&lost(&report, Style::of_stdout())),
    }
    Ok(())
}

/// Sends a request whose answer is a plan, and prints the plan.
fn show_plan(socket: Option<&Path>, request: &Request, json: bool) -> Result<(), Failure> {
    let Answer::PoolPlan(report) = send_request(socket, request)? else { return Err(unexpected()) };
    match json {
        true => print_json(&*report)?,
        false => terminal::render::print(&plan(&report, Style::of_stdout())),
    }
    Ok(())
}

fn create(config: &PoolConfig, force: bool, yes: bool) -> Result<(), Failure> {
    let devices: Vec<_> = config.devices().map(|device| device.display().to_string()).collect();
    if force && !yes {
        println!("Everything on {} will be destroyed.", devices.join(", "));
        if !is_confirmed(&format!("Create pool {}?", config.name))? {
            return Err(Failure::failed("nothing was changed"));
        }
    }
    let slice_bytes = config.slice_bytes;
    let counts: Vec<_> = config.tiers.iter().map(|tier| (tier.name.clone(), tier.devices.len())).collect();
    on_disks(paths_of(config), false, async move |seam, disks| {
        let mut disks = disks.disks.into_iter();
        let tiers =
            counts.into_iter().map(|(name, count)| TierSpec { name, disks: disks.by_ref().take(count).collect() });
        let tiers: Vec<_> = tiers.collect();
        Pool::create(&seam, &tiers, CreateOptions { slice_bytes, force, ..CreateOptions::default() }).await
    })?;
    println!(
        "pool {} created on {} in slices of {}; add [[volume]] with backing = \"pool://{}\" and a size",
        config.name,
        show_counted(devices.len() as u64, "device"),
        show_bytes(slice_bytes),
        config.name
    );
    Ok(())
}

fn check(config: &PoolConfig) -> Result<(), Failure> {
    let report = on_disks(paths_of(config), true, async |seam, disks| Pool::check(&seam, &disks.disks).await)?;
    let snapshots = match report.snapshots {
        0 => String::new(),
        count => format!(
            ", {} with {}",
            show_counted(count as u64, "snapshot"),
            show_counted(report.shared_slots, "shared slice")
        ),
    };
    println!(
        "pool {}: {}, {} allocated{snapshots}",
        config.name,
        show_counted(report.volumes as u64, "volume"),
        show_counted(report.slices, "slice")
    );
    report.findings.iter().for_each(|finding| println!("{finding}"));
    match report.findings.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed("the pool's metadata is damaged or incomplete")),
    }
}

/// The devices of a pool.
pub(super) struct Devices {
    pub disks: Vec<RealDisk>,
    /// Their paths, by their identities.
    pub paths: BTreeMap<String, PathBuf>,
}

/// The configured devices of a pool.
pub(super) fn paths_of(pool: &PoolConfig) -> Vec<PathBuf> {
    pool.devices().cloned().collect()
}

/// The configured devices of a pool, and the ones that were added by command and are not in the file yet.
pub(super) fn paths_with_added(pool: &PoolConfig, state: Option<&State>) -> Vec<PathBuf> {
    let mut paths = paths_of(pool);
    let added = state.and_then(|state| state.pool_devices.get(&pool.name)).into_iter().flatten();
    paths.extend(added.filter(|path| !pool.devices().any(|device| is_same_file(device, path))).cloned());
    paths
}

/// Opens the devices of a pool on a core of its own, and runs `work` with them.
pub(super) fn on_disks<R: Send + 'static>(
    paths: Vec<PathBuf>,
    read_only: bool,
    work: impl AsyncFnOnce(RealSeam, Devices) -> Result<R, PoolError> + Send + 'static,
) -> Result<R, Failure> {
    let result = run_core(RealCoreSpec::new(MEMORY_BYTES), |seam| async move {
        let mut devices = Devices { disks: Vec::new(), paths: BTreeMap::new() };
        for path in &paths {
            let open = DiskOpen { path: path.clone(), create_bytes: None, read_only, lock_wait_ms: LOCK_WAIT_MS };
            let disk = seam.open_disk(&open).await.map_err(|error| format!("{}: {error}", path.display()))?;
            devices.paths.insert(disk.identity(), path.clone());
            devices.disks.push(disk);
        }
        let paths = devices.paths.clone();
        work(seam, devices).await.map_err(|error| name_devices(&error.to_string(), &paths))
    });
    result.map_err(|error| Failure::failed(error.to_string()))?.map_err(Failure::failed)
}
