//! The heat of pools over a restart of the daemon.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{fs, io};

use messages::unix_time;
use seam::real::{PathCall, RealSeam};
use seam::{Nanos, Seam};

use super::super::data_core::CoreLocal;
use super::super::{CORE_TIMEOUT, Cores};
use super::RealPool;

/// Time that the opening of a pool gives to the disk of the state directory.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest file that is read: no pool writes a longer one.
const FILE_BYTES_MAX: u64 = 80 << 20;

impl Cores {
    /// The heat of the open pools by their names. A core that does not answer is left out.
    pub async fn heat_images(&self, unix_seconds: u64) -> Vec<(String, Vec<u8>)> {
        let mut images = Vec::new();
        for core in self.iter() {
            let of_core = async move |local: Rc<CoreLocal>| {
                let pools: Vec<_> = local.pools.borrow().values().cloned().collect();
                let mut images = Vec::new();
                for open in pools {
                    images.push((open.name.clone(), open.pool.heat_image(unix_seconds).await));
                }
                images
            };
            if let Ok(Ok(of_core)) = tokio::time::timeout(CORE_TIMEOUT, core.call(of_core)).await {
                images.extend(of_core);
            }
        }
        images
    }
}

/// The file with the heat of a pool.
pub fn heat_path(directory: &Path, pool: &str) -> PathBuf {
    directory.join(format!("pool-{pool}.heat"))
}

/// Loads the heat of a pool that is being opened. Without it the slices are cold, and the log says why.
pub(super) async fn load(seam: &RealSeam, name: &str, pool: &RealPool, path: &Path) {
    let loaded = match read(seam, path).await {
        Ok(image) => pool.load_heat(&image, unix_time::now().as_secs()).await.map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => Err(error.to_string()),
    };
    match loaded {
        Ok(age) => logging::info!("pool {name}: the load of its slices was saved {age} s ago"),
        Err(problem) => {
            logging::warn!("pool {name}: the saved load of its slices ({}) is ignored: {problem}", path.display());
        }
    }
}

/// Reads a file. A disk that hangs does not stop the core.
async fn read(seam: &RealSeam, path: &Path) -> io::Result<Vec<u8>> {
    let file = path.to_owned();
    let call = PathCall::start(path, move |_| match fs::metadata(&file)?.len() {
        0..=FILE_BYTES_MAX => fs::read(&file),
        len => Err(io::Error::other(format!("a file of {len} bytes is too long"))),
    });
    call.answer(READ_TIMEOUT, async |time: Duration| seam.sleep(Nanos(time.as_nanos() as u64)).await).await?
}
