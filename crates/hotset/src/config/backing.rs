//! Where a volume's data lies, as the configuration writes it: a path or a URI.

use std::fmt;
use std::path::{Path, PathBuf};

use seam::Address;

use super::array::ArraySpec;
use crate::units;

/// Where a volume's data lies. Whether a path is a file or a device shows when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingSpec {
    /// A file or a block device.
    Path(PathBuf),
    /// An export of another NBD server.
    Nbd(NbdUri),
    /// A modelled array of its own.
    Sim(ArraySpec, Option<u64>),
    /// A part of the `[[array]]` of that name.
    SimArray(String),
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub address: Address,
    /// The export's name; empty = the server's default.
    pub export: String,
    /// Written `nbds://`: refuse to talk without TLS.
    pub tls: bool,
}

/// The port of NBD servers.
const NBD_PORT: u16 = 10809;

impl BackingSpec {
    /// Reads `text`; a relative path counts from `folder`. The error says what, and after `; ` what to do.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else { return path(text, folder) };
        match scheme {
            "file" => path(&percent_decode(rest)?, folder),
            "nbd" | "nbds" => nbd_tcp(rest, scheme == "nbds"),
            "nbd+unix" | "nbds+unix" => nbd_unix(rest, scheme == "nbds+unix"),
            "sim" => sim(rest),
            _ => Err(format!(
                "\"{text}\" has the unknown scheme {scheme}://; use a path, file://, nbd://, nbd+unix:// or sim://"
            )),
        }
    }

    /// True when the backing cannot say how large it is.
    pub fn needs_size(&self) -> bool {
        match self {
            BackingSpec::Path(path) => !path.exists(),
            BackingSpec::Nbd(_) => false,
            BackingSpec::Sim(_, size) => size.is_none(),
            BackingSpec::SimArray(_) => true,
        }
    }
}

impl fmt::Display for BackingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingSpec::Path(path) => write!(f, "{}", path.display()),
            BackingSpec::Nbd(NbdUri { address: Address::Unix(socket), export, tls }) => {
                write!(f, "nbd{}+unix:///{export}?socket={}", if *tls { "s" } else { "" }, socket.display())
            }
            BackingSpec::Nbd(NbdUri { address: Address::Tcp(host, port), export, tls }) => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "nbd{}://{host}:{port}/{export}", if *tls { "s" } else { "" })
            }
            BackingSpec::Sim(array, size) => {
                write!(f, "sim://{array}")?;
                size.map_or(Ok(()), |size| write!(f, "&size={size}"))
            }
            BackingSpec::SimArray(name) => write!(f, "sim://{name}"),
        }
    }
}

fn path(text: &str, folder: &Path) -> Result<BackingSpec, String> {
    if text.is_empty() {
        return Err("the backing is empty; name a file, a block device or a URI".to_owned());
    }
    Ok(BackingSpec::Path(folder.join(text)))
}

fn nbd_tcp(rest: &str, tls: bool) -> Result<BackingSpec, String> {
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = split_host_port(authority, Some(NBD_PORT))?;
    Ok(BackingSpec::Nbd(NbdUri { address: Address::Tcp(host, port), export: percent_decode(export)?, tls }))
}

fn nbd_unix(rest: &str, tls: bool) -> Result<BackingSpec, String> {
    let (export, query) = rest.split_once('?').unwrap_or((rest, ""));
    let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
    let socket = socket.filter(|socket| !socket.is_empty());
    let socket = socket.ok_or("the URI names no socket; write nbd+unix:///EXPORT?socket=/path/to/socket")?;
    let export = percent_decode(export.strip_prefix('/').unwrap_or(export))?;
    Ok(BackingSpec::Nbd(NbdUri { address: Address::Unix(percent_decode(socket)?.into()), export, tls }))
}

fn sim(rest: &str) -> Result<BackingSpec, String> {
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(
            "the URI names no array; write sim://raid5?disks=5&type=sas15k&size=100GiB, or the name of an [[array]]"
                .to_owned(),
        );
    }
    let Some(mut array) = ArraySpec::of_level(name) else {
        return match query {
            "" => Ok(BackingSpec::SimArray(percent_decode(name)?)),
            _ => Err(format!(
                "\"{name}\" is no RAID level; use raid0, raid1, raid5, raid6 or raid10, or the name of an [[array]] without ?{query}"
            )),
        };
    };
    let mut size = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode(value)?;
        match key {
            "disks" => array.disks = value.parse().map_err(|_| format!("\"{value}\" disks; give a whole number"))?,
            "type" => array.disk = value.parse()?,
            "stripe" => array.stripe_bytes = units::parse_size(&value)?,
            "size" => size = Some(units::parse_size(&value)?),
            _ => return Err(format!("sim:// knows no \"{key}\"; it knows disks, type, stripe and size")),
        }
    }
    array.check()?;
    Ok(BackingSpec::Sim(array, size))
}

/// `host:port`, `[v6]:port`; the port may be left out where there is a default.
pub fn split_host_port(text: &str, default_port: Option<u16>) -> Result<(String, u16), String> {
    let wrong = || format!("\"{text}\" is not HOST:PORT; write it like 127.0.0.1:10809 or [::1]:10809");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match (port, default_port) {
        (Some(port), _) => port.parse().map_err(|_| wrong())?,
        (None, Some(port)) => port,
        (None, None) => return Err(wrong()),
    };
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

fn percent_decode(text: &str) -> Result<String, String> {
    let wrong = || format!("\"{text}\" has a broken % escape; write %25 for a percent sign");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BackingSpec, String> {
        BackingSpec::parse(text, Path::new("/etc/hotset"))
    }

    #[test]
    fn paths_count_from_the_folder_of_the_configuration() {
        assert_eq!(parse("/dev/sdb"), Ok(BackingSpec::Path("/dev/sdb".into())));
        assert_eq!(parse("file:///srv/a%20b.img"), Ok(BackingSpec::Path("/srv/a b.img".into())));
        assert_eq!(parse("web.img"), Ok(BackingSpec::Path("/etc/hotset/web.img".into())));
    }

    #[test]
    fn uris_read_back_as_they_are_shown() {
        for text in [
            "nbd://san:10809/vol%41",
            "nbds://[::1]:7000/x",
            "nbd+unix:///vm?socket=/run/x.sock",
            "sim://shelf",
            "sim://raid5?disks=5&type=sas15k&size=100GiB",
        ] {
            let spec = parse(text).expect(text);
            assert_eq!(parse(&spec.to_string()).as_ref(), Ok(&spec), "{text} became {spec}");
        }
        assert_eq!(parse("nbd://san/a").expect("valid").to_string(), "nbd://san:10809/a");
    }

    #[test]
    fn broken_uris_say_what_to_write() {
        for text in [
            "",
            "http://x",
            "nbd+unix:///vm",
            "nbd://",
            "sim://",
            "sim://raid5?disks=2",
            "sim://raid5?colour=red",
            "sim://raid7?disks=5",
            "file://%zz",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("; "), "{text}: {error}");
        }
    }
}
