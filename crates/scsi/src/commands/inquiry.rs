//! INQUIRY: standard data and vital product data.

use std::rc::Rc;

use seam::Seam;

use super::{Task, vpd};
use crate::absent::not_ready;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::status::Status;
use crate::unit::Unit;

/// Peripheral qualifier and type of a LUN without a unit: none connected, unknown type.
const NO_DEVICE: u8 = 0x3f;
/// Version descriptors of T10: SAM-5, SPC-4, SBC-3, iSCSI.
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn inquiry(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (page, allocation_len) = (cdb.u8(2), cdb.u16(3));
        let bytes = match cdb.bit(1, 0) {
            true => {
                let target_port = vpd::TargetPort { target: &self.target.0.name, port: self.nexus.port() };
                vpd::page(unit, page, &target_port).ok_or_else(|| invalid_field(2, None))?
            }
            false if page != 0 => return Err(invalid_field(2, None)),
            false => standard(0, &unit.identity.product),
        };
        self.send_response(&bytes, allocation_len).await
    }

    /// INQUIRY to a unit whose volume is not attached: identity only, no page that needs the volume.
    pub(super) async fn inquiry_absent(&mut self, identity: &Identity, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (page, allocation_len) = (cdb.u8(2), cdb.u16(3));
        let bytes = match cdb.bit(1, 0) {
            true => {
                let target_port = vpd::TargetPort { target: &self.target.0.name, port: self.nexus.port() };
                vpd::identity_page(identity, page, &target_port).ok_or_else(not_ready)?
            }
            false if page != 0 => return Err(invalid_field(2, None)),
            false => standard(0, &identity.product),
        };
        self.send_response(&bytes, allocation_len).await
    }

    pub(super) async fn inquiry_without_unit(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if cdb.bit(1, 0) || cdb.u8(2) != 0 {
            return Err(invalid_field(1, Some(0)));
        }
        self.send_response(&standard(NO_DEVICE, ""), cdb.u16(3)).await
    }
}

fn standard(peripheral: u8, product: &str) -> Vec<u8> {
    let mut bytes = vec![0; 96];
    bytes[0] = peripheral;
    // SPC-4; HISUP, response data format 2.
    (bytes[2], bytes[3]) = (0x06, 0x12);
    bytes[4] = (bytes.len() - 5) as u8;
    // TPGS: implicit asymmetric access. 3PC: third-party copy. CMDQUE: command queuing.
    (bytes[5], bytes[7]) = (0x18, 0x02);
    bytes[8..16].copy_from_slice(Identity::VENDOR.as_bytes());
    bytes[16..32].copy_from_slice(&padded::<16>(product));
    bytes[32..36].copy_from_slice(&padded::<4>(env!("CARGO_PKG_VERSION")));
    for (field, version) in bytes[58..].chunks_exact_mut(2).zip(VERSIONS) {
        field.copy_from_slice(&version.to_be_bytes());
    }
    bytes
}

/// ASCII text in a field of fixed width, padded with spaces; other characters are left out.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (target, byte) in field.iter_mut().zip(text.bytes().filter(|byte| (0x20..0x7f).contains(byte))) {
        *target = byte;
    }
    field
}
