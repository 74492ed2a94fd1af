//! The `mail_` keys of `[alerts]`: the server, the sender and the recipients.

use std::path::Path;

use events::{Encryption, Login, MailConfig, MailServer, Mailbox, RECIPIENTS_MAX, parse_mailbox};
use messages::report::Severity;
use toml::de::DeValue;

use super::backing::split_host_port;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError, split_message};

/// Keys that have no effect without `mail_server`.
const OTHER_KEYS: [&str; 7] =
    ["mail_tls", "mail_ca", "mail_user", "mail_password_file", "mail_from", "mail_to", "mail_severity"];
/// Default of `mail_tls`.
const ENCRYPTION: Encryption = Encryption::Tls;
/// Default of `mail_severity`.
const SEVERITY: Severity = Severity::Warning;

/// Reads the keys; `None` without a mail server, and after a problem.
pub(super) fn read_mail(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> Option<MailConfig> {
    let encryption = section.get::<Encryption>("mail_tls", source);
    let ca_file = section.get::<String>("mail_ca", source).map(|text| folder.join(text.value));
    let user = section.get::<String>("mail_user", source);
    let password_file = section.get::<String>("mail_password_file", source);
    let min_severity = section.get::<Severity>("mail_severity", source).map_or(SEVERITY, |severity| severity.value);
    if !section.has("mail_server") {
        if let Some(key) = OTHER_KEYS.into_iter().find(|key| section.has(key)) {
            let remedy = "add mail_server = \"mail.example.com\", or remove the key";
            source.add_problem(&section.span, format!("{key} has no effect without mail_server"), remedy);
        }
        return None;
    }
    let server = section.get::<String>("mail_server", source);
    let from = section.require::<Mailbox>("mail_from", source);
    let to = section.require::<Vec<Located<String>>>("mail_to", source).map(|list| read_recipients(&list, source));
    let encryption_in_force = encryption.map_or(ENCRYPTION, |encryption| encryption.value);
    if let (Some(user), Encryption::Off) = (&user, encryption_in_force) {
        let remedy = "set mail_tls to \"tls\" or \"starttls\", or remove mail_user and mail_password_file";
        source.add_problem(&user.span, "the password would be sent unencrypted", remedy);
    }
    let login = match (user, password_file) {
        (Some(user), Some(file)) => Some(Login { user: user.value, password_file: folder.join(file.value) }),
        (None, None) => None,
        (Some(user), None) => {
            source.add_problem(
                &user.span,
                "mail_user without mail_password_file",
                "add the file with the user's password",
            );
            None
        }
        (None, Some(file)) => {
            source.add_problem(&file.span, "mail_password_file without mail_user", "add the user name");
            None
        }
    };
    let Located { value: server, span } = server?;
    let Some((host, port)) =
        split_host_port(&server, Some(encryption_in_force.port())).ok().filter(|(host, port)| is_host(host, *port))
    else {
        let remedy = "write a host name, and a port if needed, like \"mail.example.com\" or \"mail.example.com:2525\"";
        source.add_problem(&span, format!("\"{server}\" is not a mail server"), remedy);
        return None;
    };
    let server = MailServer { host, port, encryption: encryption_in_force, ca_file, login };
    Some(MailConfig { server, from: from?.value, to: to?, min_severity })
}

fn is_host(host: &str, port: u16) -> bool {
    port > 0 && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c))
}

fn read_recipients(list: &Located<Vec<Located<String>>>, source: &mut Source<'_>) -> Vec<Mailbox> {
    if list.value.is_empty() || list.value.len() > RECIPIENTS_MAX {
        let fault = format!("mail_to has {} recipients", list.value.len());
        source.add_problem(&list.span, fault, format!("list 1 to {RECIPIENTS_MAX}, or use a mailing list"));
    }
    let mut mailboxes: Vec<Mailbox> = Vec::new();
    for Located { value, span } in &list.value {
        match parse_mailbox(value) {
            Ok(mailbox) if mailboxes.iter().any(|other| other.email == mailbox.email) => {
                source.add_problem(span, format!("\"{value}\" is listed twice"), "remove one of them");
            }
            Ok(mailbox) => mailboxes.push(mailbox),
            Err(error) => {
                let (fault, remedy) = error.split_once("; ").expect("the error has the form \"fault; remedy\"");
                source.add_problem(span, fault, remedy);
            }
        }
    }
    mailboxes
}

impl Setting for Mailbox {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        parse_mailbox(&String::read(value)?).map_err(|error| split_message(&error))
    }
}

impl Setting for Encryption {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        match String::read(value)?.as_str() {
            "tls" => Ok(Encryption::Tls),
            "starttls" => Ok(Encryption::StartTls),
            "none" => Ok(Encryption::Off),
            other => Err(ValueError::Value(
                format!("\"{other}\" is not an encryption of mail"),
                "use \"tls\", \"starttls\" or \"none\"".to_owned(),
            )),
        }
    }
}

impl Setting for Severity {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = String::read(value)?;
        let severities = [Severity::Critical, Severity::Warning, Severity::Info];
        severities.into_iter().find(|severity| severity.name() == text).ok_or_else(|| {
            let remedy = "use \"critical\", \"warning\" or \"info\"".to_owned();
            ValueError::Value(format!("\"{text}\" is not a severity"), remedy)
        })
    }
}
