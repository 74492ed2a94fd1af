//! `[iscsi]`: the target, its portals, and the initiators that may log in.

use std::path::{Path, PathBuf};

use scsi::AccessList;
use seam::Address;
use toml::de::DeValue;

use super::backing::split_host_port;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError};
use units::show_host_port;

/// The port that IANA assigned to iSCSI.
const PORT: u16 = 3260;
/// Length in bytes of the CHAP secrets that Windows accepts.
const WINDOWS_SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=16;

/// The iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiConfig {
    /// The target's portals.
    pub listen: Vec<Address>,
    /// The target's name.
    pub target: String,
    /// Portals that discovery names; if empty, the portal that the initiator connected to.
    pub announce: Vec<String>,
    /// CHAP users; if empty, initiators are not authenticated.
    pub chap: Vec<ChapConfig>,
    /// Patterns of initiator names that may log in; if empty, all may.
    pub acl: Vec<String>,
}

/// Credentials of one CHAP user, and of the target for mutual authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapConfig {
    /// User name that initiators send.
    pub user: String,
    /// File with the user's secret.
    pub secret_file: PathBuf,
    /// User name of the target, and the file with its secret.
    pub mutual: Option<(String, PathBuf)>,
    /// Initiators that have to use this user; if empty, all that no other user is bound to.
    pub initiators: Vec<String>,
}

/// Reads the secrets of all users; the error names the file, the fault and the remedy.
pub fn read_chap(users: &[ChapConfig]) -> Result<Vec<iscsi::ChapUser>, String> {
    let mut chap_users: Vec<iscsi::ChapUser> = Vec::new();
    for user in users {
        let credentials = user.read()?;
        if let Some(other) = chap_users.iter().find(|other| other.credentials.secret == credentials.secret) {
            return Err(format!(
                "chap: \"{}\" and \"{}\" have the same secret, so each could claim the other's initiators; use a \
                 different secret for each",
                other.credentials.user, user.user
            ));
        }
        chap_users.push(iscsi::ChapUser { credentials, initiators: AccessList::new(&user.initiators) });
    }
    let target_credentials = chap_users.iter().filter_map(|user| user.credentials.mutual.as_ref());
    for (name, secret) in target_credentials {
        // An initiator could reflect the target's challenge back and get the valid response from the target.
        if let Some(user) = chap_users.iter().find(|user| user.credentials.secret == *secret) {
            return Err(format!(
                "chap: the target proves itself as \"{name}\" with the secret of \"{}\"; use different secrets",
                user.credentials.user
            ));
        }
    }
    Ok(chap_users)
}

impl ChapConfig {
    /// Reads the secrets; the error names the file, the fault and the remedy.
    pub fn read(&self) -> Result<iscsi::Credentials, String> {
        let secret = read_secret(&self.secret_file)?;
        let read = |(user, file): &(String, PathBuf)| read_secret(file).map(|secret| (user.clone(), secret));
        let mutual = self.mutual.as_ref().map(read).transpose()?;
        if mutual.as_ref().is_some_and(|(_, other)| *other == secret) {
            return Err(
                "chap: both sides have the same secret, so a reflected response would pass; use different secrets"
                    .to_owned(),
            );
        }
        Ok(iscsi::Credentials { user: self.user.clone(), secret, mutual })
    }

    /// Warnings about readable secrets that some initiators reject.
    pub fn warnings(&self) -> Vec<String> {
        let Ok(credentials) = self.read() else { return Vec::new() };
        let of_mutual = self.mutual.as_ref().zip(credentials.mutual.as_ref());
        let secrets = [(&self.secret_file, &credentials.secret)];
        let secrets = secrets.into_iter().chain(of_mutual.map(|((_, file), (_, secret))| (file, secret)));
        let unusual = secrets.filter(|(_, secret)| !WINDOWS_SECRET_BYTES.contains(&secret.len()));
        unusual
            .map(|(file, secret)| {
                format!(
                    "the CHAP secret in {} has {} bytes; Windows takes 12 to 16, and fewer than 12 are guessed",
                    file.display(),
                    secret.len()
                )
            })
            .collect()
    }
}

fn read_secret(file: &Path) -> Result<Vec<u8>, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| {
        format!("the CHAP secret {shown} cannot be read ({error}); create the file, readable by the daemon alone")
    })?;
    let secret = text.trim_ascii_end();
    if secret.is_empty() || secret.len() > 255 {
        return Err(format!("the CHAP secret {shown} has {} bytes; write one line of 12 to 16", secret.len()));
    }
    Ok(secret.to_vec())
}

/// Reads the table; `None` if it is absent.
pub(super) fn read_iscsi(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> Option<IscsiConfig> {
    section.is_present().then_some(())?;
    let listen = section.require::<Vec<Located<String>>>("listen", source);
    let target = section.require::<String>("target", source);
    let announce =
        read_portals(section.get("announce", source).map_or(Vec::new(), |list: Located<Vec<_>>| list.value), source);
    let chap = section.get::<ChapEntries>("chap", source).map_or(Vec::new(), |chap| chap.value.0);
    check_chap(&chap, source);
    let acl = read_acl(section, source);
    if let Some(Located { value: list, span }) = &listen
        && list.is_empty()
    {
        source.add_problem(
            span,
            "no initiator could connect",
            "specify an address, like \"10.0.0.5:3260\", or remove the table",
        );
    }
    if let Some(Located { value, span }) = &target
        && let Err(reason) = iscsi::check_name(value)
    {
        let remedy = "write it like \"iqn.2026-11.io.hotset:lab\": a date, a domain turned around, and what you like";
        source.add_problem(span, format!("\"{value}\" is not a target name: it {reason}"), remedy);
    }
    let listen = read_portals(listen?.value, source);
    let announce = announce.iter().map(|(host, port)| show_host_port(host, *port)).collect();
    Some(IscsiConfig {
        listen: listen.into_iter().map(|(host, port)| Address::Tcp(host, port)).collect(),
        target: target?.value,
        announce,
        chap: chap.into_iter().map(|chap| chap.value.into_config(folder)).collect(),
        acl,
    })
}

/// Parses a list of portals, which must be distinct.
fn read_portals(list: Vec<Located<String>>, source: &mut Source<'_>) -> Vec<(String, u16)> {
    let mut portals: Vec<(String, u16)> = Vec::new();
    for Located { value, span } in list {
        match split_host_port(&value, Some(PORT)) {
            Ok(portal) if portals.contains(&portal) => {
                source.add_problem(&span, format!("\"{value}\" is listed twice"), "remove one of them");
            }
            Ok(portal) => portals.push(portal),
            Err(_) => {
                let remedy = "write an address and a port, like \"10.0.0.5:3260\" or \"[2001:db8::5]:3260\"";
                source.add_problem(&span, format!("\"{value}\" is not a portal"), remedy);
            }
        }
    }
    portals
}

/// Reads the key `acl` of a table.
pub(super) fn read_acl(section: &Section<'_>, source: &mut Source<'_>) -> Vec<String> {
    let list = section.get::<Vec<Located<String>>>("acl", source).map_or(Vec::new(), |list| list.value);
    check_initiators(&list, source);
    list.into_iter().map(|entry| entry.value).collect()
}

fn check_initiators(list: &[Located<String>], source: &mut Source<'_>) {
    for Located { value, span } in list {
        // A star may stand for any part of a name, including its start.
        let as_name = value.replace('*', "x");
        if !value.contains('*') && iscsi::check_name(value).is_err()
            || as_name.contains([' ', ',', '='])
            || value.is_empty()
        {
            let remedy = "write a name as the initiator shows it, like \"iqn.1998-01.com.vmware:esx1\", or with * for \
                          a part of it";
            source.add_problem(span, format!("\"{value}\" is not an initiator name"), remedy);
        }
    }
}

/// Checks the initiator names of all users, and that user names are unique.
fn check_chap(users: &[Located<ChapEntry>], source: &mut Source<'_>) {
    for (index, user) in users.iter().enumerate() {
        check_initiators(&user.value.initiators, source);
        if users[..index].iter().any(|other| other.value.user == user.value.user) {
            let fault = format!("two users of chap are called \"{}\"", user.value.user);
            source.add_problem(&user.span, fault, "give each a name of its own");
        }
    }
}

/// An entry of `chap` as it is in the file.
struct ChapEntry {
    user: String,
    secret_file: String,
    mutual: Option<(String, String)>,
    initiators: Vec<Located<String>>,
}

impl ChapEntry {
    /// The entry with its paths relative to `folder`.
    fn into_config(self, folder: &Path) -> ChapConfig {
        ChapConfig {
            user: self.user,
            secret_file: folder.join(self.secret_file),
            mutual: self.mutual.map(|(user, file)| (user, folder.join(file))),
            initiators: self.initiators.into_iter().map(|entry| entry.value).collect(),
        }
    }
}

/// `chap`: one table, or a list of them.
struct ChapEntries(Vec<Located<ChapEntry>>);

impl Setting for ChapEntries {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let Some(list) = value.as_array() else {
            return Ok(ChapEntries(vec![Located { value: ChapEntry::read(value)?, span: 0..0 }]));
        };
        if list.is_empty() {
            let remedy = "specify a user, or remove the key: then a name is believed".to_owned();
            return Err(ValueError::Value("chap has no user".to_owned(), remedy));
        }
        let read_entry = |entry: &toml::Spanned<DeValue<'_>>| match ChapEntry::read(entry.get_ref()) {
            Ok(value) => Ok(Located { value, span: entry.span() }),
            Err(ValueError::Value(fault, remedy)) => Err(ValueError::Part(entry.span(), fault, remedy)),
            Err(wrong) => Err(wrong),
        };
        list.iter().map(read_entry).collect::<Result<_, _>>().map(ChapEntries)
    }
}

impl Setting for ChapEntry {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let table = value.as_table().ok_or(ValueError::Type("a table: { user = \"…\", secret_file = \"…\" }"))?;
        let known = ["user", "secret_file", "mutual_user", "mutual_secret_file", "initiators"];
        if let Some(key) = table.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
            let fault = format!("unknown key \"{}\" of chap", key.get_ref());
            return Err(ValueError::Part(key.span(), fault, format!("use {}", known.join(", "))));
        }
        let text = |key: &str| {
            let Some(value) = table.get(key) else { return Ok(None) };
            let text = value.get_ref().as_str().filter(|text| !text.is_empty());
            let wrong =
                || ValueError::Part(value.span(), format!("\"{key}\" must be text"), format!("write {key} = \"…\""));
            text.map(|text| Some(text.to_owned())).ok_or_else(wrong)
        };
        let pair = |user, file| match (user, file) {
            (Some(user), Some(file)) => Ok(Some((user, file))),
            (None, None) => Ok(None),
            _ => Err(ValueError::Value(
                "a name without its secret, or a secret without its name".to_owned(),
                "specify user and secret_file, and mutual_user and mutual_secret_file together".to_owned(),
            )),
        };
        let initiator = pair(text("user")?, text("secret_file")?)?;
        let mutual = pair(text("mutual_user")?, text("mutual_secret_file")?)?;
        let (user, secret_file) = initiator.ok_or_else(|| {
            let fault = "initiators cannot authenticate: no user is specified".to_owned();
            ValueError::Value(fault, "specify user and secret_file".to_owned())
        })?;
        let initiators = match table.get("initiators") {
            None => Vec::new(),
            Some(list) => Vec::<Located<String>>::read(list.get_ref()).map_err(|_| {
                let remedy = "write initiators = [\"iqn.…\"]".to_owned();
                ValueError::Part(list.span(), "\"initiators\" must be a list of names".to_owned(), remedy)
            })?,
        };
        if table.contains_key("initiators") && initiators.is_empty() {
            let remedy =
                "specify some, or remove the key: then it proves all to which no other user is bound".to_owned();
            return Err(ValueError::Value(format!("\"{user}\" is bound to no initiator"), remedy));
        }
        Ok(ChapEntry { user, secret_file, mutual, initiators })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_ends_at_line_end_and_odd_secret_gives_a_warning() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let good = file("good", "fourteen bytes\n");
        let short = file("short", "short\n");
        let chap = |secret: &PathBuf, mutual: Option<&PathBuf>| ChapConfig {
            user: "esx".to_owned(),
            secret_file: secret.clone(),
            mutual: mutual.map(|file| ("hotset".to_owned(), file.clone())),
            initiators: Vec::new(),
        };
        assert_eq!(chap(&good, None).read().expect("readable").secret, b"fourteen bytes");
        assert_eq!(chap(&good, None).warnings(), Vec::<String>::new());
        let warnings = chap(&good, Some(&short)).warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("short has 5 bytes"), "{warnings:?}");
        assert!(chap(&good, Some(&good)).read().expect_err("the same").contains("the same secret"));
        assert!(chap(&file("empty", "\n"), None).read().expect_err("empty").contains("0 bytes"));
        let both = [chap(&good, None), ChapConfig { user: "hyper".to_owned(), ..chap(&good, None) }];
        let error = read_chap(&both).expect_err("the same");
        assert!(error.contains("\"esx\" and \"hyper\" have the same secret"), "{error}");
        assert!(chap(&folder.path().join("none"), None).read().expect_err("missing").contains("cannot be read"));
    }
}
