//! The compared servers and their start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fio::Target;
use crate::process::Process;

/// Content that a server exports.
#[derive(Clone, Debug)]
pub enum Content {
    /// Memory of this many bytes.
    Memory(u64),
    /// A file, with very little memory in front of it.
    File(PathBuf),
    /// An NBD URI, with very little memory in front of it.
    Export(String),
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This project's daemon.
    Hotset,
    /// nbdkit's memory plugin.
    Nbdkit,
    /// qemu-storage-daemon on a file: in memory, or direct with io_uring.
    Qemu,
    /// Null server with a thread per connection: it only copies, so it is the upper bound for any NBD server.
    NullServerThreads,
    /// Null server on the project's seam: the upper bound for a server on this runtime.
    NullServerSeam,
    /// The daemon with two flash devices.
    Mirrored,
    /// The daemon with one flash device.
    Single,
    /// The daemon without flash on a modelled RAID 5 of five disks.
    Raid5,
    /// No server: fio accesses the file directly.
    NoServer,
}

/// Servers that can export memory.
pub const MEMORY_SERVERS: [Kind; 5] =
    [Kind::Hotset, Kind::Nbdkit, Kind::Qemu, Kind::NullServerThreads, Kind::NullServerSeam];
/// Servers that can export a file.
pub const FILE_SERVERS: [Kind; 4] = [Kind::Hotset, Kind::Qemu, Kind::NullServerSeam, Kind::NoServer];

/// Export name of the daemon; the other servers use the empty name.
pub const HOTSET_EXPORT: &str = "bench";

/// Paths of programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The daemon.
    pub hotset: PathBuf,
    /// The null server.
    pub null_server: PathBuf,
}

/// A target for requests.
pub struct Server {
    /// Kind of the server.
    pub kind: Kind,
    /// Target of the client.
    pub target: Target,
    /// The server's process; `None` for direct access.
    pub process: Option<Process>,
}

impl Kind {
    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hotset => "hotset",
            Kind::Nbdkit => "nbdkit",
            Kind::Qemu => "qemu-s-d",
            Kind::NullServerThreads => "null server (threads)",
            Kind::NullServerSeam => "null server (seam)",
            Kind::Mirrored => "hotset, mirrored",
            Kind::Single => "hotset, one copy",
            Kind::Raid5 => "hotset on RAID 5, no flash",
            Kind::NoServer => "fio direct",
        }
    }

    /// Path of the server's socket in `folder`.
    pub fn socket(self, folder: &Path) -> PathBuf {
        folder.join(format!("{self:?}.sock"))
    }

    /// Starts the server on `content`; its files go to `folder`, which lies in memory or beside the file.
    pub fn start(self, content: &Content, folder: &Path, programs: &Programs) -> io::Result<Server> {
        let socket = self.socket(folder);
        let command = match (self, content) {
            (Kind::NoServer, Content::File(path)) => {
                let target = Target::File(path.display().to_string());
                return Ok(Server { kind: self, target, process: None });
            }
            (Kind::Hotset, content) => hotset(content, folder, &socket, &programs.hotset)?,
            (Kind::Nbdkit, Content::Memory(bytes)) => {
                let mut command = Command::new("nbdkit");
                command.args(["-f", "-U"]).arg(&socket).args(["memory", &bytes.to_string()]);
                command
            }
            (Kind::Qemu, content) => qemu(content, folder, &socket)?,
            (Kind::NullServerThreads | Kind::NullServerSeam, Content::Memory(bytes)) => {
                let variant = if self == Kind::NullServerSeam { "seam" } else { "threads" };
                null_server(programs, variant, &socket, &bytes.to_string())
            }
            (Kind::NullServerSeam, Content::File(path)) => {
                null_server(programs, "seam-file", &socket, &path.display().to_string())
            }
            (kind, content) => return Err(io::Error::other(format!("{} does not serve {content:?}", kind.name()))),
        };
        let export = if self == Kind::Hotset { HOTSET_EXPORT } else { "" };
        let target = Target::Nbd(format!("nbd+unix:///{export}?socket={}", socket.display()));
        Ok(Server { kind: self, target, process: Some(Process::start(command, &socket)?) })
    }
}

fn null_server(programs: &Programs, variant: &str, socket: &Path, content: &str) -> Command {
    let mut command = Command::new(&programs.null_server);
    command.args([variant, &format!("unix:{}", socket.display()), content]);
    command
}

/// The daemon with a memory cache that holds the whole volume, or very little of it if the volume is a file.
fn hotset(content: &Content, folder: &Path, socket: &Path, program: &Path) -> io::Result<Command> {
    let (memory_bytes, backing) = match content {
        Content::Memory(bytes) => {
            // A missing path under /dev/shm would be reported as a missing device.
            let path = folder.join("hotset.img");
            fs::File::create(&path)?.set_len(*bytes)?;
            // Memory is large enough that no write-back is forced; the cost of destage has its own section.
            (bytes * 8, path)
        }
        Content::File(path) => (32 << 20, path.clone()),
        Content::Export(uri) => (32 << 20, uri.into()),
    };
    let volume = (HOTSET_EXPORT, backing.display().to_string());
    daemon(folder, socket, memory_bytes, &[volume], "", program)
}

/// Command of a daemon with `memory_bytes` that serves volumes (name, backing) on `socket`; `extra_toml` is appended to
/// the configuration.
pub fn daemon(
    folder: &Path,
    socket: &Path,
    memory_bytes: u64,
    volumes: &[(&str, String)],
    extra_toml: &str,
    program: &Path,
) -> io::Result<Command> {
    let (socket, control, state) = (socket.display(), control_socket(folder), folder.join("state"));
    fs::create_dir_all(&state)?;
    let api = if extra_toml.contains("[api]") { "" } else { "\n[api]\nlisten = \"none\"\n" };
    let mut text = format!(
        "[state]\ndirectory = \"{}\"\n{api}\n[memory]\nsize = \"{} MiB\"\n\n[control]\nsocket = \"{}\"\n\n\
         [nbd]\nlisten = [\"unix:{socket}\"]\n{extra_toml}",
        state.display(),
        memory_bytes >> 20,
        control.display()
    );
    for (name, backing) in volumes {
        text += &format!("\n[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\n");
    }
    let config = folder.join("hotset.toml");
    fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(config);
    Ok(command)
}

fn qemu(content: &Content, folder: &Path, socket: &Path) -> io::Result<Command> {
    let (file, direct) = match content {
        Content::Memory(bytes) => {
            let path = folder.join("qemu.img");
            fs::write(&path, vec![0; *bytes as usize])?;
            (path, "off")
        }
        Content::File(path) => (path.clone(), "on"),
        Content::Export(uri) => return Err(io::Error::other(format!("qemu-s-d is not measured on {uri}"))),
    };
    let mut command = Command::new("qemu-storage-daemon");
    let node = format!("driver=file,node-name=d,filename={},aio=io_uring,cache.direct={direct}", file.display());
    command.args(["--blockdev", &node]);
    command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    command.args(["--export", "type=nbd,id=e,node-name=d,name=,writable=on"]);
    Ok(command)
}

/// Starts an export of `file` by qemu-storage-daemon, limited to `iops` requests per second; also returns its URI.
pub fn start_throttled_qemu(file: &Path, folder: &Path, iops: u32) -> io::Result<(Server, String)> {
    let socket = folder.join("limited.sock");
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--object", &format!("throttle-group,id=limit,x-iops-total={iops}")]);
    let node = format!("driver=file,node-name=f,filename={},aio=io_uring,cache.direct=on", file.display());
    command.args(["--blockdev", &node]);
    command.args(["--blockdev", "driver=throttle,node-name=d,throttle-group=limit,file=f"]);
    command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    command.args(["--export", "type=nbd,id=e,node-name=d,name=,writable=on"]);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let process = Some(Process::start(command, &socket)?);
    Ok((Server { kind: Kind::Qemu, target: Target::Nbd(uri.clone()), process }, uri))
}

/// A daemon with two volumes, `hit` and `dirty`.
pub struct TwoVolumes {
    /// The targets of both volumes.
    pub targets: [Target; 2],
    /// Control socket of the daemon.
    pub control: PathBuf,
    /// Stops the daemon when dropped.
    #[expect(dead_code, reason = "stops the daemon when dropped")]
    process: Process,
}

/// Starts a daemon with volumes of `sizes` bytes on sparse files in `folder`, and memory for all of both.
pub fn two_volumes(folder: &Path, programs: &Programs, sizes: [u64; 2]) -> io::Result<TwoVolumes> {
    let socket = folder.join("two.sock");
    let names = ["hit", "dirty"];
    let mut volumes = Vec::new();
    for (name, size) in names.into_iter().zip(sizes) {
        let path = folder.join(format!("{name}.img"));
        fs::File::create(&path)?.set_len(size)?;
        volumes.push((name, path.display().to_string()));
    }
    let command = daemon(folder, &socket, 3 * (sizes[0] + sizes[1]), &volumes, "", &programs.hotset)?;
    let targets = names.map(|name| Target::Nbd(format!("nbd+unix:///{name}?socket={}", socket.display())));
    Ok(TwoVolumes { targets, control: control_socket(folder), process: Process::start(command, &socket)? })
}

/// Creates a pool of the configuration in `folder`, before its daemon starts.
pub fn create_pool(name: &str, folder: &Path, programs: &Programs) -> io::Result<()> {
    let mut command = Command::new(&programs.hotset);
    command.args(["pool", "create", name, "--config"]).arg(folder.join("hotset.toml")).stdout(Stdio::null());
    if !command.status()?.success() {
        return Err(io::Error::other(format!("the pool {name} could not be created")));
    }
    Ok(())
}

/// Control socket of the daemon of `folder`.
pub fn control_socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}
