//! Every decoder of the NBD wire format, in both directions, on arbitrary bytes. Checks: no panic, no more bytes used
//! than available, the same result when bytes arrive one by one, and an equal value after encoding and decoding again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::meta::{MetaRequest, decode_context};
use nbd_protocol::option::push_option;
use nbd_protocol::{Decoded, OptionHeader, OptionReplyHeader, ReplyHeader, Request, Step, greeting, reply};

/// Decodes `bytes` from start to end.
fn check_all<T: PartialEq + std::fmt::Debug>(
    mut bytes: &[u8],
    decode: impl Fn(&[u8]) -> Decoded<T>,
    check: impl Fn(&T, &[u8]),
) {
    loop {
        match decode(bytes) {
            Ok(Step::Got(value, used)) => {
                assert!(used > 0 && used <= bytes.len(), "{used} of {} bytes", bytes.len());
                for len in 0..used {
                    assert!(matches!(decode(&bytes[..len]), Ok(Step::Incomplete(wanted)) if wanted > len));
                }
                check(&value, &bytes[..used]);
                bytes = &bytes[used..];
            }
            Ok(Step::Incomplete(wanted)) => return assert!(wanted > bytes.len()),
            Err(_) => return,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 12 {
        0 => check_all(bytes, Request::decode, |request, raw| assert_eq!(request.encode(), raw)),
        1 => check_all(bytes, OptionHeader::decode, |header, raw| {
            let mut out = Vec::new();
            push_option(&mut out, header.kind, &[]);
            assert_eq!(out[..12], raw[..12]);
        }),
        2 => check_all(bytes, OptionReplyHeader::decode, |_, _| ()),
        3 => check_all(bytes, ReplyHeader::decode, |_, _| ()),
        4 => check_all(bytes, greeting::decode_greeting, |flags, _| drop(greeting::client_flags(*flags))),
        5 => check_all(bytes, greeting::decode_client_flags, |_, _| ()),
        6 => {
            if let Ok(request) = InfoRequest::parse(bytes) {
                assert_eq!(InfoRequest::parse(&request.encode()), Ok(request));
            }
        }
        7 => {
            if let Ok(info) = Info::parse(bytes) {
                assert_eq!(Info::parse(&info.encode()), Ok(info));
            }
        }
        8 => drop(MetaRequest::decode(bytes)),
        9 => drop(decode_context(bytes)),
        10 => drop(reply::parse_error(bytes)),
        _ => {
            if let Ok((_, extents)) = reply::parse_status(bytes) {
                assert!(!extents.is_empty() && extents.iter().all(|(len, _)| *len > 0));
            }
            drop((reply::parse_hole(bytes), reply::parse_data_offset(bytes)));
        }
    }
});
