//! Reading the traces: which 64 KiB pages were touched, in order.

use std::path::{Path, PathBuf};

const PAGE_BYTES: u64 = 64 << 10;

/// All long traces by name, or `None` (and why) where they cannot be read.
pub fn all() -> Option<Vec<(&'static str, Vec<u32>)>> {
    let Some(folder) = std::env::var_os("HOTSET_TRACES").map(PathBuf::from) else {
        println!("not measured: HOTSET_TRACES does not say where the traces are");
        return None;
    };
    let names =
        ["cloudphysics-vm.vscsi", "cloudphysics-w106.u32le.xz", "arc-P2.lis.zst", "arc-P3.lis.zst", "arc-P6.lis.zst"];
    names.into_iter().map(|name| Some((name, read(&folder.join(name))?))).collect()
}

/// Different pages of a trace.
pub fn footprint(pages: &[u32]) -> u64 {
    let mut all = pages.to_vec();
    all.sort_unstable();
    all.dedup();
    all.len() as u64
}

#[expect(clippy::disallowed_methods, reason = "a test reads its input")]
fn read(path: &Path) -> Option<Vec<u32>> {
    let name = path.to_str().expect("a name in ASCII");
    let bytes = match name.rsplit('.').next() {
        Some("zst") => unpack("zstd", path)?,
        Some("xz") => unpack("xz", path)?,
        _ => std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}")),
    };
    Some(match () {
        () if name.ends_with(".vscsi") => vscsi(&bytes),
        () if name.contains(".u32le") => bytes.chunks_exact(4).map(|block| word(block) / 16).collect(),
        () => lis(&bytes),
    })
}

#[expect(clippy::disallowed_types, reason = "a test unpacks its input")]
fn unpack(program: &str, path: &Path) -> Option<Vec<u8>> {
    match std::process::Command::new(program).arg("-dc").arg(path).output() {
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) => panic!("{program} {}: {}", path.display(), String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("not measured: {program}: {error}");
            None
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn touch(pages: &mut Vec<u32>, at: u64, len: u64) {
    let last = (at + len.max(1) - 1) / PAGE_BYTES;
    pages.extend((at / PAGE_BYTES..=last).map(|page| page as u32));
}

/// Records of 32 bytes: serial, length in bytes, scatter-gather count, opcode and version, first sector (64 bits), time.
fn vscsi(bytes: &[u8]) -> Vec<u32> {
    let mut pages = Vec::new();
    for record in bytes.chunks_exact(32) {
        let sector = u64::from(word(&record[16..])) | u64::from(word(&record[20..])) << 32;
        touch(&mut pages, sector * 512, u64::from(word(&record[4..])));
    }
    pages
}

/// Lines of `first-block count ...`, in blocks of 512 bytes.
fn lis(bytes: &[u8]) -> Vec<u32> {
    let mut pages = Vec::new();
    for line in std::str::from_utf8(bytes).expect("a trace in ASCII").lines() {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        if let (Some(first), Some(count)) = (numbers.next(), numbers.next()) {
            touch(&mut pages, first * 512, count * 512);
        }
    }
    pages
}
