//! Broken configurations: every one refused before anything is opened, each with its message.

use e2e::daemon::{Daemon, hotset, text_of};
use e2e::site::Site;

/// What is wrong, what the file says instead of a good line, and what the message has to hold.
const BROKEN: [(&str, &str, &[&str]); 15] = [
    ("no TOML", "[memory", &["line"]),
    ("an unknown table", "[memroy]\nsize = \"1 GiB\"", &["memroy", "memory"]),
    ("an unknown key", "[memory]\nsiez = \"1 GiB\"", &["siez", "size"]),
    ("a bad size", "[memory]\nsize = \"much\"", &["much", "GiB"]),
    ("too little memory", "[memory]\nsize = \"1 MiB\"", &["16 MiB"]),
    ("a bad address", "[nbd]\nlisten = [\"10809\"]", &["10809", "unix:"]),
    ("a bad policy", "[[volume]]\nname = \"a\"\nbacking = \"/x\"\npolicy = \"fast\"", &["fast", "write-back"]),
    ("no backing", "[[volume]]\nname = \"a\"", &["backing"]),
    (
        "a name twice",
        "[[volume]]\nname = \"a\"\nbacking = \"/x\"\n[[volume]]\nname = \"a\"\nbacking = \"/y\"",
        &["\"a\""],
    ),
    ("an array that is none", "[[volume]]\nname = \"a\"\nbacking = \"sim://shelf\"\nsize = \"1 GiB\"", &["shelf"]),
    ("a feature of a later version", "[vhost_user]", &["vhost_user", "version"]),
    ("no address for HTTP", "[api]\nlisten = \"localhost\"", &["localhost", "127.0.0.1:7400"]),
    ("no name of a host", "[api]\nnames = [\"a:80\"]", &["a:80", "without a port"]),
    ("no flash device", "[flash]\ndevices = []", &["0 flash devices", "name two"]),
    ("a wrong type", "[[volume]]\nname = \"a\"\nbacking = \"/x\"\nread_only = \"yes\"", &["read_only", "true"]),
];

#[test]
fn every_broken_configuration_is_refused_with_its_message() {
    let site = Site::new();
    for (what, text, expected) in BROKEN {
        std::fs::write(site.config(), text).expect("the folder can be written");
        for command in [&["check-config"][..], &["serve", "--config"]] {
            let output = hotset(&[command, &[&site.config().to_string_lossy()]].concat());
            let said = text_of(&output);
            assert_eq!(output.status.code(), Some(2), "{what}: {said}");
            for word in expected {
                assert!(said.contains(word), "{what}: {word:?} is missing in: {said}");
            }
        }
    }
}

#[test]
fn all_errors_are_told_at_once_with_their_lines() {
    let site = Site::new();
    std::fs::write(site.config(), "[memory]\nsize = \"much\"\n[nbd]\nlisten = [\"x\"]\ncolour = 1\n").expect("written");
    let said = text_of(&hotset(&["check-config", &site.config().to_string_lossy()]));
    for word in ["much", "\"x\"", "colour", "2", "4", "5"] {
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
}

#[test]
fn a_good_configuration_passes() {
    let site = Site::with_volume(1 << 20);
    std::fs::write(site.config(), site.config_text()).expect("the folder can be written");
    let output = hotset(&["check-config", &site.config().to_string_lossy()]);
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn a_backing_that_cannot_be_opened_is_named() {
    let mut site = Site::new();
    site.volume_on("v", &site.folder.join("missing.img").to_string_lossy(), "");
    let mut daemon = Daemon::launch(&site);
    assert!(!daemon.wait().success());
    assert!(daemon.log().contains("missing.img"), "{}", daemon.log());
}
