//! An HTTP client of the tests' own: one request a connection, and every answer is held against the daemon's own document.

use std::cell::OnceCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use crate::daemon::Daemon;

/// Longest silence of a server before a test calls it a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where the document is.
const DOCUMENT: &str = "/api/v1/openapi.json";

/// What a request goes over.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

type Connection = BufReader<Box<dyn Wire>>;

/// A daemon's HTTP interface.
pub struct Http {
    address: String,
    /// With TLS, and whom it trusts; without it is plain.
    tls: Option<Arc<ClientConfig>>,
    document: OnceCell<Value>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Names in small letters, and values.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

impl Reply {
    /// A header's value, empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// Its body as JSON; problems have to say so and name their status.
    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body));
        if self.status >= 400 {
            assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
            assert_eq!(value["status"], self.status, "{self:?}");
            assert!(value["detail"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        }
        value
    }
}

impl Http {
    /// The interface of `daemon`, whose configuration gives it one.
    pub fn of(daemon: &Daemon) -> Http {
        let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("JSON");
        Http::at(status["api"].as_str().expect("it says where"))
    }

    /// Another server's; only [`Http::send`] asks without holding answers against a document.
    pub fn at(address: &str) -> Http {
        Http { address: address.to_owned(), tls: None, document: OnceCell::new() }
    }

    /// The same over TLS.
    pub fn over(self, tls: Arc<ClientConfig>) -> Http {
        Http { tls: Some(tls), ..self }
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks under its own address. Further headers are whole lines.
    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let reply = self.send(method, path, headers, body).expect("it answers");
        self.check(method, path, &reply);
        reply
    }

    /// Asks for what can be read by anybody here.
    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    /// The same with a token and, if there is one, a body in JSON.
    pub fn ask_as(&self, token: &str, method: &str, path: &str, body: &str) -> Reply {
        self.ask(method, path, &[&format!("Authorization: Bearer {token}"), "Content-Type: application/json"], body)
    }

    /// Asks, and holds the answer against nothing.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Reply> {
        let mut stream = self.begin(method, path, headers, body)?;
        read(&mut stream)
    }

    /// Follows the stream.
    pub fn follow(&self, path: &str, headers: &[&str]) -> Follower {
        let mut stream = self.begin("GET", path, headers, "").expect("it takes the request");
        let (status, _) = read_head(&mut stream).expect("it answers");
        assert_eq!(status, 200, "{path}");
        Follower { stream, text: String::new() }
    }

    /// The status alone, of what may have no end.
    pub fn status_of(&self, path: &str) -> u16 {
        let head = self.begin("GET", path, &[], "").and_then(|mut stream| read_head(&mut stream));
        head.expect("it answers").0
    }

    /// A connection on which several things can be asked for, one after the other.
    pub fn keep(&self) -> io::Result<Kept<'_>> {
        Ok(Kept { http: self, stream: self.connect()? })
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let Some(config) = &self.tls else { return Ok(BufReader::new(Box::new(stream))) };
        let name = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(BufReader::new(Box::new(StreamOwned::new(session, stream))))
    }

    fn begin(&self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Connection> {
        let mut stream = self.connect()?;
        let headers = [headers, &["Connection: close"]].concat();
        self.write(stream.get_mut(), method, path, &headers, body);
        Ok(stream)
    }

    fn write(&self, stream: &mut dyn Wire, method: &str, path: &str, headers: &[&str], body: &str) {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            request += &format!("Host: {}\r\n", self.address);
        }
        headers.iter().for_each(|header| request += &format!("{header}\r\n"));
        request += &format!("Content-Length: {}\r\n\r\n", body.len());
        // Who refuses a request may hang up before all of it was sent, and has answered all the same.
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }

    /// What is answered has to be in the document.
    fn check(&self, method: &str, path: &str, reply: &Reply) {
        if path != DOCUMENT && !self.is_documented(method, path, reply.status) {
            panic!("{method} {path}: {} is not documented", reply.status);
        }
    }

    /// True when the document knows this status of this route; of what is no route, 404, 405 and what refuses everything are known.
    pub fn is_documented(&self, method: &str, path: &str, status: u16) -> bool {
        let document = self.document.get_or_init(|| self.send("GET", DOCUMENT, &[], "").expect("it answers").json());
        let path = path.split('?').next().unwrap_or_default();
        let fits = |pattern: &str| {
            let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
            let fits = |(part, is): (&&str, &&str)| part == is || part.starts_with('{') && !is.is_empty();
            pattern.len() == path.len() && pattern.iter().zip(&path).all(fits)
        };
        let paths = document["paths"].as_object().expect("a document has paths");
        // What is written out goes before what stands for anything.
        let mut found: Vec<_> = paths.iter().filter(|(pattern, _)| fits(pattern)).collect();
        found.sort_by_key(|(pattern, _)| pattern.matches('{').count());
        let operation = found.first().and_then(|(_, item)| item.get(method.to_lowercase()));
        match operation {
            Some(operation) => operation["responses"].get(status.to_string()).is_some(),
            None => matches!(status, 401 | 403 | 404 | 405 | 421),
        }
    }
}

/// A connection that is kept.
pub struct Kept<'a> {
    http: &'a Http,
    stream: Connection,
}

impl Kept<'_> {
    /// Asks for what can be read by anybody here.
    pub fn get(&mut self, path: &str) -> io::Result<Reply> {
        self.http.write(self.stream.get_mut(), "GET", path, &[], "");
        read(&mut self.stream)
    }
}

/// Somebody who follows the stream.
pub struct Follower {
    stream: Connection,
    text: String,
}

impl Follower {
    /// The next event: its name and its data.
    pub fn event(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
                let event = (field("id: ").to_owned(), serde_json::from_str(field("data: ")).expect("JSON"));
                self.text = rest.to_owned();
                return event;
            }
            let chunk = read_chunk(&mut self.stream).expect("the stream goes on").expect("the stream goes on");
            self.text.push_str(&String::from_utf8(chunk).expect("text"));
        }
    }
}

fn read(stream: &mut impl BufRead) -> io::Result<Reply> {
    let (status, headers) = read_head(stream)?;
    let mut body = Vec::new();
    if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
        while let Some(chunk) = read_chunk(stream)? {
            body.extend(chunk);
        }
    } else {
        let length =
            headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
        stream.take(length.unwrap_or(0)).read_to_end(&mut body)?;
    }
    let body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Reply { status, headers, body })
}

fn read_head(stream: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let line = read_line(stream)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn read_chunk(stream: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let length = u64::from_str_radix(&read_line(stream)?, 16).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut chunk = Vec::new();
    stream.take(length).read_to_end(&mut chunk)?;
    read_line(stream)?;
    Ok((length > 0).then_some(chunk))
}
