//! Address of an export as a URI: `nbd://host:port/export` or `nbd+unix:///export?socket=/path`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nbd_protocol::limits::NAME_BYTES_MAX;
use seam::Address;

/// The port registered with IANA.
const DEFAULT_PORT: u16 = 10809;

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTarget {
    /// The server.
    pub address: Address,
    /// The export's name; empty for the server's default.
    pub export: String,
}

/// Why a URI is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdTargetError {
    /// The URI has another scheme.
    #[error("\"{0}\" is not an NBD URI; write nbd://host:port/export or nbd+unix:///export?socket=/path")]
    Scheme(String),
    /// TLS is not supported as a client.
    #[error("\"{0}\": TLS towards a backing is not supported; use nbd:// inside a tunnel, or nbd+unix://")]
    Tls(String),
    /// The port is not a valid number.
    #[error("\"{0}\" is not a port; use a number from 1 to 65535")]
    Port(String),
    /// The host is missing.
    #[error("no host; write nbd://host:port/export")]
    NoHost,
    /// The socket is missing.
    #[error("no socket; write nbd+unix:///export?socket=/path")]
    NoSocket,
    /// A query parameter is unknown.
    #[error("\"{0}\" is not a parameter of an NBD URI; nbd+unix:// takes socket=/path")]
    Parameter(String),
    /// A percent escape is malformed.
    #[error("\"{0}\" has an invalid percent escape; write two hexadecimal digits of UTF-8 after each percent sign")]
    Escape(String),
    /// The name is longer than the protocol allows.
    #[error("the export's name has {0} bytes; the maximum is {max}", max = NAME_BYTES_MAX)]
    NameTooLong(usize),
}

impl FromStr for NbdTarget {
    type Err = NbdTargetError;

    fn from_str(uri: &str) -> Result<Self, NbdTargetError> {
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| NbdTargetError::Scheme(uri.to_owned()))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescape(export)?;
        if export.len() > NAME_BYTES_MAX {
            return Err(NbdTargetError::NameTooLong(export.len()));
        }
        let address = match scheme {
            "nbd" if !query.is_empty() => return Err(NbdTargetError::Parameter(query.to_owned())),
            "nbd" => parse_tcp_address(authority)?,
            "nbd+unix" => parse_unix_address(query)?,
            "nbds" | "nbds+unix" => return Err(NbdTargetError::Tls(uri.to_owned())),
            _ => return Err(NbdTargetError::Scheme(uri.to_owned())),
        };
        Ok(NbdTarget { address, export })
    }
}

impl fmt::Display for NbdTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = escape(&self.export);
        match &self.address {
            Address::Unix(path) => write!(f, "nbd+unix:///{export}?socket={}", escape(&path.to_string_lossy())),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}/{export}"),
            Address::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{export}"),
        }
    }
}

fn parse_tcp_address(authority: &str) -> Result<Address, NbdTargetError> {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        None => authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(NbdTargetError::NoHost);
    }
    let port_number = port.map_or(Some(DEFAULT_PORT), |port| port.parse().ok().filter(|number| *number > 0));
    let port_number = port_number.ok_or_else(|| NbdTargetError::Port(port.unwrap_or_default().to_owned()))?;
    Ok(Address::Tcp(unescape(host)?, port_number))
}

fn parse_unix_address(query: &str) -> Result<Address, NbdTargetError> {
    let mut socket = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("socket", path)) if !path.is_empty() => socket = Some(unescape(path)?),
            _ => return Err(NbdTargetError::Parameter(parameter.to_owned())),
        }
    }
    Ok(Address::Unix(PathBuf::from(socket.ok_or(NbdTargetError::NoSocket)?)))
}

fn unescape(text: &str) -> Result<String, NbdTargetError> {
    let invalid_escape = || NbdTargetError::Escape(text.to_owned());
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.as_bytes().split_first_chunk::<2>().ok_or_else(invalid_escape)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        bytes.push(u8::from_str_radix(digits.ok_or_else(invalid_escape)?, 16).map_err(|_| invalid_escape())?);
        bytes.extend_from_slice(rest);
    }
    String::from_utf8(bytes).map_err(|_| invalid_escape())
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(uri: &str) -> Result<NbdTarget, NbdTargetError> {
        uri.parse()
    }

    #[test]
    fn common_uris_parse_and_round_trip() {
        let tcp = |host: &str, port, export: &str| NbdTarget {
            address: Address::Tcp(host.to_owned(), port),
            export: export.to_owned(),
        };
        assert_eq!(parse("nbd://store:1234/vm1"), Ok(tcp("store", 1234, "vm1")));
        assert_eq!(parse("nbd://store"), Ok(tcp("store", 10809, "")));
        assert_eq!(parse("nbd://[::1]/a%20b"), Ok(tcp("::1", 10809, "a b")));
        assert_eq!(parse("nbd://[::1]:7/x"), Ok(tcp("::1", 7, "x")));
        let unix = NbdTarget { address: Address::Unix("/run/a b.sock".into()), export: "vm1".to_owned() };
        assert_eq!(parse("nbd+unix:///vm1?socket=/run/a%20b.sock"), Ok(unix.clone()));
        for target in [unix, tcp("::1", 7, "ä b"), tcp("store", 1, "")] {
            assert_eq!(parse(&target.to_string()), Ok(target));
        }
    }

    #[test]
    fn malformed_uri_is_rejected_with_its_reason() {
        assert!(matches!(parse("http://store/vm1"), Err(NbdTargetError::Scheme(_))));
        assert!(matches!(parse("/dev/sda"), Err(NbdTargetError::Scheme(_))));
        assert!(matches!(parse("nbds://store/vm1"), Err(NbdTargetError::Tls(_))));
        assert_eq!(parse("nbd://store:http/vm1"), Err(NbdTargetError::Port("http".to_owned())));
        assert_eq!(parse("nbd://store:0/vm1"), Err(NbdTargetError::Port("0".to_owned())));
        assert_eq!(parse("nbd:///vm1"), Err(NbdTargetError::NoHost));
        assert_eq!(parse("nbd+unix:///vm1"), Err(NbdTargetError::NoSocket));
        assert!(matches!(parse("nbd+unix:///vm1?sock=/x"), Err(NbdTargetError::Parameter(_))));
        assert!(matches!(parse("nbd://store/%zz"), Err(NbdTargetError::Escape(_))));
        assert!(matches!(parse("nbd://store/%+1"), Err(NbdTargetError::Escape(_))));
        assert!(matches!(parse("nbd://store/%ff"), Err(NbdTargetError::Escape(_))));
        assert_eq!(parse(&format!("nbd://store/{}", "x".repeat(5000))), Err(NbdTargetError::NameTooLong(5000)));
    }
}
