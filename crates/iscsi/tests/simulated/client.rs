//! An initiator that sends any PDUs, valid or not.

use iscsi_protocol::login::{FULL_FEATURE_PHASE, OPERATIONAL_STAGE};
use iscsi_protocol::request::{Attribute, Command, DataOut, LoginRequest, TaskFunction, TaskManagement};
use iscsi_protocol::response::{Residual, TaskResponse};
use iscsi_protocol::{Framing, NO_TAG, Request, RequestBody, Response, ResponseBody, Step, text};
use seam::sim::{SimReader, SimSeam, SimWriter};
use seam::{BufferedReader, ByteStream, Gather, Seam, StreamWriter};

use crate::fixture::{TARGET, address};

/// Status bytes.
pub const GOOD: u8 = 0;
pub const CHECK_CONDITION: u8 = 2;
/// Operation codes.
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;

/// Login parameters of a client.
#[derive(Clone, Debug)]
pub struct LoginSpec {
    pub name: &'static str,
    pub isid: u8,
    /// Operational parameters as text.
    pub text: &'static str,
    pub session: &'static str,
}

impl Default for LoginSpec {
    fn default() -> Self {
        let text = "InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=16384\0MaxBurstLength=65536\0\
                    FirstBurstLength=16384\0MaxOutstandingR2T=4\0";
        LoginSpec { name: "iqn.2026-11.test:one", isid: 1, text, session: "Normal" }
    }
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    pub status: u8,
    pub data: Vec<u8>,
    pub sense: Vec<u8>,
    pub residual: Residual,
}

/// A connection to the server.
pub struct Client {
    incoming: BufferedReader<SimSeam, SimReader>,
    writer: SimWriter,
    pub framing: Framing,
    pub cmd_sn: u32,
    pub stat_sn: u32,
    pub max_cmd_sn: u32,
    next_tag: u32,
    /// Negotiated maximum of immediate data.
    immediate_bytes: usize,
    /// Negotiated maximum of unsolicited data.
    unsolicited_bytes: usize,
    /// Longest data segment to send.
    pub send_bytes: usize,
}

/// Content of sectors in the simulated world: one repeated tag.
pub fn sectors(tag: u64, count: usize) -> Vec<u8> {
    tag.to_le_bytes().repeat(64 * count)
}

/// Sectors with ascending tags from `first` on.
pub fn numbered_sectors(first: u64, count: usize) -> Vec<u8> {
    (first..first + count as u64).flat_map(|tag| sectors(tag, 1)).collect()
}

/// READ(10).
pub fn read_cdb(sector: u32, count: u16) -> Vec<u8> {
    cdb10(READ_10, sector, count)
}

/// WRITE(10).
pub fn write_cdb(sector: u32, count: u16) -> Vec<u8> {
    cdb10(WRITE_10, sector, count)
}

fn cdb10(opcode: u8, sector: u32, count: u16) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&sector.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

impl Client {
    /// Connects without sending anything.
    pub async fn connect_without_login(seam: &SimSeam) -> Client {
        let (reader, writer) = seam.connect(&address()).await.expect("the server listens").split();
        Client {
            incoming: BufferedReader::new(reader, 1 << 20),
            writer,
            framing: Framing { data_bytes_max: 1 << 18, ..Framing::default() },
            cmd_sn: 1,
            stat_sn: 0,
            max_cmd_sn: 0,
            next_tag: 1,
            immediate_bytes: 0,
            unsolicited_bytes: 0,
            send_bytes: 8192,
        }
    }

    /// Logs in and consumes the power-on attention.
    pub async fn ready(seam: &SimSeam, login_spec: &LoginSpec) -> Client {
        let mut client = Client::log_in(seam, login_spec).await.expect("the login succeeds");
        assert_eq!(
            client.call(&[0; 16], 0, &[]).await.map(|result| result.status),
            Some(CHECK_CONDITION),
            "the first command reports the power-on attention"
        );
        client
    }

    /// Logs in. Error: the status of a refusal, or `None` if the server closed the connection.
    pub async fn log_in(seam: &SimSeam, login_spec: &LoginSpec) -> Result<Client, Option<(u8, u8)>> {
        let mut client = Client::connect_without_login(seam).await;
        let text = format!(
            "InitiatorName={}\0TargetName={TARGET}\0SessionType={}\0{}",
            login_spec.name, login_spec.session, login_spec.text
        );
        client.send_login(login_spec.isid, 0, &text).await;
        let (response, data) = client.receive().await.ok_or(None)?;
        let ResponseBody::Login(login) = response.body else { panic!("no login response: {response:?}") };
        if login.status != (0, 0) {
            return Err(Some(login.status));
        }
        assert!(login.transit && login.tsih != 0);
        client.apply_negotiated(&data, login_spec.text);
        Ok(client)
    }

    /// Sends a login request that completes the login at once.
    pub async fn send_login(&mut self, isid: u8, tsih: u16, text: &str) {
        let login = LoginRequest {
            transit: true,
            continues: false,
            stage: OPERATIONAL_STAGE,
            next_stage: FULL_FEATURE_PHASE,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, isid],
            tsih,
            connection: 0,
        };
        self.send_pdu(0, true, RequestBody::Login(login), text.as_bytes()).await;
    }

    /// Applies the negotiated values of a login response.
    fn apply_negotiated(&mut self, response_text: &[u8], requested: &str) {
        let pairs = text::parse_pairs(response_text).expect("the response consists of pairs");
        let value = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let len = |key: &str, default: usize| value(key).and_then(|value| value.parse().ok()).unwrap_or(default);
        let first_burst = len("FirstBurstLength", 65_536).min(len("MaxBurstLength", 262_144));
        self.send_bytes = len("MaxRecvDataSegmentLength", 8192);
        self.immediate_bytes = if value("ImmediateData") == Some("No") { 0 } else { first_burst.min(self.send_bytes) };
        self.unsolicited_bytes = if value("InitialR2T") == Some("No") { first_burst } else { 0 };
        self.framing.header_digest = value("HeaderDigest") == Some("CRC32C");
        self.framing.data_digest = value("DataDigest") == Some("CRC32C");
        assert!(value("InitialR2T").is_some() || !requested.contains("InitialR2T"));
    }

    /// Sends bytes; errors of a closed connection are ignored.
    pub async fn send(&mut self, bytes: &[u8]) {
        let mut gather = Gather::default();
        gather.push_bytes(bytes);
        let (Ok(()) | Err(_), _) = self.writer.send(gather).await;
    }

    /// Encodes a PDU.
    pub fn pdu(&self, task_tag: u32, immediate: bool, body: RequestBody, data: &[u8]) -> Vec<u8> {
        let ahs = match &body {
            RequestBody::Command(command) => command.encode_ahs(),
            _ => Vec::new(),
        };
        let request = Request { immediate, task_tag, cmd_sn: self.cmd_sn, exp_stat_sn: self.stat_sn, body };
        let mut bytes = Vec::new();
        self.framing.push_with_ahs(&mut bytes, request.encode(), &ahs, data);
        bytes
    }

    /// Sends a PDU.
    pub async fn send_pdu(&mut self, task_tag: u32, immediate: bool, body: RequestBody, data: &[u8]) {
        let is_numbered = !matches!(body, RequestBody::DataOut(_));
        let bytes = self.pdu(task_tag, immediate, body, data);
        self.cmd_sn = self.cmd_sn.wrapping_add(u32::from(is_numbered && !immediate));
        self.send(&bytes).await;
    }

    /// Receives a PDU and its data; `None` if the server has closed the connection.
    pub async fn receive(&mut self) -> Option<(Response, Vec<u8>)> {
        loop {
            let step = match self.framing.decode(self.incoming.bytes()).expect("the PDU is valid") {
                Step::Got(frame, used) => {
                    let response = Response::decode(frame.header).expect("the PDU is a response");
                    Some((response, frame.data.to_vec(), used))
                }
                Step::Incomplete(_) => None,
            };
            match step {
                Some((response, data, used)) => {
                    self.incoming.consume(used);
                    let has_stat_sn = match &response.body {
                        ResponseBody::DataIn(data) => data.status.is_some(),
                        ResponseBody::ReadyToTransfer { .. } => false,
                        ResponseBody::NopIn { .. } => response.task_tag != NO_TAG,
                        _ => true,
                    };
                    if has_stat_sn {
                        self.stat_sn = response.stat_sn.wrapping_add(1);
                    }
                    self.max_cmd_sn = response.max_cmd_sn;
                    return Some((response, data));
                }
                None => self.incoming.receive_more().await.ok()?,
            }
        }
    }

    /// True if the server has closed the connection and all data was received.
    pub async fn is_closed(&mut self) -> bool {
        self.incoming.bytes().is_empty() && self.incoming.receive_more().await.is_err()
    }

    /// A new initiator task tag.
    pub fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Starts a command that reads `read` bytes or writes `data`, with its unsolicited data; returns its tag.
    pub async fn begin(&mut self, cdb: &[u8], read: u32, data: &[u8]) -> u32 {
        let tag = self.tag();
        let first = data.len().min(self.immediate_bytes);
        let unsolicited = data.len().min(self.unsolicited_bytes);
        let command = Command {
            is_final: unsolicited <= first,
            reads: read > 0,
            writes: !data.is_empty(),
            attribute: Attribute::Simple,
            lun: [0; 8],
            expected_len: if data.is_empty() { read } else { data.len() as u32 },
            expected_read_len: None,
            cdb: cdb.to_vec(),
        };
        self.send_pdu(tag, false, RequestBody::Command(command), &data[..first]).await;
        if unsolicited > first {
            self.send_data(tag, NO_TAG, first, &data[first..unsolicited]).await;
        }
        tag
    }

    /// Sends a sequence of data PDUs.
    pub async fn send_data(&mut self, tag: u32, target_tag: u32, offset: usize, data: &[u8]) {
        let count = data.len().div_ceil(self.send_bytes);
        for (number, part) in data.chunks(self.send_bytes).enumerate() {
            let offset = (offset + number * self.send_bytes) as u32;
            let is_final = number + 1 == count;
            let pdu = DataOut { is_final, lun: [0; 8], target_tag, data_sn: number as u32, offset };
            self.send_pdu(tag, false, RequestBody::DataOut(pdu), part).await;
        }
    }

    /// Waits for a command's end and answers its R2Ts; `None` if the server has closed the connection.
    pub async fn end(&mut self, tag: u32, data: &[u8]) -> Option<CommandResult> {
        let (mut read, mut data_sn, mut r2t_sn) = (Vec::new(), 0, 0);
        loop {
            let (response, part) = self.receive().await?;
            assert_eq!(response.task_tag, tag, "no other command is in flight: {response:?}");
            match response.body {
                ResponseBody::DataIn(head) => {
                    assert_eq!(
                        (head.data_sn, head.offset as usize),
                        (data_sn, read.len()),
                        "Data-In PDUs arrive in order"
                    );
                    data_sn += 1;
                    read.extend(part);
                    if let Some(residual) = head.status {
                        return Some(CommandResult { status: GOOD, data: read, sense: Vec::new(), residual });
                    }
                }
                ResponseBody::ReadyToTransfer { target_tag, r2t_sn: number, offset, len, .. } => {
                    assert_eq!(number, r2t_sn);
                    r2t_sn += 1;
                    let offset = offset as usize;
                    self.send_data(tag, target_tag, offset, &data[offset..offset + len as usize]).await;
                }
                ResponseBody::Command { status, residual, exp_data_sn, .. } => {
                    assert!(status != GOOD || exp_data_sn == data_sn + r2t_sn || data_sn + r2t_sn == 0);
                    let sense = part.get(2..).unwrap_or_default().to_vec();
                    return Some(CommandResult { status, data: read, sense, residual });
                }
                other => panic!("unexpected response: {other:?}"),
            }
        }
    }

    /// Executes a command while no other command is in flight.
    pub async fn call(&mut self, cdb: &[u8], read: u32, data: &[u8]) -> Option<CommandResult> {
        let tag = self.begin(cdb, read, data).await;
        self.end(tag, data).await
    }

    /// Writes whole sectors.
    pub async fn write(&mut self, sector: u32, data: &[u8]) {
        let result =
            self.call(&write_cdb(sector, (data.len() / 512) as u16), 0, data).await.expect("the server responds");
        assert_eq!((result.status, result.residual), (GOOD, Residual::None), "{:02x?}", result.sense);
    }

    /// Reads whole sectors.
    pub async fn read(&mut self, sector: u32, count: u16) -> Vec<u8> {
        let result =
            self.call(&read_cdb(sector, count), u32::from(count) * 512, &[]).await.expect("the server responds");
        assert_eq!((result.status, result.residual), (GOOD, Residual::None), "{:02x?}", result.sense);
        result.data
    }

    /// Sends a task management request; returns its tag.
    pub async fn manage(&mut self, function: TaskFunction, referenced_tag: u32) -> u32 {
        let tag = self.tag();
        let task = TaskManagement { function, lun: [0; 8], referenced_tag, referenced_cmd_sn: 0 };
        self.send_pdu(tag, true, RequestBody::TaskManagement(task), &[]).await;
        tag
    }

    /// Receives the response to the task management request `tag`.
    pub async fn task_management_response(&mut self, tag: u32) -> TaskResponse {
        let (response, _) = self.receive().await.expect("the server responds");
        match response.body {
            ResponseBody::TaskManagement(answer) if response.task_tag == tag => answer,
            other => panic!("no response to {tag}: {other:?} to {}", response.task_tag),
        }
    }

    /// Sends a NOP-Out whose data the server returns.
    pub async fn ping(&mut self, data: &[u8]) -> u32 {
        let tag = self.tag();
        self.send_pdu(tag, true, RequestBody::NopOut { lun: [0; 8], target_tag: NO_TAG }, data).await;
        tag
    }

    /// Logs out and waits for the end of the connection.
    pub async fn log_out(&mut self) {
        let tag = self.tag();
        self.send_pdu(tag, true, RequestBody::Logout { reason: 0, connection: 0 }, &[]).await;
        let (response, _) = self.receive().await.expect("the server responds");
        assert_eq!((response.task_tag, response.body), (tag, ResponseBody::Logout { response: 0 }));
        assert!(self.is_closed().await);
    }
}
