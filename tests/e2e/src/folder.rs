//! A private folder of a test, removed when the test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh, empty folder with a short path (a Unix socket's path has 108 bytes).
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder in `HOTSET_E2E_DIR`, or in the system's temporary folder.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::var_os("HOTSET_E2E_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("hotset-{}-{count}", std::process::id()));
        // Remove the leftover of a killed run that had the same process ID.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Folder {
    fn default() -> Self {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::env::var_os("HOTSET_E2E_KEEP").is_some() {
            eprintln!("kept: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
