//! MODE SENSE and MODE SELECT: mode pages and their changeable bits.

use std::rc::Rc;

use seam::Seam;

use super::vpd::covering_threshold_sets;
use super::{LOGICAL_BLOCK_BYTES, Task};
use crate::attention::Attention;
use crate::cdb::{Cdb, invalid_field, invalid_parameter};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::pool_space::{PoolSpace, SoftThreshold};
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::unit::{ModeParameters, Unit};

/// Mode page codes.
const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
const DISCONNECT_RECONNECT: u8 = 0x02;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
/// Subpage code of informational exceptions: Logical Block Provisioning.
const LOGICAL_BLOCK_PROVISIONING: u8 = 0x02;
/// Page code for all pages.
const ALL_PAGES: u8 = 0x3f;
/// Subpage code for all subpages.
const ALL_SUBPAGES: u8 = 0xff;
/// SPF in the first byte of a page: a subpage code follows.
const SUBPAGE_FORMAT: u8 = 0x40;

/// A mode page by its codes. A page without a subpage code has subpage 0.
#[derive(Clone, Copy)]
struct Page {
    code: u8,
    subpage: u8,
    /// Length after the header.
    len: usize,
}

/// Supported pages.
const PAGES: [Page; 6] = [
    Page { code: READ_WRITE_ERROR_RECOVERY, subpage: 0, len: 10 },
    Page { code: DISCONNECT_RECONNECT, subpage: 0, len: 14 },
    Page { code: CACHING, subpage: 0, len: 18 },
    Page { code: CONTROL, subpage: 0, len: 10 },
    Page { code: INFORMATIONAL_EXCEPTIONS, subpage: 0, len: 10 },
    Page {
        code: INFORMATIONAL_EXCEPTIONS,
        subpage: LOGICAL_BLOCK_PROVISIONING,
        len: SoftThreshold::FIRST_DESCRIPTOR - 4 + SoftThreshold::COUNT * SoftThreshold::DESCRIPTOR_BYTES,
    },
];

impl Page {
    /// True if a unit has the page. Only a thin unit has thresholds.
    fn exists(&self, space: Option<PoolSpace>) -> bool {
        self.subpage != LOGICAL_BLOCK_PROVISIONING || space.is_some()
    }

    /// True if MODE SENSE requests the page.
    fn is_requested(&self, code: u8, subpage: u8) -> bool {
        let is_of_code = code == self.code || code == ALL_PAGES && matches!(subpage, 0 | ALL_SUBPAGES);
        is_of_code && (subpage == self.subpage || subpage == ALL_SUBPAGES)
    }

    /// Its codes and its length.
    fn header(&self) -> Vec<u8> {
        match self.subpage {
            0 => vec![self.code, self.len as u8],
            subpage => {
                let [high, low] = (self.len as u16).to_be_bytes();
                vec![SUBPAGE_FORMAT | self.code, subpage, high, low]
            }
        }
    }
}

/// WCE in the caching page.
const WRITE_CACHE: u8 = 0x04;
/// D_SENSE in the control page.
const DESCRIPTOR_SENSE: u8 = 0x04;
/// SWP in the control page.
const WRITE_PROTECT: u8 = 0x08;

/// LBPERE in the error recovery page: the unit reports thresholds of its pool.
const THRESHOLDS_REPORTED: u8 = 0x80;

/// Content of a page. `mode`: `None` gives the mask of changeable bits. `space`: space of the unit's pool, if it has
/// one.
fn content(page: &Page, mode: Option<ModeParameters>, space: Option<PoolSpace>) -> Vec<u8> {
    let mut bytes = page.header();
    bytes.resize(bytes.len() + page.len, 0);
    let bit_if =
        |is_set: fn(&ModeParameters) -> bool, bit: u8| if mode.is_none_or(|mode| is_set(&mode)) { bit } else { 0 };
    match (page.code, page.subpage) {
        (READ_WRITE_ERROR_RECOVERY, _) if mode.is_some() && space.is_some() => bytes[7] = THRESHOLDS_REPORTED,
        (CACHING, _) => bytes[2] = bit_if(|mode| mode.write_cache, WRITE_CACHE),
        (CONTROL, _) => {
            bytes[2] = bit_if(|mode| mode.descriptor_sense, DESCRIPTOR_SENSE);
            bytes[4] = bit_if(|mode| mode.write_protect, WRITE_PROTECT);
            if mode.is_some() {
                // Unrestricted reordering; the busy time-out is unlimited.
                bytes[3] = 0x10;
                bytes[8..10].fill(0xff);
            }
        }
        (INFORMATIONAL_EXCEPTIONS, LOGICAL_BLOCK_PROVISIONING) if mode.is_some() => {
            let thresholds = space.map(|space| space.soft_thresholds).unwrap_or_default();
            let descriptors =
                bytes[SoftThreshold::FIRST_DESCRIPTOR..].chunks_exact_mut(SoftThreshold::DESCRIPTOR_BYTES);
            for (descriptor, used_bytes) in descriptors.zip(thresholds) {
                // ENABLED; type: soft threshold; armed while the resource increases. Resource 2: used.
                (descriptor[0], descriptor[1]) = (0x81, 0x02);
                descriptor[4..].copy_from_slice(&covering_threshold_sets(used_bytes).to_be_bytes());
            }
        }
        // Informational exceptions control: DEXCPT, none are reported.
        (INFORMATIONAL_EXCEPTIONS, 0) if mode.is_some() => bytes[2] = 0x08,
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
        let space = self.target.pool_space(unit);
        let requested = PAGES.iter().filter(|page| page.exists(space) && page.is_requested(code, subpage));
        let pages: Vec<u8> = requested.flat_map(|page| content(page, mode, space)).collect();
        if pages.is_empty() {
            let is_known = code == ALL_PAGES || PAGES.iter().any(|page| page.code == code);
            return Err(invalid_field(if is_known { 3 } else { 2 }, None));
        }
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
        let after = apply_pages(&bytes, long, before, self.target.pool_space(unit))?;
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
fn apply_pages(
    bytes: &[u8],
    long: bool,
    mode: ModeParameters,
    space: Option<PoolSpace>,
) -> Result<ModeParameters, Failure> {
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
        let [first, second, ..] = bytes[at..] else { return Err(length_error()) };
        let (code, subpage) = if first & SUBPAGE_FORMAT == 0 { (first, 0) } else { (first ^ SUBPAGE_FORMAT, second) };
        let page = PAGES.iter().find(|page| (page.code, page.subpage) == (code, subpage) && page.exists(space));
        let page = page.ok_or_else(|| invalid_parameter(at))?;
        let header = page.header();
        let new = bytes.get(at..at + header.len() + page.len).ok_or_else(length_error)?;
        if let Some(index) = (1..header.len()).find(|index| new[*index] != header[*index]) {
            return Err(invalid_parameter(at + index));
        }
        let (old, changeable) = (content(page, Some(mode), space), content(page, None, space));
        for (index, byte) in new.iter().enumerate().skip(header.len()) {
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

    fn select(pages: &[u8]) -> Result<ModeParameters, Failure> {
        apply_pages(&[&[0, 0, 0, 0][..], pages].concat(), false, ModeParameters::DEFAULT, None)
    }

    fn content_of(code: u8) -> Vec<u8> {
        let page = PAGES.iter().find(|page| page.code == code).expect("the page is supported");
        content(page, Some(ModeParameters::DEFAULT), None)
    }

    #[test]
    fn changeable_bits_are_set_and_fixed_bits_refused() {
        let mut caching = content_of(CACHING);
        assert_eq!(select(&caching), Ok(ModeParameters::DEFAULT));
        caching[2] = 0;
        assert_eq!(select(&caching), Ok(ModeParameters { write_cache: false, ..ModeParameters::DEFAULT }));
        caching[2] = 1;
        assert_eq!(select(&caching), Err(invalid_parameter(4 + 2)));
        caching[1] = 17;
        assert_eq!(select(&caching), Err(invalid_parameter(4 + 1)));
        let mut control = content_of(CONTROL);
        (control[2], control[4]) = (4, 8);
        let both = ModeParameters { descriptor_sense: true, write_protect: true, ..ModeParameters::DEFAULT };
        assert_eq!(select(&control), Ok(both));
        assert_eq!(select(&control[..11]), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()));
        assert_eq!(select(&[0x3e, 0]), Err(invalid_parameter(4)));
    }

    #[test]
    fn thresholds_are_fixed_and_only_a_thin_unit_has_them() {
        let soft_thresholds = [(70 << 20) - 1, 85 << 20, u64::MAX];
        let space = Some(PoolSpace { used_bytes: 0, available_bytes: 100 << 20, soft_thresholds });
        let page = &PAGES[5];
        let mut thresholds = content(page, Some(ModeParameters::DEFAULT), space);
        assert_eq!(thresholds[..16], [0x5c, 2, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(thresholds[16..32], [0x81, 2, 0, 0, 0, 0, 0, 70, 0x81, 2, 0, 0, 0, 0, 0, 85]);
        assert_eq!(thresholds[32..], [0x81, 2, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(content(page, None, space)[4..], [0; 36]);
        let select_thin =
            |page: &[u8]| apply_pages(&[&[0, 0, 0, 0][..], page].concat(), false, ModeParameters::DEFAULT, space);
        assert_eq!(select_thin(&thresholds), Ok(ModeParameters::DEFAULT));
        assert_eq!(select(&thresholds), Err(invalid_parameter(4)));
        assert_eq!(select_thin(&thresholds[..20]), Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()));
        thresholds[16] = 0x01;
        assert_eq!(select_thin(&thresholds), Err(invalid_parameter(4 + 16)));
        // LBPERE says whether thresholds are reported.
        assert_eq!(content(&PAGES[0], Some(ModeParameters::DEFAULT), space)[7], 0x80);
        assert_eq!(content(&PAGES[0], Some(ModeParameters::DEFAULT), None)[7], 0);
    }

    #[test]
    fn other_block_lengths_are_refused() {
        let with = |len: [u8; 3]| {
            let list = [&[0, 0, 0, 8, 0, 0, 0, 0, 0][..], &len].concat();
            apply_pages(&list, false, ModeParameters::DEFAULT, None)
        };
        assert_eq!(with([0, 2, 0]), Ok(ModeParameters::DEFAULT));
        assert_eq!(with([0, 16, 0]), Err(invalid_parameter(9)));
    }
}
