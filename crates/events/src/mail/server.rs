//! The mail server: its address, encryption and login, and one attempt to submit a message over SMTP.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lettre::message::Mailbox;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{
    Certificate, CertificateStore, SmtpConnection, TlsParameters, TlsParametersBuilder,
};
use lettre::transport::smtp::commands::{Data, Mail as MailCommand, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use rustls::RootCertStore;

use super::Mail;
use crate::authorities::{tls_error_text, trusted_authorities};
use crate::delivery::DeliveryError;

/// Time limit of each answer of the server. Servers delay the first answer by some seconds, against unsolicited mail.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after the start of an attempt from which no further command is sent.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Characters of the server's answer that are reported at most.
const ANSWER_CHARS_MAX: usize = 400;
/// Longest accepted password, in bytes.
const PASSWORD_BYTES_MAX: usize = 1 << 10;
/// The key of the CAs that are trusted for the server.
const AUTHORITIES_KEY: &str = "mail_ca";
/// Remedy for a server that does not begin with TLS.
const NO_TLS: &str = "a server that begins unencrypted needs [alerts] mail_tls = \"starttls\"";

/// Encryption of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Implicit TLS: from the first byte.
    Tls,
    /// TLS after the command STARTTLS, which the server has to support.
    StartTls,
    /// None.
    Off,
}

impl Encryption {
    /// The port that IANA assigned for it.
    pub fn port(self) -> u16 {
        match self {
            Encryption::Tls => 465,
            Encryption::StartTls => 587,
            Encryption::Off => 25,
        }
    }
}

/// User and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// User name.
    pub user: String,
    /// File with the password.
    pub password_file: PathBuf,
}

impl Login {
    /// Reads the password, one line; the error names the file, the fault and the remedy.
    pub fn password(&self) -> Result<String, String> {
        read_password(&self.password_file)
    }
}

fn read_password(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| {
        format!("the mail password {shown} cannot be read ({error}); create the file, readable by the daemon alone")
    })?;
    let password = text.trim_ascii_end();
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        let bytes = password.len();
        return Err(format!(
            "the mail password {shown} has {bytes} bytes; write one line of 1 to {PASSWORD_BYTES_MAX}"
        ));
    }
    let text = String::from_utf8(password.to_vec()).ok().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| format!("the mail password {shown} is not one line of text; write the password alone"))
}

/// A sender or a recipient: `user@host`, or `Name <user@host>`. The error has the form `fault; remedy`.
pub fn parse_mailbox(text: &str) -> Result<Mailbox, String> {
    let invalid = || {
        format!(
            "\"{text}\" is not a mail address; write it like \"admin@example.com\" or \"Admin <admin@example.com>\""
        )
    };
    let mailbox: Mailbox = text.parse().map_err(|_| invalid())?;
    // The parser ignores what follows the address. Addresses outside ASCII need an extension that few servers have.
    let address = mailbox.email.to_string();
    let is_whole = text == address || text.ends_with(&format!("<{address}>"));
    if is_whole && address.is_ascii() { Ok(mailbox) } else { Err(invalid()) }
}

/// The server that accepts mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailServer {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Encryption.
    pub encryption: Encryption,
    /// PEM file of the CAs trusted to sign its certificate; without it the CAs that this machine trusts count.
    pub ca_file: Option<PathBuf>,
    /// User and password, if the server wants them.
    pub login: Option<Login>,
}

impl MailServer {
    /// Submits a message. Recipients that accept it are removed from `mail`, so that another attempt does not repeat
    /// the message to them.
    pub(super) fn submit(&self, own_host: &str, from: &Mailbox, mail: &mut Mail) -> Result<(), DeliveryError> {
        let deadline = Instant::now() + ATTEMPT_TIMEOUT;
        let mut connection = self.connect(own_host)?;
        let check_deadline = || match Instant::now() < deadline {
            true => Ok(()),
            false => Err(temporary("it did not answer in time")),
        };
        check_deadline()?;
        connection.command(MailCommand::new(Some(from.email.clone()), Vec::new())).map_err(explain)?;
        let mut refused: Vec<(Mailbox, Error)> = Vec::new();
        for mailbox in &mail.recipients {
            check_deadline()?;
            match connection.command(Rcpt::new(mailbox.email.clone(), Vec::new())) {
                Ok(_) => {}
                Err(error) if error.status().is_some() => refused.push((mailbox.clone(), error)),
                Err(error) => return Err(explain(error)),
            }
        }
        if refused.len() < mail.recipients.len() {
            check_deadline()?;
            connection.command(Data).map_err(explain)?;
            connection.message(&mail.content).map_err(explain)?;
        }
        // The message is accepted or refused by now, whatever the answer.
        let _ = connection.quit();
        mail.recipients = refused.iter().map(|(mailbox, _)| mailbox.clone()).collect();
        let is_final = refused.iter().all(|(_, error)| error.is_permanent());
        let texts =
            refused.into_iter().map(|(mailbox, error)| format!("{} for {}", explain(error).into_text(), mailbox.email));
        let text = texts.collect::<Vec<_>>().join("; ");
        match mail.recipients.is_empty() {
            true => Ok(()),
            false if is_final => Err(DeliveryError::Refused(text)),
            false => Err(DeliveryError::Temporary(text)),
        }
    }

    /// A connection that is encrypted and logged in as configured.
    fn connect(&self, own_host: &str) -> Result<SmtpConnection, DeliveryError> {
        let hello = ClientId::Domain(own_host.to_owned());
        let tls = match self.encryption {
            Encryption::Off => None,
            Encryption::Tls | Encryption::StartTls => Some(self.tls().map_err(DeliveryError::Temporary)?),
        };
        let implicit_tls = tls.as_ref().filter(|_| self.encryption == Encryption::Tls);
        let server = (self.host.as_str(), self.port);
        let mut connection =
            SmtpConnection::connect(server, Some(ANSWER_TIMEOUT), &hello, implicit_tls, None).map_err(explain)?;
        if let (Encryption::StartTls, Some(tls)) = (self.encryption, &tls) {
            if !connection.can_starttls() {
                return Err(temporary("it does not offer STARTTLS; for TLS from the first byte: mail_tls = \"tls\""));
            }
            connection.starttls(tls, &hello).map_err(explain)?;
        }
        if let Some(login) = &self.login {
            // The password must not cross the network in plain text, whatever the configuration was checked for.
            assert!(connection.is_encrypted(), "a login needs TLS");
            let password = login.password().map_err(DeliveryError::Temporary)?;
            let credentials = Credentials::new(login.user.clone(), password);
            connection.auth(&[Mechanism::Plain, Mechanism::Login], &credentials).map_err(explain)?;
        }
        Ok(connection)
    }

    fn tls(&self) -> Result<TlsParameters, String> {
        let mut certificates = trusted_authorities(self.ca_file.as_deref(), AUTHORITIES_KEY)?;
        // One certificate of the system that cannot be used would make all unusable.
        let mut usable = RootCertStore::empty();
        certificates.retain(|certificate| usable.add(certificate.clone()).is_ok());
        let builder = TlsParametersBuilder::new(self.host.clone()).certificate_store(CertificateStore::None);
        let builder = certificates.iter().try_fold(builder, |builder, certificate| {
            Certificate::from_der(certificate.to_vec()).map(|certificate| builder.add_root_certificate(certificate))
        });
        builder.and_then(TlsParametersBuilder::build).map_err(|error| error.to_string())
    }
}

fn temporary(text: &str) -> DeliveryError {
    DeliveryError::Temporary(text.to_owned())
}

/// The failure with the server's own text, and with a remedy where there is one.
fn explain(error: Error) -> DeliveryError {
    if let Some(status) = error.status() {
        let answer = error.source().map_or(String::new(), |text| format!(" {text}"));
        let answer = messages::plain(&answer.replace('\n', " ")).chars().take(ANSWER_CHARS_MAX).collect::<String>();
        let text = format!("it answered {status}{answer}");
        return match error.is_permanent() {
            true => DeliveryError::Refused(text),
            false => DeliveryError::Temporary(text),
        };
    }
    if let Some(text) = causes(&error).find_map(known_cause) {
        return DeliveryError::Temporary(text);
    }
    let text = causes(&error).last().map_or_else(|| error.to_string(), ToString::to_string);
    DeliveryError::Temporary(messages::plain(&text).chars().take(ANSWER_CHARS_MAX).collect())
}

/// The causes of an error.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |error| cause_of(*error))
}

/// The cause of an error. The source of an I/O error is that of the error in it, so that error comes first.
fn cause_of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source())
}

fn known_cause(cause: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        return tls_error_text(error, AUTHORITIES_KEY, NO_TLS);
    }
    match cause.downcast_ref::<io::Error>()?.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Some("it did not answer in time".to_owned()),
        ErrorKind::UnexpectedEof => Some("it closed the connection without an answer".to_owned()),
        _ => None,
    }
}
