//! The service manager: attached volumes are instances of one systemd unit.

use std::path::Path;
use std::process::Command;

use terminal::Failure;

/// True if systemd manages services.
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// The unit that keeps a volume attached.
pub fn unit(volume: &str) -> Result<String, Failure> {
    // An instance name allows all characters of a volume name except `+`.
    if volume.contains('+') {
        return Err(Failure::failed(format!(
            "systemd unit names cannot contain a +: run `hotset attach --foreground {volume}` under a unit of \
             your own"
        )));
    }
    Ok(format!("hotset-attach@{volume}.service"))
}

/// Starts the unit now and at every boot; returns after the volume is attached.
pub fn enable(unit: &str) -> Result<(), Failure> {
    systemctl(&["enable", "--now", unit]).map_err(|output| {
        Failure::failed(format!(
            "{output}\n`journalctl -u {unit}` shows the reason; the unit keeps retrying until `hotset detach`"
        ))
    })
}

/// Stops and disables a volume's unit, if there is one.
pub fn disable(volume: &str) -> Result<(), Failure> {
    match unit(volume) {
        Ok(unit) if is_running() && systemctl(&["cat", &unit]).is_ok() => {
            systemctl(&["disable", "--now", &unit]).map_err(Failure::failed)
        }
        _ => Ok(()),
    }
}

fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let command = format!("systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl").args(arguments).output().map_err(|error| format!("`{command}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{command}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_has_one_unit() {
        assert_eq!(unit("web-01.data").expect("the name is valid for a unit"), "hotset-attach@web-01.data.service");
        assert!(unit("a+b").is_err_and(|failure| failure.message.contains("--foreground a+b")));
    }
}
