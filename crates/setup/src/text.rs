//! The proposal as a configuration, with its reasons as comments.

use std::fmt::Write;
use std::path::Path;

use super::plan::{Chosen, Left, Plan, Volume};
use units::{exact_bytes, show_bytes};

/// Longest line of a comment.
const COLUMNS: usize = 110;

/// The configuration as text.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    comment(
        &mut out,
        "Proposed by `hotset init` from what it found on this machine, and changed nothing. Look through it; names \
         of volumes are easy to change now, and are what clients know them by later. docs/admin/configuration.md \
         explains every key.",
    );
    comment(&mut out, "Next: `hotset check-config FILE`, then `hotset serve --config FILE`.");
    out.push_str("\n[state]\ndirectory = \"/var/lib/hotset\"\n\n[memory]\n");
    comment(&mut out, &format!("{}.", capital(&plan.memory.why)));
    let _ = writeln!(out, "size = \"{}\"", exact_bytes(plan.memory.size_bytes));
    out.push_str(
        "\n[control]\nsocket = \"/run/hotset/control.sock\"\n\n[nbd]\nlisten = [\"unix:/run/hotset/nbd.sock\"]\n",
    );
    if plan.hypervisor.is_some() {
        comment(&mut out, "So that QEMU may open the socket where libvirt starts it:");
        out.push_str("# socket_owner = \"libvirt-qemu\"\n");
    }
    out.push('\n');
    flash(&mut out, plan);
    volumes(&mut out, plan);
    left(&mut out, &plan.left);
    out
}

fn flash(out: &mut String, plan: &Plan) {
    if let Some(single) = &plan.single_flash {
        comment(
            out,
            &format!(
                "One flash device is free: {}, {}. What is not on the backing yet is kept on two, mirrored: with one, \
                 its failure loses writes that clients were told are safe. Either find a second one, or accept that \
                 with allow_single_copy, and take the marks away:",
                single.node.display(),
                single.what
            ),
        );
        let _ = writeln!(out, "# [flash]\n# devices = [{}]\n# allow_single_copy = true\n", quoted(&single.device));
        return;
    }
    if plan.flash.is_empty() {
        comment(
            out,
            "No flash is free: memory alone caches, and a flush waits for the backing. Two flash devices would answer \
             flushes, and keep what clients come back to over restarts.",
        );
        out.push('\n');
        return;
    }
    out.push_str("[flash]\n");
    match plan.flash.len() {
        1 => comment(
            out,
            "One device, as it was named. Without a mirror its failure loses writes that clients were told are safe, \
             so without allow_single_copy it keeps clean pages alone.",
        ),
        _ => comment(
            out,
            "Two devices carry what is not on the backing yet, mirrored, so that flushes need not wait for slow disks; \
             and what clients come back to.",
        ),
    }
    for device in &plan.flash {
        comment(out, &format!("{}: {}{}", device.node.display(), device.what, unstable(device)));
        if let Some(carries) = &device.carries {
            comment(
                out,
                &format!(
                    "It carries {carries}. The daemon takes only what is empty: once you are sure that nobody needs \
                     that, `blkdiscard -z {}`, or `dd` of zeroes over its first MiB.",
                    device.node.display()
                ),
            );
        }
    }
    let devices: Vec<String> = plan.flash.iter().map(|device| quoted(&device.device)).collect();
    let _ = writeln!(out, "devices = [\n    {},\n]", devices.join(",\n    "));
    if plan.flash.len() == 1 {
        out.push_str("# allow_single_copy = true\n");
    }
    out.push('\n');
}

fn volumes(out: &mut String, plan: &Plan) {
    let blank = plan.volumes.iter().filter(|volume| volume.backing.carries.is_none()).count();
    if blank > 1 {
        comment(
            out,
            "Each disk is a volume of its own, and as safe as that disk. To outlive the loss of one, build an array \
             first (mdadm, or the controller's own) and name it: `hotset init --volume /dev/md0`.",
        );
        out.push('\n');
    }
    for Volume { name, backing } in &plan.volumes {
        out.push_str("[[volume]]\n");
        let carries = match &backing.carries {
            None => "blank".to_owned(),
            Some(carries) => {
                format!("carries {carries}, and is served as it is: nothing on it changes until a client writes")
            }
        };
        comment(out, &format!("{}: {}; {carries}{}", backing.node.display(), backing.what, unstable(backing)));
        let _ = writeln!(out, "name = \"{name}\"\nbacking = {}\n", quoted(&backing.device));
    }
    if plan.volumes.is_empty() {
        comment(out, "No disk is free to be served. What can be:");
        if let Some(disk) = plan.could_serve() {
            let path = disk.path().display();
            comment(
                out,
                &format!(
                    "- a disk that carries data, as it is, once nobody else uses it: `hotset init --volume {path}`"
                ),
            );
        }
        comment(out, "- a disk that you add: run `hotset init` again");
        comment(
            out,
            "- an image file on a file system that is there, with memory in front of it. Make it \
             (`truncate -s 20G /srv/hotset/vm1.img`) and take the marks away:",
        );
        out.push_str("# [[volume]]\n# name = \"vm1\"\n# backing = \"/srv/hotset/vm1.img\"\n\n");
    }
}

fn left(out: &mut String, left: &[Left]) {
    if left.is_empty() {
        return;
    }
    comment(out, "Left alone:");
    for disk in left {
        let remedy = disk.remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
        comment(out, &format!("- {}: {}; {}{remedy}", disk.device.display(), disk.what, disk.why));
    }
}

/// A warning for a device without a persistent name.
fn unstable(device: &Chosen) -> &'static str {
    match device.device == device.node && device.node.starts_with("/dev") && !device.node.starts_with("/dev/mapper") {
        true => "; it has no name in /dev/disk/by-id: this one may be another disk's after a reboot",
        false => "",
    }
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// Adds a wrapped comment. Control characters, which a disk's model may contain, are left out.
fn comment(out: &mut String, text: &str) {
    let mut line = "#".to_owned();
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let indent = if text.starts_with("- ") { "#  " } else { "#" };
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = indent.to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}

/// The proposal in one line.
pub fn summary(plan: &Plan) -> String {
    let flash: u64 = plan.flash.iter().map(|device| device.size_bytes).sum();
    let flash = if flash == 0 { "no flash".to_owned() } else { format!("{} of flash", show_bytes(flash)) };
    let (count, memory) = (plan.volumes.len(), show_bytes(plan.memory.size_bytes));
    format!("{memory} of memory, {flash}, {count} volume{}", if count == 1 { "" } else { "s" })
}
