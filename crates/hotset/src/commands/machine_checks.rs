//! Checks of `hotset check-config` that compare a configuration with this machine as it is now: ports in use, and free
//! space for flash files. Their findings are warnings, because both may change before the daemon starts.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net;
use seam::Address;

use config::Config;
use daemon::{PortHolder, show_in_use};
use units::show_bytes;

/// Warnings about listen addresses that another process has in use. Each address is bound and released at once.
pub fn port_warnings(config: &Config) -> Vec<String> {
    let nbd = config.nbd.listen.iter().map(|address| ("[nbd]", address.clone()));
    let iscsi = config.iscsi.iter().flat_map(|iscsi| &iscsi.listen).map(|address| ("[iscsi]", address.clone()));
    let api = config.api.listen.map(|address| ("[api]", Address::Tcp(address.ip().to_string(), address.port())));
    let listeners = nbd.chain(iscsi).chain(api);
    let taken: Vec<(&str, Address, u16)> = listeners
        .filter_map(|(table, address)| {
            let port = port_in_use(&address)?;
            Some((table, address, port))
        })
        .collect();
    if taken.is_empty() {
        return Vec::new();
    }
    let own_daemon = OwnDaemon::find(&config.control_socket);
    let warning = |(table, address, port): (&str, Address, u16)| {
        let holder = PortHolder::find(&address);
        let remedy = remedy(holder.as_ref(), own_daemon)?;
        Some(format!("{table}: {}; {remedy}", show_in_use(port, holder.as_ref())))
    };
    taken.into_iter().filter_map(warning).collect()
}

/// The remedy for a port in use; `None` if the daemon of this configuration holds it. A daemon is not to be stopped
/// because of a check.
fn remedy(holder: Option<&PortHolder>, own_daemon: OwnDaemon) -> Option<&'static str> {
    match (holder, own_daemon) {
        (Some(holder), OwnDaemon::Runs(process)) if holder.process == process => None,
        // A holder that this user may not see is taken for that daemon.
        (None, OwnDaemon::Runs(_)) => None,
        (None, OwnDaemon::Unknown) => Some("it may be the running daemon: repeat the check as root"),
        (Some(holder), _) if holder.name == "hotset" => {
            Some("a daemon of another configuration has it: configure another port here")
        }
        _ => Some("stop that process, or configure another port"),
    }
}

/// The port of a TCP address that is in use. Addresses that are names are not looked up.
fn port_in_use(address: &Address) -> Option<u16> {
    let Address::Tcp(host, port) = address else { return None };
    let address = SocketAddr::new(host.parse().ok()?, *port);
    // Bound without listening: reconnecting clients must not reach this process.
    let family = if address.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    let socket = net::socket(family, net::SocketType::STREAM, None).ok()?;
    net::sockopt::set_socket_reuseaddr(&socket, true).ok()?;
    (net::bind(&socket, &address) == Err(Errno::ADDRINUSE)).then_some(*port)
}

/// The daemon at the control socket of a configuration.
#[derive(Clone, Copy, Debug)]
enum OwnDaemon {
    /// None listens there.
    Absent,
    /// This process listens.
    Runs(u32),
    /// This user may not connect.
    Unknown,
}

impl OwnDaemon {
    fn find(socket: &Path) -> OwnDaemon {
        // The process is known as soon as the connection is: the daemon need not answer.
        match UnixStream::connect(socket) {
            Ok(stream) => match net::sockopt::socket_peercred(&stream) {
                Ok(peer) => OwnDaemon::Runs(peer.pid.as_raw_nonzero().get().cast_unsigned()),
                Err(_) => OwnDaemon::Unknown,
            },
            Err(error) if error.kind() == ErrorKind::PermissionDenied => OwnDaemon::Unknown,
            Err(_) => OwnDaemon::Absent,
        }
    }
}

/// Warnings about flash files that the daemon is to create and that do not fit on their file system. It looks up paths,
/// so the caller bounds its time.
pub fn space_warnings(config: &Config) -> Vec<String> {
    let mut by_device: BTreeMap<u64, FileSystem<'_>> = BTreeMap::new();
    for (path, bytes) in config.flash_files_to_create() {
        let Some(directory) = path.parent() else { continue };
        let (Ok(meta), Ok(space)) = (directory.metadata(), rustix::fs::statvfs(directory)) else { continue };
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let file_system = by_device.entry(meta.dev()).or_insert_with(|| FileSystem { free_bytes, files: Vec::new() });
        file_system.files.push((path, bytes));
    }
    by_device.into_values().filter_map(|file_system| shortage(&file_system.files, file_system.free_bytes)).collect()
}

/// A file system on which flash files are to be created.
struct FileSystem<'a> {
    free_bytes: u64,
    /// The files, with their sizes in bytes.
    files: Vec<(&'a Path, u64)>,
}

/// The text about files that do not fit into the free space of their file system.
fn shortage(files: &[(&Path, u64)], free_bytes: u64) -> Option<String> {
    let needed_bytes = files.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let paths: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    (needed_bytes > free_bytes).then(|| {
        format!(
            "[flash]: the daemon cannot create {}: {} are needed, and the file system has {} free; free space there, \
             lower `size`, or choose another path",
            paths.join(" and "),
            show_bytes(needed_bytes),
            show_bytes(free_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn parse(folder: &Path, text: &str) -> Config {
        let volume = "[[volume]]\nname = \"a\"\nbacking = \"sim://raid5?size=1GiB\"\n";
        let text = format!("[control]\nsocket = \"none.sock\"\n{text}{volume}");
        Config::parse(&folder.join("hotset.toml"), &text).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn port_of_each_listener_in_use_is_a_warning_with_its_process() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = listeners.each_ref().map(|listener| listener.local_addr().expect("an address").port());
        let [nbd, iscsi, api] = ports;
        let text = format!(
            "[nbd]\nlisten = [\"tcp:127.0.0.1:{nbd}\", \"tcp:127.0.0.1:0\"]\n[api]\nlisten = \"127.0.0.1:{api}\"\n\
             [iscsi]\nlisten = [\"127.0.0.1:{iscsi}\"]\ntarget = \"iqn.2026-11.io.hotset:test\"\n"
        );
        let config = parse(folder.path(), &text);
        let warnings = port_warnings(&config);
        for (warning, (table, port)) in warnings.iter().zip([("[nbd]", nbd), ("[iscsi]", iscsi), ("[api]", api)]) {
            let expected = format!("{table}: port {port} is in use by process {} (", std::process::id());
            assert!(warning.starts_with(&expected) && warning.ends_with("configure another port"), "{warning}");
        }
        assert_eq!(warnings.len(), 3, "{warnings:?}");
    }

    #[test]
    fn no_daemon_is_to_be_stopped() {
        let holder = |process: u32, name: &str| PortHolder { process, name: name.to_owned() };
        let (own, other, qemu) = (holder(7, "hotset"), holder(8, "hotset"), holder(9, "qemu-nbd"));
        assert_eq!(remedy(Some(&own), OwnDaemon::Runs(7)), None);
        assert_eq!(remedy(None, OwnDaemon::Runs(7)), None, "this user may not see its descriptors");
        for (holder, own_daemon) in
            [(Some(&other), OwnDaemon::Runs(7)), (Some(&own), OwnDaemon::Unknown), (None, OwnDaemon::Unknown)]
        {
            let remedy = remedy(holder, own_daemon).expect("the port is in use");
            assert!(!remedy.contains("stop that process"), "{holder:?}, {own_daemon:?}: {remedy}");
        }
        let stop = "stop that process, or configure another port";
        assert_eq!(remedy(Some(&qemu), OwnDaemon::Runs(7)), Some(stop));
        assert_eq!(remedy(None, OwnDaemon::Absent), Some(stop));
    }

    #[test]
    fn flash_files_larger_than_the_free_space_are_a_warning() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let with_size = |size: &str| {
            let text = format!("[flash]\ndevices = [\"f0\", \"f1\"]\nsize = \"{size}\"\n[api]\nlisten = \"none\"\n");
            parse(folder.path(), &text)
        };
        let warnings = space_warnings(&with_size("1024 TiB"));
        assert_eq!(warnings.len(), 1, "both files are on one file system: {warnings:?}");
        let [first, second] = ["f0", "f1"].map(|name| folder.path().join(name).display().to_string());
        let expected = format!("cannot create {first} and {second}: {} are needed", show_bytes(2048 << 40));
        assert!(warnings[0].contains(&expected) && warnings[0].contains(" free; free space there"), "{}", warnings[0]);
        assert_eq!(space_warnings(&with_size("64 KiB")), [""; 0]);
        for name in ["f0", "f1"] {
            std::fs::write(folder.path().join(name), [0; 4096]).expect("the folder can be written");
        }
        assert_eq!(space_warnings(&with_size("1024 TiB")), [""; 0], "existing files keep their size");
    }

    #[test]
    fn files_share_the_free_space_of_their_file_system() {
        let files = [(Path::new("/srv/f0"), 3 << 30), (Path::new("/srv/f1"), 3 << 30)];
        assert_eq!(shortage(&files, 6 << 30), None);
        let text = shortage(&files, 5 << 30).expect("6 GiB do not fit");
        assert!(text.contains("/srv/f0 and /srv/f1: 6 GiB are needed, and the file system has 5 GiB free"), "{text}");
    }
}
