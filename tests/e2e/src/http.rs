//! An HTTP client for tests: one request per connection, and every reply is checked against the daemon's OpenAPI
//! document.

use std::cell::OnceCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use crate::daemon::Daemon;

/// Longest time without a reply before a test fails.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Path of the OpenAPI document.
const DOCUMENT: &str = "/api/v1/openapi.json";

/// Transport of a request.
trait Transport: Read + Write {}

impl<T: Read + Write> Transport for T {}

type Connection = BufReader<Box<dyn Transport>>;

/// A daemon's HTTP interface.
pub struct Http {
    address: String,
    /// TLS configuration with the trusted certificates; `None` for plain HTTP.
    tls: Option<Arc<ClientConfig>>,
    document: OnceCell<Value>,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Header names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

impl Reply {
    /// Value of a header, or an empty text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Body as JSON. An error status requires a problem document that repeats it.
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
    /// The HTTP interface of `daemon`, which must be configured.
    pub fn of(daemon: &Daemon) -> Http {
        let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON");
        Http::at(status["api"].as_str().expect("the status has the API address"))
    }

    /// The HTTP interface of another server. Only [`Http::send`] works without an OpenAPI document.
    pub fn at(address: &str) -> Http {
        Http { address: address.to_owned(), tls: None, document: OnceCell::new() }
    }

    /// The same interface over TLS.
    pub fn with_tls(self, tls: Arc<ClientConfig>) -> Http {
        Http { tls: Some(tls), ..self }
    }

    /// Address of the interface.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request to the interface's own address. Each of `headers` is a whole line.
    pub fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let reply = self.send(method, path, headers, body).expect("the server answers");
        self.assert_documented(method, path, &reply);
        reply
    }

    /// Reads a path that needs no token here.
    pub fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], "")
    }

    /// Sends a request with a token and, optionally, a JSON body.
    pub fn request_as(&self, token: &str, method: &str, path: &str, body: &str) -> Reply {
        self.request(method, path, &[&format!("Authorization: Bearer {token}"), "Content-Type: application/json"], body)
    }

    /// Sends a request without checking the reply against the document.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Reply> {
        let mut stream = self.send_request(method, path, headers, body)?;
        read(&mut stream)
    }

    /// Subscribes to the event stream.
    pub fn subscribe(&self, path: &str, headers: &[&str]) -> Subscriber {
        let mut stream = self.send_request("GET", path, headers, "").expect("the server accepts the request");
        let (status, _) = read_head(&mut stream).expect("the server answers");
        assert_eq!(status, 200, "{path}");
        Subscriber { stream, text: String::new() }
    }

    /// Returns only the status, for responses that may not end.
    pub fn status_of(&self, path: &str) -> u16 {
        let head = self.send_request("GET", path, &[], "").and_then(|mut stream| read_head(&mut stream));
        head.expect("the server answers").0
    }

    /// Opens a connection for several requests in sequence.
    pub fn keep_alive(&self) -> io::Result<KeepAlive<'_>> {
        Ok(KeepAlive { http: self, stream: self.connect()? })
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let Some(config) = &self.tls else { return Ok(BufReader::new(Box::new(stream))) };
        let name = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(BufReader::new(Box::new(StreamOwned::new(session, stream))))
    }

    fn send_request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> io::Result<Connection> {
        let mut stream = self.connect()?;
        let headers = [headers, &["Connection: close"]].concat();
        self.write(stream.get_mut(), method, path, &headers, body);
        Ok(stream)
    }

    fn write(&self, stream: &mut dyn Transport, method: &str, path: &str, headers: &[&str], body: &str) {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            request += &format!("Host: {}\r\n", self.address);
        }
        headers.iter().for_each(|header| request += &format!("{header}\r\n"));
        request += &format!("Content-Length: {}\r\n\r\n", body.len());
        // A server that refuses a request may close the connection early, and its reply is still valid.
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }

    /// Checks that the reply's status is documented.
    fn assert_documented(&self, method: &str, path: &str, reply: &Reply) {
        if path != DOCUMENT && !self.is_documented(method, path, reply.status) {
            panic!("{method} {path}: {} is not documented", reply.status);
        }
    }

    /// True when the document lists this status for this route. For other paths 404, 405 and general refusals are
    /// allowed.
    pub fn is_documented(&self, method: &str, path: &str, status: u16) -> bool {
        let document =
            self.document.get_or_init(|| self.send("GET", DOCUMENT, &[], "").expect("the server answers").json());
        let path = path.split('?').next().unwrap_or_default();
        let matches_path = |pattern: &str| {
            let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
            let matches_segment =
                |(segment, value): (&&str, &&str)| segment == value || segment.starts_with('{') && !value.is_empty();
            pattern.len() == path.len() && pattern.iter().zip(&path).all(matches_segment)
        };
        let paths = document["paths"].as_object().expect("a document has paths");
        // Exact paths take precedence over patterns.
        let mut matching: Vec<_> = paths.iter().filter(|(pattern, _)| matches_path(pattern)).collect();
        matching.sort_by_key(|(pattern, _)| pattern.matches('{').count());
        let operation = matching.first().and_then(|(_, item)| item.get(method.to_lowercase()));
        match operation {
            Some(operation) => operation["responses"].get(status.to_string()).is_some(),
            None => matches!(status, 401 | 403 | 404 | 405 | 421),
        }
    }
}

/// A kept-alive connection.
pub struct KeepAlive<'a> {
    http: &'a Http,
    stream: Connection,
}

impl KeepAlive<'_> {
    /// Reads a path that needs no token here.
    pub fn get(&mut self, path: &str) -> io::Result<Reply> {
        self.http.write(self.stream.get_mut(), "GET", path, &[], "");
        read(&mut self.stream)
    }
}

/// A subscriber of the stream of server-sent events.
pub struct Subscriber {
    stream: Connection,
    /// Received text that follows the last returned event.
    text: String,
}

impl Subscriber {
    /// Waits for the next event and returns its ID and its data.
    pub fn next_event(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)).expect("the event has this field")
                };
                let event = (field("id: ").to_owned(), serde_json::from_str(field("data: ")).expect("valid JSON"));
                self.text = rest.to_owned();
                return event;
            }
            let chunk =
                read_chunk(&mut self.stream).expect("the stream does not end").expect("the stream does not end");
            self.text.push_str(&String::from_utf8(chunk).expect("UTF-8 text"));
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
