//! From a backing as the configuration names it to an open one on this core.

use engine::Backing;
use seam::real::RealSeam;
use seam::{Disk, DiskError, DiskOpen, Geometry, Seam};

use crate::config::BackingSpec;

/// How long a start waits for a killed predecessor's last I/O, in milliseconds.
const LOCK_WAIT_MS: u64 = 10_000;

/// What is to be opened.
#[derive(Clone, Debug)]
pub struct OpenPlan {
    /// Where the data lies.
    pub backing: BackingSpec,
    /// The size to create it with, where it is missing.
    pub size_bytes: Option<u64>,
    /// Open without the right to write.
    pub read_only: bool,
}

/// What an open backing says of itself.
#[derive(Clone, Debug)]
pub struct OpenFacts {
    /// Names the storage itself.
    pub identity: String,
    /// Its fixed facts.
    pub geometry: Geometry,
}

/// Opens what `plan` describes on the core of `seam`.
pub async fn open_backing(seam: &RealSeam, plan: &OpenPlan) -> Result<(Backing<RealSeam>, OpenFacts), DiskError> {
    let disk = match &plan.backing {
        BackingSpec::Path(path) => {
            let what = DiskOpen {
                path: path.clone(),
                create_bytes: plan.size_bytes,
                read_only: plan.read_only,
                lock_wait_ms: LOCK_WAIT_MS,
            };
            seam.open_disk(&what).await?
        }
        other => return Err(DiskError::Open(format!("{other}: this version cannot open it"))),
    };
    let facts = OpenFacts { identity: disk.identity(), geometry: disk.geometry() };
    Ok((Backing::plain(disk), facts))
}
