//! Logins, valid and invalid.

use super::chap::Algorithm;
use super::*;

const TARGET: &str = "iqn.2026-11.io.hotset:lab";
const NAMES: &str = "InitiatorName=iqn.1998-01.com.vmware:ESX\0TargetName=iqn.2026-11.io.hotset:lab\0";

fn request(transit: bool, stage: u8, next_stage: u8) -> LoginRequest {
    let (continues, version_max, version_min, tsih) = (false, 0, 0, 0);
    LoginRequest {
        transit,
        continues,
        stage,
        next_stage,
        version_max,
        version_min,
        isid: [0x40, 0, 0, 0, 0, 1],
        tsih,
        connection: 1,
    }
}

struct LoginFixture {
    login: Login,
    credentials: Vec<Credentials>,
    admits: bool,
    random_values: u64,
}

impl LoginFixture {
    fn open() -> LoginFixture {
        LoginFixture { login: Login::default(), credentials: Vec::new(), admits: true, random_values: 0 }
    }

    fn chap(mutual: bool) -> LoginFixture {
        let mutual = mutual.then(|| ("target".to_owned(), b"targets secret".to_vec()));
        let credentials = Credentials { user: "esx".to_owned(), secret: b"initiators one".to_vec(), mutual };
        LoginFixture { credentials: vec![credentials], ..LoginFixture::open() }
    }

    fn send(&mut self, request: LoginRequest, text: &str) -> LoginReply {
        let admits = |_: &str| self.admits;
        // With several credentials, each applies to initiators whose name ends in its user.
        let credentials_of = |name: &str| {
            let applies = |credentials: &&Credentials| self.credentials.len() == 1 || name.ends_with(&credentials.user);
            self.credentials.iter().filter(applies).collect()
        };
        let credentials = (!self.credentials.is_empty()).then_some(&credentials_of as &dyn Fn(&str) -> Vec<_>);
        let rules = Rules { target: TARGET, portal_group: 1, admits: &admits, credentials };
        let random_values = &mut self.random_values;
        self.login.step(&rules, &request, text.as_bytes(), &mut || {
            *random_values += 1;
            *random_values
        })
    }

    /// Logs in without the security stage; returns the reply and the negotiated values.
    fn parameters(text: &str) -> (String, Parameters) {
        let reply =
            LoginFixture::open().send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), &format!("{NAMES}{text}"));
        let Next::Done(negotiated) = reply.next else { panic!("{:?}", reply.next) };
        (String::from_utf8(reply.text).expect("UTF-8"), negotiated.parameters)
    }
}

fn value<'a>(reply: &'a LoginReply, key: &str) -> &'a str {
    let pairs = text::parse_pairs(&reply.text).expect("valid pairs");
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value).expect("the key exists")
}

fn refused(reply: &LoginReply) -> Option<Refusal> {
    match reply.next {
        Next::Refused(refusal) => {
            assert_eq!(reply.response.status, refusal.status());
            Some(refusal)
        }
        _ => None,
    }
}

#[test]
fn login_without_keys_gets_defaults() {
    let (text, parameters) = LoginFixture::parameters("");
    assert_eq!(text, "TargetPortalGroupTag=1\0MaxRecvDataSegmentLength=262144\0");
    assert_eq!((parameters.initial_r2t, parameters.immediate_data), (true, true));
    assert_eq!((parameters.max_burst_bytes, parameters.first_burst_bytes), (262_144, 65_536));
    assert_eq!((parameters.send_bytes_max, parameters.outstanding_r2t_max), (8192, 1));
}

#[test]
fn offers_are_accepted_up_to_the_target_limits() {
    let (text, parameters) = LoginFixture::parameters(
        "MaxOutstandingR2T=64\0FirstBurstLength=16777215\0MaxBurstLength=16777215\0InitialR2T=No\0ImmediateData=Yes\0\
         MaxRecvDataSegmentLength=1048576\0HeaderDigest=CRC32C,None\0DataDigest=SHA9,CRC32C\0MaxConnections=8\0\
         DefaultTime2Wait=2\0DefaultTime2Retain=20\0ErrorRecoveryLevel=2\0DataPDUInOrder=No\0DataSequenceInOrder=No\0",
    );
    for expected in [
        "MaxOutstandingR2T=8\0",
        "FirstBurstLength=262144\0",
        "MaxBurstLength=16777215\0",
        "InitialR2T=No\0",
        "ImmediateData=Yes\0",
        "HeaderDigest=CRC32C\0",
        "DataDigest=CRC32C\0",
        "MaxConnections=1\0",
        "DefaultTime2Wait=2\0",
        "DefaultTime2Retain=0\0",
        "ErrorRecoveryLevel=0\0",
        "DataPDUInOrder=Yes\0",
        "DataSequenceInOrder=Yes\0",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert_eq!((parameters.header_digest, parameters.data_digest, parameters.initial_r2t), (true, true, false));
    assert_eq!((parameters.send_bytes_max, parameters.receive_bytes_max), (1 << 20, 256 << 10));
}

#[test]
fn keys_are_accepted_in_any_order_and_unknown_ones_are_rejected() {
    let (text, parameters) = LoginFixture::parameters(
        "X-com.example=1\0Unheard=2\0IFMarker=Yes\0OFMarkInt=2048~8192\0HeaderDigest=MD5\0MaxBurstLength=1\0\
         InitialR2T=perhaps\0MaxOutstandingR2T=0x4\0iSCSIProtocolLevel=2\0TaskReporting=FastAbort,RFC3720\0",
    );
    for expected in [
        "X-com.example=NotUnderstood\0",
        "Unheard=NotUnderstood\0",
        "IFMarker=No\0",
        "OFMarkInt=Irrelevant\0",
        "HeaderDigest=Reject\0",
        "MaxBurstLength=Reject\0",
        "InitialR2T=Reject\0",
        "MaxOutstandingR2T=4\0",
        "iSCSIProtocolLevel=1\0",
        "TaskReporting=RFC3720\0",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert_eq!((parameters.header_digest, parameters.max_burst_bytes), (false, 262_144), "the defaults hold");
}

#[test]
fn first_burst_is_never_longer_than_a_burst() {
    assert_eq!(LoginFixture::parameters("MaxBurstLength=1024\0").1.first_burst_bytes, 1024);
}

#[test]
fn repeated_key_ends_the_login() {
    let mut fixture = LoginFixture::open();
    assert_eq!(refused(&fixture.send(request(false, OPERATIONAL_STAGE, 0), &format!("{NAMES}InitialR2T=No\0"))), None);
    assert_eq!(
        refused(&fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), "InitialR2T=Yes\0")),
        Some(Refusal::InitiatorError)
    );
}

#[test]
fn discovery_needs_no_target_and_some_keys_are_irrelevant() {
    let text = "InitiatorName=iqn.a\0SessionType=Discovery\0InitialR2T=No\0MaxBurstLength=512\0HeaderDigest=None\0";
    let reply = LoginFixture::open().send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), text);
    assert_eq!((value(&reply, "InitialR2T"), value(&reply, "MaxBurstLength")), ("Irrelevant", "Irrelevant"));
    assert_eq!(value(&reply, "HeaderDigest"), "None");
    assert!(matches!(reply.next, Next::Done(negotiated) if negotiated.session == SessionType::Discovery));
}

#[test]
fn both_stages_follow_without_authentication() {
    let mut fixture = LoginFixture::open();
    let reply =
        fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert_eq!(
        (value(&reply, "AuthMethod"), reply.response.transit, reply.response.next_stage),
        ("None", true, OPERATIONAL_STAGE)
    );
    let reply = fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), "HeaderDigest=None\0");
    let Next::Done(negotiated) = reply.next else { panic!("{:?}", reply.next) };
    assert_eq!((negotiated.initiator.as_str(), negotiated.authenticated), ("iqn.1998-01.com.vmware:esx", false));
}

#[test]
fn continued_text_is_answered_when_complete() {
    let mut fixture = LoginFixture::open();
    let first = LoginRequest { transit: false, continues: true, ..request(false, OPERATIONAL_STAGE, 0) };
    let reply = fixture.send(first, &NAMES[..20]);
    assert_eq!((&reply.text[..], reply.next), (&b""[..], Next::Continue));
    assert!(matches!(
        fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), &NAMES[20..]).next,
        Next::Done(_)
    ));
}

#[test]
fn refusals_have_their_own_status() {
    let refusal =
        |text: &str| refused(&LoginFixture::open().send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), text));
    assert_eq!(refusal("InitiatorName=iqn.a\0TargetName=iqn.b\0"), Some(Refusal::NoSuchTarget));
    assert_eq!(refusal("InitiatorName=iqn.a\0"), Some(Refusal::MissingParameter));
    assert_eq!(refusal("TargetName=iqn.b\0"), Some(Refusal::MissingParameter));
    assert_eq!(refusal("InitiatorName=me\0TargetName=iqn.b\0"), Some(Refusal::InitiatorError));
    assert_eq!(refusal("InitiatorName=iqn.a\0SessionType=Odd\0"), Some(Refusal::SessionType));
    let mut denied = LoginFixture { admits: false, ..LoginFixture::open() };
    assert_eq!(
        refused(&denied.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), NAMES)),
        Some(Refusal::Authorization)
    );
    let newer = LoginRequest { version_min: 1, ..request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE) };
    assert_eq!(refused(&LoginFixture::open().send(newer, NAMES)), Some(Refusal::Version));
}

#[test]
fn invalid_stage_transitions_are_refused() {
    for (transit, stage, next_stage) in
        [(true, 1, 1), (true, 1, 0), (true, 0, 2), (true, 2, 3), (false, 3, 3), (true, 0, 0)]
    {
        let reply = LoginFixture::open().send(request(transit, stage, next_stage), NAMES);
        assert_eq!(refused(&reply), Some(Refusal::InitiatorError), "{stage} to {next_stage}");
    }
    let mut fixture = LoginFixture::open();
    assert_eq!(refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), NAMES)), None);
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), "")),
        Some(Refusal::InitiatorError),
        "repeated stage"
    );
    let mut fixture = LoginFixture::open();
    assert_eq!(refused(&fixture.send(request(false, OPERATIONAL_STAGE, 0), NAMES)), None);
    let other = LoginRequest { connection: 2, ..request(false, OPERATIONAL_STAGE, 0) };
    assert_eq!(refused(&fixture.send(other, "")), Some(Refusal::InitiatorError), "another connection");
}

#[test]
fn endless_login_is_ended() {
    let mut fixture = LoginFixture::open();
    fixture.send(request(false, OPERATIONAL_STAGE, 0), NAMES);
    let refusal = (0..200).find(|_| refused(&fixture.send(request(false, OPERATIONAL_STAGE, 0), "")).is_some());
    assert!(refusal.is_some());
}

/// Runs the login up to the target's challenge; returns identifier and challenge.
fn challenged(fixture: &mut LoginFixture, algorithms: &str, expected: &str) -> (u8, Vec<u8>) {
    let reply =
        fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert_eq!((value(&reply, "AuthMethod"), reply.response.transit), ("CHAP", false));
    let reply = fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("CHAP_A={algorithms}\0"));
    assert_eq!((value(&reply, "CHAP_A"), reply.response.transit), (expected, false));
    let challenge = text::parse_binary(value(&reply, "CHAP_C"), 64).expect("a binary value");
    (value(&reply, "CHAP_I").parse().expect("a number"), challenge)
}

fn chap_response(algorithm: Algorithm, identifier: u8, challenge: &[u8]) -> String {
    text::format_hex(&algorithm.response(identifier, b"initiators one", challenge))
}

#[test]
fn initiator_authenticates_only_with_credentials_bound_to_its_name() {
    let credentials = |user: &str, secret: &str| Credentials { user: user.into(), secret: secret.into(), mutual: None };
    let refusal = |name: &str, user: &str, secret: &str| {
        let credentials = vec![
            credentials("esx", "initiators one"),
            credentials("hyper", "initiators two"),
            credentials("x", "of esx too"),
        ];
        let mut fixture = LoginFixture { credentials, ..LoginFixture::open() };
        let names = format!("InitiatorName=iqn.a:{name}\0TargetName={TARGET}\0");
        let reply = fixture
            .send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{names}AuthMethod=CHAP\0CHAP_A=7\0"));
        let challenge = text::parse_binary(value(&reply, "CHAP_C"), 64).expect("a challenge");
        let identifier = value(&reply, "CHAP_I").parse().expect("a number");
        let response = text::format_hex(&Algorithm::Sha256.response(identifier, secret.as_bytes(), &challenge));
        let reply = fixture
            .send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("CHAP_N={user}\0CHAP_R={response}\0"));
        refused(&reply)
    };
    assert_eq!(refusal("esx", "esx", "initiators one"), None);
    assert_eq!(refusal("esx", "x", "of esx too"), None, "either of two bound credentials");
    assert_eq!(refusal("hyper", "hyper", "initiators two"), None);
    let expected = Some(Refusal::Authentication);
    assert_eq!(refusal("hyper", "esx", "initiators one"), expected, "credentials of another name");
    assert_eq!(refusal("hyper", "hyper", "initiators one"), expected);
    assert_eq!(refusal("stranger", "esx", "initiators one"), expected, "a name without bound credentials");
}

#[test]
fn text_with_control_characters_is_refused() {
    for control in ["\u{1b}[2J", "two\nlines", "\u{7f}", "\u{9b}31m", "\u{202e}txt", "\u{2028}", "\u{feff}"] {
        for text in [format!("{NAMES}InitiatorAlias=host{control}\0"), format!("{NAMES}X-com.example.{control}=1\0")] {
            let reply = LoginFixture::open().send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), &text);
            assert_eq!(refused(&reply), Some(Refusal::InitiatorError), "{text:?}");
        }
        assert!(name::check(&format!("iqn.a:{control}")).is_err(), "{control:?}");
    }
    let reply = LoginFixture::open().send(
        request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE),
        &format!("{NAMES}InitiatorAlias=Büro 2, \"left\"\0"),
    );
    assert!(matches!(reply.next, Next::Done(negotiated) if negotiated.alias == "Büro 2, \"left\""));
}

#[test]
fn chap_accepts_the_secret_with_either_algorithm() {
    for (offered, number, algorithm) in [("6,5", "5", Algorithm::Md5), ("7,5", "7", Algorithm::Sha256)] {
        let mut fixture = LoginFixture::chap(false);
        let (identifier, challenge) = challenged(&mut fixture, offered, number);
        let response = chap_response(algorithm, identifier, &challenge);
        let reply =
            fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("CHAP_N=esx\0CHAP_R={response}\0"));
        assert!(reply.response.transit);
        let reply = fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), "");
        assert!(matches!(reply.next, Next::Done(negotiated) if negotiated.authenticated));
    }
}

#[test]
fn chap_refuses_logins_without_the_secret() {
    let (wrong, required) = (Some(Refusal::Authentication), Some(Refusal::ChapRequired));
    let mut fixture = LoginFixture::chap(false);
    let (identifier, _) = challenged(&mut fixture, "5", "5");
    let guessed = chap_response(Algorithm::Md5, identifier, b"another challenge");
    assert_eq!(
        refused(
            &fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("CHAP_N=esx\0CHAP_R={guessed}\0"))
        ),
        wrong
    );

    let mut fixture = LoginFixture::chap(false);
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{NAMES}AuthMethod=None\0"))),
        required
    );
    let mut fixture = LoginFixture::chap(false);
    assert_eq!(
        refused(&fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), NAMES)),
        required,
        "security stage skipped"
    );
    let mut fixture = LoginFixture::chap(false);
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, FULL_FEATURE_PHASE), NAMES)),
        required,
        "no method offered"
    );
    let mut fixture = LoginFixture::chap(false);
    fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{NAMES}AuthMethod=CHAP\0"));
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), "CHAP_A=6,8\0")),
        wrong,
        "no algorithm in common"
    );

    let mut fixture = LoginFixture::chap(false);
    challenged(&mut fixture, "5", "5");
    let reply = fixture.send(request(true, SECURITY_STAGE, FULL_FEATURE_PHASE), "");
    assert!(!reply.response.transit && reply.next == Next::Continue, "no transition before authentication");
    let mut open = LoginFixture::open();
    assert_eq!(
        refused(&open.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{NAMES}AuthMethod=CHAP\0"))),
        Some(Refusal::ChapNotConfigured),
        "no credentials configured"
    );
}

#[test]
fn mutual_chap_answers_last_and_never_its_own_challenge() {
    let mut fixture = LoginFixture::chap(true);
    let (identifier, challenge) = challenged(&mut fixture, "7", "7");
    let initiator_response = chap_response(Algorithm::Sha256, identifier, &challenge);
    let text_pairs = format!("CHAP_N=esx\0CHAP_R={initiator_response}\0CHAP_I=9\0CHAP_C=0x010203\0");
    let reply = fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &text_pairs);
    let target_response = text::format_hex(&Algorithm::Sha256.response(9, b"targets secret", &[1, 2, 3]));
    assert_eq!((value(&reply, "CHAP_N"), value(&reply, "CHAP_R")), ("target", target_response.as_str()));

    let mut fixture = LoginFixture::chap(true);
    let (identifier, challenge) = challenged(&mut fixture, "7", "7");
    let initiator_response = chap_response(Algorithm::Sha256, identifier, &challenge);
    let own_challenge = text::format_hex(&challenge);
    let reply = fixture.send(
        request(true, SECURITY_STAGE, OPERATIONAL_STAGE),
        &format!("CHAP_N=esx\0CHAP_R={initiator_response}\0CHAP_I=9\0CHAP_C={own_challenge}\0"),
    );
    assert_eq!((refused(&reply), reply.text.is_empty()), (Some(Refusal::MutualChapNotConfigured), true));

    let mut fixture = LoginFixture::chap(true);
    challenged(&mut fixture, "7", "7");
    let reply = fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), "CHAP_I=9\0CHAP_C=0x010203\0");
    assert_eq!(refused(&reply), Some(Refusal::InitiatorError), "the initiator authenticates first");

    let mut fixture = LoginFixture::chap(false);
    let (identifier, challenge) = challenged(&mut fixture, "7", "7");
    let initiator_response = chap_response(Algorithm::Sha256, identifier, &challenge);
    let text_pairs = format!("CHAP_N=esx\0CHAP_R={initiator_response}\0CHAP_I=9\0CHAP_C=0x010203\0");
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &text_pairs)),
        Some(Refusal::MutualChapNotConfigured),
        "no target secret"
    );
}

#[test]
fn discovery_needs_authentication_only_if_it_is_offered() {
    let discovery = "InitiatorName=iqn.a\0SessionType=Discovery\0";
    let mut fixture = LoginFixture::chap(false);
    let reply =
        fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{discovery}AuthMethod=CHAP,None\0"));
    assert_eq!((value(&reply, "AuthMethod"), reply.response.transit), ("None", true));
    assert!(matches!(fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), "").next, Next::Done(_)));
    let mut fixture = LoginFixture::chap(false);
    assert!(matches!(
        fixture.send(request(true, OPERATIONAL_STAGE, FULL_FEATURE_PHASE), discovery).next,
        Next::Done(_)
    ));
    let mut fixture = LoginFixture::chap(false);
    let reply =
        fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), &format!("{discovery}AuthMethod=CHAP\0"));
    assert_eq!((value(&reply, "AuthMethod"), reply.response.transit), ("CHAP", false));
    let reply = fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), "CHAP_A=5\0");
    assert_eq!(value(&reply, "CHAP_A"), "5");
    assert_eq!(
        refused(&fixture.send(request(true, SECURITY_STAGE, OPERATIONAL_STAGE), "CHAP_N=esx\0CHAP_R=0x00\0")),
        Some(Refusal::Authentication)
    );
}
