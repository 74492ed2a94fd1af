//! Random bytes: decoders do not panic, use only the given bytes, and give the same result for partial input; decoded
//! values survive encoding. `fuzz/targets/iscsi.rs` tests the same with coverage guidance.

use iscsi_protocol::login::{Credentials, Login, Next, Rules};
use iscsi_protocol::{Framing, HEADER_BYTES, Header, Request, RequestBody, Response, Step, text};

/// Pseudo-random bytes, often small, because small values make plausible lengths and flags.
fn pseudo_random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = seed;
    let next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let byte = (random >> 56) as u8;
        if random >> 32 & 1 == 0 { byte & 7 } else { byte }
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn framing(seed: u64) -> Framing {
    Framing { header_digest: seed & 1 != 0, data_digest: seed & 2 != 0, data_bytes_max: 4096 }
}

#[test]
fn framing_of_random_bytes_is_safe() {
    let mut decoded = 0;
    for seed in 0..20_000 {
        let (framing, mut bytes) = (framing(seed), pseudo_random_bytes(seed, 256));
        if seed % 4 > 0 {
            // A valid PDU before the random bytes.
            let mut valid_pdu = Vec::new();
            framing.push(
                &mut valid_pdu,
                [bytes[0]; HEADER_BYTES].map(|byte| byte & 0x3f),
                &bytes[..usize::from(bytes[1])],
            );
            valid_pdu[4] &= if framing.header_digest { 0xff } else { 0 };
            valid_pdu.extend_from_slice(&bytes);
            bytes = valid_pdu;
        }
        match framing.decode(&bytes) {
            Ok(Step::Got(frame, used)) => {
                decoded += 1;
                assert!(used <= bytes.len() && frame.data.len() <= 4096);
                for len in (0..used).step_by(7) {
                    assert!(matches!(framing.decode(&bytes[..len]), Ok(Step::Incomplete(wanted)) if wanted > len));
                }
            }
            Ok(Step::Incomplete(wanted)) => assert!(wanted > bytes.len() && wanted <= framing.pdu_bytes_max()),
            Err(_) => (),
        }
    }
    assert!(decoded > 3000, "{decoded} of 20000 were PDUs");
}

#[test]
fn decoded_headers_round_trip() {
    let mut decoded = 0;
    for seed in 0..50_000 {
        let random_bytes = pseudo_random_bytes(seed, HEADER_BYTES + 24);
        let header: Header = random_bytes[..HEADER_BYTES].try_into().expect("48 bytes");
        let ahs = &random_bytes[HEADER_BYTES..][..(seed as usize % 7) * 4];
        if let Ok(request) = Request::decode(&header, ahs) {
            decoded += 1;
            let ahs = match &request.body {
                RequestBody::Command(command) => command.encode_ahs(),
                _ => Vec::new(),
            };
            assert_eq!(Request::decode(&request.encode(), &ahs), Ok(request));
        }
        if let Some(response) = Response::decode(&header) {
            assert_eq!(Response::decode(&response.encode()), Some(response));
        }
    }
    assert!(decoded > 5000, "{decoded} of 50000 were requests");
}

#[test]
fn random_text_never_logs_in_without_the_secret() {
    const WORDS: &[&str] = &[
        "InitiatorName=iqn.a",
        "TargetName=iqn.t",
        "SessionType=Normal",
        "AuthMethod=CHAP",
        "AuthMethod=CHAP,None",
        "AuthMethod=None",
        "CHAP_A=5",
        "CHAP_A=7,5",
        "CHAP_N=user",
        "CHAP_R=0x00",
        "CHAP_I=1",
        "CHAP_C=0x01",
        "HeaderDigest=CRC32C",
        "InitialR2T=No",
        "MaxBurstLength=0x200",
        "X-y=z",
        "MaxRecvDataSegmentLength=512",
    ];
    let credentials = Credentials { user: "user".into(), secret: b"fourteen bytes".to_vec(), mutual: None };
    let credentials_of = |_: &str| vec![&credentials];
    let rules = Rules { target: "iqn.t", portal_group: 1, admits: &|_| true, credentials: Some(&credentials_of) };
    let mut answered = 0;
    for seed in 0..20_000 {
        let (mut login, random_bytes, mut random) = (Login::default(), pseudo_random_bytes(seed, 400), seed);
        for step in random_bytes.chunks(40) {
            let mut input = Vec::new();
            if seed % 3 == 0 {
                input.extend_from_slice(&step[8..]);
            } else {
                for word in &step[8..8 + usize::from(step[7] % 6)] {
                    input.extend_from_slice(WORDS[usize::from(*word) % WORDS.len()].as_bytes());
                    input.push(0);
                }
            }
            let request = iscsi_protocol::request::LoginRequest {
                transit: step[0] & 1 != 0,
                continues: step[0] & 6 == 6,
                stage: step[1] & 1,
                next_stage: step[2] & 3,
                version_max: 0,
                version_min: 0,
                isid: [0; 6],
                tsih: 0,
                connection: 0,
            };
            let reply = login.step(&rules, &request, &input, &mut || {
                random = random.wrapping_add(1);
                random
            });
            assert!(text::parse_pairs(&reply.text).is_ok() && reply.text.len() <= 8192);
            match reply.next {
                Next::Continue => answered += 1,
                Next::Refused(_) => break,
                Next::Done(negotiated) => panic!("seed {seed} logged in: {negotiated:?}"),
            }
        }
    }
    assert!(answered > 2000, "{answered} steps were answered");
}

#[test]
fn random_text_parses_to_pairs_or_an_error() {
    for seed in 0..20_000 {
        let random_bytes = pseudo_random_bytes(seed, seed as usize % 64);
        if let Ok(pairs) = text::parse_pairs(&random_bytes) {
            let mut encoded = Vec::new();
            pairs.iter().for_each(|pair| text::push(&mut encoded, pair.key, pair.value));
            assert_eq!(text::parse_pairs(&encoded), Ok(pairs));
        }
        let formatted = text::format_hex(&[&[1], &random_bytes[..]].concat());
        assert_eq!(text::parse_binary(&formatted, 65), Some([&[1], &random_bytes[..]].concat()));
        if let Ok(value) = std::str::from_utf8(&random_bytes) {
            let _ = (
                text::parse_binary(value, 16),
                text::parse_binary(&format!("0b{value}"), 16),
                text::parse_number(value),
            );
        }
    }
}
