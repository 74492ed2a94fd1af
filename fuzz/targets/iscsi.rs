//! The iSCSI wire format and the login phase, on arbitrary and on nearly valid bytes. Checks: no panic, no more bytes
//! used than available, the same result when bytes arrive one by one, detection of damage by digests, and no login
//! without the secret.

#![no_main]

use iscsi_protocol::login::chap::Algorithm;
use iscsi_protocol::login::{Credentials, Login, Next, Rules, SessionType};
use iscsi_protocol::request::LoginRequest;
use iscsi_protocol::{Framing, HEADER_BYTES, Request, RequestBody, Response, Step, text};
use libfuzzer_sys::fuzz_target;

const SECRET: &[u8] = b"fourteen bytes";
/// Operation code of a SCSI command.
const SCSI_COMMAND: u8 = 0x01;

/// Known keys, and an unknown one.
const KEYS: [&str; 32] = [
    "InitiatorName",
    "TargetName",
    "SessionType",
    "InitiatorAlias",
    "AuthMethod",
    "CHAP_A",
    "CHAP_N",
    "CHAP_R",
    "CHAP_I",
    "CHAP_C",
    "HeaderDigest",
    "DataDigest",
    "MaxRecvDataSegmentLength",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxConnections",
    "ErrorRecoveryLevel",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "TaskReporting",
    "iSCSIProtocolLevel",
    "OFMarker",
    "IFMarkInt",
    "TargetAlias",
    "TargetPortalGroupTag",
    "SendTargets",
    "X-com.example.key",
];

/// Valid values of these keys.
const VALUES: [&str; 24] = [
    "iqn.a",
    "iqn.t",
    "Normal",
    "Discovery",
    "CHAP",
    "None",
    "CHAP,None",
    "5",
    "7,5",
    "user",
    "0xff",
    "0bSGVsbG8=",
    "CRC32C,None",
    "Yes",
    "No",
    "0",
    "512",
    "16777215",
    "0x40000",
    "NotUnderstood",
    "Irrelevant",
    "Reject",
    "RFC3720",
    "",
];

/// Takes up to `len` bytes from the front of the input.
fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

fn decode_pdus(framing: Framing, mut bytes: &[u8]) {
    loop {
        match framing.decode(bytes) {
            Ok(Step::Got(frame, used)) => {
                assert!(used <= bytes.len() && frame.data.len() <= framing.data_bytes_max as usize);
                if let Ok(request) = Request::decode(frame.header, frame.ahs) {
                    let ahs = match &request.body {
                        RequestBody::Command(command) => command.encode_ahs(),
                        _ => Vec::new(),
                    };
                    assert_eq!(Request::decode(&request.encode(), &ahs), Ok(request));
                }
                if let Some(response) = Response::decode(frame.header) {
                    assert_eq!(Response::decode(&response.encode()), Some(response));
                }
                for len in (0..used).step_by(13) {
                    assert!(matches!(framing.decode(&bytes[..len]), Ok(Step::Incomplete(wanted)) if wanted > len));
                }
                bytes = &bytes[used..];
            }
            Ok(Step::Incomplete(wanted)) => return assert!(wanted > bytes.len() && wanted <= framing.pdu_bytes_max()),
            Err(_) => return,
        }
    }
}

/// Checks that data sent with digests is decoded, and that damaged data is rejected.
fn check_digests(mut bytes: &[u8]) {
    let position_bytes = take(&mut bytes, 2).to_vec();
    let plain = Framing { data_bytes_max: 2048, ..Framing::default() };
    let Ok(Step::Got(frame, _)) = plain.decode(bytes) else { return };
    for (header_digest, data_digest) in [(true, false), (false, true), (true, true)] {
        let (framing, mut wire) = (Framing { header_digest, data_digest, ..plain }, Vec::new());
        framing.push_with_ahs(&mut wire, *frame.header, frame.ahs, frame.data);
        let Ok(Step::Got(arrived, used)) = framing.decode(&wire) else {
            panic!("{framing:?} does not decode its own PDU")
        };
        assert!(used == wire.len() && arrived == frame);
        let bit = usize::from(u16::from_be_bytes([position_bytes[0], position_bytes[1]])) % (8 * wire.len());
        wire[bit / 8] ^= 1 << (bit % 8);
        let is_in_header = bit / 8 < HEADER_BYTES + frame.ahs.len() + 4;
        if if is_in_header { header_digest } else { data_digest } {
            assert!(
                !matches!(framing.decode(&wire), Ok(Step::Got(..))),
                "the digest did not detect the flipped bit {bit}"
            );
        }
    }
}

/// The CHAP response to the challenge in a login response.
fn chap_response(reply: &[u8]) -> Option<String> {
    let pairs = text::parse_pairs(reply).ok()?;
    let find = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
    let (identifier, challenge) = (text::parse_number(find("CHAP_I")?)?, text::parse_binary(find("CHAP_C")?, 1024)?);
    Some(text::format_hex(&Algorithm::from_wire(find("CHAP_A")?)?.response(identifier as u8, SECRET, &challenge)))
}

/// Key-value pairs, two bytes of input each: a known key with a known value, or with raw bytes of the input.
fn negotiation_text(input: &mut &[u8], last_answer: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let count = input.split_off_first().map_or(0, |count| count % 16);
    for _ in 0..count {
        let [key, value] = *take(input, 2) else { break };
        let key = KEYS[usize::from(key) % KEYS.len()];
        match VALUES.get(usize::from(value) & 0x7f) {
            _ if key == "CHAP_R" && value < 0x80 => {
                text::push(&mut out, key, &chap_response(last_answer).unwrap_or_default())
            }
            Some(value) => text::push(&mut out, key, value),
            None => {
                out.extend([key.as_bytes(), b"=", take(input, usize::from(value & 0x1f)), b"\0"].concat());
            }
        }
    }
    out
}

/// The text of an initiator that authenticates itself, per request.
fn chap_text(step: usize, last_answer: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match step {
        0 => text::push(&mut out, "AuthMethod", "CHAP"),
        1 => text::push(&mut out, "CHAP_A", "7"),
        2 => {
            text::push(&mut out, "CHAP_N", "user");
            text::push(&mut out, "CHAP_R", &chap_response(last_answer).unwrap_or_default());
        }
        _ => (),
    }
    out
}

/// A login phase: nearly valid headers and texts, or PDUs from the input.
fn log_in(mode: u8, mut input: &[u8]) {
    let mutual = Some(("target".into(), b"another secret".to_vec()));
    let credentials = Credentials { user: "user".into(), secret: SECRET.to_vec(), mutual };
    let credentials_of = |_: &str| vec![&credentials];
    let credentials = (mode & 1 == 0).then_some(&credentials_of as &dyn Fn(&str) -> Vec<_>);
    let rules = Rules { target: "iqn.t", portal_group: 1, admits: &|_| true, credentials };
    let (mut login, mut drawn, mut last_answer, framing) = (Login::default(), 0, Vec::new(), Framing::default());
    for step in 0.. {
        let (request, data) = if mode & 4 == 0 {
            let Some(flags) = input.split_off_first() else { return };
            let mut data = Vec::new();
            if mode & 2 == 0 && step == 0 {
                data.extend(b"InitiatorName=iqn.a\0TargetName=iqn.t\0");
            }
            if mode & 8 == 0 {
                data.extend(chap_text(step, &last_answer));
            }
            data.extend(negotiation_text(&mut input, &last_answer));
            let (transit, continues) = (flags & 0x80 != 0, flags & 0x40 != 0);
            let (stage, next_stage) = (flags >> 2 & 3, flags & 3);
            let (version_max, version_min) = (0, flags >> 4 & flags >> 5 & 1);
            let request = LoginRequest {
                transit,
                continues,
                stage,
                next_stage,
                version_max,
                version_min,
                isid: [0x80; 6],
                tsih: 0,
                connection: 0,
            };
            (request, data)
        } else {
            let Ok(Step::Got(frame, used)) = framing.decode(input) else { return };
            let Ok(Request { body: RequestBody::Login(request), .. }) = Request::decode(frame.header, frame.ahs) else {
                return;
            };
            take(&mut input, used);
            (request, frame.data.to_vec())
        };
        let reply = login.step(&rules, &request, &data, &mut || {
            drawn += 1;
            drawn
        });
        assert!(text::parse_pairs(&reply.text).is_ok() && reply.text.len() <= 8192);
        last_answer = reply.text;
        match reply.next {
            Next::Continue => (),
            Next::Refused(_) => return,
            Next::Done(negotiated) => {
                let is_authenticated = negotiated.authenticated || credentials.is_none();
                assert!(is_authenticated || negotiated.session == SessionType::Discovery);
                let parameters = negotiated.parameters;
                assert!(parameters.first_burst_bytes <= parameters.max_burst_bytes && parameters.send_bytes_max >= 512);
                return;
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 8 {
        mode @ 0..4 => {
            let (header_digest, data_digest) = (mode & 1 != 0, mode & 2 != 0);
            decode_pdus(Framing { header_digest, data_digest, data_bytes_max: 2048 }, bytes);
        }
        4 => check_digests(bytes),
        5 | 6 => log_in(kind >> 3, bytes),
        7 if kind & 8 == 0 => {
            // A command with the input as its additional header segments.
            let mut header = [0; HEADER_BYTES];
            header[0] = SCSI_COMMAND;
            if let Ok(Request { body: RequestBody::Command(command), .. }) = Request::decode(&header, bytes) {
                let again = Request::decode(&header, &command.encode_ahs()).map(|request| request.body);
                assert_eq!(again, Ok(RequestBody::Command(command)));
            }
        }
        _ => {
            if let Ok(pairs) = text::parse_pairs(bytes) {
                pairs
                    .iter()
                    .for_each(|pair| drop((text::parse_binary(pair.value, 1024), text::parse_number(pair.value))));
            }
        }
    }
});
