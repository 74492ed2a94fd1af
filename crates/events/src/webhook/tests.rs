//! The webhook against test servers with TLS and without: retries, dropped messages, trusted certificates.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Instant;

use messages::report::AlertReport;
use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

use super::super::alerts::NotificationKind;
use super::super::delivery::{DeliveryError, QUEUE_MAX};
use super::super::test_certificate::Certificate;
use super::*;

static SHORT_PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];

/// A request: its head in lower case, and its body.
type Request = (String, Value);

/// Starts a server and returns its port and the requests it receives. The server answers with `answers` in order and
/// repeats the last one. `wrap` wraps each connection; connections without a request are skipped.
fn serve<S: Read + Write>(
    answers: &'static [&'static str],
    wrap: impl Fn(TcpStream) -> S + Send + 'static,
) -> (u16, mpsc::Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket has an address").port();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = answers.iter().chain(std::iter::repeat(answers.last().expect("an answer")));
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = BufReader::new(wrap(stream));
            let Ok(request) = read(&mut stream) else { continue };
            let answer = answers.next().expect("the list is endless");
            stream.get_mut().write_all(answer.as_bytes()).expect("the client reads");
            stream.get_mut().flush().expect("the client reads");
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (port, requests)
}

fn read(stream: &mut impl BufRead) -> io::Result<Request> {
    let (mut head, mut line) = (String::new(), String::new());
    while stream.read_line(&mut line)? > 2 {
        head.push_str(&std::mem::take(&mut line).to_lowercase());
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).ok_or(io::ErrorKind::InvalidData)?];
    stream.read_exact(&mut body)?;
    Ok((head, serde_json::from_slice(&body)?))
}

/// Starts a server without TLS and returns its URL and the requests it receives.
fn plain_server(answers: &'static [&'static str]) -> (String, mpsc::Receiver<Request>) {
    let (port, requests) = serve(answers, |stream| stream);
    (format!("http://127.0.0.1:{port}/hook"), requests)
}

/// Starts a server that presents a certificate.
fn tls_server(certificate: &Certificate, answers: &'static [&'static str]) -> (u16, mpsc::Receiver<Request>) {
    let config = certificate.config();
    let wrap =
        move |stream| StreamOwned::new(ServerConnection::new(config.clone()).expect("a valid configuration"), stream);
    serve(answers, wrap)
}

fn change(cause: &str) -> Change {
    Change { state: NotificationKind::Raised, alert: AlertReport { cause: cause.to_owned(), ..AlertReport::default() } }
}

fn fast_webhook(address: &str) -> Webhook {
    fast_webhook_trusting(address, None)
}

fn fast_webhook_trusting(address: &str, ca_file: Option<PathBuf>) -> Webhook {
    let receiver = Receiver { address: address.parse().expect("an address"), ca_file };
    Webhook::start_with(receiver, "here".to_owned(), &SHORT_PAUSES).expect("a thread")
}

fn wait_for(webhook: &Webhook, is_expected: impl Fn(&DeliveryHealth) -> bool) -> DeliveryHealth {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let health = webhook.health();
        if is_expected(&health) {
            return health;
        }
        assert!(Instant::now() < end, "{health:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn failed_messages_are_sent_again_and_all_arrive_in_order() {
    let (address, requests) =
        plain_server(&["HTTP/1.1 500 No\r\n\r\n", "nonsense\r\n", "", "HTTP/1.1 204 Yes\r\n\r\n"]);
    let webhook = fast_webhook(&address);
    webhook.send(7, &[change("one"), change("two")]);
    webhook.send(8, &[change("three")]);
    let received: Vec<_> = (0..5).map(|_| requests.recv_timeout(Duration::from_secs(30)).expect("a request")).collect();
    let head = &received[0].0;
    assert!(head.starts_with("post /hook http/1.1\r\n") && head.contains("content-type: application/json"), "{head}");
    let causes = |body: &Value| -> Vec<String> {
        let alerts = body["alerts"].as_array().expect("a list");
        alerts.iter().map(|alert| format!("{} {}", alert["state"].as_str().unwrap_or("?"), alert["cause"])).collect()
    };
    let first = ["raised \"one\"", "raised \"two\""];
    for (_, body) in &received[..4] {
        assert_eq!(
            (causes(body), &body["host"], &body["at_unix_ms"]),
            (first.map(str::to_owned).to_vec(), &"here".into(), &7.into())
        );
    }
    assert_eq!(causes(&received[4].1), ["raised \"three\""]);
    let health = wait_for(&webhook, |health| health.delivered == 2);
    assert_eq!((health.failures, health.dropped, health.waiting, health.failed), (3, 0, 0, None));
}

#[test]
fn refused_message_is_dropped_and_the_next_is_delivered() {
    let (address, requests) = plain_server(&[
        "HTTP/1.1 400 No\r\n\r\n",
        "HTTP/1.1 400 No\r\n\r\n",
        "HTTP/1.1 404 No\r\n\r\n",
        "HTTP/1.1 400 No\r\n\r\n",
        "HTTP/1.1 400 No\r\n\r\n",
        "HTTP/1.1 200 Yes\r\n\r\n",
    ]);
    let webhook = fast_webhook(&address);
    webhook.send(1, &[change("wrong")]);
    webhook.send(2, &[change("right")]);
    let health = wait_for(&webhook, |health| health.delivered == 1);
    assert_eq!((health.failures, health.dropped, health.waiting), (5, 1, 0));
    let last = requests.iter().take(6).last().expect("six requests").1;
    assert_eq!(last["alerts"][0]["cause"], "right");
}

#[test]
fn newest_messages_are_kept_without_an_answer_and_no_caller_waits() {
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let webhook = fast_webhook(&format!("http://{closed}/"));
    let began = Instant::now();
    for number in 0..3 * QUEUE_MAX as u64 {
        webhook.send(number, &[change("x")]);
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    let sent = 3 * QUEUE_MAX as u64;
    let health = wait_for(&webhook, |health| health.dropped + health.waiting == sent && health.failures > 1);
    assert!(health.failed.is_some() && health.delivered == 0 && health.waiting <= 2 * QUEUE_MAX as u64, "{health:?}");
}

#[test]
fn receiver_with_tls_gets_alerts_if_its_ca_is_trusted() {
    let certificate = Certificate::new("localhost");
    let (port, requests) = tls_server(&certificate, &["HTTP/1.1 200 Yes\r\n\r\n"]);
    let webhook = fast_webhook_trusting(&format!("https://localhost:{port}/hook?key=s3cret"), Some(certificate.path()));
    webhook.send(1, &[change("one")]);
    let (head, body) = requests.recv_timeout(Duration::from_secs(30)).expect("a request");
    assert!(head.starts_with("post /hook?key=s3cret http/1.1\r\n"), "{head}");
    assert_eq!(body["alerts"][0]["cause"], "one");
    let health = wait_for(&webhook, |health| health.delivered == 1);
    assert_eq!((health.failures, health.failed), (0, None));
}

#[test]
fn untrusted_certificate_gets_no_alerts_and_the_reason_is_reported() {
    let (trusted, unknown_ca, other_host) =
        (Certificate::new("localhost"), Certificate::new("localhost"), Certificate::new("mail.example"));
    let missing = trusted.folder.path().join("none.crt");
    let untrusted = "by a CA that is not trusted here; specify it in [alerts] webhook_ca";
    let cases = [
        (&unknown_ca, trusted.path(), untrusted),
        (&other_host, trusted.path(), untrusted),
        (&other_host, other_host.path(), "its certificate is refused: "),
        (&trusted, missing, "none.crt cannot be read: No such file"),
    ];
    for (presented, ca_file, expected) in cases {
        let (port, requests) = tls_server(presented, &["HTTP/1.1 200 Yes\r\n\r\n"]);
        let webhook = fast_webhook_trusting(&format!("https://localhost:{port}/s3cret"), Some(ca_file));
        webhook.send(1, &[change("one")]);
        let health = wait_for(&webhook, |health| health.failures > 2);
        let reason = health.failed.expect("the delivery failed");
        assert!(reason.contains(expected) && !reason.contains("s3cret"), "{reason}");
        assert_eq!((health.delivered, health.waiting, requests.try_recv().ok()), (0, 1, None));
    }
}

#[test]
fn receiver_without_tls_or_with_a_redirect_gets_no_alerts() {
    let (port, _) = serve(&["HTTP/1.1 200 Yes\r\n\r\n"], |mut stream| {
        // The answer is plain HTTP, not TLS.
        let _ = stream.write_all(b"HTTP/1.1 400 No\r\n\r\n");
        stream
    });
    let certificate = Certificate::new("localhost");
    let webhook = fast_webhook_trusting(&format!("https://localhost:{port}/"), Some(certificate.path()));
    webhook.send(1, &[change("one")]);
    let health = wait_for(&webhook, |health| health.failures > 0);
    assert!(health.failed.as_ref().is_some_and(|reason| reason.contains("does not speak TLS")), "{health:?}");
    let (other, redirected) = plain_server(&["HTTP/1.1 200 Yes\r\n\r\n"]);
    let moved: &'static str = format!("HTTP/1.1 307 Moved\r\nLocation: {other}\r\n\r\n").leak();
    let (address, _requests) = plain_server(vec![moved].leak());
    let webhook = fast_webhook(&address);
    webhook.send(1, &[change("one")]);
    let health = wait_for(&webhook, |health| health.dropped == 1);
    assert_eq!((health.failures, health.failed.as_deref()), (5, Some("it answered 307")));
    assert_eq!(redirected.try_recv().ok(), None);
}

#[test]
fn attempt_without_an_answer_ends_after_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = format!("http://{}/", listener.local_addr().expect("the socket has an address"));
    let receiver = Receiver { address: address.parse().expect("an address"), ca_file: None };
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        stream.write_all(b"HTTP/1.1 200 Yes\r\nX: ").expect("the client reads");
        // Single bytes do not complete an answer. The loop ends when the client has closed the connection.
        while stream.write_all(b"y").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(receiver.post("{}"), Err(DeliveryError::Temporary("it did not answer in time".to_owned())));
    server.join().expect("the server thread ends");
}
