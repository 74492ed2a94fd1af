//! Description of the machine of a measurement.

use std::fs::read_to_string;
use std::process::Command;

/// One line per fact.
pub fn describe() -> Vec<String> {
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    let virtualised = if cpu.contains(" hypervisor") { ", a virtual machine" } else { "" };
    let load = read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    vec![
        format!(
            "{} processors,{}{virtualised}",
            processors(),
            model.trim_start_matches(['\t', ' ', ':']).replacen("", " ", 1)
        ),
        format!("{} GiB of memory, Linux {}", kib >> 20, kernel.trim()),
        format!("{}; {}; {}", version("fio"), version("nbdkit"), version("qemu-storage-daemon")),
        format!("load average at the start: {load}"),
    ]
}

/// Number of CPUs available to this process.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The first line that `program --version` prints.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().map_or_else(|| format!("{program} is not installed"), str::to_owned)
}
