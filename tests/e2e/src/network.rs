//! Hosts with networks of their own on this machine: network namespaces, with bridges between them whose cables can be
//! pulled.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::tool::{Tool, tool};

/// Where a program runs: in the network of this machine, or in a namespace.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// File of a network namespace.
    namespace: Option<PathBuf>,
}

impl Place {
    /// A program that runs there, as the process itself: `nsenter` becomes it.
    pub fn command(&self, program: &str) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace.display())).arg(program);
        command
    }

    /// Writes a program that runs its arguments there, as a wrapper of daemons.
    pub fn write_wrapper(&self, path: &Path) {
        let prefix = self.namespace.as_ref().map_or(String::new(), |it| format!("nsenter --net={} ", it.display()));
        std::fs::write(path, format!("#!/bin/sh\nexec {prefix}\"$@\"\n")).expect("the folder can be written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the file is of this process");
    }

    /// A tool that runs there.
    pub fn tool(&self, program: &str) -> Tool {
        match &self.namespace {
            Some(namespace) => tool("nsenter").arg(format!("--net={}", namespace.display())).arg(program),
            None => tool(program),
        }
    }
}

/// A network namespace. It has no name, and ends with the process that holds it, once no other process is in it: also
/// if the test program is killed, which closes the holder's standard input.
struct Namespace {
    holder: Child,
    lifeline: Option<ChildStdin>,
}

impl Namespace {
    /// `None` where no namespace can be created.
    fn create() -> Option<Namespace> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = command.spawn().ok()?;
        let mut lifeline = holder.stdin.take()?;
        let output = holder.stdout.take()?;
        let mut echo = String::new();
        // Its echo says that it is in its namespace by now; an end without one, that it could not enter one.
        let (Ok(_) | Err(_)) = lifeline.write_all(b"ready\n");
        let (Ok(_) | Err(_)) = BufReader::new(output).read_line(&mut echo);
        let namespace = Namespace { holder, lifeline: Some(lifeline) };
        (echo == "ready\n").then_some(namespace)
    }

    fn place(&self) -> Place {
        Place { namespace: Some(PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))) }
    }

    /// Runs `ip` there, with arguments split at spaces.
    fn ip(&self, args: &str) {
        self.place().tool("ip").args(args).ok();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let (Ok(_) | Err(_)) = self.holder.wait();
    }
}

/// A network of its own, as a switch is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lan {
    /// Of the storage, which has the address [`STORAGE`] there.
    Storage,
    /// Of the hosts among each other.
    Hosts,
}

/// Address of the storage.
pub const STORAGE: &str = "10.1.0.1";

impl Lan {
    const ALL: [Lan; 2] = [Lan::Storage, Lan::Hosts];

    fn bridge(self) -> &'static str {
        match self {
            Lan::Storage => "storage",
            Lan::Hosts => "hosts",
        }
    }

    /// Address of a host there.
    pub fn address(self, host: usize) -> String {
        match self {
            Lan::Storage => format!("10.1.0.{}", 10 + host),
            Lan::Hosts => format!("10.2.0.{}", 10 + host),
        }
    }
}

/// Hosts that reach the storage over one network and each other over another one.
pub struct Network {
    /// Has the bridges, and the storage.
    core: Namespace,
    hosts: Vec<Namespace>,
}

impl Network {
    /// A network of hosts; `None`, with a line on the terminal, where namespaces cannot be created.
    pub fn create(host_count: usize, case: &str) -> Option<Network> {
        let namespaces: Option<Vec<_>> = (0..=host_count).map(|_| Namespace::create()).collect();
        let Some(mut hosts) = namespaces else {
            let reason = "network namespaces need root, unshare, nsenter and ip";
            // Past the capture of a passing test's output, because the skip must be visible.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {case}: {reason}");
            return None;
        };
        let network = Network { core: hosts.pop()?, hosts };
        network.core.ip("link set lo up");
        for lan in Lan::ALL {
            network.core.ip(&format!("link add {} type bridge", lan.bridge()));
            network.core.ip(&format!("link set {} up", lan.bridge()));
        }
        network.core.ip(&format!("address add {STORAGE}/24 dev {}", Lan::Storage.bridge()));
        for (number, host) in network.hosts.iter().enumerate() {
            host.ip("link set lo up");
            for lan in Lan::ALL {
                let (bridge, pid) = (lan.bridge(), host.holder.id());
                network.core.ip(&format!("link add {bridge}{number} type veth peer name {bridge} netns {pid}"));
                network.core.ip(&format!("link set {bridge}{number} up"));
                network.connect(number, &[lan]);
                host.ip(&format!("address add {}/24 dev {bridge}", lan.address(number)));
                host.ip(&format!("link set {bridge} up"));
            }
        }
        Some(network)
    }

    /// Where the storage runs.
    pub fn storage(&self) -> Place {
        self.core.place()
    }

    /// Where programs of a host run.
    pub fn host(&self, number: usize) -> Place {
        self.hosts[number].place()
    }

    /// Cuts a host off from networks: packets are lost in both directions, and no side sees its link go down.
    pub fn cut(&self, host: usize, lans: &[Lan]) {
        lans.iter().for_each(|lan| self.core.ip(&format!("link set {}{host} nomaster", lan.bridge())));
    }

    /// Connects a host to networks.
    pub fn connect(&self, host: usize, lans: &[Lan]) {
        let bridges = lans.iter().map(|lan| lan.bridge());
        bridges.for_each(|bridge| self.core.ip(&format!("link set {bridge}{host} master {bridge}")));
    }
}
