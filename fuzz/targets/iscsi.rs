//! The iSCSI wire format and its log-in, on any bytes: no panic, no more used than there is, the same answer when the bytes come
//! one by one, and nobody gets in without the secret.

#![no_main]

use iscsi_protocol::login::{Credentials, Login, Next, Rules};
use iscsi_protocol::{Framing, Request, RequestBody, Response, Step, text};
use libfuzzer_sys::fuzz_target;

fn pdus(framing: Framing, mut bytes: &[u8]) {
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
                    assert!(matches!(framing.decode(&bytes[..len]), Ok(Step::More(wanted)) if wanted > len));
                }
                bytes = &bytes[used..];
            }
            Ok(Step::More(wanted)) => return assert!(wanted > bytes.len() && wanted <= framing.pdu_bytes_max()),
            Err(_) => return,
        }
    }
}

fn log_in(mut bytes: &[u8]) {
    let mutual = Some(("target".into(), b"another secret".to_vec()));
    let credentials = Credentials { user: "user".into(), secret: b"fourteen bytes".to_vec(), mutual };
    let rules = Rules { target: "iqn.t", portal_group: 1, admits: &|_| true, credentials: Some(&credentials) };
    let (mut login, mut drawn) = (Login::default(), 0);
    let framing = Framing::default();
    while let Ok(Step::Got(frame, used)) = framing.decode(bytes) {
        let Ok(Request { body: RequestBody::Login(request), .. }) = Request::decode(frame.header, frame.ahs) else {
            return;
        };
        let answer = login.step(&rules, &request, frame.data, &mut || {
            drawn += 1;
            drawn
        });
        assert!(text::pairs(&answer.text).is_ok() && answer.text.len() <= 8192);
        match answer.next {
            Next::Continue => bytes = &bytes[used..],
            Next::Refused(_) => return,
            Next::Done(agreed) => {
                assert!(agreed.authenticated || agreed.session == iscsi_protocol::login::SessionType::Discovery);
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
            pdus(Framing { header_digest, data_digest, data_bytes_max: 2048 }, bytes);
        }
        4..7 => log_in(bytes),
        _ => {
            if let Ok(pairs) = text::pairs(bytes) {
                pairs.iter().for_each(|pair| drop((text::binary(pair.value, 1024), text::number(pair.value))));
            }
        }
    }
});
