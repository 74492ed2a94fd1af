//! nbdinfo, nbdcopy, qemu-io and qemu-img on the daemon.

use std::fs;
use std::path::PathBuf;

use e2e::fixture::Fixture;
use e2e::random::Random;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

/// A file with data, zeroes and a hole at unaligned offsets.
fn image(fixture: &Fixture, bytes: u64) -> PathBuf {
    let mut random = Random::new(bytes);
    let mut content = vec![0; bytes as usize];
    for block in content.chunks_mut(12_345).step_by(2) {
        block.fill_with(|| random.draw() as u8);
    }
    content[MIB as usize..3 * MIB as usize].fill(0);
    let path = fixture.folder.join("image");
    fs::write(&path, content).expect("the folder can be written");
    path
}

#[test]
fn nbdinfo_lists_every_export_with_its_size() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    fixture.add_volume("second", 5 * MIB + 512, "read_only = true");
    let _daemon = fixture.start();
    let list = tool("nbdinfo").args("--list --json").arg(fixture.uri("")).ok();
    for text in ["\"export-name\": \"v\"", "\"export-name\": \"second\"", "\"export-size\": 5243392"] {
        assert!(list.contains(text), "{text} is missing in {list}");
    }
    let export_info = tool("nbdinfo").arg("--json").arg(fixture.uri("v")).ok();
    for text in ["\"export-size\": 16777216", "\"can_multi_conn\": true", "\"can_flush\": true", "\"can_fua\": true"] {
        assert!(export_info.contains(text), "{text} is missing in {export_info}");
    }
    assert!(
        export_info.contains("\"base:allocation\"") && export_info.contains("\"block_size_preferred\": 4096"),
        "{export_info}"
    );
    tool("nbdinfo").arg("--is").arg("read-only").arg(fixture.uri("second")).ok();
    assert!(tool("nbdinfo").arg(fixture.uri("missing")).fails().contains("missing"));
}

#[test]
fn nbdcopy_round_trip_keeps_an_image() {
    let fixture = Fixture::with_volume(24 * MIB);
    let daemon = fixture.start();
    let image = image(&fixture, 24 * MIB);
    let back = fixture.folder.join("back");
    tool("nbdcopy").args("--flush --connections=4").arg(&image).arg(fixture.uri("v")).ok();
    tool("nbdcopy").arg(fixture.uri("v")).arg(&back).ok();
    tool("cmp").arg(&image).arg(&back).ok();
    daemon.stop();
    tool("cmp").arg(&image).arg(fixture.backing("v")).ok();
}

#[test]
fn nbdinfo_maps_written_ranges_as_data_and_the_rest_as_hole() {
    let fixture = Fixture::with_volume(16 * MIB);
    let _daemon = fixture.start();
    tool("qemu-io").args("-f raw -c").arg("write -P 7 4M 64k").arg(fixture.uri("v")).ok();
    let map = tool("nbdinfo").arg("--map").arg(fixture.uri("v")).ok();
    let extents: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let data: u64 = extents
        .iter()
        .filter(|extent| extent[2] == "0")
        .map(|extent| extent[1].parse::<u64>().expect("a length"))
        .sum();
    let total: u64 = extents.iter().map(|extent| extent[1].parse::<u64>().expect("a length")).sum();
    assert_eq!(total, 16 * MIB, "{map}");
    assert!((65536..4 * MIB).contains(&data), "{map}");
    let covers = extents.iter().any(|extent| {
        let (start, len): (u64, u64) = (extent[0].parse().expect("an offset"), extent[1].parse().expect("a length"));
        extent[2] == "0" && start <= 4 * MIB && start + len >= 4 * MIB + 65536
    });
    assert!(covers, "{map}");
}

#[test]
fn qemu_io_reads_back_written_zeroed_and_discarded_patterns() {
    let fixture = Fixture::with_volume(16 * MIB);
    let daemon = fixture.start();
    let script = [
        "write -P 0x5a 0 1M",
        "write -P 0xa5 1000k 100k",
        "write -f -P 0x11 512 512",
        "aio_write -P 0x77 4M 1M",
        "aio_write -P 0x78 5M 1M",
        "aio_flush",
        "read -P 0x77 4M 1M",
        "read -P 0x78 5M 1M",
        "read -P 0x5a 0 512",
        "read -P 0x11 512 512",
        "read -P 0x5a 1k 900k",
        "read -P 0xa5 1000k 100k",
        "write -z 64k 64k",
        "read -P 0 64k 64k",
        "read -P 0x5a 128k 64k",
        "write -z -u 4M 512",
        "read -P 0 4M 512",
        "read -P 0x77 4194816 512",
        "discard 5M 1M",
        "flush",
    ];
    let with_script = script.iter().fold(tool("qemu-io").args("-f raw"), |io, line| io.arg("-c").arg(line));
    let out = with_script.arg(fixture.uri("v")).ok();
    assert!(!out.contains("verification failed"), "{out}");
    daemon.stop();
}

#[test]
fn qemu_img_converts_and_compares() {
    let fixture = Fixture::with_volume(16 * MIB);
    let daemon = fixture.start();
    let image = image(&fixture, 16 * MIB);
    let back = fixture.folder.join("back.qcow2");
    tool("qemu-img").args("convert -n -f raw -O raw -m 8 -W").arg(&image).arg(fixture.uri("v")).ok();
    tool("qemu-img").args("compare -f raw -F raw").arg(&image).arg(fixture.uri("v")).ok();
    tool("qemu-img").args("convert -f raw -O qcow2").arg(fixture.uri("v")).arg(&back).ok();
    tool("qemu-img").args("compare -f raw -F qcow2").arg(&image).arg(&back).ok();
    tool("qemu-io").args("-f raw -c").arg("write -P 9 5M 512").arg(fixture.uri("v")).ok();
    let differs = tool("qemu-img").args("compare -f raw -F raw").arg(&image).arg(fixture.uri("v")).fails();
    assert!(differs.contains("mismatch"), "{differs}");
    daemon.stop();
}
