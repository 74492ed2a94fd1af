//! What the formats' tests share: reading from memory, and no panic on any bytes.

use std::io::{Cursor, Read};

use crate::{Compression, DISK_BYTES_MAX, Format, Op, Reader, Request, TraceError, open};

pub fn request(time_ns: Option<u64>, op: Op, at: u64, len: u64, device: u32) -> Request {
    Request { time_ns, op, at, len, device }
}

fn opened(name: &str, bytes: &[u8], format: Option<Format>) -> Result<Reader, TraceError> {
    open(name, Box::new(Cursor::new(bytes.to_vec())), format)
}

/// What it is taken for, and all of it.
pub fn recognised(name: &str, bytes: &[u8]) -> (Format, Vec<Request>) {
    let reader = opened(name, bytes, None).expect("it is a trace");
    let format = reader.format();
    (format, reader.map(|request| request.expect("all of it is good")).collect())
}

/// The message that ends a trace of which so many requests are good.
pub fn failing_named(name: &str, bytes: &[u8], good: usize) -> String {
    let mut reader = opened(name, bytes, None).expect("its beginning is good");
    let got: Vec<Request> = reader.by_ref().map_while(Result::ok).collect();
    assert_eq!(got.len(), good);
    assert!(reader.next().is_none(), "after an error it ends");
    let last = opened(name, bytes, None).expect("as before").last();
    last.expect("it fails").expect_err("the error is the last").to_string()
}

/// The same, of a trace whose name says nothing.
pub fn failing(bytes: &[u8], good: usize) -> String {
    failing_named("a", bytes, good)
}

const LINES: &[u8] = b"3050771 25 0 0\n2461851 8 0 1\n";

fn packed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let level = flate2::Compression::fast();
    match compression {
        Compression::Gzip => flate2::read::GzEncoder::new(bytes, level).read_to_end(&mut packed),
        Compression::Xz => liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut packed),
        Compression::Zstd => return zstd::encode_all(bytes, 1).expect("memory takes it"),
    }
    .expect("memory takes it");
    packed
}

#[test]
fn packed_traces_are_read_as_if_they_were_not() {
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let once = packed(compression, LINES);
        let twice = [&once[..], &once].concat();
        let reader = opened("a", &twice, None).expect("it is a trace");
        assert_eq!(reader.description(), format!("ARC text (lis), {}", compression.name()));
        assert_eq!(reader.filter_map(Result::ok).count(), 4);
    }
}

#[test]
fn a_packed_trace_that_ends_early_keeps_what_came_before_and_says_so() {
    let long: String = (0..100_000u64).map(|n| format!("{} {} 0 {n}\n", n * 7919 % 1_000_003, n % 64 + 1)).collect();
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let whole = packed(compression, long.as_bytes());
        let reader = opened("a", &whole[..whole.len() / 2], None).expect("its beginning is good");
        let all: Vec<_> = reader.collect();
        assert!(all.len() > 10_000 && all.len() < 90_000, "{compression:?}: {}", all.len());
        let message = all.last().expect("there are some").as_ref().expect_err("it was cut").to_string();
        assert!(message.starts_with("a, line ") && message.contains("cannot be read on"), "{message}");
        assert!(all[..all.len() - 1].iter().all(Result::is_ok));
    }
}

#[test]
fn what_is_no_trace_is_refused_with_the_remedy() {
    let message = |name: &str, bytes: &[u8]| opened(name, bytes, None).err().expect("it is no trace").to_string();
    assert_eq!(message("a", b""), "a: holds nothing; is it the right file, and was it copied whole?");
    assert!(message("a", b"Dear diary\n").contains("name one with --format (vscsi, msr, spc, iolog,"));
    assert!(message("a.zst", b"\x28\xb5\x2f\xfd\xff\xff\xff\xff").contains("cannot be read on"));
    assert_eq!("ext4".parse::<Format>().expect_err("no format").to_string().lines().count(), 1);
    let reader = opened("a.lis", b"Dear diary\n", None).expect("its name says what it is");
    assert!(reader.last().expect("it fails").is_err());
}

#[test]
fn names_of_formats_are_their_own_and_endings_too() {
    for (name, format) in Format::ALL {
        assert_eq!((format.name(), name.parse::<Format>().ok()), (name, Some(format)));
        assert_eq!(Format::of_name(&format!("a.{name}.zst")), Some(format));
    }
    assert_eq!(Format::of_name("lis"), None);
}

/// A generator of bytes that is the same in every run.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

#[test]
fn any_bytes_in_any_format_are_requests_or_a_message() {
    const TEXT: &[u8] = b"0123456789 ,.\nrRwWQDF+\t-8";
    for seed in 0..300 {
        let raw: Vec<u8> = noise(seed).take(2_000).collect();
        let text: Vec<u8> = raw.iter().map(|byte| TEXT[usize::from(*byte) % TEXT.len()]).collect();
        for bytes in [&raw, &text] {
            for format in Format::ALL.map(|(_, format)| Some(format)).into_iter().chain([None]) {
                let Ok(reader) = opened("a", bytes, format) else { continue };
                for request in reader.filter_map(Result::ok) {
                    assert!(request.at.checked_add(request.len).is_some_and(|end| end <= DISK_BYTES_MAX));
                }
            }
        }
    }
}
