//! `hotset attach` and `hotset detach`: a volume as a block device of this machine, `/dev/nbdN`, with the link
//! `/dev/hotset/NAME`.
//!
//! One attach process per volume (`attachment.rs`) maintains the device, under systemd as an instance of
//! `hotset-attach@.service`.

mod attachment;
mod daemon;
mod device;
mod handshake;
mod kernel;
mod netlink;
mod systemd;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use device::{Device, InUse};
use kernel::{KernelError, NbdNetlink};
use serde_json::json;

use config::control_socket;
use terminal::{Failure, print_json};

/// Time for short-term users of a device, such as udev after each change, to close it.
const SHORT_USE_TIMEOUT: Duration = Duration::from_secs(2);

/// Attaches the volume `name` to the daemon at `socket`, or at the configured socket. A systemd unit keeps it attached,
/// or this process if `in_foreground`, until SIGTERM.
pub fn attach(socket: Option<&Path>, name: &str, in_foreground: bool, json: bool) -> Result<(), Failure> {
    // Errors that can be detected here are reported here, not in the unit's journal.
    kernel()?;
    if in_foreground {
        return attachment::run(&control_socket(socket), name, |device| show(device, json));
    }
    if !systemd::is_running() {
        return Err(Failure::failed(format!(
            "systemd is not running: let your service manager run `hotset attach --foreground {name}`"
        )));
    }
    if socket.is_some() {
        return Err(Failure::usage(format!(
            "the systemd unit uses the daemon of /etc/hotset/hotset.toml: omit --socket, or run \
             `hotset attach --foreground {name}`"
        )));
    }
    let unit = systemd::unit(name)?;
    daemon::connect_to_volume(&control_socket(None), name).map_err(|reason| Failure::failed(reason.to_string()))?;
    systemd::enable(&unit)?;
    let no_device =
        || Failure::failed(format!("{unit} is running, but the device does not exist; see `journalctl -u {unit}`"));
    show(&find(name)?.ok_or_else(no_device)?, json)
}

/// Detaches the volume `name`, with or without a flush; the daemon continues to serve it.
pub fn detach(socket: Option<&Path>, name: &str, with_flush: bool, json: bool) -> Result<(), Failure> {
    let Some(device) = find(name)? else {
        // A unit that waits for its daemon has no device yet.
        systemd::disable(name)?;
        return Err(Failure::failed(format!("{name} is not attached and will not be attached at boot")));
    };
    let file = claim(&device)?;
    // A flush would wait for a daemon that may never return.
    if with_flush && let Err(reason) = daemon::check_served(&control_socket(socket), &device.identity) {
        return Err(Failure::failed(format!(
            "{} cannot be flushed: {reason}; `hotset detach --no-flush {name}` discards unflushed writes",
            device.node().display()
        )));
    }
    // Disconnected before the attach process ends, so that the device cannot be mounted in between. That process then
    // finds that its device does not exist.
    disconnect(&mut kernel()?, &device, file, with_flush)?;
    systemd::disable(name)?;
    if json {
        return print_json(&json!({ "volume": name, "device": device.node() }));
    }
    println!("{name} is detached; the daemon continues to serve it");
    Ok(())
}

fn find(name: &str) -> Result<Option<Device>, Failure> {
    device::find(name).map_err(|error| Failure::failed(format!("/sys/block: {error}")))
}

fn show(device: &Device, json: bool) -> Result<(), Failure> {
    let (volume, node) = (&device.identity.volume, device.node());
    if json {
        return print_json(&json!({ "volume": volume, "device": node, "path": device.path() }));
    }
    match device.path() {
        path if path == node => println!("{volume} is {}", node.display()),
        path => println!("{volume} is {} ({})", path.display(), node.display()),
    }
    Ok(())
}

/// Opens the device exclusively; a user that holds it for longer than [`SHORT_USE_TIMEOUT`] is reported.
fn claim(device: &Device) -> Result<File, Failure> {
    let deadline = Instant::now() + SHORT_USE_TIMEOUT;
    loop {
        let claimed = match device.user() {
            Some(user) => Err(user),
            None => device.claim(),
        };
        match claimed {
            Ok(file) => return Ok(file),
            Err(InUse(reason)) if Instant::now() > deadline => {
                return Err(Failure::failed(format!("{} is in use: {reason}", device.node().display())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Disconnects a device that only `file` holds, with or without a flush. The device does not exist when the call
/// returns. A device that belongs to another volume by now is not disconnected.
fn disconnect(kernel: &mut NbdNetlink, device: &Device, file: File, with_flush: bool) -> Result<(), Failure> {
    if !device.exists() {
        return Ok(());
    }
    if with_flush {
        file.sync_all().map_err(|error| {
            Failure::failed(format!("{} cannot be flushed: {error}; it stays attached", device.node().display()))
        })?;
    }
    kernel.disconnect(device.index).map_err(|error| Failure::failed(error.to_string()))?;
    // The kernel removes the device at its last close.
    drop(file);
    Ok(())
}

/// The kernel's NBD client; its module is loaded if that is permitted.
fn kernel() -> Result<NbdNetlink, Failure> {
    let opened = match NbdNetlink::open() {
        Err(KernelError::NoModule) => {
            // The output is ignored: only the presence of the client afterwards matters.
            let _ = Command::new("modprobe").arg("nbd").output();
            NbdNetlink::open()
        }
        opened => opened,
    };
    opened.map_err(|error| Failure::failed(error.to_string()))
}
