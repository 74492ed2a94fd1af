//! Negotiation of operational parameters (RFC 7143, section 13): a table of keys with the rule of each value.

use super::{Refusal, SessionType};
use crate::limits;
use crate::text::{self, Pair};

/// Negotiated values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Header digest, in both directions.
    pub header_digest: bool,
    /// Data digest, in both directions.
    pub data_digest: bool,
    /// Longest data segment that the initiator accepts, in bytes.
    pub send_bytes_max: u32,
    /// Longest data segment that the target accepts, in bytes.
    pub receive_bytes_max: u32,
    /// True if unsolicited data PDUs are not allowed.
    pub initial_r2t: bool,
    /// True if a command PDU may carry data.
    pub immediate_data: bool,
    /// MaxBurstLength: longest data sequence, in bytes.
    pub max_burst_bytes: u32,
    /// Maximum unsolicited data of a command, in bytes.
    pub first_burst_bytes: u32,
    /// Maximum number of outstanding R2Ts of a command.
    pub outstanding_r2t_max: u16,
    /// Seconds that an initiator waits before it reconnects.
    pub time2wait_s: u16,
}

/// Values of keys that are not negotiated (13, "Default").
const DEFAULT: Parameters = Parameters {
    header_digest: false,
    data_digest: false,
    send_bytes_max: limits::RECEIVE_BYTES_DEFAULT,
    receive_bytes_max: limits::RECEIVE_BYTES_DEFAULT,
    initial_r2t: true,
    immediate_data: true,
    max_burst_bytes: 262_144,
    first_burst_bytes: 65_536,
    outstanding_r2t_max: 1,
    time2wait_s: 2,
};

/// Bounds of a data length on the wire.
const LEN_MIN: u32 = 512;
const LEN_MAX: u32 = (1 << 24) - 1;

/// State of the negotiation.
pub(super) struct Negotiation {
    parameters: Parameters,
    /// Keys negotiated so far; each may be negotiated once.
    negotiated_keys: Vec<&'static str>,
    /// True once the target has declared its own values.
    has_declared: bool,
}

impl Default for Negotiation {
    fn default() -> Self {
        Negotiation { parameters: DEFAULT, negotiated_keys: Vec::new(), has_declared: false }
    }
}

/// Result of one key.
enum KeyReply {
    /// A declaration by the initiator, without a reply.
    Declared,
    /// The negotiated value.
    Value(String),
    /// The key does not apply.
    Irrelevant,
    /// The offer is invalid.
    Reject,
}

impl Negotiation {
    /// Negotiates one key and appends its reply, if any.
    pub(super) fn reply(&mut self, pair: &Pair<'_>, session: SessionType, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let Some(key) = KEYS.iter().find(|key| key.name == pair.key) else {
            text::push(out, pair.key, "NotUnderstood");
            return Ok(());
        };
        if self.negotiated_keys.contains(&key.name) {
            return Err(Refusal::InitiatorError);
        }
        self.negotiated_keys.push(key.name);
        let reply = match key.is_normal_only && session == SessionType::Discovery {
            true => KeyReply::Irrelevant,
            false => (key.negotiate)(&mut self.parameters, pair.value),
        };
        match reply {
            KeyReply::Declared => (),
            KeyReply::Value(value) => text::push(out, key.name, &value),
            KeyReply::Irrelevant => text::push(out, key.name, "Irrelevant"),
            KeyReply::Reject => text::push(out, key.name, "Reject"),
        }
        Ok(())
    }

    /// Appends the target's declarations, once.
    pub(super) fn declare(&mut self, out: &mut Vec<u8>) {
        if !self.has_declared {
            self.has_declared = true;
            self.parameters.receive_bytes_max = limits::RECEIVE_BYTES_MAX;
            text::push(out, "MaxRecvDataSegmentLength", &limits::RECEIVE_BYTES_MAX.to_string());
        }
    }

    /// The negotiated values.
    pub(super) fn parameters(&self) -> Parameters {
        let parameters = self.parameters;
        Parameters { first_burst_bytes: parameters.first_burst_bytes.min(parameters.max_burst_bytes), ..parameters }
    }
}

/// A key with its negotiation rule.
struct Key {
    name: &'static str,
    /// True if the key does not apply to discovery sessions.
    is_normal_only: bool,
    negotiate: fn(&mut Parameters, &str) -> KeyReply,
}

/// A key of any session.
const fn key(name: &'static str, negotiate: fn(&mut Parameters, &str) -> KeyReply) -> Key {
    Key { name, is_normal_only: false, negotiate }
}

/// A key of normal sessions only.
const fn normal(name: &'static str, negotiate: fn(&mut Parameters, &str) -> KeyReply) -> Key {
    Key { name, is_normal_only: true, negotiate }
}

const KEYS: &[Key] = &[
    key("HeaderDigest", |negotiated, value| digest(&mut negotiated.header_digest, value)),
    key("DataDigest", |negotiated, value| digest(&mut negotiated.data_digest, value)),
    key("MaxRecvDataSegmentLength", |negotiated, value| match number_within(value, LEN_MIN, LEN_MAX) {
        Some(len) => {
            negotiated.send_bytes_max = len;
            KeyReply::Declared
        }
        None => KeyReply::Reject,
    }),
    normal("InitialR2T", |negotiated, value| store(&mut negotiated.initial_r2t, boolean(value), yes_or_no)),
    normal("ImmediateData", |negotiated, value| store(&mut negotiated.immediate_data, boolean(value), yes_or_no)),
    normal("MaxBurstLength", |negotiated, value| {
        let len = number_within(value, LEN_MIN, LEN_MAX).map(|len| len.min(limits::BURST_BYTES));
        store(&mut negotiated.max_burst_bytes, len, |len| len.to_string())
    }),
    normal("FirstBurstLength", |negotiated, value| {
        let len = number_within(value, LEN_MIN, LEN_MAX).map(|len| len.min(limits::FIRST_BURST_BYTES));
        store(&mut negotiated.first_burst_bytes, len, |len| len.to_string())
    }),
    normal("MaxOutstandingR2T", |negotiated, value| {
        let count = number_within(value, 1, 65_535).map(|count| (count as u16).min(limits::OUTSTANDING_R2T));
        store(&mut negotiated.outstanding_r2t_max, count, |count| count.to_string())
    }),
    // Rule "maximum"; the target's value is zero.
    key("DefaultTime2Wait", |negotiated, value| {
        let seconds = number_within(value, 0, 3600).map(|seconds| seconds as u16);
        store(&mut negotiated.time2wait_s, seconds, |seconds| seconds.to_string())
    }),
    // Rule "minimum"; the target keeps no state of a lost connection.
    key("DefaultTime2Retain", |_, value| fixed(number_within(value, 0, 3600).is_some(), "0")),
    normal("MaxConnections", |_, value| fixed(number_within(value, 1, 65_535).is_some(), "1")),
    key("ErrorRecoveryLevel", |_, value| fixed(number_within(value, 0, 2).is_some(), "0")),
    // The target delivers in order and accepts only that.
    normal("DataPDUInOrder", |_, value| fixed(boolean(value).is_some(), "Yes")),
    normal("DataSequenceInOrder", |_, value| fixed(boolean(value).is_some(), "Yes")),
    key("TaskReporting", |_, value| fixed(value.split(',').any(|entry| entry == "RFC3720"), "RFC3720")),
    key("iSCSIProtocolLevel", |_, value| match number_within(value, 0, 31) {
        Some(level) => KeyReply::Value(level.min(1).to_string()),
        None => KeyReply::Reject,
    }),
    // Markers of RFC 3720, now obsolete.
    key("OFMarker", |_, value| fixed(boolean(value).is_some(), "No")),
    key("IFMarker", |_, value| fixed(boolean(value).is_some(), "No")),
    key("OFMarkInt", |_, _| KeyReply::Irrelevant),
    key("IFMarkInt", |_, _| KeyReply::Irrelevant),
    // Keys that an initiator may not send, or not in a login.
    key("TargetAlias", |_, _| KeyReply::Reject),
    key("TargetAddress", |_, _| KeyReply::Reject),
    key("TargetPortalGroupTag", |_, _| KeyReply::Reject),
    key("SendTargets", |_, _| KeyReply::Reject),
];

/// Stores a negotiated value, and replies with it.
fn store<T: Copy>(field: &mut T, value: Option<T>, format: impl Fn(T) -> String) -> KeyReply {
    match value {
        Some(value) => {
            *field = value;
            KeyReply::Value(format(value))
        }
        None => KeyReply::Reject,
    }
}

/// Replies with the only value that the target supports.
fn fixed(is_valid: bool, value: &str) -> KeyReply {
    if is_valid { KeyReply::Value(value.to_owned()) } else { KeyReply::Reject }
}

/// Negotiates a digest: selects the first supported entry of the initiator's list.
fn digest(field: &mut bool, value: &str) -> KeyReply {
    let decode = |entry| match entry {
        "None" => Some(false),
        "CRC32C" => Some(true),
        _ => None,
    };
    store(field, value.split(',').find_map(decode), |on| if on { "CRC32C" } else { "None" }.to_owned())
}

fn number_within(value: &str, min: u32, max: u32) -> Option<u32> {
    text::parse_number(value).filter(|number| (min..=max).contains(number))
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_or_no(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}
