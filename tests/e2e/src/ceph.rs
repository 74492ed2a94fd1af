//! A small Ceph cluster, one for all tests of a test program.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::OnceLock;

use crate::folder::Folder;
use crate::network::Place;
use crate::tool::Tool;

/// A running cluster. It ends when it is dropped, or with the test program, whose end closes the standard input of its
/// script.
pub struct Cluster {
    conf: PathBuf,
    /// Where its daemons run, and where its commands have to.
    place: Place,
    script: Child,
    lifeline: Option<ChildStdin>,
    _folder: Folder,
}

/// The cluster, which the first caller starts; `None`, with a line on the terminal, where Ceph is not installed.
pub fn cluster(case: &str) -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    is_installed(case).then(|| CLUSTER.get_or_init(|| Cluster::start(Place::default(), "127.0.0.1")))
}

/// True where Ceph is installed; otherwise a line on the terminal names what is missing.
pub fn is_installed(case: &str) -> bool {
    let is_installed = |program: &&str| Path::new("/usr/bin").join(program).exists();
    if let Some(missing) = ["ceph-mon", "ceph-osd", "ceph", "rbd"].iter().find(|program| !is_installed(program)) {
        // Written to the real stderr, past the capture of a passing test's output, because the skip must be visible.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {case}: {missing} is not installed (scripts/packages torture)");
        return false;
    }
    true
}

impl Cluster {
    /// Starts a cluster that listens at an address of the given place.
    pub fn start(place: Place, address: &str) -> Cluster {
        let folder = Folder::new();
        let path = folder.join("ceph");
        let mut command = place.command(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/ceph-cluster"));
        command.arg(&path).arg(address).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script runs");
        let lifeline = script.stdin.take().expect("its input is a pipe");
        let output = BufReader::new(script.stdout.take().expect("its output is a pipe"));
        assert_eq!(output.lines().next().and_then(Result::ok).as_deref(), Some("ready"), "the cluster starts");
        Cluster { conf: path.join("ceph.conf"), place, script, lifeline: Some(lifeline), _folder: folder }
    }

    /// The configuration of the cluster.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// `rbd` for this cluster, with arguments split at spaces.
    pub fn rbd(&self, args: &str) -> Tool {
        self.place.tool("rbd").arg("--conf").arg(&self.conf).args(args)
    }

    /// `ceph` for this cluster, with arguments split at spaces.
    pub fn ceph(&self, args: &str) -> Tool {
        self.place.tool("ceph").arg("--conf").arg(&self.conf).args(args)
    }

    /// The processes of a kind: `osd`, `mon`.
    pub fn processes(&self, kind: &str) -> Vec<u32> {
        let folder = self.conf.parent().expect("it lies in a folder");
        let files = std::fs::read_dir(folder).expect("the cluster runs").map(|entry| entry.expect("it is readable"));
        let is_of_kind = |name: &str| name.starts_with(kind) && name.ends_with(".pid");
        let files = files.filter(|file| file.file_name().to_str().is_some_and(is_of_kind));
        let text = files.map(|file| std::fs::read_to_string(file.path()).expect("it is readable"));
        text.map(|text| text.trim().parse().expect("it is a number")).collect()
    }

    /// Creates an image of `mib` MiB, and returns its address as a backing.
    pub fn create_image(&self, name: &str, mib: u64) -> String {
        self.rbd(&format!("create --size {mib}M rbd/{name}")).ok();
        format!("rbd:rbd/{name}?ceph_conf={}", self.conf.display())
    }

    /// The content of an image, read past the daemon.
    pub fn export(&self, name: &str) -> Vec<u8> {
        let folder = Folder::new();
        let file = folder.join("image");
        self.rbd(&format!("export --no-progress rbd/{name}")).arg(&file).ok();
        std::fs::read(&file).expect("the image was exported")
    }

    /// The owner of an image's lock: the address of a client; `None` if no client has it.
    pub fn lock_owner(&self, name: &str) -> Option<String> {
        let locks = self.rbd(&format!("lock ls --format json rbd/{name}")).ok();
        let locks: serde_json::Value = serde_json::from_str(&locks).expect("valid JSON");
        Some(locks.as_array()?.first()?["address"].as_str()?.to_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let (Ok(_) | Err(_)) = self.script.wait();
    }
}
