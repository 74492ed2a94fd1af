//! Who is told: an address, whose word is trusted there, and one attempt to hand a message over.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CertificateError, Error as TlsError};
use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Error};

/// Time for everything from the look-up of a name to the answer's head.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer's head at most; its body is not read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where alerts are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Uri);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        // What was written may hold a password or a secret path, and is not shown.
        let wrong = || {
            "this is no address that alerts can be sent to; write it like \"https://alerts.example/hook\" or \"http://127.0.0.1:9000/hook\"".to_owned()
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_web = uri.scheme().is_some_and(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(wrong)?;
        // What follows the host is a port, and a name with a password in front of it would be shown.
        let port = authority.as_str().strip_prefix(authority.host()).ok_or_else(wrong)?;
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        if is_web && has_port { Ok(Address(uri)) } else { Err(wrong()) }
    }
}

/// Without its path, which may hold a secret.
impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, authority) = (self.0.scheme_str().unwrap_or_default(), self.0.authority());
        write!(to, "{scheme}://{}/…", authority.map_or("", |authority| authority.as_str()))
    }
}

/// Who is told of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Where.
    pub address: Address,
    /// Authorities that may have signed its certificate, in PEM form; those that this machine trusts without it.
    pub authorities: Option<PathBuf>,
}

/// How an attempt failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// Nobody answered, or who answered cannot now.
    Later(String),
    /// It was answered, and refused for what it is.
    Refused(String),
}

impl Receiver {
    /// Hands a message over.
    pub(super) fn post(&self, body: &str) -> Result<(), Failed> {
        // Made anew each time, for messages are few: authorities count as they are now, and no connection is kept that may be dead by then.
        let agent = self.agent().map_err(Failed::Later)?;
        let request = agent.post(&self.address.0).content_type("application/json").header("connection", "close");
        match request.send(body).map(|answer| answer.status().as_u16()) {
            Ok(200..=299) => Ok(()),
            Ok(status @ (408 | 429 | 500..)) => Err(Failed::Later(format!("it answered {status}"))),
            Ok(status) => Err(Failed::Refused(format!("it answered {status}"))),
            Err(error) => Err(Failed::Later(explain(error))),
        }
    }

    fn agent(&self) -> Result<Agent, String> {
        let config = Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            // Somebody else's address is nobody's that was configured.
            .max_redirects(0)
            .proxy(None)
            .user_agent("hotset")
            .accept("")
            .accept_encoding("")
            .max_response_header_size(HEAD_BYTES_MAX);
        let config = match self.address.0.scheme() == Some(&Scheme::HTTPS) {
            true => config.tls_config(
                TlsConfig::builder()
                    .unversioned_rustls_crypto_provider(tls::provider())
                    .root_certs(RootCerts::Specific(Arc::new(self.roots()?)))
                    .build(),
            ),
            false => config,
        };
        Ok(Agent::new_with_config(config.build()))
    }

    fn roots(&self) -> Result<Vec<Certificate<'static>>, String> {
        let found = match &self.authorities {
            Some(path) => tls::certificates(path).map_err(|error| format!("[alerts] webhook_ca: {error}"))?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        if found.is_empty() {
            return Err("this machine trusts no authorities; install its list of them (ca-certificates), or name those of the receiver in [alerts] webhook_ca".to_owned());
        }
        Ok(found.iter().map(|found| Certificate::from_der(found).to_owned()).collect())
    }
}

/// An error in words that say what to do where something can be done.
fn explain(error: Error) -> String {
    let text = match &error {
        Error::Timeout(_) => return "it did not answer in time".to_owned(),
        Error::HostNotFound => return "the host has no address".to_owned(),
        Error::Protocol(_) => return format!("it did not answer in HTTP ({error})"),
        Error::Rustls(error) => tls_text(error),
        Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()).and_then(tls_text),
        _ => None,
    };
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => "it hung up without an answer".to_owned(),
        error => text.unwrap_or_else(|| error.to_string()),
    }
}

fn tls_text(error: &TlsError) -> Option<String> {
    match error {
        // The second: one that calls itself as a trusted one does.
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => Some(
            "its certificate was signed by an authority that is not trusted here; name that one in [alerts] webhook_ca"
                .to_owned(),
        ),
        TlsError::InvalidCertificate(error) => Some(format!("its certificate is refused: {error}")),
        TlsError::InvalidMessage(_) => Some("it does not speak TLS; is it an http:// address?".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_path_and_its_path_is_not_shown() {
        let shown = |text: &str| text.parse::<Address>().map(|address| (address.to_string(), address.0.to_string()));
        let whole = |shown: &str, whole: &str| Ok((shown.to_owned(), whole.to_owned()));
        assert_eq!(
            shown("http://127.0.0.1:9000/hook?a=b"),
            whole("http://127.0.0.1:9000/…", "http://127.0.0.1:9000/hook?a=b")
        );
        assert_eq!(shown("http://mail.example"), whole("http://mail.example/…", "http://mail.example/"));
        assert_eq!(
            shown("https://mail.example/s3cret"),
            whole("https://mail.example/…", "https://mail.example/s3cret")
        );
        assert_eq!(shown("http://[::1]:90/x"), whole("http://[::1]:90/…", "http://[::1]:90/x"));
        assert_eq!(shown("http://a?b"), whole("http://a/…", "http://a/?b"));
        for wrong in [
            "ftp://a/",
            "http://",
            "https:",
            "http://:80/",
            "http://a:0/",
            "http://a:port/",
            "http://a:70000/",
            "http://a:/",
            "http://a b/",
            "http://a/x\r\ny",
            "http://u@a/",
            "https://u:p@a/",
            "/hook",
            "a",
            "",
        ] {
            let text = wrong.parse::<Address>().map(|address| address.to_string());
            assert!(text.as_ref().is_err_and(|text| text.contains("; write it like ")), "{wrong}: {text:?}");
        }
    }
}
