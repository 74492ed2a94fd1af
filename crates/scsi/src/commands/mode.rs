//! MODE SENSE and MODE SELECT: mode pages and their changeable bits.

use std::rc::Rc;

use seam::Seam;

use super::{LOGICAL_BLOCK_BYTES, Task};
use crate::attention::Attention;
use crate::cdb::{Cdb, invalid_field, invalid_parameter};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::unit::{ModeParameters, Unit};

/// Mode page codes.
const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
const DISCONNECT_RECONNECT: u8 = 0x02;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
/// Page code for all pages.
const ALL_PAGES: u8 = 0x3f;
/// Supported pages: code and length after the two header bytes.
const PAGES: [(u8, usize); 5] = [
    (READ_WRITE_ERROR_RECOVERY, 10),
    (DISCONNECT_RECONNECT, 14),
    (CACHING, 18),
    (CONTROL, 10),
    (INFORMATIONAL_EXCEPTIONS, 10),
];

/// WCE in the caching page.
const WRITE_CACHE: u8 = 0x04;
/// D_SENSE in the control page.
const DESCRIPTOR_SENSE: u8 = 0x04;
/// SWP in the control page.
const WRITE_PROTECT: u8 = 0x08;

/// Content of the page `code` with a length of `len` bytes. `mode`: `None` gives the mask of changeable bits.
fn page(code: u8, len: usize, mode: Option<ModeParameters>) -> Vec<u8> {
    let mut bytes = vec![code, len as u8];
    bytes.resize(2 + len, 0);
    let bit_if =
        |is_set: fn(&ModeParameters) -> bool, bit: u8| if mode.is_none_or(|mode| is_set(&mode)) { bit } else { 0 };
    match code {
        CACHING => bytes[2] = bit_if(|mode| mode.write_cache, WRITE_CACHE),
        CONTROL => {
            bytes[2] = bit_if(|mode| mode.descriptor_sense, DESCRIPTOR_SENSE);
            bytes[4] = bit_if(|mode| mode.write_protect, WRITE_PROTECT);
            if mode.is_some() {
                // Unrestricted reordering; the busy time-out is unlimited.
                bytes[3] = 0x10;
                bytes[8..10].fill(0xff);
            }
        }
        // Informational exceptions control: DEXCPT, none are reported.
        INFORMATIONAL_EXCEPTIONS if mode.is_some() => bytes[2] = 0x08,
        _ => {}
    }
    bytes
}

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn mode_sense(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (code, control, subpage) = (cdb.u8(2) & 0x3f, cdb.u8(2) >> 6, cdb.u8(3));
        let mode = match control {
            0 => Some(unit.mode.get()),
            1 => None,
            2 => Some(ModeParameters::DEFAULT),
            _ => return Err(Sense::illegal(Asc::SAVING_NOT_SUPPORTED).into()),
        };
        let is_requested = |page_code: u8| code == ALL_PAGES || code == page_code;
        let is_known = PAGES.iter().any(|(page_code, _)| is_requested(*page_code));
        if !is_known || !(subpage == 0 || subpage == 0xff) {
            return Err(invalid_field(if is_known { 3 } else { 2 }, None));
        }
        let pages = PAGES.iter().filter(|(page_code, _)| is_requested(*page_code));
        let pages: Vec<u8> = pages.flat_map(|(page_code, len)| page(*page_code, *len, mode)).collect();
        // Device-specific parameter: write protection and DPOFUA support.
        let device_specific = 0x10 | if unit.is_read_only() { 0x80 } else { 0 };
        let long = cdb.0.len() > 6;
        let descriptor = if cdb.bit(1, 3) { Vec::new() } else { block_descriptor(unit, long && cdb.bit(1, 4)) };
        let (mut bytes, allocation_len) = match long {
            false => (vec![0, 0, device_specific, descriptor.len() as u8], cdb.u8(4).into()),
            true => {
                let long_blocks = u8::from(descriptor.len() == 16);
                (vec![0, 0, 0, device_specific, long_blocks, 0, 0, descriptor.len() as u8], cdb.u16(7))
            }
        };
        bytes.extend(descriptor);
        bytes.extend(pages);
        match long {
            false => bytes[0] = (bytes.len() - 1) as u8,
            true => {
                let len = (bytes.len() - 2) as u16;
                bytes[..2].copy_from_slice(&len.to_be_bytes());
            }
        }
        self.send_response(&bytes, allocation_len).await
    }

    pub(super) async fn mode_select(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        if cdb.bit(1, 0) {
            return Err(invalid_field(1, Some(0)));
        }
        let long = cdb.0.len() > 6;
        let len = if long { cdb.u16(7).into() } else { usize::from(cdb.u8(4)) };
        let bytes = self.parameters(len).await?;
        if bytes.is_empty() {
            return Ok(Status::Good);
        }
        if !cdb.bit(1, 4) {
            return Err(invalid_field(1, Some(4)));
        }
        let before = unit.mode.get();
        let after = apply_pages(&bytes, long, before)?;
        unit.mode.set(after);
        if after != before {
            self.target.raise_for_others(unit, self.nexus, Attention::ModeChanged);
        }
        Ok(Status::Good)
    }
}

/// Block descriptor: number and length of blocks, in the short (8 bytes) or long (16 bytes) form.
fn block_descriptor<S: Seam>(unit: &Unit<S>, long: bool) -> Vec<u8> {
    let len = (LOGICAL_BLOCK_BYTES as u32).to_be_bytes();
    if long {
        return [&unit.blocks().to_be_bytes()[..], &[0; 4], &len].concat();
    }
    let blocks = u32::try_from(unit.blocks()).unwrap_or(u32::MAX);
    [blocks.to_be_bytes(), len].concat()
}

/// The mode after a parameter list of MODE SELECT. A page that changes a fixed bit is refused.
fn apply_pages(bytes: &[u8], long: bool, mode: ModeParameters) -> Result<ModeParameters, Failure> {
    let length_error = || Failure::from(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    let header_len = if long { 8 } else { 4 };
    let header = bytes.get(..header_len).ok_or_else(length_error)?;
    let descriptor_len =
        if long { usize::from(u16::from_be_bytes([header[6], header[7]])) } else { usize::from(header[3]) };
    let has_long_descriptor = long && header[4] & 1 == 1;
    if !(descriptor_len == 0 || descriptor_len == if has_long_descriptor { 16 } else { 8 }) {
        return Err(invalid_parameter(header_len - 1));
    }
    let descriptor = bytes.get(header_len..header_len + descriptor_len).ok_or_else(length_error)?;
    // Another block length is refused; the number of blocks is ignored.
    if let Some(block_len) = descriptor.last_chunk::<3>()
        && *block_len != [0, (LOGICAL_BLOCK_BYTES >> 8) as u8, LOGICAL_BLOCK_BYTES as u8]
    {
        return Err(invalid_parameter(header_len + descriptor_len - 3));
    }
    let mut mode = mode;
    let mut at = header_len + descriptor_len;
    while at < bytes.len() {
        let [code, len, ..] = bytes[at..] else { return Err(length_error()) };
        let (_, page_len) =
            PAGES.iter().find(|(page_code, _)| *page_code == code).ok_or_else(|| invalid_parameter(at))?;
        if usize::from(len) != *page_len {
            return Err(invalid_parameter(at + 1));
        }
        let new = bytes.get(at..at + 2 + *page_len).ok_or_else(length_error)?;
        let (old, changeable) = (page(code, *page_len, Some(mode)), page(code, *page_len, None));
        for (index, byte) in new.iter().enumerate().skip(2) {
            if (byte ^ old[index]) & !changeable[index] != 0 {
                return Err(invalid_parameter(at + index));
            }
        }
        match code {
            CACHING => mode.write_cache = new[2] & WRITE_CACHE != 0,
            CONTROL => {
                mode.descriptor_sense = new[2] & DESCRIPTOR_SENSE != 0;
                mode.write_protect = new[4] & WRITE_PROTECT != 0;
            }
            _ => {}
        }
        at += new.len();
    }
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changeable_bits_are_set_and_fixed_bits_refused() {
        let select = |pages: &[u8]| apply_pages(&[&[0, 0, 0, 0][..], pages].concat(), false, ModeParameters::DEFAULT);
        let mut caching = page(CACHING, 18, Some(ModeParameters::DEFAULT));
        assert_eq!(select(&caching), Ok(ModeParameters::DEFAULT));
        caching[2] = 0;
        assert_eq!(select(&caching), Ok(ModeParameters { write_cache: false, ..ModeParameters::DEFAULT }));
        caching[2] = 1;
        assert_eq!(select(&caching), Err(invalid_parameter(4 + 2)));
        let mut control = page(CONTROL, 10, Some(ModeParameters::DEFAULT));
        (control[2], control[4]) = (4, 8);
        let both = ModeParameters { descriptor_sense: true, write_protect: true, ..ModeParameters::DEFAULT };
        assert_eq!(select(&control), Ok(both));
        assert_eq!(select(&control[..11]), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()));
        assert_eq!(select(&[0x3e, 0]), Err(invalid_parameter(4)));
    }

    #[test]
    fn other_block_lengths_are_refused() {
        let with = |len: [u8; 3]| {
            apply_pages(&[&[0, 0, 0, 8, 0, 0, 0, 0, 0][..], &len].concat(), false, ModeParameters::DEFAULT)
        };
        assert_eq!(with([0, 2, 0]), Ok(ModeParameters::DEFAULT));
        assert_eq!(with([0, 16, 0]), Err(invalid_parameter(9)));
    }
}
