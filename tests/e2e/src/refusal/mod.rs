//! Refused volumes and flash stores from an administrator's view: the code, the message and its commands.

pub mod causes;
pub mod page;

use serde_json::Value;

use crate::client::Client;
use crate::daemon::{Daemon, hotset, text_of};
use crate::fixture::Fixture;
use page::placeholders;

/// Runs a command with `--json` and parses its output.
pub fn json(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(&[args, &["--json"]].concat())).expect("valid JSON")
}

/// Output of `hotset volume show`.
pub fn show(daemon: &Daemon, name: &str) -> Value {
    json(daemon, &["volume", "show", name])
}

/// Message of volume `v`, which must be refused with this code and not be served.
pub fn volume_refusal(fixture: &Fixture, daemon: &Daemon, code: &str) -> String {
    let shown = show(daemon, "v");
    assert_eq!((&shown["state"], &shown["refusal"]), (&"refused".into(), &code.into()), "{shown}\n{}", daemon.log());
    assert!(Client::connect(&fixture.endpoint(), "v").is_err(), "a refused volume is served");
    shown["alerts"][0].as_str().expect("a refusal has a reason").to_owned()
}

/// Message of the flash store, which must be refused with this code and not be in use.
pub fn flash_refusal(daemon: &Daemon, code: &str) -> String {
    let flash = json(daemon, &["status"])["flash"].clone();
    assert_eq!((&flash["in_use"], &flash["refusal"]), (&false.into(), &code.into()), "{flash}\n{}", daemon.log());
    flash["alerts"][0].as_str().expect("a refusal has a reason").to_owned()
}

/// The commands in a message outside of backticks: each ends at a punctuation mark or at the end of the text.
pub fn commands(message: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut words = message.split_whitespace();
    while let Some(word) = words.next() {
        if word != "hotset" {
            continue;
        }
        let mut command = vec![word];
        for word in words.by_ref() {
            let bare = word.trim_end_matches([',', ';', '.', ':', ')']);
            command.push(bare);
            if bare != word {
                break;
            }
        }
        commands.push(command.join(" "));
    }
    commands
}

/// Runs a command of the message, found by its form with placeholders; it must succeed.
pub fn run_proposed_command(daemon: &Daemon, message: &str, form: &str) {
    let commands = commands(message);
    let command = commands.iter().find(|command| placeholders(command) == form);
    let command = command.unwrap_or_else(|| panic!("the message does not name `{form}`: {message}"));
    let args: Vec<_> = command.split(' ').skip(1).collect();
    daemon.command(&args);
}

/// Runs `hotset state rebuild` without a daemon; returns its output.
pub fn rebuild(fixture: &Fixture) -> String {
    let config = fixture.config();
    std::fs::write(&config, fixture.config_text()).expect("the folder can be written");
    let output = hotset(&["state", "rebuild", "--yes", "--config", &config.to_string_lossy()]);
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_end_at_punctuation_and_at_the_end_of_text() {
        let text = "Do it: hotset state rebuild --config /a/b.toml; or (`hotset flash check` shows it) hotset volume \
                    adopt v, or hotset stop now";
        let expected = ["hotset state rebuild --config /a/b.toml", "hotset volume adopt v", "hotset stop now"];
        assert_eq!(commands(text), expected);
    }
}
