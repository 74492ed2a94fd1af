//! Login of initiators.

use std::rc::Rc;

use iscsi_protocol::login::chap::Algorithm;
use iscsi_protocol::login::{FULL_FEATURE_PHASE, OPERATIONAL_STAGE, SECURITY_STAGE};
use iscsi_protocol::request::LoginRequest;
use iscsi_protocol::{Framing, Request, RequestBody, ResponseBody, text};
use seam::sim::SimSeam;
use seam::{Address, BufferedReader, ByteStream, Seam};

use super::{Session, receive, send};

/// Name of the target.
pub const TARGET: &str = "iqn.2026-11.io.hotset:fuzzed";
/// User name for authentication.
pub const USER: &str = "user";
/// Secret for authentication.
pub const SECRET: &[u8] = b"fourteen bytes";

/// Login and session properties of an initiator.
#[derive(Clone)]
pub struct LoginOptions {
    pub portal: Address,
    pub name: &'static str,
    pub isid: [u8; 6],
    /// Use of the header digest and of the data digest.
    pub digests: (bool, bool),
    /// Authenticates with CHAP.
    pub uses_chap: bool,
    /// Requested parameters, except digests.
    pub parameters: &'static str,
}

/// Builds the header of a login request.
pub fn build_login_request(isid: [u8; 6], tsih: u16, (stage, next_stage): (u8, u8), transit: bool) -> LoginRequest {
    LoginRequest {
        transit,
        continues: false,
        stage,
        next_stage,
        version_max: 0,
        version_min: 0,
        isid,
        tsih,
        connection: 0,
    }
}

/// Builds the bytes of a login request.
pub fn build_login_pdu(request: LoginRequest, text: &[u8]) -> Vec<u8> {
    let request =
        Request { immediate: true, task_tag: 0, cmd_sn: 1, exp_stat_sn: 0, body: RequestBody::Login(request) };
    let mut bytes = Vec::new();
    Framing::default().push(&mut bytes, request.encode(), text);
    bytes
}

/// Builds the key=value text of the login request number `step`.
fn build_login_text(login: &LoginOptions, step: usize, reply: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let reply_pairs = text::parse_pairs(reply).expect("the login response consists of pairs");
    let value = |key: &str| reply_pairs.iter().find(|pair| pair.key == key).map_or("", |pair| pair.value);
    if step == 0 {
        text::push(&mut out, "InitiatorName", login.name);
        text::push(&mut out, "TargetName", TARGET);
    }
    match step {
        0 if login.uses_chap => text::push(&mut out, "AuthMethod", "CHAP"),
        1 => text::push(&mut out, "CHAP_A", "5,7"),
        2 => {
            let algorithm = Algorithm::from_wire(value("CHAP_A")).expect("the target selected an offered algorithm");
            let identifier = value("CHAP_I").parse().expect("CHAP_I is a byte");
            let challenge = text::parse_binary(value("CHAP_C"), 1024).expect("CHAP_C is a challenge");
            text::push(&mut out, "CHAP_N", USER);
            text::push(&mut out, "CHAP_R", &text::format_hex(&algorithm.response(identifier, SECRET, &challenge)));
        }
        _ => (),
    }
    if step == last_step(login) {
        let digest = |on| if on { "CRC32C" } else { "None" };
        text::push(&mut out, "HeaderDigest", digest(login.digests.0));
        text::push(&mut out, "DataDigest", digest(login.digests.1));
        out.extend(login.parameters.as_bytes());
    }
    out
}

fn last_step(login: &LoginOptions) -> usize {
    if login.uses_chap { 2 } else { 0 }
}

impl Session {
    /// Logs in; `None` if the login is refused or the server closes the connection.
    pub async fn log_in(seam: &SimSeam, login: &LoginOptions) -> Option<Rc<Session>> {
        let (reader, mut writer) = seam.connect(&login.portal).await.expect("the server listens").split();
        let mut incoming = BufferedReader::new(reader, 1 << 20);
        let (mut reply, mut last) = (Vec::new(), None);
        for step in 0..=last_step(login) {
            let stage = if login.uses_chap { SECURITY_STAGE } else { OPERATIONAL_STAGE };
            let is_last = step == last_step(login);
            let next_stage = if is_last { FULL_FEATURE_PHASE } else { SECURITY_STAGE };
            let request = build_login_request(login.isid, 0, (stage, next_stage), is_last);
            send(&mut writer, &build_login_pdu(request, &build_login_text(login, step, &reply))).await;
            let (response, data) = receive(&mut incoming, &Framing::default()).await?;
            let ResponseBody::Login(login_response) = &response.body else {
                panic!("expected a login response: {response:?}")
            };
            if login_response.status != (0, 0) {
                return None;
            }
            assert_eq!(login_response.transit, is_last);
            (reply, last) = (data, Some(response));
        }
        let session = Session::new(login, &reply, &last?);
        let (reading, writing) = (Rc::clone(&session), Rc::clone(&session));
        seam.spawn(async move { reading.read_all(incoming).await });
        seam.spawn(async move { writing.write_all(writer).await });
        Some(session)
    }
}
