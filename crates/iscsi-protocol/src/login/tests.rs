//! Log-ins as initiators make them, right and wrong.

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

struct Talk {
    login: Login,
    credentials: Vec<Credentials>,
    admits: bool,
    drawn: u64,
}

impl Talk {
    fn open() -> Talk {
        Talk { login: Login::default(), credentials: Vec::new(), admits: true, drawn: 0 }
    }

    fn chap(mutual: bool) -> Talk {
        let mutual = mutual.then(|| ("target".to_owned(), b"targets secret".to_vec()));
        let credentials = Credentials { user: "esx".to_owned(), secret: b"initiators one".to_vec(), mutual };
        Talk { credentials: vec![credentials], ..Talk::open() }
    }

    fn say(&mut self, request: LoginRequest, text: &str) -> Answer {
        let admits = |_: &str| self.admits;
        // Of several each is for the initiator whose name ends in its user.
        let of = |name: &str| {
            let one = |known: &&Credentials| self.credentials.len() == 1 || name.ends_with(&known.user);
            self.credentials.iter().filter(one).collect()
        };
        let credentials = (!self.credentials.is_empty()).then_some(&of as &dyn Fn(&str) -> Vec<_>);
        let rules = Rules { target: TARGET, portal_group: 1, admits: &admits, credentials };
        let drawn = &mut self.drawn;
        self.login.step(&rules, &request, text.as_bytes(), &mut || {
            *drawn += 1;
            *drawn
        })
    }

    /// A log-in straight to the parameters, and the values that were found.
    fn parameters(text: &str) -> (String, Parameters) {
        let answer = Talk::open().say(request(true, 1, 3), &format!("{NAMES}{text}"));
        let Next::Done(agreed) = answer.next else { panic!("{:?}", answer.next) };
        (String::from_utf8(answer.text).expect("text"), agreed.parameters)
    }
}

fn value<'a>(answer: &'a Answer, key: &str) -> &'a str {
    let pairs = text::pairs(&answer.text).expect("pairs");
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value).expect("the key is there")
}

fn refused(answer: &Answer) -> Option<Refusal> {
    match answer.next {
        Next::Refused(refusal) => {
            assert_eq!(answer.response.status, refusal.status());
            Some(refusal)
        }
        _ => None,
    }
}

#[test]
fn an_initiator_that_says_nothing_gets_the_defaults() {
    let (text, parameters) = Talk::parameters("");
    assert_eq!(text, "TargetPortalGroupTag=1\0MaxRecvDataSegmentLength=262144\0");
    assert_eq!((parameters.initial_r2t, parameters.immediate_data), (true, true));
    assert_eq!((parameters.burst_bytes, parameters.first_burst_bytes), (262_144, 65_536));
    assert_eq!((parameters.send_bytes_max, parameters.outstanding_r2t), (8192, 1));
}

#[test]
fn what_an_initiator_wants_is_granted_up_to_our_own_bounds() {
    let (text, parameters) = Talk::parameters(
        "MaxOutstandingR2T=64\0FirstBurstLength=16777215\0MaxBurstLength=16777215\0InitialR2T=No\0ImmediateData=Yes\0\
         MaxRecvDataSegmentLength=1048576\0HeaderDigest=CRC32C,None\0DataDigest=SHA9,CRC32C\0MaxConnections=8\0\
         DefaultTime2Wait=2\0DefaultTime2Retain=20\0ErrorRecoveryLevel=2\0DataPDUInOrder=No\0DataSequenceInOrder=No\0",
    );
    for wanted in [
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
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    assert_eq!((parameters.header_digest, parameters.data_digest, parameters.initial_r2t), (true, true, false));
    assert_eq!((parameters.send_bytes_max, parameters.receive_bytes_max), (1 << 20, 256 << 10));
}

#[test]
fn keys_come_in_any_order_and_what_is_not_known_or_none_is_answered() {
    let (text, parameters) = Talk::parameters(
        "X-com.example=1\0Unheard=2\0IFMarker=Yes\0OFMarkInt=2048~8192\0HeaderDigest=MD5\0MaxBurstLength=1\0\
         InitialR2T=perhaps\0MaxOutstandingR2T=0x4\0iSCSIProtocolLevel=2\0TaskReporting=FastAbort,RFC3720\0",
    );
    for wanted in [
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
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    assert_eq!((parameters.header_digest, parameters.burst_bytes), (false, 262_144), "the defaults hold");
}

#[test]
fn a_first_burst_is_never_longer_than_a_burst() {
    assert_eq!(Talk::parameters("MaxBurstLength=1024\0").1.first_burst_bytes, 1024);
}

#[test]
fn a_key_that_is_negotiated_twice_ends_the_log_in() {
    let mut talk = Talk::open();
    assert_eq!(refused(&talk.say(request(false, 1, 0), &format!("{NAMES}InitialR2T=No\0"))), None);
    assert_eq!(refused(&talk.say(request(true, 1, 3), "InitialR2T=Yes\0")), Some(Refusal::InitiatorError));
}

#[test]
fn a_discovery_session_needs_no_target_and_some_keys_mean_nothing_in_it() {
    let text = "InitiatorName=iqn.a\0SessionType=Discovery\0InitialR2T=No\0MaxBurstLength=512\0HeaderDigest=None\0";
    let answer = Talk::open().say(request(true, 1, 3), text);
    assert_eq!((value(&answer, "InitialR2T"), value(&answer, "MaxBurstLength")), ("Irrelevant", "Irrelevant"));
    assert_eq!(value(&answer, "HeaderDigest"), "None");
    assert!(matches!(answer.next, Next::Done(agreed) if agreed.session == SessionType::Discovery));
}

#[test]
fn both_stages_follow_each_other_when_nothing_is_to_be_proved() {
    let mut talk = Talk::open();
    let answer = talk.say(request(true, 0, 1), &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert_eq!((value(&answer, "AuthMethod"), answer.response.transit, answer.response.next_stage), ("None", true, 1));
    let answer = talk.say(request(true, 1, 3), "HeaderDigest=None\0");
    let Next::Done(agreed) = answer.next else { panic!("{:?}", answer.next) };
    assert_eq!((agreed.initiator.as_str(), agreed.authenticated), ("iqn.1998-01.com.vmware:esx", false));
}

#[test]
fn a_text_in_pieces_is_answered_when_it_is_whole() {
    let mut talk = Talk::open();
    let first = LoginRequest { transit: false, continues: true, ..request(false, 1, 0) };
    let answer = talk.say(first, &NAMES[..20]);
    assert_eq!((&answer.text[..], answer.next), (&b""[..], Next::Continue));
    assert!(matches!(talk.say(request(true, 1, 3), &NAMES[20..]).next, Next::Done(_)));
}

#[test]
fn who_is_not_known_or_not_welcome_is_told_why() {
    let refusal = |text: &str| refused(&Talk::open().say(request(true, 1, 3), text));
    assert_eq!(refusal("InitiatorName=iqn.a\0TargetName=iqn.b\0"), Some(Refusal::NoSuchTarget));
    assert_eq!(refusal("InitiatorName=iqn.a\0"), Some(Refusal::MissingParameter));
    assert_eq!(refusal("TargetName=iqn.b\0"), Some(Refusal::MissingParameter));
    assert_eq!(refusal("InitiatorName=me\0TargetName=iqn.b\0"), Some(Refusal::InitiatorError));
    assert_eq!(refusal("InitiatorName=iqn.a\0SessionType=Odd\0"), Some(Refusal::SessionType));
    let mut unwelcome = Talk { admits: false, ..Talk::open() };
    assert_eq!(refused(&unwelcome.say(request(true, 1, 3), NAMES)), Some(Refusal::Authorization));
    let newer = LoginRequest { version_min: 1, ..request(true, 1, 3) };
    assert_eq!(refused(&Talk::open().say(newer, NAMES)), Some(Refusal::Version));
}

#[test]
fn stages_that_do_not_follow_each_other_are_refused() {
    for (transit, stage, next_stage) in
        [(true, 1, 1), (true, 1, 0), (true, 0, 2), (true, 2, 3), (false, 3, 3), (true, 0, 0)]
    {
        let answer = Talk::open().say(request(transit, stage, next_stage), NAMES);
        assert_eq!(refused(&answer), Some(Refusal::InitiatorError), "{stage} to {next_stage}");
    }
    let mut talk = Talk::open();
    assert_eq!(refused(&talk.say(request(true, 0, 1), NAMES)), None);
    assert_eq!(refused(&talk.say(request(true, 0, 1), "")), Some(Refusal::InitiatorError), "back again");
    let mut talk = Talk::open();
    assert_eq!(refused(&talk.say(request(false, 1, 0), NAMES)), None);
    let other = LoginRequest { connection: 2, ..request(false, 1, 0) };
    assert_eq!(refused(&talk.say(other, "")), Some(Refusal::InitiatorError), "another connection");
}

#[test]
fn a_log_in_without_end_is_ended() {
    let mut talk = Talk::open();
    talk.say(request(false, 1, 0), NAMES);
    let asked = (0..200).find(|_| refused(&talk.say(request(false, 1, 0), "")).is_some());
    assert!(asked.is_some());
}

/// Does all up to our challenge; the identifier and the challenge.
fn challenged(talk: &mut Talk, algorithms: &str, wanted: &str) -> (u8, Vec<u8>) {
    let answer = talk.say(request(true, 0, 1), &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert_eq!((value(&answer, "AuthMethod"), answer.response.transit), ("CHAP", false));
    let answer = talk.say(request(true, 0, 1), &format!("CHAP_A={algorithms}\0"));
    assert_eq!((value(&answer, "CHAP_A"), answer.response.transit), (wanted, false));
    let challenge = text::binary(value(&answer, "CHAP_C"), 64).expect("a challenge");
    (value(&answer, "CHAP_I").parse().expect("a number"), challenge)
}

fn proof(algorithm: Algorithm, identifier: u8, challenge: &[u8]) -> String {
    text::hex(&algorithm.proof(identifier, b"initiators one", challenge))
}

#[test]
fn initiator_proves_its_name_with_credentials_bound_to_it_alone() {
    let known = |user: &str, secret: &str| Credentials { user: user.into(), secret: secret.into(), mutual: None };
    let of = |name: &str, user: &str, secret: &str| {
        let credentials =
            vec![known("esx", "initiators one"), known("hyper", "initiators two"), known("x", "of esx too")];
        let mut talk = Talk { credentials, ..Talk::open() };
        let names = format!("InitiatorName=iqn.a:{name}\0TargetName={TARGET}\0");
        let answer = talk.say(request(true, 0, 1), &format!("{names}AuthMethod=CHAP\0CHAP_A=7\0"));
        let challenge = text::binary(value(&answer, "CHAP_C"), 64).expect("a challenge");
        let identifier = value(&answer, "CHAP_I").parse().expect("a number");
        let proof = text::hex(&Algorithm::Sha256.proof(identifier, secret.as_bytes(), &challenge));
        let answer = talk.say(request(true, 0, 1), &format!("CHAP_N={user}\0CHAP_R={proof}\0"));
        refused(&answer)
    };
    assert_eq!(of("esx", "esx", "initiators one"), None);
    assert_eq!(of("esx", "x", "of esx too"), None, "either of two that are bound to it");
    assert_eq!(of("hyper", "hyper", "initiators two"), None);
    let wrong = Some(Refusal::Authentication);
    assert_eq!(of("hyper", "esx", "initiators one"), wrong, "another's name and its own secret");
    assert_eq!(of("hyper", "hyper", "initiators one"), wrong);
    assert_eq!(of("stranger", "esx", "initiators one"), wrong, "a name to which nothing is bound");
}

#[test]
fn text_with_control_characters_is_refused() {
    for odd in ["\u{1b}[2J", "two\nlines", "\u{7f}", "\u{9b}31m", "\u{202e}txt", "\u{2028}", "\u{feff}"] {
        for text in [format!("{NAMES}InitiatorAlias=host{odd}\0"), format!("{NAMES}X-com.example.{odd}=1\0")] {
            let answer = Talk::open().say(request(true, 1, 3), &text);
            assert_eq!(refused(&answer), Some(Refusal::InitiatorError), "{text:?}");
        }
        assert!(name::check(&format!("iqn.a:{odd}")).is_err(), "{odd:?}");
    }
    let answer = Talk::open().say(request(true, 1, 3), &format!("{NAMES}InitiatorAlias=Büro 2, \"left\"\0"));
    assert!(matches!(answer.next, Next::Done(agreed) if agreed.alias == "Büro 2, \"left\""));
}

#[test]
fn chap_lets_in_who_knows_the_secret_by_either_algorithm() {
    for (offered, number, algorithm) in [("6,5", "5", Algorithm::Md5), ("7,5", "7", Algorithm::Sha256)] {
        let mut talk = Talk::chap(false);
        let (identifier, challenge) = challenged(&mut talk, offered, number);
        let proof = proof(algorithm, identifier, &challenge);
        let answer = talk.say(request(true, 0, 1), &format!("CHAP_N=esx\0CHAP_R={proof}\0"));
        assert!(answer.response.transit);
        let answer = talk.say(request(true, 1, 3), "");
        assert!(matches!(answer.next, Next::Done(agreed) if agreed.authenticated));
    }
}

#[test]
fn chap_keeps_out_who_does_not() {
    let wrong = Some(Refusal::Authentication);
    let mut talk = Talk::chap(false);
    let (identifier, _) = challenged(&mut talk, "5", "5");
    let guessed = proof(Algorithm::Md5, identifier, b"another challenge");
    assert_eq!(refused(&talk.say(request(true, 0, 1), &format!("CHAP_N=esx\0CHAP_R={guessed}\0"))), wrong);

    let mut talk = Talk::chap(false);
    assert_eq!(refused(&talk.say(request(true, 0, 1), &format!("{NAMES}AuthMethod=None\0"))), wrong);
    let mut talk = Talk::chap(false);
    assert_eq!(refused(&talk.say(request(true, 1, 3), NAMES)), wrong, "past the stage");
    let mut talk = Talk::chap(false);
    assert_eq!(refused(&talk.say(request(true, 0, 3), NAMES)), wrong, "without a word");
    let mut talk = Talk::chap(false);
    talk.say(request(true, 0, 1), &format!("{NAMES}AuthMethod=CHAP\0"));
    assert_eq!(refused(&talk.say(request(true, 0, 1), "CHAP_A=6,8\0")), wrong, "no algorithm in common");

    let mut talk = Talk::chap(false);
    challenged(&mut talk, "5", "5");
    let answer = talk.say(request(true, 0, 3), "");
    assert!(!answer.response.transit && answer.next == Next::Continue, "not before the proof");
    let mut open = Talk::open();
    assert_eq!(
        refused(&open.say(request(true, 0, 1), &format!("{NAMES}AuthMethod=CHAP\0"))),
        wrong,
        "nothing to check"
    );
}

#[test]
fn mutual_chap_proves_us_after_the_initiator_and_never_answers_our_own_challenge() {
    let mut talk = Talk::chap(true);
    let (identifier, challenge) = challenged(&mut talk, "7", "7");
    let theirs = proof(Algorithm::Sha256, identifier, &challenge);
    let said = format!("CHAP_N=esx\0CHAP_R={theirs}\0CHAP_I=9\0CHAP_C=0x010203\0");
    let answer = talk.say(request(true, 0, 1), &said);
    let ours = text::hex(&Algorithm::Sha256.proof(9, b"targets secret", &[1, 2, 3]));
    assert_eq!((value(&answer, "CHAP_N"), value(&answer, "CHAP_R")), ("target", ours.as_str()));

    let mut talk = Talk::chap(true);
    let (identifier, challenge) = challenged(&mut talk, "7", "7");
    let theirs = proof(Algorithm::Sha256, identifier, &challenge);
    let back = text::hex(&challenge);
    let answer = talk.say(request(true, 0, 1), &format!("CHAP_N=esx\0CHAP_R={theirs}\0CHAP_I=9\0CHAP_C={back}\0"));
    assert_eq!((refused(&answer), answer.text.is_empty()), (Some(Refusal::Authentication), true));

    let mut talk = Talk::chap(true);
    challenged(&mut talk, "7", "7");
    let answer = talk.say(request(true, 0, 1), "CHAP_I=9\0CHAP_C=0x010203\0");
    assert_eq!(refused(&answer), Some(Refusal::InitiatorError), "we are not first");

    let mut talk = Talk::chap(false);
    let (identifier, challenge) = challenged(&mut talk, "7", "7");
    let theirs = proof(Algorithm::Sha256, identifier, &challenge);
    let said = format!("CHAP_N=esx\0CHAP_R={theirs}\0CHAP_I=9\0CHAP_C=0x010203\0");
    assert_eq!(refused(&talk.say(request(true, 0, 1), &said)), Some(Refusal::Authentication), "no secret of ours");
}

#[test]
fn discovery_is_open_to_the_access_list_and_proof_is_taken_from_who_offers_nothing_else() {
    let discovery = "InitiatorName=iqn.a\0SessionType=Discovery\0";
    let mut talk = Talk::chap(false);
    let answer = talk.say(request(true, 0, 1), &format!("{discovery}AuthMethod=CHAP,None\0"));
    assert_eq!((value(&answer, "AuthMethod"), answer.response.transit), ("None", true));
    assert!(matches!(talk.say(request(true, 1, 3), "").next, Next::Done(_)));
    let mut talk = Talk::chap(false);
    assert!(matches!(talk.say(request(true, 1, 3), discovery).next, Next::Done(_)));
    let mut talk = Talk::chap(false);
    let answer = talk.say(request(true, 0, 1), &format!("{discovery}AuthMethod=CHAP\0"));
    assert_eq!((value(&answer, "AuthMethod"), answer.response.transit), ("CHAP", false));
    let answer = talk.say(request(true, 0, 1), "CHAP_A=5\0");
    assert_eq!(value(&answer, "CHAP_A"), "5");
    assert_eq!(refused(&talk.say(request(true, 0, 1), "CHAP_N=esx\0CHAP_R=0x00\0")), Some(Refusal::Authentication));
}
