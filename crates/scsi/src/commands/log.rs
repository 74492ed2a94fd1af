//! LOG SENSE: the list of pages, and the space of a thin unit's pool.

use std::rc::Rc;

use seam::Seam;

use super::Task;
use super::vpd::whole_threshold_sets;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::pool_space::PoolSpace;
use crate::status::Status;
use crate::unit::Unit;

/// Log page codes.
const SUPPORTED_PAGES: u8 = 0x00;
const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
/// Subpage code for all subpages.
const ALL_SUBPAGES: u8 = 0xff;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn log_sense(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (page, subpage, parameter_pointer, allocation_len) = (cdb.u8(2) & 0x3f, cdb.u8(3), cdb.u16(5), cdb.u16(7));
        let body = match (page, subpage) {
            (SUPPORTED_PAGES, 0) => vec![SUPPORTED_PAGES, LOGICAL_BLOCK_PROVISIONING],
            (SUPPORTED_PAGES, ALL_SUBPAGES) => {
                vec![SUPPORTED_PAGES, 0, SUPPORTED_PAGES, ALL_SUBPAGES, LOGICAL_BLOCK_PROVISIONING, 0]
            }
            (LOGICAL_BLOCK_PROVISIONING, 0) => {
                let space = self.target.pool_space(unit);
                space.map(|space| provisioning(space, parameter_pointer)).unwrap_or_default()
            }
            _ => return Err(invalid_field(2, Some(5))),
        };
        // SPF: the page code is followed by a subpage code.
        let subpage_format = if subpage == 0 { 0 } else { 0x40 };
        let mut bytes = vec![page | subpage_format, subpage];
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        self.send_response(&bytes, allocation_len).await
    }
}

/// Body of the provisioning page from the parameter code `parameter_pointer` on: available and used LBA mapping
/// resources.
fn provisioning(space: PoolSpace, parameter_pointer: u16) -> Vec<u8> {
    // Scope: both counts are those of the pool, which other units share.
    const SHARED: u8 = 2;
    let mut body = Vec::new();
    for (code, bytes) in [(1, space.available_bytes), (2, space.used_bytes)] {
        if code < parameter_pointer {
            continue;
        }
        body.extend(u16::to_be_bytes(code));
        // Format: binary list parameter of eight more bytes.
        body.extend([0x03, 8]);
        body.extend(whole_threshold_sets(bytes).to_be_bytes());
        body.extend([SHARED, 0, 0, 0]);
    }
    body
}
