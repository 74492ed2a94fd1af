//! Helpers of the formats' tests, and tests across formats.

use std::io::{Cursor, Read};

use crate::{Compression, DISK_BYTES_MAX, Format, Op, Reader, Request, TraceError, open};

pub fn request(time_ns: Option<u64>, op: Op, at: u64, len: u64, device: u32) -> Request {
    Request { time_ns, op, at, len, device }
}

fn open_bytes(name: &str, bytes: &[u8], format: Option<Format>) -> Result<Reader, TraceError> {
    open(name, Box::new(Cursor::new(bytes.to_vec())), format)
}

/// Detected format and all requests of a valid trace.
pub fn read_detected(name: &str, bytes: &[u8]) -> (Format, Vec<Request>) {
    let reader = open_bytes(name, bytes, None).expect("the trace is valid");
    let format = reader.format();
    (format, reader.map(|request| request.expect("the record is valid")).collect())
}

/// The error message of a trace with `good` valid requests before the error.
pub fn error_of_named(name: &str, bytes: &[u8], good: usize) -> String {
    let mut reader = open_bytes(name, bytes, None).expect("the start is valid");
    let got: Vec<Request> = reader.by_ref().map_while(Result::ok).collect();
    assert_eq!(got.len(), good);
    assert!(reader.next().is_none(), "the reader ends after an error");
    let last = open_bytes(name, bytes, None).expect("the start is valid").last();
    last.expect("the trace fails").expect_err("the error comes last").to_string()
}

/// Like [`error_of_named`], but with a name without an extension.
pub fn error_of(bytes: &[u8], good: usize) -> String {
    error_of_named("a", bytes, good)
}

const LINES: &[u8] = b"3050771 25 0 0\n2461851 8 0 1\n";

fn compress(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let level = flate2::Compression::fast();
    match compression {
        Compression::Gzip => flate2::read::GzEncoder::new(bytes, level).read_to_end(&mut packed),
        Compression::Xz => liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut packed),
        Compression::Zstd => return zstd::encode_all(bytes, 1).expect("memory accepts writes"),
    }
    .expect("memory accepts writes");
    packed
}

#[test]
fn compressed_traces_are_read_like_plain_ones() {
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let once = compress(compression, LINES);
        let twice = [&once[..], &once].concat();
        let reader = open_bytes("a", &twice, None).expect("the trace is valid");
        assert_eq!(reader.description(), format!("ARC text (lis), {}", compression.name()));
        assert_eq!(reader.filter_map(Result::ok).count(), 4);
    }
}

#[test]
fn truncated_compressed_trace_yields_its_start_and_an_error() {
    let long: String = (0..100_000u64).map(|n| format!("{} {} 0 {n}\n", n * 7919 % 1_000_003, n % 64 + 1)).collect();
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let whole = compress(compression, long.as_bytes());
        let reader = open_bytes("a", &whole[..whole.len() / 2], None).expect("the start is valid");
        let requests: Vec<_> = reader.collect();
        assert!(requests.len() > 10_000 && requests.len() < 90_000, "{compression:?}: {}", requests.len());
        let message =
            requests.last().expect("there are requests").as_ref().expect_err("the file is truncated").to_string();
        assert!(message.starts_with("a, line ") && message.contains("cannot be read further"), "{message}");
        assert!(requests[..requests.len() - 1].iter().all(Result::is_ok));
    }
}

#[test]
fn files_other_than_traces_are_refused_with_a_remedy() {
    let message = |name: &str, bytes: &[u8]| open_bytes(name, bytes, None).err().expect("not a trace").to_string();
    let empty = "a: the file is empty; check that it is the right file and that the copy is complete";
    assert_eq!(message("a", b""), empty);
    assert!(message("a", b"Dear diary\n").contains("specify one with --format (vscsi, msr, spc, iolog,"));
    assert!(message("a.zst", b"\x28\xb5\x2f\xfd\xff\xff\xff\xff").contains("cannot be read further"));
    assert_eq!("ext4".parse::<Format>().expect_err("unknown format").to_string().lines().count(), 1);
    let reader = open_bytes("a.lis", b"Dear diary\n", None).expect("the name selects the format");
    assert!(reader.last().expect("the trace fails").is_err());
}

#[test]
fn format_names_and_extensions_are_unique() {
    for (name, format) in Format::ALL {
        assert_eq!((format.name(), name.parse::<Format>().ok()), (name, Some(format)));
        assert_eq!(Format::of_name(&format!("a.{name}.zst")), Some(format));
    }
    assert_eq!(Format::of_name("lis"), None);
}

/// Pseudo-random bytes, equal in every run.
fn random_bytes(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

#[test]
fn random_bytes_in_any_format_give_requests_or_an_error() {
    const TEXT: &[u8] = b"0123456789 ,.\nrRwWQDF+\t-8";
    for seed in 0..300 {
        let raw: Vec<u8> = random_bytes(seed).take(2_000).collect();
        let text: Vec<u8> = raw.iter().map(|byte| TEXT[usize::from(*byte) % TEXT.len()]).collect();
        for bytes in [&raw, &text] {
            for format in Format::ALL.map(|(_, format)| Some(format)).into_iter().chain([None]) {
                let Ok(reader) = open_bytes("a", bytes, format) else { continue };
                for request in reader.filter_map(Result::ok) {
                    assert!(request.at.checked_add(request.len).is_some_and(|end| end <= DISK_BYTES_MAX));
                }
            }
        }
    }
}
