//! Identification of a volume by its backing, and admission to service. The decision uses the backing's identity, its
//! dirty data and its content, never a name.

use std::collections::BTreeMap;
use std::io::{self, Read};

use engine::VolumeId;

use super::content::{
    ContentRecord, ContentVerdict, CopyVerdict, Evidence, MissingProof, compare_content, former_partial_block,
};
use super::fields::show_volume_id;
use super::record::{ConfiguredBacking, State, VolumeRecord};
use super::trust::{Loss, OlderThan, Refusal, Sabotage, Shrink, UnusedStore};

/// Maximum number of displaced records; the oldest one is dropped.
const DISPLACED_MAX: usize = 1_024;

/// Losses that an administrator has accepted explicitly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// The backing belongs to the volume, whatever the record says.
    pub adopt: bool,
    /// Data that may be lost by adoption: volume IDs of 16 hexadecimal digits, or flash stores of 32, separated by
    /// commas.
    pub give_up: Option<String>,
    /// Dirty data past the end of a shrunk backing may be lost.
    pub discard_past_end: bool,
}

impl Acceptance {
    /// The rest, after the opening of the backing has given up `data`: a command that names nothing else accepts
    /// nothing else.
    pub fn without(&self, data: Option<&str>) -> Acceptance {
        let names = self.give_up.iter().flat_map(|names| names.split(','));
        let rest: Vec<&str> = names.filter(|name| Some(*name) != data).collect();
        match (data, rest.is_empty()) {
            (None, _) => self.clone(),
            (Some(_), true) => Acceptance { adopt: false, give_up: None, ..*self },
            (Some(_), false) => Acceptance { give_up: Some(rest.join(",")), ..*self },
        }
    }
}

/// Dirty data of one volume ID at a start, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndestagedBlocks {
    /// Blocks in the log of the flash store in use.
    pub in_log: u64,
    /// Blocks in the memory of a killed daemon.
    pub in_memory: u64,
}

/// A request to serve a volume on an open backing.
pub struct Claim<'a> {
    /// The volume's name.
    pub name: &'a str,
    /// Identity of its backing.
    pub identity: &'a str,
    /// Path or URI of its backing, as configured.
    pub path: &'a str,
    /// Identities of the backing in earlier versions.
    pub aliases: &'a [String],
    /// Names of volumes in service.
    pub served: &'a [String],
    /// Names of all configured volumes.
    pub configured: &'a [String],
    /// The flash store in use.
    pub store: Option<&'a str>,
    /// The faults of configured flash devices that could not be read; empty if there are none.
    pub unread_flash: &'a [String],
    /// Explains why a store is not in use.
    pub why_unused: &'a dyn Fn(&str) -> UnusedStore,
    /// Dirty data by volume ID.
    pub undestaged: &'a BTreeMap<VolumeId, UndestagedBlocks>,
    /// Content of the backing; `None` if no proof is needed.
    pub evidence: Option<&'a Evidence>,
    /// True if the volume will be written to.
    pub writes: bool,
    /// Accepted losses.
    pub accept: &'a Acceptance,
    /// The backing has all data that this daemon had flushed: another host has destaged it from this one's flash log,
    /// and unflushed writes ended with the ownership of this host.
    pub is_destaged: bool,
}

/// Admission of a volume to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its identity.
    pub volume_id: VolumeId,
    /// True if its clean pages in the flash store in use must be dropped before they are served.
    pub drops_pages: bool,
}

/// Records of a volume that may be served.
pub struct Checked {
    /// Index of the record of its name.
    by_name: Option<usize>,
    /// Index of the record of its backing.
    by_backing: Option<usize>,
    /// True if the dirty data of that record is given up.
    discards: bool,
    /// True if the backing is a copy of the one in that record.
    is_copy: bool,
}

impl State {
    /// Checks whether a volume may be served on a backing, and records the service: the record is marked as not cleanly
    /// stopped. The volume ID is that of this backing, or a new one from `draw`. A refusal changes nothing.
    pub fn identify(&mut self, claim: &Claim<'_>, draw: impl FnOnce() -> VolumeId) -> Result<Admission, Refusal> {
        let checked = self.check(claim)?;
        Ok(self.admit(checked, claim, draw))
    }

    /// Checks whether [`State::identify`] would admit a volume, without a change.
    pub fn check(&self, claim: &Claim<'_>) -> Result<Checked, Refusal> {
        if let Some(OlderThan { store, epoch, known }) =
            self.older_than.clone().filter(|_| !self.sabotage.is(Sabotage::AnyState))
        {
            return Err(Refusal::StateOlder { store, epoch, known });
        }
        let is_match = |record: &VolumeRecord| {
            record.backing_identity == claim.identity || claim.aliases.contains(&record.backing_identity)
        };
        let mut by_backing = self.volumes.iter().position(is_match);
        if let Some(other) = by_backing.map(|index| &self.volumes[index].name)
            && other != claim.name
            && claim.served.contains(other)
        {
            if !self.sabotage.is(Sabotage::SharedDisk) {
                return Err(Refusal::BackingTaken { other: other.clone() });
            }
            by_backing = None;
        }
        let by_name = self.volumes.iter().position(|record| record.name == claim.name);
        let former = match by_name {
            Some(index) => Some(&self.volumes[index]).filter(|_| by_backing != by_name),
            None => self.displaced(claim.name).filter(|record| !is_match(record)),
        };
        let copy_of = by_name.filter(|index| by_backing.is_none() && self.keeps_data(&self.volumes[*index], claim));
        if let Some(index) = copy_of {
            let discards = self.check_dirty_data(index, claim)?;
            return Ok(Checked { by_name, by_backing: copy_of, discards, is_copy: true });
        }
        if let Some(former) = former {
            // The evidence of a known backing is about its own record.
            let is_unknown = by_backing.is_none() && by_name.is_some();
            self.check_backing_change(former, claim, is_unknown)?;
        }
        let discards = match by_backing {
            Some(index) => self.check_dirty_data(index, claim)?,
            None => {
                let unclaimed: Vec<&str> =
                    self.unclaimed.iter().map(String::as_str).filter(|store| !claim.discards(store)).collect();
                if !unclaimed.is_empty() && !self.sabotage.is(Sabotage::AnyState) {
                    return Err(Refusal::Unclaimed { name: claim.name.to_owned(), store: unclaimed.join(",") });
                }
                // A directory without a store may be in place of a lost one that knew the store of the unread device.
                let may_be_lost = !claim.unread_flash.is_empty() && self.stores.is_empty() && !claim.accept.adopt;
                if may_be_lost && !self.sabotage.is(Sabotage::AnyState) {
                    let devices = claim.unread_flash.join("; ");
                    return Err(Refusal::FlashAbsent { name: claim.name.to_owned(), devices });
                }
                false
            }
        };
        Ok(Checked { by_name, by_backing, discards, is_copy: false })
    }

    /// True if the new backing of a volume is adopted as a copy of the former one, with the dirty data of that one.
    fn keeps_data(&self, record: &VolumeRecord, claim: &Claim<'_>) -> bool {
        let gives_up = self.loss_of(record, claim).is_none_or(|loss| claim.discards(&loss.volume_id));
        let is_current =
            matches!(self.copy_verdict(record, claim), CopyVerdict::Current(_)) || self.sabotage.is(Sabotage::AnyCopy);
        claim.accept.adopt && !gives_up && is_current
    }

    /// Whether the new backing is a copy of the one in `record` that can take its dirty data. The evidence comes from
    /// the store in use, which may lack what another one has.
    fn copy_verdict(&self, record: &VolumeRecord, claim: &Claim<'_>) -> CopyVerdict {
        let undestaged = claim.undestaged.get(&record.volume_id).copied().unwrap_or_default();
        let is_complete = match record.dirty_on_flash.as_deref() {
            Some(store) => Some(store) == claim.store,
            None => undestaged.in_log == 0,
        };
        let evidence = claim.evidence.filter(|_| is_complete);
        evidence.map_or(CopyVerdict::Unproven, |evidence| evidence.compare_copy(record.content.as_ref()))
    }

    /// The record with which a backing of these identities is compared: that of the backing, else that of the name,
    /// because the backing may be a copy of the volume's former one.
    pub fn record_to_compare(&self, name: &str, has_identity: impl Fn(&String) -> bool) -> Option<&VolumeRecord> {
        let of_backing = self.volumes.iter().find(|record| has_identity(&record.backing_identity));
        of_backing.or_else(|| self.by_name(name))
    }

    /// Checks a new backing of a volume that had another one; `may_be_copy` if no volume has had it.
    fn check_backing_change(&self, record: &VolumeRecord, claim: &Claim<'_>, may_be_copy: bool) -> Result<(), Refusal> {
        let loss = self.loss_of(record, claim);
        let names_loss = loss.as_ref().is_none_or(|loss| claim.discards(&loss.volume_id))
            || self.sabotage.is(Sabotage::AdoptUnnamed);
        if claim.accept.adopt && names_loss {
            return Ok(());
        }
        let copy = if may_be_copy { self.copy_verdict(record, claim) } else { CopyVerdict::Unproven };
        let mut owners = self.volumes.iter().filter(|owner| owner.name != record.name);
        let owner = owners.find(|owner| owner.backing_identity == record.backing_identity);
        let mut known = show_backing(record.backing_path(), &record.backing_identity);
        if let Some(owner) = owner {
            known.push_str(&format!(", which belongs to volume {} now, with its dirty data,", owner.name));
        }
        Err(Refusal::BackingChanged {
            name: claim.name.to_owned(),
            known,
            found: show_backing(Some(claim.path), claim.identity),
            clean: record.clean,
            loss,
            copy,
        })
    }

    /// The dirty data of a volume that its backing lacks.
    fn loss_of(&self, record: &VolumeRecord, claim: &Claim<'_>) -> Option<Box<Loss>> {
        let undestaged = claim.undestaged.get(&record.volume_id).copied().unwrap_or_default();
        let elsewhere = record.dirty_on_flash.as_deref().filter(|store| Some(*store) != claim.store);
        if elsewhere.is_none() && undestaged == UndestagedBlocks::default() {
            return None;
        }
        let bytes = (undestaged.in_log + undestaged.in_memory) * 4096;
        let in_log = claim.store.filter(|_| undestaged.in_log > 0);
        Some(Box::new(Loss {
            volume_id: show_volume_id(record.volume_id),
            volume: record.name.clone(),
            store: elsewhere.or(in_log).map(str::to_owned),
            bytes: elsewhere.is_none().then_some(bytes),
        }))
    }

    /// Checks the volume's dirty data, the store that may hold it, and the backing. Returns true if the dirty data is
    /// discarded.
    fn check_dirty_data(&self, index: usize, claim: &Claim<'_>) -> Result<bool, Refusal> {
        let record = &self.volumes[index];
        let name = claim.name.to_owned();
        let Some(loss) = self.loss_of(record, claim) else { return Ok(false) };
        let is_destaged = claim.is_destaged && record.backing_identity == claim.identity;
        if is_destaged || claim.discards(&loss.volume_id) {
            return Ok(true);
        }
        let mark = record.dirty_on_flash.as_deref();
        if let Some(elsewhere) = mark.filter(|store| Some(*store) != claim.store) {
            let unused = (claim.why_unused)(elsewhere);
            return Err(Refusal::DirtyElsewhere { name, unused, loss });
        }
        let undestaged = claim.undestaged.get(&record.volume_id).copied().unwrap_or_default();
        if undestaged.in_log > 0 && mark.is_none() && !self.sabotage.is(Sabotage::AnyStore) {
            return Err(Refusal::LogUnexpected { name, loss });
        }
        let Some(evidence) = claim.evidence else { return Ok(false) };
        let verdict = match self.sabotage.is(Sabotage::AnyContent) {
            true => ContentVerdict::Same,
            false => {
                let others = self.volumes.iter().filter(|other| other.volume_id != record.volume_id);
                let others: Vec<&ContentRecord> = others.filter_map(|other| other.content.as_ref()).collect();
                compare_content(record.content.as_ref(), evidence, &others)
            }
        };
        let shrink = shrink_of(record, evidence);
        match verdict {
            ContentVerdict::Differs(changed_blocks) => {
                return Err(Refusal::ContentDiffers { name, changed_blocks, loss });
            }
            ContentVerdict::OwnerChanged if !claim.accept.adopt => {
                let reason = match evidence.lineage_reason.as_str() {
                    "" => "the records have no ownership of it".to_owned(),
                    reason => reason.to_owned(),
                };
                let identity = claim.identity.to_owned();
                return Err(Refusal::OwnerChanged { name, identity, reason, loss });
            }
            ContentVerdict::Unproven(missing) if !claim.accept.adopt => {
                let is_outdated = claim.store.is_some() && !self.may_have_pages(record.volume_id, claim.store);
                let missing = match missing {
                    MissingProof::RecentWritesLost if is_outdated => MissingProof::RecentWritesOutdated,
                    missing => missing,
                };
                let identity = claim.identity.to_owned();
                return Err(Refusal::ContentUnproven { name, identity, missing, shrink, loss });
            }
            ContentVerdict::Unproven(_) | ContentVerdict::OwnerChanged | ContentVerdict::Same => {}
        }
        let is_accepted = claim.accept.discard_past_end || self.sabotage.is(Sabotage::PastEnd);
        if let Some(shrink) = shrink.filter(|shrink| shrink.past_end_bytes > 0 && !is_accepted) {
            return Err(Refusal::BackingShrank { name, shrink, is_proven: verdict == ContentVerdict::Same });
        }
        if evidence.is_partial_block_dirty && !self.sabotage.is(Sabotage::PastEnd) {
            let known_bytes = record.content.as_ref().map_or(0, |content| content.size_bytes);
            return Err(Refusal::BackingGrew { name, known_bytes, found_bytes: evidence.content.size_bytes, loss });
        }
        Ok(false)
    }

    /// Updates the records for a volume that is served now.
    fn admit(&mut self, checked: Checked, claim: &Claim<'_>, draw: impl FnOnce() -> VolumeId) -> Admission {
        let Checked { by_name, by_backing, discards, is_copy } = checked;
        // The name's former volume is forgotten; its backing, if it returns, is unknown. Initiators identify data by
        // the volume's name, so the unit moves to the backing that the data was restored to.
        let former = by_name.filter(|index| by_backing != Some(*index)).map(|index| self.volumes[index].clone());
        if let Some(former) = &former {
            self.discard_data(former.volume_id, former.dirty_on_flash.as_deref().or(claim.store));
        }
        self.forget_displaced(claim.name);
        let is_taken_over = |index: &usize| {
            let record = &self.volumes[*index];
            let has_dirty = !record.clean || self.loss_of(record, claim).is_some();
            // A volume that only has a new name leaves nothing behind under the former one.
            let is_configured = claim.configured.contains(&record.name);
            record.name != claim.name && (claim.accept.adopt || is_configured && has_dirty)
        };
        if let Some(index) = by_backing.filter(is_taken_over) {
            self.displace(self.volumes[index].clone());
        }
        self.revision += 1;
        if !self.unclaimed.is_empty() {
            self.served_beside.insert(claim.identity.to_owned());
        }
        let mut has_stale_pages = false;
        let (volume_id, drops_pages) = match by_backing {
            Some(index) => {
                let recorded_id = self.volumes[index].volume_id;
                let volume_id = if discards { self.discard_flash_data(recorded_id, draw()) } else { recorded_id };
                // Data past the old end may exist again, with another content, after a growth. A copy may differ in
                // blocks that the ring does not have, and so may a backing that another process has owned.
                has_stale_pages =
                    is_copy || self.has_stale_end(volume_id, claim) || self.has_other_lineage(volume_id, claim);
                if has_stale_pages {
                    self.by_id_mut(volume_id).expect("the record exists").cached_on = Some(Default::default());
                }
                (volume_id, claim.store.is_some() && !self.may_have_pages(volume_id, claim.store))
            }
            None => {
                // Data in the unclaimed stores does not belong to this new volume.
                let volume_id = draw();
                self.volumes.push(VolumeRecord { volume_id, ..VolumeRecord::default() });
                (volume_id, false)
            }
        };
        let (generation, sabotage) = (self.generation, self.sabotage);
        let record = self.by_id_mut(volume_id).expect("the record was found or created");
        // A volume that was added by command is in no file: without `added` it would not return at the next start. That
        // of another volume's record belongs to the other name.
        let own_added = record.added.take().filter(|_| record.name == claim.name);
        record.added = own_added.or_else(|| former.as_ref().and_then(|former| former.added.clone()));
        claim.name.clone_into(&mut record.name);
        claim.identity.clone_into(&mut record.backing_identity);
        record.configured = Some(ConfiguredBacking { path: claim.path.to_owned(), generation });
        record.clean = false;
        record.generation = generation;
        if let Some(evidence) = claim.evidence {
            // If the attach fails, the next admission does not compare the ring, which may have blocks past the end.
            // Dirty data then needs another proof of the backing.
            let destaged = if has_stale_pages { evidence.destaged_unchanged } else { 0 };
            record.content = Some(ContentRecord { destaged, ..evidence.content.clone() });
        }
        // From the first write on, pages of other stores differ from the backing.
        let cached_on = record.cached_on.get_or_insert_default();
        if claim.writes && !sabotage.is(Sabotage::StalePages) {
            cached_on.retain(|store| Some(store.as_str()) == claim.store);
        }
        cached_on.extend(claim.store.filter(|_| !drops_pages).map(str::to_owned));
        if let Some(former) = former {
            let record = self.by_id_mut(volume_id).expect("the record exists");
            let (unit, lun) = match record.unit.take() {
                Some(own) => (Some(own), former.unit.map(|unit| unit.lun)),
                None => (former.unit, None),
            };
            record.unit = unit;
            self.retired_luns.extend(lun);
            self.volumes.retain(|record| record.volume_id != former.volume_id);
        }
        Admission { volume_id, drops_pages: drops_pages && !sabotage.is(Sabotage::StalePages) }
    }

    /// Records the former backing and the possible losses of a name whose record another name adopts.
    fn displace(&mut self, record: VolumeRecord) {
        let VolumeRecord { name, backing_identity, configured, clean, generation, .. } = record;
        let VolumeRecord { lost_before, loss, durable_writes, .. } = record;
        self.forget_displaced(&name);
        if self.displaced.len() >= DISPLACED_MAX {
            self.displaced.remove(0);
        }
        self.displaced.push(VolumeRecord {
            name,
            backing_identity,
            configured,
            clean,
            generation,
            lost_before,
            loss,
            durable_writes,
            ..VolumeRecord::default()
        });
    }

    /// True if cached pages may have content past the volume's former or present end.
    fn has_stale_end(&self, volume_id: VolumeId, claim: &Claim<'_>) -> bool {
        let known = self.by_id(volume_id).and_then(|record| record.content.as_ref());
        known.zip(claim.evidence).is_some_and(|(known, evidence)| {
            let found_bytes = evidence.content.size_bytes;
            known.size_bytes > found_bytes || former_partial_block(found_bytes, Some(known.size_bytes)).is_some()
        })
    }

    /// True if another process may have written to the volume's backing since it was served.
    fn has_other_lineage(&self, volume_id: VolumeId, claim: &Claim<'_>) -> bool {
        let known = self.by_id(volume_id).and_then(|record| record.content.as_ref());
        claim.evidence.is_some_and(|evidence| evidence.has_other_lineage(known))
    }

    /// True if pages of the volume in this store may be served.
    fn may_have_pages(&self, volume_id: VolumeId, store: Option<&str>) -> bool {
        let cached_on = self.by_id(volume_id).and_then(|record| record.cached_on.as_ref());
        cached_on.is_some_and(|stores| store.is_some_and(|store| stores.contains(store)))
    }

    /// Records the present size of a volume's backing.
    pub fn record_size(&mut self, volume_id: VolumeId, size_bytes: u64) {
        let record = self.by_id_mut(volume_id);
        if let Some(content) = record.and_then(|record| record.content.as_mut()) {
            // The sampled blocks depend on the size.
            *content = ContentRecord { size_bytes, samples: String::new(), ..content.clone() };
            self.revision += 1;
        }
    }

    /// Records that the volume's pages in that store match its backing, because older pages were dropped durably.
    pub fn record_pages_dropped(&mut self, volume_id: VolumeId, store: &str) {
        if let Some(record) = self.by_id_mut(volume_id) {
            record.cached_on.get_or_insert_default().insert(store.to_owned());
            // A stop has recorded its own number.
            if let Some(content) = record.content.as_mut().filter(|_| !record.clean) {
                content.destaged = 0;
            }
        }
    }

    /// Records that a store in use holds data of volumes without a record: a record may have been lost. The entry stays
    /// even after the store holds no such data, because its devices may have been restored from an older copy; a
    /// rebuild removes it.
    pub fn record_unclaimed(&mut self, store: &str, volume_ids: impl IntoIterator<Item = VolumeId>) {
        let given_up = self.store(store).map(|record| &record.given_up);
        let is_unknown = volume_ids.into_iter().any(|volume_id| {
            self.by_id(volume_id).is_none()
                && !given_up.is_some_and(|given_up| given_up.contains(&show_volume_id(volume_id)))
        });
        if is_unknown {
            self.unclaimed.insert(store.to_owned());
        }
    }

    /// True if the data of a volume ID was given up. Such an ID is never used again.
    pub fn is_given_up(&self, volume_id: VolumeId) -> bool {
        self.stores.iter().any(|store| store.given_up.contains(&show_volume_id(volume_id)))
    }

    /// Volumes that are not served and whose backings may lack data: it may be in a flash log, or in persisted memory.
    pub fn incomplete_outside(&self, is_served: impl Fn(VolumeId) -> bool) -> impl Iterator<Item = &VolumeRecord> {
        let others = self.volumes.iter().filter(move |record| !is_served(record.volume_id));
        others.filter(|record| record.dirty_on_flash.is_some() || !(record.clean || record.durable_writes))
    }

    /// True if content of a volume ID in persisted memory must stay. A volume without a record may be missing only
    /// because these records are an older copy. `is_store_checked` is false if a configured flash store, which could
    /// prove that, is not in use.
    pub fn may_need_memory(&self, volume_id: VolumeId, is_store_checked: bool) -> bool {
        if self.by_id(volume_id).is_some() || self.older_than.is_some() {
            return true;
        }
        !self.is_given_up(volume_id) && (!is_store_checked || !self.unclaimed.is_empty())
    }

    /// Records that the data of a volume ID in a store is discarded.
    fn discard_data(&mut self, volume_id: VolumeId, store: Option<&str>) {
        if let Some(store) = store {
            self.store_mut(store).given_up.insert(show_volume_id(volume_id));
        }
    }

    /// Renames a backing that is recorded under an identity of an earlier version.
    pub fn rename_backing(&mut self, former: &[String], identity: &str) {
        if self.volumes.iter().any(|record| record.backing_identity == identity) {
            return;
        }
        // Identities are tried newest first; of two records with one identity, the first has always been the valid one.
        let indexes =
            former.iter().filter_map(|name| self.volumes.iter().position(|volume| volume.backing_identity == *name));
        if let Some(index) = indexes.into_iter().next() {
            self.volumes[index].backing_identity = identity.to_owned();
        }
    }

    /// Records a clean stop with all acknowledged writes on the backing.
    pub fn mark_clean(&mut self, volume_id: VolumeId) {
        if let Some(record) = self.by_id_mut(volume_id) {
            record.clean = true;
            record.dirty_on_flash = None;
        }
    }

    /// Records a clean stop with all acknowledged writes on the backing or in the flash log. `destaged` is the number
    /// of destaged blocks whose checksums the store holds.
    pub fn mark_left_on_flash(&mut self, volume_id: VolumeId, destaged: u64) {
        if let Some(record) = self.by_id_mut(volume_id) {
            record.clean = true;
            record.content.get_or_insert_default().destaged = destaged;
        }
    }

    /// Records the flash store that may hold dirty data of the volume from now on.
    pub fn mark_on_flash(&mut self, volume_id: VolumeId, store: Option<&str>) {
        if let Some(record) = self.by_id_mut(volume_id) {
            record.dirty_on_flash = store.map(str::to_owned);
        }
    }

    /// Gives the volume a new ID, which it returns. Data under the old one in any flash store is obsolete and
    /// never served again.
    pub fn discard_flash_data(&mut self, volume_id: VolumeId, drawn: VolumeId) -> VolumeId {
        if let Some(record) = self.by_id_mut(volume_id) {
            record.volume_id = drawn;
            record.dirty_on_flash = None;
            record.cached_on = None;
            self.revision += 1;
            self.give_up(volume_id);
        }
        drawn
    }

    /// Gives up the data of a volume in all stores, before it is forgotten.
    pub fn give_up(&mut self, volume_id: VolumeId) {
        let stores: Vec<String> = self.stores.iter().map(|record| record.store.clone()).collect();
        stores.iter().for_each(|store| self.discard_data(volume_id, Some(store)));
    }

    /// Removes the former record of a name that was removed.
    pub fn forget_displaced(&mut self, name: &str) {
        self.displaced.retain(|record| record.name != name);
    }

    /// Removes the record of a removed volume; its ID is never used again.
    pub fn forget(&mut self, volume_id: VolumeId) {
        let unit = self.by_id_mut(volume_id).and_then(|record| record.unit.take());
        self.retired_luns.extend(unit.map(|unit| unit.lun));
        self.volumes.retain(|record| record.volume_id != volume_id);
        self.revision += 1;
    }
}

/// A backing in messages: its path or URI, as far as it is known, and its identity.
fn show_backing(path: Option<&str>, identity: &str) -> String {
    path.map_or_else(|| identity.to_owned(), |path| format!("{path} ({identity})"))
}

/// The change of size of a backing that has shrunk since the record, or past whose end dirty data lies.
fn shrink_of(record: &VolumeRecord, evidence: &Evidence) -> Option<Shrink> {
    let known_bytes = record.content.as_ref().map_or(0, |content| content.size_bytes);
    let found_bytes = evidence.content.size_bytes;
    let past_end_bytes = evidence.blocks_past_end * 4096;
    let has_shrunk = known_bytes > found_bytes || past_end_bytes > 0;
    has_shrunk.then_some(Shrink { known_bytes, found_bytes, past_end_bytes })
}

/// A random number from the operating system, never 0.
pub fn random_number() -> io::Result<u64> {
    let mut random = std::fs::File::open("/dev/urandom")?;
    loop {
        let mut bytes = [0; 8];
        random.read_exact(&mut bytes)?;
        let drawn = u64::from_le_bytes(bytes);
        if drawn != 0 {
            return Ok(drawn);
        }
    }
}

/// A random number of 128 bits from the operating system.
pub fn random_identity() -> io::Result<u128> {
    Ok(u128::from(random_number()?) << 64 | u128::from(random_number()?))
}

impl Claim<'_> {
    /// True if the claim gives up this data: a volume ID or a flash store.
    fn discards(&self, data: &str) -> bool {
        self.accept.adopt
            && self.accept.give_up.as_deref().is_some_and(|all| all.split(',').any(|accepted| accepted == data))
    }
}

#[cfg(test)]
impl<'a> Claim<'a> {
    /// A volume without dirty data and without flash.
    pub fn plain(name: &'a str, identity: &'a str) -> Claim<'a> {
        const NO_BLOCKS: &BTreeMap<VolumeId, UndestagedBlocks> = &BTreeMap::new();
        const NO_ACCEPTANCE: &Acceptance = &Acceptance { adopt: false, give_up: None, discard_past_end: false };
        Claim {
            name,
            identity,
            path: "/dev/disk",
            aliases: &[],
            served: &[],
            configured: &[],
            store: None,
            unread_flash: &[],
            why_unused: &|_| UnusedStore { reason: "it is not configured".to_owned(), has_whole_log: false },
            undestaged: NO_BLOCKS,
            evidence: None,
            writes: true,
            accept: NO_ACCEPTANCE,
            is_destaged: false,
        }
    }
}
