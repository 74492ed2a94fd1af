//! Names of hosts, which administrators and messages use. Nothing is proven by a name.

/// The name in a form that one word of a line or a metadata value can have.
pub fn host_word(name: &str) -> String {
    let word: String =
        name.chars().map(|char| if char.is_whitespace() || char.is_control() { '-' } else { char }).collect();
    if word.is_empty() { "unknown".to_owned() } else { word }
}

/// The name of this machine.
pub fn machine_name() -> String {
    host_word(&rustix::system::uname().nodename().to_string_lossy())
}
