//! Reports on the members of the store.

use seam::{Disk, Seam};

use crate::device::Device;
use crate::format::superblock::Role;
use crate::number::MemberNo;

/// Whether a member is in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberStatus {
    /// It holds all acknowledged data.
    InService,
    /// It was removed from service, or is missing, for this reason.
    Lost(String),
    /// It is present but was removed from service earlier. Its content is outdated and is not read.
    Stale,
}

/// The state of a member, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// Its number in the store.
    pub member: MemberNo,
    /// Content: the log and pages, or only pages.
    pub role: Role,
    /// The device's name, if it is present.
    pub device: Option<String>,
    /// The device's size, if it is present.
    pub size_bytes: Option<u64>,
    /// Whether it is in service.
    pub status: MemberStatus,
}

/// The report on a member.
pub fn report<S: Seam>(member: MemberNo, role: Role, device: Option<&Device<S>>, status: MemberStatus) -> MemberReport {
    MemberReport {
        member,
        role,
        device: device.map(Device::name),
        size_bytes: device.map(|device| device.disk.geometry().size_bytes),
        status,
    }
}
