//! REPORT TARGET PORT GROUPS: all ports form one group in the state active/optimized.

use seam::Seam;

use super::Task;
use super::vpd::PORT_GROUP;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::status::Status;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn report_port_groups(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let mut group = Vec::new();
        // Asymmetric access state active/optimized, not preferred; only this state is supported; no status code.
        group.extend([0x00, 0x01]);
        group.extend(PORT_GROUP.to_be_bytes());
        let ports = self.target.0.ports.min(u8::MAX.into());
        group.extend([0, 0, 0, ports as u8]);
        for port in 1..=ports {
            group.extend([0, 0]);
            group.extend(port.to_be_bytes());
        }
        let header: &[u8] = match cdb.u8(1) >> 5 {
            0 => &[],
            // Extended header: implicit transition time zero.
            1 => &[0x10, 0, 0, 0],
            _ => return Err(invalid_field(1, Some(7))),
        };
        let len = (header.len() + group.len()) as u32;
        self.send_response(&[&len.to_be_bytes()[..], header, &group].concat(), cdb.u32(6)).await
    }
}
