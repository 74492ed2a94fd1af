//! The process that listens on a TCP port of this machine, for messages about a port in use.

use std::io;
use std::path::Path;

use seam::Address;

/// Maximum number of file descriptors that are examined.
const DESCRIPTORS_MAX: usize = 200_000;
/// State of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// A process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHolder {
    /// Its number.
    pub process: u32,
    /// Its name.
    pub name: String,
}

impl PortHolder {
    /// The process that listens on `port`; `None` if this user may not see it.
    pub fn find(port: u16) -> Option<PortHolder> {
        listening_process(Path::new("/proc"), port)
    }
}

/// The error for an address in use, with its holder as far as this user may see it. Other errors are unchanged.
pub fn explain_in_use(error: io::Error, port: Option<u16>) -> io::Error {
    match port {
        Some(port) if error.kind() == io::ErrorKind::AddrInUse => {
            let text = format!("{}; stop that process, or configure another port", in_use(port));
            io::Error::new(error.kind(), text)
        }
        _ => error,
    }
}

/// The port of a TCP address.
pub fn port_of(address: &Address) -> Option<u16> {
    match address {
        Address::Tcp(_, port) => Some(*port),
        Address::Unix(_) => None,
    }
}

/// The text about a port in use, with its holder as far as this user may see it.
pub fn in_use(port: u16) -> String {
    show_in_use(port, PortHolder::find(port).as_ref())
}

/// The text about a port in use, such as `port 10809 is in use by process 712 (qemu-nbd)`.
pub fn show_in_use(port: u16, holder: Option<&PortHolder>) -> String {
    match holder {
        Some(PortHolder { process, name }) => format!("port {port} is in use by process {process} ({name})"),
        None => format!("port {port} is in use by another process"),
    }
}

/// The process that listens on `port`, in the process file system at `proc`.
fn listening_process(proc: &Path, port: u16) -> Option<PortHolder> {
    let tables = ["net/tcp", "net/tcp6"].map(|table| std::fs::read_to_string(proc.join(table)).unwrap_or_default());
    let sockets: Vec<String> = tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| listening_inode(line, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = std::fs::read_dir(proc).ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let descriptors = numbers.flat_map(|process| {
        let descriptors = std::fs::read_dir(proc.join(process.to_string()).join("fd"));
        descriptors.into_iter().flatten().flatten().map(move |descriptor| (process, descriptor.path()))
    });
    let is_holder = |descriptor: &Path| {
        let link = std::fs::read_link(descriptor).unwrap_or_default();
        sockets.iter().any(|socket| link.as_os_str() == socket.as_str())
    };
    let (process, _) = descriptors.take(DESCRIPTORS_MAX).find(|(_, descriptor)| is_holder(descriptor))?;
    let name = std::fs::read_to_string(proc.join(process.to_string()).join("comm")).unwrap_or_default();
    Some(PortHolder { process, name: name.trim().to_owned() })
}

/// The inode in a line of `/proc/net/tcp` or `/proc/net/tcp6`, if its socket listens on `port`. The fields are number,
/// local address, remote address, state, queues, timer, retransmissions, user, time-out, inode.
fn listening_inode(line: &str, port: u16) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
    let is_listening = fields.get(3) == Some(&TCP_LISTEN) && u16::from_str_radix(local_port, 16) == Ok(port);
    fields.get(9).copied().filter(|_| is_listening)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn port_in_use_names_the_process_that_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let text = in_use(port);
        let own = format!("port {port} is in use by process {} (", std::process::id());
        assert!(text.starts_with(&own), "{text}");
        let error = TcpListener::bind(("127.0.0.1", port)).expect_err("the port is in use");
        let explained = explain_in_use(error, Some(port)).to_string();
        assert!(explained.starts_with(&own) && explained.contains("configure another port"), "{explained}");
        drop(listener);
        assert_eq!(in_use(port), format!("port {port} is in use by another process"));
    }
}
