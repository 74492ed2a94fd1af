//! The iSCSI target, its sessions, and the logical units of volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IscsiReport {
    /// Its name.
    pub target: String,
    /// Addresses at which it listens.
    pub portals: Vec<String>,
    /// Connections since the start.
    pub connections: u64,
    /// Present connections that are not logged in.
    pub half_open: u64,
    /// Connections that ended before their login: refused, malformed, lost, or too slow.
    pub failed_logins: u64,
    /// Logins refused within the last minute, by initiator and reason, sixteen at most.
    #[serde(default)]
    #[schema(required)]
    pub refused_logins: Vec<RefusedLoginReport>,
    /// Sessions.
    pub sessions: Vec<IscsiSessionReport>,
}

/// Refused logins of one initiator for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedLoginReport {
    /// The name that the initiator claims; empty if it sent none.
    pub initiator: String,
    /// The reason.
    pub reason: String,
    /// Refusals.
    pub count: u64,
    /// Time since the last refusal.
    pub ago_ms: u64,
}

/// An initiator's session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IscsiSessionReport {
    /// Its number (TSIH).
    pub session: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's alias; may be empty.
    pub alias: String,
    /// The portal that it connected to.
    pub portal: String,
    /// True for a discovery session.
    pub discovery: bool,
    /// True if the initiator has authenticated itself.
    pub authenticated: bool,
    /// Headers are followed by a checksum.
    pub header_digest: bool,
    /// Data are followed by a checksum.
    pub data_digest: bool,
    /// Commands so far.
    pub commands: u64,
    /// Commands in flight.
    // The JSON name is kept for compatibility.
    #[serde(rename = "under_way")]
    pub commands_in_flight: u64,
    /// Commands that were aborted.
    pub aborted: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// The slowest commands of the last hour that had to wait, the slowest first, eight at most.
    pub slowest: Vec<SlowCommandReport>,
}

/// A slow command of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlowCommandReport {
    /// Time since it ended.
    pub ago_ms: u64,
    /// Its name in the standards.
    pub command: String,
    /// The LUN that it addressed.
    #[schema(required)]
    pub lun: Option<u16>,
    /// Time that it took.
    pub took_us: u64,
}

/// A volume's identity for initiators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitReport {
    /// The number of its LUN.
    pub lun: u16,
    /// Its NAA designator and serial number, 32 hexadecimal digits.
    pub naa: String,
    /// True if its backing was declared lost: the target reports the LUN as permanently gone.
    pub declared_lost: bool,
}
