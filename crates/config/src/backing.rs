//! A volume's backing, as the configuration writes it: a path or a URI.

use std::fmt;
use std::path::{Path, PathBuf};

use nbd_client::{NbdTarget, NbdTargetError};
use rbd::{ImageSpec, ImageSpecError, is_image_address};
use seam::model::ArraySpec;

use super::array::{array_of_level, show_array};

/// A volume's backing. Whether a path is a file or a device is known when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingSpec {
    /// A file or a block device.
    Path(PathBuf),
    /// An export of another NBD server.
    Nbd(NbdTarget),
    /// An image of Ceph's RBD.
    Rbd(ImageSpec),
    /// A modelled array for this volume alone, with its size if the URI gives one.
    Sim(ArraySpec, Option<u64>),
    /// A part of the `[[array]]` of that name.
    SimArray(String),
    /// A volume of the `[[pool]]` of that name.
    Pool(String),
}

impl BackingSpec {
    /// Parses `text`; a relative path is relative to `folder`. The error has the form `fault; remedy`.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        if is_image_address(text) {
            return parse_rbd(text);
        }
        let Some((scheme, rest)) = text.split_once("://") else { return parse_path(text, folder) };
        match scheme {
            "file" => parse_path(&percent_decode(rest)?, folder),
            "nbd" | "nbds" | "nbd+unix" | "nbds+unix" => parse_nbd(text),
            "sim" => parse_sim(rest),
            "pool" => parse_pool(rest),
            _ => Err(format!(
                "\"{text}\" has the unknown scheme {scheme}://; use a path, file://, nbd://, nbd+unix://, \
                 rbd:POOL/IMAGE, pool:// or sim://"
            )),
        }
    }

    /// True when the backing has no size of its own. `path_exists` reports whether a path exists.
    pub(super) fn needs_size(&self, path_exists: impl FnOnce(&Path) -> bool) -> bool {
        match self {
            BackingSpec::Path(path) => !path_exists(path),
            BackingSpec::Nbd(_) | BackingSpec::Rbd(_) => false,
            BackingSpec::Sim(_, size) => size.is_none(),
            BackingSpec::SimArray(_) | BackingSpec::Pool(_) => true,
        }
    }

    /// Name of the pool that holds the volume, if one does.
    pub fn pool(&self) -> Option<&str> {
        match self {
            BackingSpec::Pool(name) => Some(name),
            _ => None,
        }
    }
}

/// True for a path under `/dev`, except `/dev/shm`. The daemon creates no file there.
pub fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

impl fmt::Display for BackingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingSpec::Path(path) => write!(f, "{}", path.display()),
            BackingSpec::Nbd(target) => write!(f, "{target}"),
            BackingSpec::Rbd(image) => write!(f, "{image}"),
            BackingSpec::Sim(array, size) => {
                write!(f, "sim://{}", show_array(array))?;
                size.map_or(Ok(()), |size| write!(f, "&size={size}"))
            }
            BackingSpec::SimArray(name) => write!(f, "sim://{name}"),
            BackingSpec::Pool(name) => write!(f, "pool://{name}"),
        }
    }
}

fn parse_path(text: &str, folder: &Path) -> Result<BackingSpec, String> {
    if text.is_empty() {
        return Err("the backing is empty; specify a file, a block device or a URI".to_owned());
    }
    Ok(BackingSpec::Path(folder.join(text)))
}

fn parse_nbd(uri: &str) -> Result<BackingSpec, String> {
    let target = uri.parse().map_err(|error: NbdTargetError| error.to_string());
    target.map(BackingSpec::Nbd)
}

fn parse_rbd(text: &str) -> Result<BackingSpec, String> {
    let image = text.parse().map_err(|error: ImageSpecError| error.to_string());
    image.map(BackingSpec::Rbd)
}

fn parse_pool(rest: &str) -> Result<BackingSpec, String> {
    let name = percent_decode(rest)?;
    if name.is_empty() {
        return Err("the URI names no pool; write pool://NAME with the name of a [[pool]]".to_owned());
    }
    Ok(BackingSpec::Pool(name))
}

fn parse_sim(rest: &str) -> Result<BackingSpec, String> {
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(
            "the URI names no array; write sim://raid5?disks=5&type=sas15k&size=100GiB, or the name of an [[array]]"
                .to_owned(),
        );
    }
    let Some(mut array) = array_of_level(name) else {
        return match query {
            "" => Ok(BackingSpec::SimArray(percent_decode(name)?)),
            _ => Err(format!(
                "\"{name}\" is not a RAID level; use raid0, raid1, raid5, raid6 or raid10, or the name of an \
                 [[array]] without ?{query}"
            )),
        };
    };
    let mut size = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode(value)?;
        match key {
            "disks" => {
                array.disks =
                    value.parse().map_err(|_| format!("\"{value}\" is not a number of disks; write a whole number"))?
            }
            "type" => array.disk = value.parse()?,
            "stripe" => array.stripe_unit_bytes = units::parse_size(&value)?,
            "size" => size = Some(units::parse_size(&value)?),
            _ => return Err(format!("unknown parameter \"{key}\" of sim://; use disks, type, stripe or size")),
        }
    }
    array.check().map_err(|error| error.to_string())?;
    Ok(BackingSpec::Sim(array, size))
}

/// Splits `host:port` or `[v6]:port`. The port may be absent if there is a default.
pub fn split_host_port(text: &str, default_port: Option<u16>) -> Result<(String, u16), String> {
    let invalid = || format!("\"{text}\" is not HOST:PORT; write it like 127.0.0.1:10809 or [::1]:10809");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(invalid)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| invalid())?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match (port, default_port) {
        (Some(port), _) => port.parse().map_err(|_| invalid())?,
        (None, Some(port)) => port,
        (None, None) => return Err(invalid()),
    };
    if host.is_empty() { Err(invalid()) } else { Ok((host.to_owned(), port)) }
}

fn percent_decode(text: &str) -> Result<String, String> {
    let invalid = || format!("\"{text}\" has a broken % escape; write %25 for a percent sign");
    let mut bytes = Vec::with_capacity(text.len());
    let mut remaining = text.as_bytes();
    while let Some((&byte, after)) = remaining.split_first() {
        remaining = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits =
            remaining.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).ok_or_else(invalid)?;
        let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| invalid())?);
        remaining = &remaining[2..];
    }
    String::from_utf8(bytes).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BackingSpec, String> {
        BackingSpec::parse(text, Path::new("/etc/hotset"))
    }

    #[test]
    fn percent_escape_has_two_hex_digits_and_no_sign() {
        assert_eq!(parse("file:///a%20b"), Ok(BackingSpec::Path("/a b".into())));
        for invalid in ["file:///a%+1", "file:///a%2", "file:///a%"] {
            assert!(parse(invalid).is_err_and(|error| error.contains("%25")), "{invalid}");
        }
    }

    #[test]
    fn relative_path_starts_at_folder_of_the_configuration() {
        assert_eq!(parse("/dev/sdb"), Ok(BackingSpec::Path("/dev/sdb".into())));
        assert_eq!(parse("file:///srv/a%20b.img"), Ok(BackingSpec::Path("/srv/a b.img".into())));
        assert_eq!(parse("web.img"), Ok(BackingSpec::Path("/etc/hotset/web.img".into())));
    }

    #[test]
    fn displayed_uri_parses_to_the_same_backing() {
        for text in [
            "nbd://san:10809/vol%41",
            "nbd://[::1]:7000/x",
            "nbd+unix:///vm?socket=/run/x.sock",
            "rbd:vms/blue/web?ceph_conf=/etc/ceph/b.conf&ceph_user=hotset",
            "sim://shelf",
            "pool://tank",
            "sim://raid5?disks=5&type=sas15k&size=100GiB",
        ] {
            let spec = parse(text).expect(text);
            assert_eq!(parse(&spec.to_string()).as_ref(), Ok(&spec), "{text} became {spec}");
        }
        assert_eq!(parse("nbd://san/a").expect("valid").to_string(), "nbd://san:10809/a");
    }

    #[test]
    fn broken_uri_gives_error_with_remedy() {
        for text in [
            "",
            "http://x",
            "nbd+unix:///vm",
            "nbd://",
            "nbd://san:http/a",
            "nbd://san/%zz",
            "nbds://san/a",
            "rbd:web",
            "rbd://vms/web",
            "sim://",
            "pool://",
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
