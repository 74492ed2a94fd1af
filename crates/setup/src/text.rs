//! The proposal as a configuration, with its reasons as comments.

use std::fmt::Write;
use std::path::Path;

use super::plan::{Plan, ProposedDevice, SkippedDevice, Tier, Volume};
use units::{exact_bytes, show_bytes};

/// Longest line of a comment.
const COLUMNS: usize = 110;

/// The configuration as text.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    comment(
        &mut out,
        "Proposed by `hotset init` for this machine; nothing was changed. Review it. Volume names are easy to change \
         now; later, clients depend on them. docs/admin/configuration.md explains every key.",
    );
    comment(
        &mut out,
        "Next: `hotset check-config FILE`, then `hotset serve --config FILE`. Web console: http://127.0.0.1:7400/",
    );
    out.push_str("\n[state]\ndirectory = \"/var/lib/hotset\"\n\n[memory]\n");
    comment(&mut out, &format!("{}.", capitalise(&plan.memory.reason)));
    let _ = writeln!(out, "size = \"{}\"", exact_bytes(plan.memory.size_bytes));
    out.push_str(
        "\n[control]\nsocket = \"/run/hotset/control.sock\"\n\n[nbd]\nlisten = [\"unix:/run/hotset/nbd.sock\"]\n",
    );
    if plan.hypervisor.is_some() {
        comment(&mut out, "Gives QEMU access to the socket when libvirt starts it:");
        out.push_str("# socket_owner = \"libvirt-qemu\"\n");
    }
    out.push('\n');
    flash(&mut out, plan);
    pool(&mut out, plan);
    volumes(&mut out, plan);
    skipped(&mut out, &plan.skipped);
    out
}

fn flash(out: &mut String, plan: &Plan) {
    if let Some(single) = &plan.single_flash {
        comment(
            out,
            &format!(
                "One flash device is free: {}, {}. Dirty data should be mirrored on two devices: the failure of a \
                 single device loses acknowledged writes. Add a second device, or accept the risk with \
                 allow_single_copy, and remove the comment marks:",
                single.node.display(),
                single.description
            ),
        );
        let _ = writeln!(out, "# [flash]\n# devices = [{}]\n# allow_single_copy = true\n", quoted(&single.device));
        return;
    }
    if plan.flash.is_empty() {
        comment(
            out,
            "No flash is free: only memory caches, and a flush waits for the backing. With two flash devices, flushes \
             are fast and the cache survives restarts.",
        );
        out.push('\n');
        return;
    }
    out.push_str("[flash]\n");
    match plan.flash.len() {
        1 => comment(
            out,
            "One device, as requested. Without a mirror, its failure loses acknowledged writes; without \
             allow_single_copy, it is not used.",
        ),
        _ => comment(
            out,
            "Two devices hold mirrored dirty data, so that flushes need not wait for slow disks, and clean pages.",
        ),
    }
    for device in &plan.flash {
        comment(out, &format!("{}: {}{}", device.node.display(), device.description, name_warning(device)));
        if let Some(carries) = &device.carries {
            comment(
                out,
                &format!(
                    "It carries {carries}. The daemon accepts only empty devices. If this data is not needed, erase \
                     it with `blkdiscard -z {}`, or with `dd` of zeroes over the first MiB.",
                    device.node.display()
                ),
            );
        }
    }
    list_devices(out, &plan.flash);
    if plan.flash.len() == 1 {
        out.push_str("# allow_single_copy = true\n");
    }
    out.push('\n');
}

fn pool(out: &mut String, plan: &Plan) {
    if plan.tiers.is_empty() {
        return;
    }
    comment(
        out,
        "A pool has no redundancy: a device that fails takes the slices on it along. For redundancy, name arrays \
         (mdadm, or the controller's own). `hotset pool create tank --config FILE` creates it, once.",
    );
    out.push_str("[[pool]]\nname = \"tank\"\n");
    for Tier { name, devices } in &plan.tiers {
        let _ = writeln!(out, "\n[[pool.tier]]\nname = \"{name}\"");
        for device in devices {
            let carries = device.carries.as_ref().map_or_else(
                || "blank".to_owned(),
                |carries| {
                    format!(
                        "carries {carries}, which `pool create --force` destroys; `hotset pool import` keeps it as a \
                         volume instead, once a pool of other devices is served"
                    )
                },
            );
            comment(
                out,
                &format!("{}: {}; {carries}{}", device.node.display(), device.description, name_warning(device)),
            );
        }
        list_devices(out, devices);
    }
    out.push('\n');
    comment(
        out,
        "Volumes on the pool take space at their first write. Choose name and size, and remove the comment marks:",
    );
    out.push_str("# [[volume]]\n# name = \"vm1\"\n# backing = \"pool://tank\"\n# size = \"100 GiB\"\n\n");
}

/// A list of devices as a key.
fn list_devices(out: &mut String, devices: &[ProposedDevice]) {
    let devices: Vec<String> = devices.iter().map(|device| quoted(&device.device)).collect();
    let _ = writeln!(out, "devices = [\n    {},\n]", devices.join(",\n    "));
}

fn volumes(out: &mut String, plan: &Plan) {
    let blank = plan.volumes.iter().filter(|volume| volume.backing.carries.is_none()).count();
    if blank > 1 {
        comment(
            out,
            "Each disk is a volume of its own and has no redundancy. For redundancy, build an array first (mdadm, or \
             the controller's own) and name it: `hotset init --volume /dev/md0`.",
        );
        out.push('\n');
    }
    for Volume { name, backing } in &plan.volumes {
        out.push_str("[[volume]]\n");
        let carries = match &backing.carries {
            None => "blank".to_owned(),
            Some(carries) => {
                format!("carries {carries}, and is served as it is: only clients change its data")
            }
        };
        comment(
            out,
            &format!("{}: {}; {carries}{}", backing.node.display(), backing.description, name_warning(backing)),
        );
        let _ = writeln!(out, "name = \"{name}\"\nbacking = {}\n", quoted(&backing.device));
    }
    if plan.volumes.is_empty() && plan.tiers.is_empty() {
        comment(out, "No disk is free to serve. Options:");
        if let Some(disk) = plan.first_servable() {
            let path = disk.path().display();
            comment(
                out,
                &format!("- a disk with data, as it is, when no other program uses it: `hotset init --volume {path}`"),
            );
        }
        comment(out, "- a new disk: add it and run `hotset init` again");
        comment(
            out,
            "- an image file on a file system, cached in memory. Create it (`truncate -s 20G /srv/hotset/vm1.img`) \
             and remove the comment marks:",
        );
        out.push_str("# [[volume]]\n# name = \"vm1\"\n# backing = \"/srv/hotset/vm1.img\"\n\n");
    }
}

fn skipped(out: &mut String, skipped: &[SkippedDevice]) {
    if skipped.is_empty() {
        return;
    }
    comment(out, "Left alone:");
    for disk in skipped {
        let remedy = disk.remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
        comment(out, &format!("- {}: {}; {}{remedy}", disk.device.display(), disk.description, disk.reason));
    }
}

/// A warning for a device without a persistent name.
fn name_warning(device: &ProposedDevice) -> &'static str {
    match device.device == device.node && device.node.starts_with("/dev") && !device.node.starts_with("/dev/mapper") {
        true => "; it has no persistent name in /dev/disk/by-id: this name may refer to another disk after a reboot",
        false => "",
    }
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

fn capitalise(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// Adds a wrapped comment. Control characters, which a disk's model may contain, are omitted.
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
    let pool = if plan.tiers.is_empty() { "" } else { ", a pool" };
    format!("{memory} of memory, {flash}, {count} volume{}{pool}", if count == 1 { "" } else { "s" })
}
