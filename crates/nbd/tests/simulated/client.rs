//! A client that sends any messages, valid or not.

use nbd_protocol::greeting::{client_flags, decode_greeting};
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::meta::MetaRequest;
use nbd_protocol::option::push_option;
use nbd_protocol::{
    ChunkKind, Command, Decoded, Errno, OptionKind, OptionReplyHeader, OptionReplyKind, ReplyHeader, Request, Step,
    reply,
};
use seam::sim::{SimReader, SimSeam, SimWriter};
use seam::{Address, BufferedReader, ByteStream, Gather, Seam, StreamWriter};

/// One part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    Done,
    Failed(Errno),
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    Status(Vec<(u32, u32)>),
}

/// A connection to the server.
pub struct Client {
    incoming: BufferedReader<SimSeam, SimReader>,
    writer: SimWriter,
    next_cookie: u64,
}

/// Content of sectors in the simulated world: one repeated tag.
pub fn sectors(tag: u64, count: usize) -> Vec<u8> {
    tag.to_le_bytes().repeat(64 * count)
}

impl Client {
    /// Connects and receives the greeting.
    pub async fn connect(seam: &SimSeam, to: &Address) -> Client {
        let mut client = Client::connect_without_flags(seam, to).await;
        let flags = client.receive(decode_greeting).await.expect("a greeting");
        client.send(&client_flags(flags).expect("fixed newstyle")).await;
        client
    }

    /// Connects without sending anything.
    pub async fn connect_without_flags(seam: &SimSeam, to: &Address) -> Client {
        let (reader, writer) = seam.connect(to).await.expect("the server listens").split();
        Client { incoming: BufferedReader::new(reader, 1 << 20), writer, next_cookie: 1 }
    }

    /// Sends bytes; errors of a closed connection are ignored.
    pub async fn send(&mut self, bytes: &[u8]) {
        let mut gather = Gather::default();
        gather.push_bytes(bytes);
        let (Ok(()) | Err(_), _) = self.writer.send(gather).await;
    }

    /// Receives a value; `None` if the server has closed the connection.
    pub async fn receive<T>(&mut self, decode: impl Fn(&[u8]) -> Decoded<T>) -> Option<T> {
        loop {
            match decode(self.incoming.bytes()).expect("the message is valid") {
                Step::Got(value, used) => {
                    self.incoming.consume(used);
                    return Some(value);
                }
                Step::Incomplete(_) => self.incoming.receive_more().await.ok()?,
            }
        }
    }

    async fn receive_payload(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.incoming.bytes().len() < len {
            self.incoming.grow(len);
            self.incoming.receive_more().await.ok()?;
        }
        let payload = self.incoming.bytes()[..len].to_vec();
        self.incoming.consume(len);
        Some(payload)
    }

    /// True if the server has closed the connection and all data was received.
    pub async fn is_closed(&mut self) -> bool {
        self.incoming.bytes().is_empty() && self.incoming.receive_more().await.is_err()
    }

    /// Sends an option and receives its replies; an empty list if the server has closed the connection.
    pub async fn option(&mut self, kind: OptionKind, payload: &[u8]) -> Vec<(OptionReplyKind, Vec<u8>)> {
        let mut bytes = Vec::new();
        push_option(&mut bytes, kind, payload);
        self.send(&bytes).await;
        let mut replies = Vec::new();
        while let Some(header) = self.receive(OptionReplyHeader::decode).await {
            assert_eq!(header.option, kind);
            let Some(payload) = self.receive_payload(header.len as usize).await else { break };
            replies.push((header.kind, payload));
            if header.kind == OptionReplyKind::Ack || header.kind.is_error() {
                break;
            }
        }
        replies
    }

    /// Negotiates structured replies and `base:allocation`, and selects the export.
    pub async fn go(&mut self, name: &str) {
        assert_eq!(self.option(OptionKind::StructuredReply, b"").await[0].0, OptionReplyKind::Ack);
        self.option(OptionKind::SetMetaContext, &MetaRequest::encode_base_allocation(name)).await;
        self.go_simple(name).await;
    }

    /// Selects the export without further options; returns its flags.
    pub async fn go_simple(&mut self, name: &str) -> u16 {
        let request = InfoRequest { name, wants_block_size: true, wants_name: true, wants_description: true };
        let replies = self.option(OptionKind::Go, &request.encode()).await;
        assert_eq!(replies.last().expect("a reply").0, OptionReplyKind::Ack, "{replies:?}");
        let flags = replies.iter().find_map(|(_, payload)| match Info::parse(payload) {
            Ok(Info::Export { flags, .. }) => Some(flags),
            _ => None,
        });
        flags.expect("the server always sends flags")
    }

    /// Sends a request with the data of a write; returns its cookie.
    pub async fn send_request(&mut self, command: Command, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = Request { flags, command, cookie, offset, len };
        self.send(&[&request.encode()[..], data].concat()).await;
        cookie
    }

    /// Receives the next part of a reply: cookie, part, and whether it is the last. `None` if the server has closed the
    /// connection. `read_len`: length of reads with simple replies.
    pub async fn receive_part(&mut self, read_len: usize) -> Option<(u64, ReplyPart, bool)> {
        match self.receive(ReplyHeader::decode).await? {
            ReplyHeader::Simple { cookie, error: Some(error) } => Some((cookie, ReplyPart::Failed(error), true)),
            ReplyHeader::Simple { cookie, error: None } if read_len > 0 => {
                Some((cookie, ReplyPart::Data(0, self.receive_payload(read_len).await?), true))
            }
            ReplyHeader::Simple { cookie, error: None } => Some((cookie, ReplyPart::Done, true)),
            ReplyHeader::Chunk { cookie, kind, done, len } => {
                let payload = self.receive_payload(len as usize).await?;
                let part = match kind {
                    ChunkKind::None => ReplyPart::Done,
                    ChunkKind::Data => {
                        ReplyPart::Data(reply::parse_data_offset(&payload).expect("eight bytes"), payload[8..].to_vec())
                    }
                    ChunkKind::Hole => {
                        let (at, len) = reply::parse_hole(&payload).expect("a hole");
                        ReplyPart::Hole(at, len)
                    }
                    ChunkKind::BlockStatus => ReplyPart::Status(reply::parse_status(&payload).expect("extents").1),
                    _ => ReplyPart::Failed(reply::parse_error(&payload).expect("an error").0),
                };
                Some((cookie, part, done))
            }
        }
    }

    /// Sends a request and receives the whole reply while no other request is in flight.
    pub async fn call(&mut self, command: Command, flags: u16, offset: u64, len: u32, data: &[u8]) -> Vec<ReplyPart> {
        let cookie = self.send_request(command, flags, offset, len, data).await;
        let mut parts = Vec::new();
        while let Some((reply_cookie, part, is_last)) = self.receive_part(0).await {
            assert_eq!(reply_cookie, cookie);
            parts.push(part);
            if is_last {
                return parts;
            }
        }
        panic!("the server closed instead of answering {command:?}");
    }

    /// Reads, assembling the data from their chunks.
    pub async fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xee; len as usize];
        for part in self.call(Command::Read, 0, offset, len, b"").await {
            match part {
                ReplyPart::Data(at, data) => bytes[(at - offset) as usize..][..data.len()].copy_from_slice(&data),
                ReplyPart::Hole(at, len) => bytes[(at - offset) as usize..][..len as usize].fill(0),
                ReplyPart::Failed(error) => return Err(error),
                other => panic!("unexpected reply to a read: {other:?}"),
            }
        }
        Ok(bytes)
    }

    /// Writes and waits for the reply.
    pub async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match &self.call(Command::Write, 0, offset, data.len() as u32, data).await[..] {
            [ReplyPart::Done] => Ok(()),
            [ReplyPart::Failed(error)] => Err(*error),
            other => panic!("unexpected reply to a write: {other:?}"),
        }
    }
}

/// The server's side of a handshake with structured replies, allocation and `GO`, sent at once because all replies are
/// known in advance. It offers simple replies and no contexts.
pub async fn silent_server(writer: &mut SimWriter, size_bytes: u64) {
    use nbd_protocol::option::push_option_reply;
    let mut bytes = nbd_protocol::greeting::greeting().to_vec();
    push_option_reply(&mut bytes, OptionKind::StructuredReply, OptionReplyKind::ErrUnsupported, b"");
    let info = Info::Export { size_bytes, flags: nbd_protocol::flags::HAS_FLAGS };
    push_option_reply(&mut bytes, OptionKind::Go, OptionReplyKind::Info, &info.encode());
    push_option_reply(&mut bytes, OptionKind::Go, OptionReplyKind::Ack, b"");
    let mut gather = Gather::default();
    gather.push_bytes(&bytes);
    writer.send(gather).await.0.expect("the client is connected");
}
