//! Mail against test servers without TLS, with TLS, and with STARTTLS: texts, retries, refused recipients, passwords.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use messages::report::{AlertKind, AlertReport};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::super::test_certificate::Certificate;
use super::*;

static SHORT_PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];

/// A mail that a server accepted.
#[derive(Debug, PartialEq, Eq)]
struct Accepted {
    /// Whether it arrived over TLS.
    is_encrypted: bool,
    /// User and password, decoded.
    login: Option<String>,
    to: Vec<String>,
    content: String,
}

/// Behaviour of a test server.
#[derive(Clone, Default)]
struct Script {
    /// TLS from the first byte.
    tls: Option<Arc<ServerConfig>>,
    /// TLS after STARTTLS.
    starttls: Option<Arc<ServerConfig>>,
    /// Answers to commands that begin with the text, each used once.
    answers: Vec<(&'static str, &'static str)>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Starts a server and returns its port and the mails that it accepts.
fn serve(script: Script) -> (u16, mpsc::Receiver<Accepted>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket has an address").port();
    let (sender, accepted) = mpsc::channel();
    std::thread::spawn(move || {
        let mut script = script;
        for stream in listener.incoming().map_while(Result::ok) {
            // A client that ends the connection early is part of the tests.
            let _ = converse(stream, &mut script, &sender);
        }
    });
    (port, accepted)
}

fn tls_stream(config: &Arc<ServerConfig>, stream: TcpStream) -> Box<dyn Stream> {
    let connection = ServerConnection::new(config.clone()).expect("a valid configuration");
    Box::new(StreamOwned::new(connection, stream))
}

fn converse(stream: TcpStream, script: &mut Script, accepted: &mpsc::Sender<Accepted>) -> io::Result<()> {
    let stream_copy = stream.try_clone()?;
    let mut is_encrypted = script.tls.is_some();
    let mut stream = BufReader::new(match &script.tls {
        Some(config) => tls_stream(config, stream),
        None => Box::new(stream),
    });
    let (mut login, mut to, mut line) = (None, Vec::new(), String::new());
    let send = |stream: &mut BufReader<Box<dyn Stream>>, text: &str| {
        stream.get_mut().write_all(text.as_bytes()).and_then(|()| stream.get_mut().flush())
    };
    send(&mut stream, "220 test ready\r\n")?;
    while stream.read_line(&mut line)? > 0 {
        let command = std::mem::take(&mut line).trim_end().to_owned();
        if let Some(index) = script.answers.iter().position(|(start, _)| command.starts_with(start)) {
            let (_, answer) = script.answers.remove(index);
            send(&mut stream, &format!("{answer}\r\n"))?;
            continue;
        }
        let answer = match command.split_once([' ', ':']).map_or(command.as_str(), |(verb, _)| verb) {
            "EHLO" if !is_encrypted && script.starttls.is_some() => "250-test\r\n250 STARTTLS\r\n",
            "EHLO" => "250-test\r\n250 AUTH PLAIN\r\n",
            "STARTTLS" => {
                send(&mut stream, "220 go\r\n")?;
                let config = script.starttls.as_ref().expect("the server offers it");
                stream = BufReader::new(tls_stream(config, stream_copy.try_clone()?));
                is_encrypted = true;
                continue;
            }
            "AUTH" => {
                login = command.strip_prefix("AUTH PLAIN ").map(str::to_owned);
                "235 welcome\r\n"
            }
            "RCPT" => {
                to.push(command["RCPT TO:<".len()..command.len() - 1].to_owned());
                "250 yes\r\n"
            }
            "DATA" => {
                send(&mut stream, "354 go\r\n")?;
                let mut content = String::new();
                while !content.ends_with("\r\n.\r\n") && stream.read_line(&mut content)? > 0 {}
                let (login, to) = (login.take(), std::mem::take(&mut to));
                // The test may have ended.
                let _ = accepted.send(Accepted { is_encrypted, login, to, content });
                "250 queued\r\n"
            }
            "QUIT" => "221 bye\r\n",
            _ => "250 yes\r\n",
        };
        send(&mut stream, answer)?;
    }
    Ok(())
}

fn mail_config(port: u16, encryption: Encryption) -> MailConfig {
    let mailbox = |text: &str| parse_mailbox(text).expect("an address");
    MailConfig {
        server: MailServer { host: "localhost".to_owned(), port, encryption, ca_file: None, login: None },
        from: mailbox("Hotset <hotset@example.com>"),
        to: vec![mailbox("a@example.com"), mailbox("b@example.com")],
        min_severity: Severity::Warning,
    }
}

fn fast_mailer(config: MailConfig) -> Mailer {
    let console_url = Some("https://cache01.example:7400/".to_owned());
    Mailer::start_with(config, "cache01".to_owned(), console_url, &SHORT_PAUSES).expect("a thread")
}

fn change(state: NotificationKind, kind: AlertKind, subject: Option<&str>) -> Change {
    let alert = AlertReport {
        kind,
        severity: kind.severity(),
        subject: subject.map(str::to_owned),
        since_unix_ms: 1_795_326_300_000,
        cause: format!("the cause of {kind}"),
        effect: "Its effect.".to_owned(),
        remedy: "The remedy.".to_owned(),
        ..AlertReport::default()
    };
    Change { state, alert }
}

fn raised(kind: AlertKind, subject: Option<&str>) -> Change {
    change(NotificationKind::Raised, kind, subject)
}

fn wait_for(mailer: &Mailer, is_expected: impl Fn(&DeliveryHealth) -> bool) -> DeliveryHealth {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let health = mailer.health();
        if is_expected(&health) {
            return health;
        }
        assert!(Instant::now() < end, "{health:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn next(accepted: &mpsc::Receiver<Accepted>) -> Accepted {
    accepted.recv_timeout(Duration::from_secs(30)).expect("a mail")
}

#[test]
fn raised_and_cleared_alerts_are_separate_plain_mails() {
    let (port, accepted) = serve(Script::default());
    let mailer = fast_mailer(mail_config(port, Encryption::Off));
    let changes = [
        change(NotificationKind::Cleared, AlertKind::Endurance, Some("/dev/nvme0n1")),
        raised(AlertKind::BackingHung, Some("web01")),
        raised(AlertKind::SingleCopy, None),
        // Less severe than the configured severity.
        raised(AlertKind::CachePaused, Some("mail")),
    ];
    mailer.send(1_795_326_390_000, &changes);
    let mail = next(&accepted);
    assert_eq!((mail.is_encrypted, mail.to), (false, vec!["a@example.com".to_owned(), "b@example.com".to_owned()]));
    let (head, body) = mail.content.split_once("\r\n\r\n").expect("a head and a body");
    for line in [
        "From: Hotset <hotset@example.com>",
        "To: a@example.com, b@example.com",
        "Subject: [hotset cache01] CRITICAL: backing-hung of web01, and 1 more",
        "Auto-Submitted: auto-generated",
        "Content-Type: text/plain; charset=utf-8",
        "@cache01>",
    ] {
        assert!(head.contains(line), "{line} is not in:\n{head}");
    }
    let expected = "backing-hung of web01 (critical)\r\nCause:  the cause of backing-hung\r\n\
                    Since:  2026-11-22T05:45:00Z\r\nEffect: Its effect.\r\nRemedy: The remedy.\r\n\r\n\
                    single-copy (warning)\r\nCause:  the cause of single-copy\r\nSince:  2026-11-22T05:45:00Z\r\n\
                    Effect: Its effect.\r\nRemedy: The remedy.\r\n\r\nHost:   cache01\r\n\
                    Page:   https://cache01.example:7400/\r\n\r\n.\r\n";
    assert_eq!(body, expected);
    let resolved = next(&accepted).content;
    assert!(resolved.contains("Subject: [hotset cache01] RESOLVED: endurance of /dev/nvme0n1\r\n"), "{resolved}");
    assert!(resolved.contains("is resolved\r\n") && resolved.contains("Until:  2026-11-22T05:46:30Z"), "{resolved}");
    let health = wait_for(&mailer, |health| health.delivered == 2);
    assert_eq!((health.failures, health.failed, health.dropped), (0, None, 0));
    assert_eq!(health.to, format!("a@example.com, b@example.com through localhost:{port}"));
    assert!(accepted.try_recv().is_err());
}

#[test]
fn control_characters_of_an_alert_add_no_header_line() {
    let (port, accepted) = serve(Script::default());
    let mailer = fast_mailer(mail_config(port, Encryption::Off));
    mailer.send(1, &[raised(AlertKind::FlashDegraded, Some("/dev/x\r\nBcc: c@example.com"))]);
    let mail = next(&accepted);
    let (head, _) = mail.content.split_once("\r\n\r\n").expect("a head and a body");
    assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
    assert_eq!(mail.to.len(), 2);
}

#[test]
fn mail_is_sent_again_after_a_temporary_answer() {
    let answers = vec![("MAIL", "451 try later"), ("DATA", "452 no space")];
    let (port, accepted) = serve(Script { answers, ..Script::default() });
    let mailer = fast_mailer(mail_config(port, Encryption::Off));
    mailer.send(1, &[raised(AlertKind::NoCopy, None)]);
    assert_eq!(next(&accepted).to.len(), 2);
    let health = wait_for(&mailer, |health| health.delivered == 1);
    assert_eq!((health.failures, health.dropped, health.waiting, health.failed), (2, 0, 0, None));
}

#[test]
fn refused_recipient_does_not_keep_the_mail_from_the_other() {
    let refusals = vec![("RCPT TO:<b@", "550-5.1.1 no such\r\n550 user"); 6];
    let (port, accepted) = serve(Script { answers: refusals, ..Script::default() });
    let mailer = fast_mailer(mail_config(port, Encryption::Off));
    mailer.send(1, &[raised(AlertKind::NoCopy, None)]);
    assert_eq!(next(&accepted).to, ["a@example.com"]);
    let health = wait_for(&mailer, |health| health.dropped == 1);
    assert_eq!((health.delivered, health.failures, health.waiting), (0, 5, 0));
    let reason = health.failed.expect("the delivery failed");
    assert_eq!(reason, "it answered 550 5.1.1 no such user for b@example.com");
    assert!(accepted.try_recv().is_err());
    // The last refusal is for the next mail; the attempt after it is for the refused recipient alone.
    mailer.send(2, &[raised(AlertKind::SingleCopy, None)]);
    assert_eq!((next(&accepted).to, next(&accepted).to), (vec!["a@example.com".into()], vec!["b@example.com".into()]));
    let health = wait_for(&mailer, |health| health.delivered == 1);
    assert_eq!((health.failures, health.failed), (6, None));
}

#[test]
fn password_is_sent_over_tls_only_and_both_kinds_of_tls_work() {
    let certificate = Certificate::new("localhost");
    let password_file = certificate.folder.path().join("password");
    fs::write(&password_file, "s3cret\n").expect("written");
    let (tls, starttls) = (Some(certificate.config()), Some(certificate.config()));
    let scripts = [
        (Encryption::Tls, Script { tls, ..Script::default() }),
        (Encryption::StartTls, Script { starttls, ..Script::default() }),
    ];
    for (encryption, script) in scripts {
        let (port, accepted) = serve(script);
        let mut config = mail_config(port, encryption);
        config.server.ca_file = Some(certificate.path());
        config.server.login = Some(Login { user: "me".to_owned(), password_file: password_file.clone() });
        let mailer = fast_mailer(config);
        mailer.send(1, &[raised(AlertKind::NoCopy, None)]);
        let mail = next(&accepted);
        // The Base64 form of "\0me\0s3cret".
        assert_eq!((mail.is_encrypted, mail.login.as_deref()), (true, Some("AG1lAHMzY3JldA==")), "{encryption:?}");
        assert_eq!(wait_for(&mailer, |health| health.delivered == 1).failures, 0);
    }
}

#[test]
fn reason_of_a_failure_is_reported_with_its_remedy() {
    let (trusted, other) = (Certificate::new("localhost"), Certificate::new("localhost"));
    let wrong_password = trusted.folder.path().join("password");
    fs::write(&wrong_password, "wrong\n").expect("written");
    let login = |file: PathBuf| Some(Login { user: "me".to_owned(), password_file: file });
    let with_tls = |answers| Script { tls: Some(trusted.config()), answers, ..Script::default() };
    let not_trusted = "by a CA that is not trusted here; specify it in [alerts] mail_ca";
    let missing = trusted.folder.path().join("none");
    let cases = [
        (Script { tls: Some(other.config()), ..Script::default() }, Encryption::Tls, None, not_trusted),
        (Script::default(), Encryption::StartTls, None, "it does not offer STARTTLS; for TLS from the first byte"),
        (Script::default(), Encryption::Tls, None, "it does not speak TLS; a server that begins unencrypted needs"),
        (
            with_tls(vec![("AUTH", "535 5.7.8 bad password"); 9]),
            Encryption::Tls,
            login(wrong_password),
            "it answered 535 5.7.8 bad password",
        ),
        (with_tls(Vec::new()), Encryption::Tls, login(missing), "none cannot be read (No such file"),
    ];
    for (script, encryption, login, expected) in cases {
        let (port, accepted) = serve(script);
        let mut config = mail_config(port, encryption);
        (config.server.ca_file, config.server.login) = (Some(trusted.path()), login);
        let test = change(NotificationKind::Test, AlertKind::Other, None);
        let error = config.test("cache01", None, &test).expect_err("it is refused");
        assert!(error.contains(expected) && !error.contains("wrong"), "{expected} is not in: {error}");
        let mailer = fast_mailer(config);
        mailer.send(1, &[raised(AlertKind::NoCopy, None)]);
        let health = wait_for(&mailer, |health| health.failures > 0);
        assert_eq!((health.failed, health.delivered), (Some(error), 0));
        assert!(accepted.try_recv().is_err());
    }
}

#[test]
fn test_mail_is_marked_as_a_test() {
    let (port, accepted) = serve(Script::default());
    let config = mail_config(port, Encryption::Off);
    config.test("cache01", None, &change(NotificationKind::Test, AlertKind::Other, None)).expect("it is accepted");
    let content = next(&accepted).content;
    assert!(content.contains("Subject: [hotset cache01] TEST: alerts by mail\r\n"), "{content}");
    assert!(!content.contains("Page:"), "{content}");
}

#[test]
fn mail_address_is_one_whole_ascii_address() {
    for valid in ["a@b.example", "A B <a@b.example>", "root@localhost"] {
        assert!(parse_mailbox(valid).is_ok(), "{valid}");
    }
    for wrong in ["", "a", "@b", "a@b.example, c@d.example", "a@b.example>", "ä@b.example", "a@b c", "<a@b.example"] {
        assert!(parse_mailbox(wrong).is_err_and(|text| text.contains("; write it like ")), "{wrong}");
    }
}
