//! `hotset attach` and `hotset detach`: a volume as a block device of this machine.

use std::path::Path;

use clap::Args;
use terminal::Failure;

/// Volume to attach, and options of its device.
#[derive(Args)]
pub struct Options {
    /// The volume
    name: String,
    /// Stay in the foreground and keep the device attached until SIGTERM, for service managers other than systemd
    #[arg(long)]
    foreground: bool,
}

/// Volume or device to detach.
#[derive(Args)]
pub struct Detach {
    /// The volume
    name: String,
    /// Detach without a flush, for a daemon or a volume that does not come back
    #[arg(long)]
    no_flush: bool,
}

/// Attaches a volume.
pub fn attach(socket: Option<&Path>, options: &Options, json: bool) -> Result<(), Failure> {
    kernel_nbd::attach(socket, &options.name, options.foreground, json)
}

/// Detaches a volume; the daemon continues to serve it.
pub fn detach(socket: Option<&Path>, options: &Detach, json: bool) -> Result<(), Failure> {
    kernel_nbd::detach(socket, &options.name, !options.no_flush, json)
}
