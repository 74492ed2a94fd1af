//! `hotset pool accept-missing`: the opening of a pool without devices that may have a newer state of it.

use std::path::Path;

use config::PoolConfig;
use pool::{OpenOptions, Pool, PoolError};
use state::StateDir;

use super::confirm::is_confirmed;
use super::pool::{on_disks, paths_with_added};
use terminal::Failure;

/// Opens the pool once on its present devices, which thereby continue without the others.
pub fn accept_missing(config: &PoolConfig, directory: &Path, yes: bool) -> Result<(), Failure> {
    let state = StateDir::peek(directory).map_err(|error| Failure::failed(error.to_string()))?;
    let mut devices = paths_with_added(config, state.as_ref());
    devices.retain(|path| path.exists());
    let refusal = on_disks(devices.clone(), false, async |seam, devices| {
        match Pool::open(&seam, &devices.disks, OpenOptions::default()).await {
            Ok(_) => Ok(None),
            Err(error @ PoolError::NoMajority { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        }
    })?;
    let Some(refusal) = refusal else {
        println!("pool {} opens on the devices that are present: there is nothing to accept", config.name);
        return Ok(());
    };
    println!("{refusal}");
    println!(
        "The pool then continues with the state of the present devices: changes that only a missing one has are lost, \
         and requests to its slices fail until it returns. If it has been used without these devices, both sides are \
         refused together."
    );
    if !yes && !is_confirmed(&format!("Open pool {} without the missing devices?", config.name))? {
        return Err(Failure::failed("nothing was changed"));
    }
    let notices = on_disks(devices, false, async |seam, devices| {
        let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        Ok(Pool::open(&seam, &devices.disks, options).await?.take_notices())
    })?;
    notices.iter().for_each(|notice| println!("{notice}"));
    println!("pool {} opens without these devices from now on; a running daemon retries within 30 s", config.name);
    Ok(())
}
