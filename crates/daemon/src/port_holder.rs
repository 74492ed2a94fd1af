//! The process that holds a TCP address of this machine, for messages about an address in use.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
    /// The process with a listening socket that keeps another one from `address`; `None` if this user may not see it,
    /// or if it is no TCP address.
    pub fn find(address: &Address) -> Option<PortHolder> {
        listening_process(Path::new("/proc"), address)
    }
}

/// The error for an address in use, with its holder as far as this user may see it. Other errors are unchanged.
pub fn explain_in_use(error: io::Error, address: &Address) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    match in_use(address) {
        Some(text) => io::Error::new(error.kind(), format!("{text}; stop that process, or configure another port")),
        None => error,
    }
}

/// The text about a TCP address in use, with its holder as far as this user may see it; `None` for a Unix socket.
pub fn in_use(address: &Address) -> Option<String> {
    let Address::Tcp(_, port) = address else { return None };
    Some(show_in_use(*port, PortHolder::find(address).as_ref()))
}

/// The text about a port in use, such as `port 10809 is in use by process 712 (qemu-nbd)`.
pub fn show_in_use(port: u16, holder: Option<&PortHolder>) -> String {
    match holder {
        Some(PortHolder { process, name }) => format!("port {port} is in use by process {process} ({name})"),
        None => format!("port {port} is in use by another process"),
    }
}

/// How certainly a listening socket conflicts with an address; the least certain one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Conflict {
    /// One of both is the IPv6 wildcard, and the other one an IPv4 address: only a socket for both families conflicts,
    /// and the kernel's table does not name the families.
    DualStack,
    /// One of both is the wildcard of the other one's family.
    Wildcard,
    /// The address is the same.
    Same,
}

/// The conflict of a listening socket at `held` with the address `wanted` of the same port.
fn conflict(held: IpAddr, wanted: IpAddr) -> Option<Conflict> {
    let (held, wanted) = (held.to_canonical(), wanted.to_canonical());
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match held.is_ipv4() == wanted.is_ipv4() {
        true if held == wanted => Some(Conflict::Same),
        true => (held.is_unspecified() || wanted.is_unspecified()).then_some(Conflict::Wildcard),
        false => (held == any_v6 || wanted == any_v6).then_some(Conflict::DualStack),
    }
}

/// The addresses of a host, as far as they are known without a look-up; none for any other name.
fn addresses_of(host: &str) -> Vec<IpAddr> {
    match host {
        "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        host => host.parse().into_iter().collect(),
    }
}

/// The process that keeps others from listening at `address`, in the process file system at `proc`. For a host whose
/// addresses are not known, any process that listens on the port.
fn listening_process(proc: &Path, address: &Address) -> Option<PortHolder> {
    let Address::Tcp(host, port) = address else { return None };
    let wanted = addresses_of(host);
    let conflict_at = |held: IpAddr| match wanted.as_slice() {
        [] => Some(Conflict::DualStack),
        wanted => wanted.iter().filter_map(|wanted| conflict(held, *wanted)).max(),
    };
    let tables = ["net/tcp", "net/tcp6"].map(|table| std::fs::read_to_string(proc.join(table)).unwrap_or_default());
    let listening = tables.iter().flat_map(|table| table.lines()).filter_map(|line| listening_socket(line, *port));
    let conflicts: Vec<(Conflict, &str)> =
        listening.filter_map(|(held, inode)| Some((conflict_at(held)?, inode))).collect();
    // A socket of whose conflict less is known is not named beside a certain one.
    let most_certain = conflicts.iter().map(|(conflict, _)| *conflict).max()?;
    let holders = conflicts.iter().filter(|(conflict, _)| *conflict == most_certain);
    let sockets: Vec<String> = holders.map(|(_, inode)| format!("socket:[{inode}]")).collect();
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

/// Address and inode in a line of `/proc/net/tcp` or `/proc/net/tcp6`, if its socket listens on `port`. The fields are
/// number, local address, remote address, state, queues, timer, retransmissions, user, time-out, inode.
fn listening_socket(line: &str, port: u16) -> Option<(IpAddr, &str)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local_address, local_port) = fields.get(1)?.rsplit_once(':')?;
    let is_listening = fields.get(3) == Some(&TCP_LISTEN) && u16::from_str_radix(local_port, 16) == Ok(port);
    let inode = fields.get(9).copied().filter(|_| is_listening)?;
    Some((parse_address(local_address)?, inode))
}

/// An address in the kernel's table: words of 32 bits in the byte order of the machine, in hexadecimal digits.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(8 * at..8 * at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(byte, read)| *byte = *read);
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn port_in_use_names_the_process_that_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let own = format!("port {port} is in use by process {} (", std::process::id());
        for host in ["127.0.0.1", "0.0.0.0", "::", "localhost", "a-name.example"] {
            let text = in_use(&tcp(host, port)).expect("a TCP address");
            assert!(text.starts_with(&own), "{host}: {text}");
        }
        let error = TcpListener::bind(("127.0.0.1", port)).expect_err("the port is in use");
        let explained = explain_in_use(error, &tcp("127.0.0.1", port)).to_string();
        assert!(explained.starts_with(&own) && explained.contains("configure another port"), "{explained}");
        let unknown = format!("port {port} is in use by another process");
        for host in ["127.0.0.2", "::1"] {
            assert_eq!(in_use(&tcp(host, port)), Some(unknown.clone()), "{host} is another address");
        }
        drop(listener);
        assert_eq!(in_use(&tcp("127.0.0.1", port)), Some(unknown));
        assert_eq!(in_use(&Address::Unix("/run/s".into())), None);
    }

    #[test]
    fn holder_of_a_port_is_the_one_with_a_conflicting_address() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let proc = folder.path();
        // The words have the byte order of the machine.
        let show = |bytes: &[u8]| {
            let words = bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
            words.map(|word| format!("{word:08X}")).collect::<String>()
        };
        let line = |address: &str, inode: u32| {
            let address = match address.parse().expect("an address") {
                IpAddr::V4(address) => show(&address.octets()),
                IpAddr::V6(address) => show(&address.octets()),
            };
            format!("   0: {address}:2A39 0:0 0A 0:0 0:0 0 0 0 {inode} 1\n")
        };
        std::fs::create_dir_all(proc.join("net")).expect("the folder can be written");
        let holder_at = |held: &[&str], host: &str| {
            let [mut tcp4, mut tcp6] = [String::new(), String::new()];
            for (inode, address) in (1..).zip(held) {
                let table = if address.contains(':') { &mut tcp6 } else { &mut tcp4 };
                *table += &line(address, inode);
                let descriptors = proc.join(inode.to_string()).join("fd");
                std::fs::create_dir_all(&descriptors).expect("the folder can be written");
                let link = descriptors.join("3");
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(format!("socket:[{inode}]"), link).expect("the folder can be written");
            }
            std::fs::write(proc.join("net/tcp"), tcp4).expect("the folder can be written");
            std::fs::write(proc.join("net/tcp6"), tcp6).expect("the folder can be written");
            let found = listening_process(proc, &tcp(host, 0x2a39))?;
            Some(held[found.process as usize - 1].to_owned())
        };
        let both = ["192.0.2.1", "127.0.0.1"];
        assert_eq!(holder_at(&both, "127.0.0.1").as_deref(), Some("127.0.0.1"));
        assert_eq!(holder_at(&both, "192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(holder_at(&both, "192.0.2.9").as_deref(), None, "the address is free");
        assert!(holder_at(&both, "0.0.0.0").is_some() && holder_at(&both, "::").is_some());
        assert_eq!(holder_at(&["::1", "0.0.0.0"], "127.0.0.1").as_deref(), Some("0.0.0.0"));
        assert_eq!(holder_at(&["::1", "127.0.0.1"], "127.0.0.1").as_deref(), Some("127.0.0.1"));
        assert_eq!(
            holder_at(&["::", "127.0.0.1"], "127.0.0.1").as_deref(),
            Some("127.0.0.1"),
            "the wildcard may be IPv6 alone"
        );
        assert_eq!(holder_at(&["::1", "::"], "127.0.0.1").as_deref(), Some("::"));
        assert_eq!(holder_at(&["0.0.0.0", "::"], "2001:db8::1").as_deref(), Some("::"));
        assert_eq!(holder_at(&["127.0.0.1", "2001:db8::1"], "2001:db8::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(holder_at(&["127.0.0.1", "::ffff:192.0.2.1"], "192.0.2.1").as_deref(), Some("::ffff:192.0.2.1"));
        assert_eq!(holder_at(&["127.0.0.1"], "2001:db8::1").as_deref(), None);
    }
}
