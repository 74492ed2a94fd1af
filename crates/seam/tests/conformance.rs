//! The suite of promises, on files and on modelled arrays over files.

use seam::model::{ArraySpec, DiskType, ModelledDisk, RaidLevel, SharedArray};
use seam::real::{RealCoreSpec, run_core};
use seam::{DiskOpen, Seam, conformance};

fn with_file(name: &str, check: impl AsyncFnOnce(seam::real::RealSeam, seam::real::RealDisk) + 'static) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let what = DiskOpen {
        path: folder.path().join(name),
        create_bytes: Some(2 * conformance::SIZE_BYTES_MIN),
        read_only: false,
        lock_wait_ms: 0,
    };
    let run = run_core(RealCoreSpec::new(16 << 20), |seam| async move {
        let disk = seam.open_disk(&what).await.expect("a new file");
        check(seam, disk).await;
    });
    run.expect("io_uring is allowed where the tests run");
}

#[test]
fn a_file_keeps_every_promise_of_a_disk() {
    with_file("plain", async |seam, disk| conformance::disk(&seam, &disk).await);
}

#[test]
fn a_modelled_array_over_a_file_keeps_every_promise_of_a_disk() {
    with_file("modelled", async |seam, disk| {
        let array = SharedArray::new(seam.clone(), ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Ssd));
        let disk = ModelledDisk::new(&array.expect("it can be built"), disk).expect("it has room for the file");
        conformance::disk(&seam, &disk).await;
    });
}
