//! INQUIRY: what a unit is.

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

/// A number that no unit of the initiator has: could be there, is not, of no known type.
const ABSENT: u8 = 0x3f;
/// Standards, by T10's numbers: SAM-5, SPC-4, SBC-3, iSCSI.
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn inquiry(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (page, allocated) = (cdb.u8(2), cdb.u16(3));
        let bytes = match cdb.bit(1, 0) {
            true => {
                let place = vpd::Place { target: &self.target.0.name, port: self.nexus.port() };
                vpd::page(unit, page, &place).ok_or_else(|| invalid_field(2, None))?
            }
            false if page != 0 => return Err(invalid_field(2, None)),
            false => standard(0, &unit.identity.product),
        };
        self.answer(&bytes, allocated).await
    }

    /// Of a unit that is not there now: who it is, and no page that its volume would have to be asked for.
    pub(super) async fn inquiry_of(&mut self, identity: &Identity, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (page, allocated) = (cdb.u8(2), cdb.u16(3));
        let bytes = match cdb.bit(1, 0) {
            true => {
                let place = vpd::Place { target: &self.target.0.name, port: self.nexus.port() };
                vpd::page_of(identity, page, &place).ok_or_else(not_ready)?
            }
            false if page != 0 => return Err(invalid_field(2, None)),
            false => standard(0, &identity.product),
        };
        self.answer(&bytes, allocated).await
    }

    pub(super) async fn inquiry_without_unit(&mut self, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if cdb.bit(1, 0) || cdb.u8(2) != 0 {
            return Err(invalid_field(1, Some(0)));
        }
        self.answer(&standard(ABSENT, ""), cdb.u16(3)).await
    }
}

fn standard(peripheral: u8, product: &str) -> Vec<u8> {
    let mut bytes = vec![0; 96];
    bytes[0] = peripheral;
    // SPC-4; addresses of units are hierarchical, the answer is of format 2.
    (bytes[2], bytes[3]) = (0x06, 0x12);
    bytes[4] = (bytes.len() - 5) as u8;
    // TPGS: port groups are as they are (implicit). 3PC: copies are done here. CMDQUE: commands are queued.
    (bytes[5], bytes[7]) = (0x18, 0x02);
    bytes[8..16].copy_from_slice(Identity::VENDOR.as_bytes());
    bytes[16..32].copy_from_slice(&padded::<16>(product));
    bytes[32..36].copy_from_slice(&padded::<4>(env!("CARGO_PKG_VERSION")));
    for (place, version) in bytes[58..].chunks_exact_mut(2).zip(VERSIONS) {
        place.copy_from_slice(&version.to_be_bytes());
    }
    bytes
}

/// Text in a field of fixed width: printable characters, spaces behind.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes().filter(|byte| (0x20..0x7f).contains(byte))) {
        *place = byte;
    }
    field
}
