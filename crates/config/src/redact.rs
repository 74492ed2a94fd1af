//! Redaction of secrets. A configuration keeps only values that are known to be harmless; in any other text, everything
//! that looks like a secret is redacted.

use serde_json::Value;
use toml::Table;

use crate::keys::{find_key, find_table};

/// Placeholder for a redacted value.
pub const REDACTED: &str = "(redacted)";
/// Words in the name of a key whose value is secret, with or without `-` and `_`. A key that ends in "file" is
/// exempt: its value is a path.
const SECRET_NAMES: [&str; 10] =
    ["secret", "token", "passw", "passphrase", "credential", "psk", "cookie", "bearer", "apikey", "accesskey"];
/// Words that mark a secret only as a whole part of a name, since harmless words contain them.
const SECRET_WORDS: [&str; 3] = ["pass", "pwd", "auth"];
/// A key whose value is a web address, with or without a scheme.
const WEBHOOK: &str = "webhook";
/// Length of a run of hexadecimal digits that counts as a token or the hash of one, which has 64. The identity of a
/// store has 32.
const SECRET_DIGITS_MIN: usize = 48;
/// Characters that end a URL in a text.
const URL_ENDS: [char; 6] = [' ', '\n', '"', '\'', '<', '>'];

/// True when a value of that name is secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let joined = name.replace(['-', '_'], "");
    let is_word = |part: &str| SECRET_WORDS.contains(&part);
    !joined.ends_with("file")
        && (SECRET_NAMES.iter().any(|word| joined.contains(word)) || name.split(['-', '_']).any(is_word))
}

fn ends_in_web_scheme(before: &str) -> bool {
    let before = before.to_ascii_lowercase();
    before.ends_with("http://") || before.ends_with("https://")
}

/// Redacts a string that is one value. Unlike in [`text`], a URL extends to the end, whatever characters its password
/// has.
pub fn value(value: &str) -> String {
    let scheme_end = value.find("://").map(|index| index + 3);
    let is_scheme =
        |scheme: &str| !scheme.contains(|letter: char| letter.is_whitespace() || URL_ENDS.contains(&letter));
    match scheme_end.map(|end| value.split_at(end)) {
        Some((scheme, after_scheme))
            if is_scheme(scheme) && (after_scheme.contains('@') || !after_scheme.contains(URL_ENDS)) =>
        {
            scheme.to_owned() + &redact_hex_runs(&redact_url(after_scheme, ends_in_web_scheme(scheme)))
        }
        _ => text(value),
    }
}

/// `text` without users and passwords in URLs, without the path of a web address, and without possible tokens or keys.
pub fn text(text: &str) -> String {
    if text.contains("PRIVATE KEY") {
        return REDACTED.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(index) = remaining.find("://") {
        let (before, after_scheme) = remaining.split_at(index + 3);
        out += before;
        let end = after_scheme.find(URL_ENDS).unwrap_or(after_scheme.len());
        out += &redact_url(&after_scheme[..end], ends_in_web_scheme(before));
        remaining = &after_scheme[end..];
    }
    redact_hex_runs(&(out + remaining))
}

/// Redacts a URL without its scheme. A password may contain any character, so everything up to the last `@` is removed.
fn redact_url(after_scheme: &str, is_web: bool) -> String {
    let (user, authority_and_path) =
        after_scheme.rsplit_once('@').map_or(("", after_scheme), |(_, remainder)| (REDACTED, remainder));
    let separator = if user.is_empty() { "" } else { "@" };
    let host_end = authority_and_path.find(['/', '?', '#']).unwrap_or(authority_and_path.len());
    let (host, path) = authority_and_path.split_at(host_end);
    let path = match path {
        "" | "/" => path.to_owned(),
        _ if is_web => format!("/{REDACTED}"),
        _ => redact_query(path),
    };
    format!("{user}{separator}{host}{path}")
}

/// A path without the secrets in its query parameters.
fn redact_query(path: &str) -> String {
    let Some((path, parameters)) = path.split_once('?') else { return path.to_owned() };
    let shown = parameters.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={REDACTED}"),
        _ => parameter.to_owned(),
    });
    format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
}

/// Redacts runs of hexadecimal digits that may be tokens.
fn redact_hex_runs(text: &str) -> String {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    // The text is split into runs of digits and the parts between them.
    let runs = text.as_bytes().chunk_by(|left, right| is_digit(left) == is_digit(right));
    let shown = runs.map(|run| match run.len() >= SECRET_DIGITS_MIN && is_digit(&run[0]) {
        true => REDACTED.as_bytes(),
        false => run,
    });
    String::from_utf8(shown.flatten().copied().collect()).expect("cutting out ASCII digits leaves valid UTF-8")
}

/// A JSON value without secrets.
pub fn json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(self::value(&text)),
        Value::Array(values) => values.into_iter().map(json).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| {
                let value = if is_secret(&name) { REDACTED.into() } else { json(value) };
                (name, value)
            };
            fields.into_iter().map(field).collect()
        }
        plain => plain,
    }
}

/// A configuration without comments, and with the values of known keys only. An error contains the line number but none
/// of the text.
pub fn configuration(text: &str) -> Result<String, String> {
    let mut root: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line} is not TOML; `hotset check-config` lists the errors")
    })?;
    for (name, value) in &mut root {
        let is_known = find_table(name).is_some();
        match value {
            toml::Value::Table(table) if is_known => redact_table(name, table),
            toml::Value::Array(tables) if is_known => tables.iter_mut().for_each(|entry| match entry {
                toml::Value::Table(table) => redact_table(name, table),
                other => *other = REDACTED.into(),
            }),
            value => redact_key("", name, value),
        }
    }
    toml::to_string(&root).map_err(|error| error.to_string())
}

fn redact_table(table: &str, entries: &mut Table) {
    entries.iter_mut().for_each(|(name, value)| redact_key(table, name, value));
}

fn redact_key(table: &str, name: &str, value: &mut toml::Value) {
    if find_key(table, name).is_some() {
        redact_value(name, value);
    } else {
        *value = REDACTED.into();
    }
}

/// Redacts the value of the key `name`.
pub fn redact_value(name: &str, value: &mut toml::Value) {
    match value {
        value if is_secret(name) => *value = REDACTED.into(),
        toml::Value::String(text) if name == WEBHOOK && !text.contains("://") => *text = REDACTED.to_owned(),
        toml::Value::String(text) => *text = self::value(text),
        toml::Value::Array(entries) => entries.iter_mut().for_each(|entry| redact_value(name, entry)),
        toml::Value::Table(entries) => entries.iter_mut().for_each(|(name, value)| redact_value(name, value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_the_host_and_lose_credentials_and_web_paths() {
        for (original, redacted) in [
            ("nbd://10.0.0.5:10809/disk", "nbd://10.0.0.5:10809/disk"),
            ("nbd://me:pa@ss/word@10.0.0.5/disk", "nbd://(redacted)@10.0.0.5/disk"),
            ("nbds://h/d?tls-psk-file=/etc/psk&tls-username=u", "nbds://h/d?tls-psk-file=/etc/psk&tls-username=u"),
            ("nbd+unix:///d?socket=/run/a&password=x", "nbd+unix:///d?socket=/run/a&password=(redacted)"),
            ("to \"https://hooks.example/T0/x?k=y\": 404", "to \"https://hooks.example/(redacted)\": 404"),
            ("http://a/ and http://b:1/x", "http://a/ and http://b:1/(redacted)"),
            ("to HTTPS://hooks.example/T0/x", "to HTTPS://hooks.example/(redacted)"),
            ("nbd://h/d?access-key=x&cookie_file=/c", "nbd://h/d?access-key=(redacted)&cookie_file=/c"),
            ("/dev/sdb", "/dev/sdb"),
            ("://", "://"),
        ] {
            assert_eq!(text(original), redacted);
        }
        let token = format!("hotset_{}", "0123456789abcdef".repeat(4));
        assert_eq!(text(&format!("Bearer {token}, ü")), "Bearer hotset_(redacted), ü");
        assert_eq!(text("-----BEGIN PRIVATE KEY-----\nMC4CAQ"), REDACTED);
        let store = "0123456789abcdef".repeat(2);
        assert_eq!(text(&store), store);
    }

    #[test]
    fn only_known_configuration_keys_keep_their_values() {
        let original = r#"
            cores = "auto"     # PLANTED-comment
            colour = "PLANTED-key"
            [memory]
            size = "1 GiB"
            sice = "PLANTED-misspelt"
            [alerts]
            webhook = "https://hooks.example/PLANTED/path"
            [iscsi]
            chap = { user = "u", secret = "PLANTED-table" }
            [stray]
            token = "PLANTED-stray"
            [[volume]]
            name = "web01"
            backing = "nbd://user:PLANTED@10.0.0.5/web01"
            labels = { vm = "web01", password = "PLANTED-label", db_pass = "PLANTED", API-Key = "PLANTED", compass = "north" }
            [[volume]]
            backing = "nbd://me:pa'PLANTED \"PLANTED@10.0.0.6/web02"
            [later]
            directory = "PLANTED-later"
        "#;
        let shown = configuration(original).expect("it is TOML");
        assert!(!shown.contains("PLANTED"), "{shown}");
        for visible in [
            "10.0.0.6/web02",
            "north",
            "\"auto\"",
            "\"1 GiB\"",
            "hooks.example",
            "10.0.0.5/web01",
            "vm = \"web01\"",
            "sice",
            "colour",
        ] {
            assert!(shown.contains(visible), "{visible} is missing in\n{shown}");
        }
        let bare = configuration("[alerts]\nwebhook = \"hooks.example/PLANTED\"\n").expect("it is TOML");
        assert!(!bare.contains("PLANTED"), "{bare}");
        let broken = configuration("[memory]\nsize = PLANTED\n").expect_err("not TOML");
        assert!(broken.contains("line 2") && !broken.contains("PLANTED"), "{broken}");
    }

    #[test]
    fn json_keeps_everything_but_secrets() {
        let original = serde_json::json!({ "reads": 7, "backing": "nbd://u:PLANTED@h/d",
            "labels": { "vm": "a", "api-token": "PLANTED" },
            "alerts": ["webhook http://h/PLANTED is refused"], "dirty": null });
        let shown = json(original);
        assert!(!shown.to_string().contains("PLANTED"), "{shown}");
        assert_eq!((&shown["reads"], &shown["labels"]["vm"]), (&7.into(), &"a".into()));
    }
}
