//! fio writes with several jobs, verifies its reads, and verifies again after a restart.

use e2e::fixture::Fixture;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

fn fio(fixture: &Fixture, args: &str) -> String {
    let uri = format!("--uri={}", fixture.uri("v"));
    let common = "--name=v --ioengine=nbd --verify=crc32c --verify_fatal=1 --group_reporting --randseed=7";
    tool("fio").args(common).arg(uri).args(args).within(fixture.folder.path()).ok()
}

#[test]
fn random_writes_of_four_jobs_verify() {
    let fixture = Fixture::with_volume(64 * MIB);
    let daemon = fixture.start();
    fio(&fixture, "--rw=randwrite --bs=4k --iodepth=16 --numjobs=4 --size=16m --offset_increment=16m --thread");
    daemon.stop();
}

#[test]
fn mixed_sizes_at_sector_alignment_verify() {
    let fixture = Fixture::with_volume(32 * MIB);
    let daemon = fixture.start();
    fio(
        &fixture,
        "--rw=randrw --bsrange=512-128k --blockalign=512 --iodepth=8 --size=32m --do_verify=1 --serialize_overlap=1",
    );
    daemon.stop();
}

#[test]
fn written_data_verifies_after_a_restart() {
    let fixture = Fixture::with_volume(32 * MIB);
    let daemon = fixture.start();
    fio(&fixture, "--rw=write --bs=64k --iodepth=4 --size=32m --do_verify=0 --end_fsync=1");
    daemon.stop();
    let daemon = fixture.start();
    fio(&fixture, "--rw=read --bs=64k --iodepth=4 --size=32m");
    daemon.stop();
}

#[test]
fn volume_ten_times_the_memory_verifies() {
    let mut fixture = Fixture::with_volume(192 * MIB);
    fixture.memory = "20 MiB".to_owned();
    let daemon = fixture.start();
    fio(&fixture, "--rw=randwrite --bs=16k --iodepth=16 --size=192m --io_size=96m");
    daemon.stop();
}
