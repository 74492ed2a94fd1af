//! Replacing a file whole: a crash or an error at any step leaves the old one or the new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The steps of a replacement, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new file beside the old one.
    Create,
    /// Its content.
    Write,
    /// Its content made durable.
    SyncFile,
    /// It takes the old one's name.
    Rename,
    /// The name made durable.
    SyncDirectory,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 5] = [Step::Create, Step::Write, Step::SyncFile, Step::Rename, Step::SyncDirectory];
}

/// Makes `bytes` the content of `path`. `before` is asked before each step and may fail it.
pub fn replace(path: &Path, bytes: &[u8], before: &mut dyn FnMut(Step) -> io::Result<()>) -> io::Result<()> {
    let fresh = path.with_extension("new");
    before(Step::Create)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    before(Step::Write)?;
    file.write_all(bytes)?;
    before(Step::SyncFile)?;
    file.sync_all()?;
    before(Step::Rename)?;
    std::fs::rename(&fresh, path)?;
    before(Step::SyncDirectory)?;
    File::open(path.parent().expect("a file of the state directory has a parent"))?.sync_all()
}
