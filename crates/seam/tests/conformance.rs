//! The conformance suite on a modelled array over a file, and on a file with the latency of a modelled SSD.

use seam::model::{ArraySpec, DiskType, ModelledDisk, RaidLevel, SharedArray};
use seam::real::{RealCoreSpec, run_core};
use seam::{DiskOpen, Seam, conformance};

#[test]
fn modelled_array_over_a_file_passes_the_conformance_suite() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let create_bytes = Some(2 * conformance::SIZE_BYTES_MIN);
    let options = DiskOpen { path: folder.path().join("content"), create_bytes, read_only: false, lock_wait_ms: 0 };
    let run = run_core(RealCoreSpec::new(16 << 20), |seam| async move {
        let content = seam.open_disk(&options).await.expect("a new file");
        let array = SharedArray::new(seam.clone(), ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Ssd));
        let disk =
            ModelledDisk::new(&array.expect("the specification is valid"), content).expect("it has room for the file");
        conformance::disk(&seam, &disk).await;
    });
    run.expect("io_uring is allowed where the tests run");
}

#[test]
fn file_with_latency_of_an_ssd_passes_the_conformance_suite() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let create_bytes = Some(2 * conformance::SIZE_BYTES_MIN);
    let options = DiskOpen { path: folder.path().join("ssd"), create_bytes, read_only: false, lock_wait_ms: 0 };
    let run = run_core(RealCoreSpec::new(16 << 20), |seam| async move {
        let file = seam.open_disk(&options).await.expect("a new file");
        conformance::disk(&seam, &file.with_ssd_latency(DiskType::Ssd.ssd().expect("it is flash"))).await;
    });
    run.expect("io_uring is allowed where the tests run");
}
