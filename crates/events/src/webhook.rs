//! Alerts on their way to whoever wants to be told: a POST of JSON for those of a moment, tried again until it is taken.
//!
//! A thread of its own behind a bounded queue: who does not answer costs the daemon nothing. While nobody answers the newest messages are kept;
//! one that is answered and refused is given up after a few attempts, so that it does not hold up those behind it. HTTP alone: TLS would take a
//! list of authorities to trust, and a forwarder on this machine has one.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::report::WebhookHealth;
use serde::Serialize;

use super::alerts::Change;

/// Messages that wait at most.
const WAITING_MAX: usize = 256;
/// Alerts of a message at most.
const ALERTS_MAX: usize = 64;
/// Time for a connection, and for a whole exchange on it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pauses before another attempt; the last one holds until a message is taken.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];
/// Attempts for a message that is refused each time.
const REFUSALS_MAX: u32 = 5;
/// Bytes of an answer's first line that are looked at.
const ANSWER_BYTES: usize = 256;

/// Where alerts are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || {
            let tls = if text.starts_with("https:") {
                "there is no TLS here, a forwarder on this machine has it"
            } else {
                "it takes HTTP alone"
            };
            format!(
                "\"{text}\" is no address that alerts can be sent to; write it like \"http://127.0.0.1:9000/hook\": {tls}"
            )
        };
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some("80")).ok_or_else(wrong)?)
            }
            None => authority.split_once(':').unwrap_or((authority, "80")),
        };
        // What goes into the request's head as it is must not end a line of it.
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_graphic());
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if host.is_empty() || port == 0 || host.contains('@') || !is_plain(host) || !is_plain(path) {
            return Err(wrong());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Address { host: host.to_owned(), port, path })
    }
}

impl Address {
    /// Host and port, as a request names them.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Without its path, which may hold a secret.
impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "http://{}/…", self.authority())
    }
}

/// What is sent.
#[derive(Serialize)]
struct Body<'a> {
    /// Of this layout.
    version: u32,
    /// The machine's name.
    host: &'a str,
    at_unix_ms: u64,
    alerts: &'a [Change],
}

/// The way there.
pub struct Webhook {
    messages: SyncSender<String>,
    health: Arc<Mutex<WebhookHealth>>,
    host: String,
}

impl Webhook {
    /// Starts the thread; `host` is what this machine calls itself.
    pub fn start(address: Address, host: String) -> io::Result<Webhook> {
        let health = Arc::new(Mutex::new(WebhookHealth { to: address.to_string(), ..WebhookHealth::default() }));
        let (messages, received) = sync_channel(WAITING_MAX);
        let delivery = Delivery { address, health: health.clone(), waiting: VecDeque::new(), failed: 0, refused: 0 };
        let body = move || delivery.run(&received, &PAUSES);
        std::thread::Builder::new().name("webhook".to_owned()).spawn(body)?;
        Ok(Webhook { messages, health, host })
    }

    /// Sends these when it can be.
    pub fn send(&self, at_unix_ms: u64, changes: &[Change]) {
        for alerts in changes.chunks(ALERTS_MAX) {
            let body = Body { version: 1, host: &self.host, at_unix_ms, alerts };
            let body = serde_json::to_string(&body).expect("an alert has only text keys");
            let mut health = lock(&self.health);
            match self.messages.try_send(body) {
                Ok(()) => health.waiting += 1,
                Err(_) => health.dropped += 1,
            }
        }
    }

    /// How it stands.
    pub fn health(&self) -> WebhookHealth {
        lock(&self.health).clone()
    }
}

fn lock(health: &Mutex<WebhookHealth>) -> MutexGuard<'_, WebhookHealth> {
    // What is held is whole between any two statements.
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an attempt failed.
enum Failed {
    /// Nobody answered, or who answered cannot now.
    Later(String),
    /// It was answered, and refused for what it is.
    Refused(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Later(error.to_string())
    }
}

/// What the thread has.
struct Delivery {
    address: Address,
    health: Arc<Mutex<WebhookHealth>>,
    waiting: VecDeque<String>,
    /// Attempts in a row that failed.
    failed: usize,
    /// Attempts with the first message that were refused.
    refused: u32,
}

impl Delivery {
    fn run(mut self, messages: &Receiver<String>, pauses: &[Duration]) {
        let mut next_attempt = Instant::now();
        loop {
            let message = match self.waiting.is_empty() {
                true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(next_attempt.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(message) => self.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // A message that comes is no reason to try those before it any sooner.
            if Instant::now() < next_attempt {
                continue;
            }
            self.attempt();
            let pause = if self.failed == 0 { Duration::ZERO } else { pauses[self.failed.min(pauses.len()) - 1] };
            next_attempt = Instant::now() + pause;
        }
    }

    fn push(&mut self, message: String) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
            self.refused = 0;
            let mut health = lock(&self.health);
            health.dropped += 1;
            health.waiting -= 1;
        }
        self.waiting.push_back(message);
    }

    /// Tries the oldest message.
    fn attempt(&mut self) {
        let Some(message) = self.waiting.front() else { return };
        let result = post(&self.address, message);
        let mut health = lock(&self.health);
        let is_done = match result {
            Ok(()) => {
                (self.failed, self.refused, health.failed) = (0, 0, None);
                health.delivered += 1;
                true
            }
            Err(failed) => {
                self.failed += 1;
                health.failures += 1;
                let (why, is_refused) = match failed {
                    Failed::Later(why) => (why, false),
                    Failed::Refused(why) => (why, true),
                };
                self.refused += u32::from(is_refused);
                health.failed = Some(why);
                let gives_up = self.refused == REFUSALS_MAX;
                if gives_up {
                    self.refused = 0;
                    health.dropped += 1;
                }
                gives_up
            }
        };
        if is_done {
            health.waiting -= 1;
            self.waiting.pop_front();
        }
    }
}

fn post(address: &Address, body: &str) -> Result<(), Failed> {
    let end = Instant::now() + PATIENCE;
    let nobody = || io::Error::other("the host has no address");
    let found = (address.host.as_str(), address.port).to_socket_addrs()?.next().ok_or_else(nobody)?;
    let mut stream = TcpStream::connect_timeout(&found, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: hotset\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        address.path,
        address.authority(),
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    // The first line is all that counts, and it has to come in time, not only a byte of it now and then.
    while !answer.contains(&b'\n') && answer.len() < ANSWER_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failed::Later("it did not answer in time".to_owned()));
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; ANSWER_BYTES];
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let mut words = answer.split_ascii_whitespace();
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    match words.next().and_then(|status| status.parse::<u16>().ok()).filter(|_| is_http) {
        Some(200..=299) => Ok(()),
        Some(status @ (408 | 429 | 500..)) => Err(Failed::Later(format!("it answered {status}"))),
        Some(status) => Err(Failed::Refused(format!("it answered {status}"))),
        None => Err(Failed::Later("it did not answer in HTTP".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc;

    use control::report::AlertReport;
    use serde_json::Value;

    use super::super::alerts::Turn;
    use super::*;

    const QUICK: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];

    #[test]
    fn an_address_is_a_host_with_a_path_and_its_path_is_not_shown() {
        let parsed = |text: &str| text.parse::<Address>().map(|address| (address.authority(), address.path.clone()));
        let whole = |authority: &str, path: &str| Ok((authority.to_owned(), path.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:9000/hook?a=b"), whole("127.0.0.1:9000", "/hook?a=b"));
        assert_eq!(parsed("http://mail.example"), whole("mail.example:80", "/"));
        assert_eq!(parsed("http://[::1]:90/x"), whole("[::1]:90", "/x"));
        assert_eq!(parsed("http://a?b"), whole("a:80", "/?b"));
        for wrong in [
            "https://a/",
            "http://",
            "http://:80/",
            "http://a:0/",
            "http://a:port/",
            "http://a b/",
            "http://a/x\r\ny",
            "http://u@a/",
            "a",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!("https://a/".parse::<Address>().is_err_and(|text| text.contains("no TLS")));
        let secret: Address = "http://h:1/secret".parse().expect("an address");
        assert_eq!(secret.to_string(), "http://h:1/…");
    }

    /// A server that answers each request as `answers` says, and tells their heads and bodies; it goes on with the last one.
    fn server(answers: &'static [&'static str]) -> (SocketAddr, mpsc::Receiver<(String, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let (seen, requests) = mpsc::channel();
        std::thread::spawn(move || {
            let answers = answers.iter().chain(std::iter::repeat(answers.last().expect("an answer")));
            for (stream, answer) in listener.incoming().map_while(Result::ok).zip(answers) {
                let mut reader = BufReader::new(stream.try_clone().expect("a descriptor is left"));
                let (mut head, mut line) = (String::new(), String::new());
                while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                    head.push_str(&std::mem::take(&mut line));
                }
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let mut body = vec![0; length.and_then(|length| length.parse().ok()).expect("a length")];
                reader.read_exact(&mut body).expect("the whole body");
                (&stream).write_all(answer.as_bytes()).expect("it listens");
                if seen.send((head, serde_json::from_slice(&body).expect("JSON"))).is_err() {
                    return;
                }
            }
        });
        (address, requests)
    }

    fn change(cause: &str) -> Change {
        Change { state: Turn::Raised, alert: AlertReport { cause: cause.to_owned(), ..AlertReport::default() } }
    }

    fn quick(address: SocketAddr) -> Webhook {
        let address: Address = format!("http://{address}/hook").parse().expect("an address");
        let health = Arc::new(Mutex::new(WebhookHealth::default()));
        let (messages, received) = sync_channel(WAITING_MAX);
        let delivery = Delivery { address, health: health.clone(), waiting: VecDeque::new(), failed: 0, refused: 0 };
        std::thread::spawn(move || delivery.run(&received, &QUICK));
        Webhook { messages, health, host: "here".to_owned() }
    }

    fn wait_for(webhook: &Webhook, done: impl Fn(&WebhookHealth) -> bool) -> WebhookHealth {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let health = webhook.health();
            if done(&health) {
                return health;
            }
            assert!(Instant::now() < end, "{health:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn what_is_not_taken_is_sent_again_and_everything_arrives_in_order() {
        let (address, requests) = server(&["HTTP/1.1 500 No\r\n\r\n", "nonsense\r\n", "", "HTTP/1.1 204 Yes\r\n\r\n"]);
        let webhook = quick(address);
        webhook.send(7, &[change("one"), change("two")]);
        webhook.send(8, &[change("three")]);
        let got: Vec<_> = (0..5).map(|_| requests.recv_timeout(Duration::from_secs(30)).expect("a request")).collect();
        assert!(got[0].0.starts_with("POST /hook HTTP/1.1\r\n") && got[0].0.contains("Content-Type: application/json"));
        let causes = |body: &Value| -> Vec<String> {
            let alerts = body["alerts"].as_array().expect("a list");
            alerts
                .iter()
                .map(|alert| format!("{} {}", alert["state"].as_str().unwrap_or("?"), alert["cause"]))
                .collect()
        };
        let first = ["raised \"one\"", "raised \"two\""];
        for (_, body) in &got[..4] {
            assert_eq!(
                (causes(body), &body["host"], &body["at_unix_ms"]),
                (first.map(str::to_owned).to_vec(), &"here".into(), &7.into())
            );
        }
        assert_eq!(causes(&got[4].1), ["raised \"three\""]);
        let health = wait_for(&webhook, |health| health.delivered == 2);
        assert_eq!((health.failures, health.dropped, health.waiting, health.failed), (3, 0, 0, None));
    }

    #[test]
    fn a_message_that_is_refused_does_not_hold_up_the_others_for_ever() {
        let (address, requests) = server(&[
            "HTTP/1.1 400 No\r\n\r\n",
            "HTTP/1.1 400 No\r\n\r\n",
            "HTTP/1.1 404 No\r\n\r\n",
            "HTTP/1.1 400 No\r\n\r\n",
            "HTTP/1.1 400 No\r\n\r\n",
            "HTTP/1.1 200 Yes\r\n\r\n",
        ]);
        let webhook = quick(address);
        webhook.send(1, &[change("wrong")]);
        webhook.send(2, &[change("right")]);
        let health = wait_for(&webhook, |health| health.delivered == 1);
        assert_eq!((health.failures, health.dropped, health.waiting), (5, 1, 0));
        let last = requests.iter().take(6).last().expect("six requests").1;
        assert_eq!(last["alerts"][0]["cause"], "right");
    }

    #[test]
    fn while_nobody_answers_the_newest_are_kept_and_nobody_waits() {
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let webhook = quick(closed);
        let began = Instant::now();
        for number in 0..3 * WAITING_MAX as u64 {
            webhook.send(number, &[change("x")]);
        }
        assert!(began.elapsed() < Duration::from_secs(5));
        let sent = 3 * WAITING_MAX as u64;
        let health = wait_for(&webhook, |health| health.dropped + health.waiting == sent && health.failures > 1);
        assert!(
            health.failed.is_some() && health.delivered == 0 && health.waiting <= 2 * WAITING_MAX as u64,
            "{health:?}"
        );
    }
}
