//! The receiver of alerts: its address, the CAs trusted for it, and one attempt to deliver a message.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Error};

use crate::authorities::{tls_error_text, trusted_authorities};
use crate::delivery::{DeliveryError, Transport};

/// Time limit of an attempt, from the look-up of the name to the head of the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer's head at most; the body is not read.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The key of the CAs that are trusted for the receiver.
const AUTHORITIES_KEY: &str = "webhook_ca";
/// Remedy for a receiver that does not speak TLS.
const NO_TLS: &str = "is it an http:// address?";

/// The URL that alerts are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Uri);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        // The text may contain a password or a secret path, so the message does not repeat it.
        let invalid = || {
            "invalid address for alerts; write it like \"https://alerts.example/hook\" or \
             \"http://127.0.0.1:9000/hook\""
                .to_owned()
        };
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_http = uri.scheme().is_some_and(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(invalid)?;
        // Only a port may follow the host. A user name with a password is refused, because `Display` would show it.
        let port = authority.as_str().strip_prefix(authority.host()).ok_or_else(invalid)?;
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_port_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        if is_http && is_port_valid { Ok(Address(uri)) } else { Err(invalid()) }
    }
}

/// Shows the URL without its path, which may contain a secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, authority) = (self.0.scheme_str().unwrap_or_default(), self.0.authority());
        write!(f, "{scheme}://{}/…", authority.map_or("", |authority| authority.as_str()))
    }
}

/// The receiver of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its address.
    pub address: Address,
    /// PEM file of the CAs trusted for its certificate. `None`: the CAs that this machine trusts.
    pub ca_file: Option<PathBuf>,
}

impl Transport for Receiver {
    type Message = String;

    fn deliver(&self, message: &mut String) -> Result<(), DeliveryError> {
        self.post(message)
    }
}

impl Receiver {
    /// Delivers a message.
    pub(super) fn post(&self, body: &str) -> Result<(), DeliveryError> {
        // Messages are few, so each has an agent of its own: the file of CA certificates is read as it is now, and no
        // stale connection is reused.
        let agent = self.agent().map_err(DeliveryError::Temporary)?;
        let request = agent.post(&self.address.0).content_type("application/json").header("connection", "close");
        match request.send(body).map(|answer| answer.status().as_u16()) {
            Ok(200..=299) => Ok(()),
            Ok(status @ (408 | 429 | 500..)) => Err(DeliveryError::Temporary(format!("it answered {status}"))),
            Ok(status) => Err(DeliveryError::Refused(format!("it answered {status}"))),
            Err(error) => Err(DeliveryError::Temporary(explain(error))),
        }
    }

    fn agent(&self) -> Result<Agent, String> {
        let config = Agent::config_builder()
            .timeout_global(Some(ATTEMPT_TIMEOUT))
            .http_status_as_error(false)
            // A redirect would send alerts to an address that is not configured.
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
                    .root_certs(RootCerts::Specific(Arc::new(self.root_certificates()?)))
                    .build(),
            ),
            false => config,
        };
        Ok(Agent::new_with_config(config.build()))
    }

    fn root_certificates(&self) -> Result<Vec<Certificate<'static>>, String> {
        let certificates = trusted_authorities(self.ca_file.as_deref(), AUTHORITIES_KEY)?;
        Ok(certificates.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect())
    }
}

/// The error as a text that names a remedy where there is one.
fn explain(error: Error) -> String {
    let text = match &error {
        Error::Timeout(_) => return "it did not answer in time".to_owned(),
        Error::HostNotFound => return "the host has no address".to_owned(),
        Error::Protocol(_) => return format!("it did not answer in HTTP ({error})"),
        Error::Rustls(error) => tls_error_text(error, AUTHORITIES_KEY, NO_TLS),
        Error::Io(error) => error
            .get_ref()
            .and_then(|inner| inner.downcast_ref())
            .and_then(|error| tls_error_text(error, AUTHORITIES_KEY, NO_TLS)),
        _ => None,
    };
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection without an answer".to_owned()
        }
        error => text.unwrap_or_else(|| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_host_and_is_shown_without_its_path() {
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
        assert_eq!(shown("http://[::1]/x"), whole("http://[::1]/…", "http://[::1]/x"), "the port may be left out");
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
            "http://[::1]:/",
            "http://[::1]90/",
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
