//! Identifies volumes on their open backings: the record, the undestaged blocks, and whether the volume may be served.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{VolumeId, WritePolicy};
use messages::{ErrorKind, Failure};

use super::super::cores::{ExaminationError, ExaminationResult, ExaminedVolume, OpenFacts, OpenedBacking};
use super::super::volumes::RequestedVolume;
use super::Attachments;
use super::open::hung;
use config::VolumeConfig;
use config::keys::set_by_command;
use logging::{self as log, VOLUME};
use state::{
    Acceptance, Admission, Claim, Evidence, LossRecord, State, UndestagedBlocks, VolumeRecord,
    acknowledges_durable_writes, effective_policy, random_number,
};

/// Names of volumes beside which a volume is identified.
struct Names {
    /// Volumes in service.
    served: Vec<String>,
    /// All configured volumes.
    configured: Vec<String>,
}

/// Evidence about the volumes that are to be served.
pub struct Findings {
    /// Undestaged blocks of volumes that are not served yet, by volume ID.
    undestaged: BTreeMap<VolumeId, UndestagedBlocks>,
    /// Content of each backing, in the order of the volumes; `None` for a backing that is not open.
    evidence: Vec<Option<ExaminationResult>>,
}

impl Attachments {
    /// Collects the undestaged blocks of all volumes, and the content of each open backing. A backing that leaves a
    /// read unanswered for `limit` counts as hung.
    pub(super) async fn collect_findings(
        &self,
        requested: &[RequestedVolume],
        opened: &[Result<OpenedBacking, Failure>],
        limit: Duration,
    ) -> Result<Findings, Failure> {
        let undestaged = self.cores.undestaged_blocks().await?;
        let volumes: Vec<_> = {
            let (state, store) = (self.records.view(), self.flash.store());
            let examined_volume = |((config, _), opened): (&RequestedVolume, &Result<OpenedBacking, Failure>)| {
                let OpenedBacking { core, backing_key, facts } = opened.as_ref().ok()?;
                let is_match =
                    |identity: &String| *identity == facts.identity || facts.former_identities.contains(identity);
                let record = state.record_to_compare(&config.name, is_match);
                let cached_on = record.and_then(|record| record.cached_on.as_ref());
                Some(ExaminedVolume {
                    core: *core,
                    backing_key: *backing_key,
                    volume_id: record.map(|record| record.volume_id),
                    size_before: record.and_then(|record| record.content.as_ref()).map(|content| content.size_bytes),
                    trusts_store: cached_on
                        .is_some_and(|stores| store.as_ref().is_some_and(|store| stores.contains(store))),
                })
            };
            requested.iter().zip(opened).map(examined_volume).collect()
        };
        let evidence = self.cores.examine_all(&volumes, limit).await;
        Ok(Findings { undestaged, evidence })
    }

    /// Determines the ID of each volume on its open backing, saved durably before the volume's first write.
    pub(super) fn identify_all(
        &self,
        requested: &[RequestedVolume],
        opened: &[Result<OpenedBacking, Failure>],
        findings: Result<Findings, Failure>,
        accept: &Acceptance,
    ) -> Vec<Result<Admission, Failure>> {
        let findings = match findings {
            Ok(findings) => findings,
            Err(failure) => return requested.iter().map(|_| Err(failure.clone())).collect(),
        };
        let mut names = self.names_of(requested);
        let (mut unclean, mut with_loss) = (Vec::new(), Vec::new());
        let identified = self.records.change(|state| {
            let admissions =
                requested.iter().zip(opened).zip(&findings.evidence).map(|((volume, opened), evidence)| {
                    let (config, _) = volume;
                    let facts = &opened.as_ref().map_err(Failure::clone)?.facts;
                    let accept = &accept.without(facts.given_up.as_deref());
                    let evidence =
                        evidence.as_ref().map(Result::as_ref).transpose().map_err(|reason| match reason {
                            ExaminationError::Hung => hung(volume, state),
                            ExaminationError::Failed(failure) => failure.clone(),
                        })?;
                    state.rename_backing(&facts.former_identities, &facts.identity);
                    let known = state.record_to_compare(&config.name, |identity| *identity == facts.identity);
                    let known_id = known.map(|record| record.volume_id);
                    let has_record = known.is_some_and(|record| record.backing_identity == facts.identity);
                    // This daemon has lost nothing that it acknowledged, however often it attached the volume.
                    let generation = state.generation;
                    let is_known_intact = |earlier: u64| earlier == generation || self.memory.is_intact(earlier);
                    let is_unclean = known.is_some_and(|record| !record.clean && !is_known_intact(record.generation));
                    // Clients identify the volume by name: a loss under that name counts, whatever the backing is now.
                    let records = || state.records_of(&config.name, &facts.identity);
                    let may_have_lost = |record: &VolumeRecord| !record.clean && !is_known_intact(record.generation);
                    let loss = records().find_map(|entry| state::loss_to_report(state, entry, may_have_lost(entry)));
                    if let Some(refused) = known
                        .filter(|_| has_record && is_unclean && !accept.adopt)
                        .and_then(|entry| self.memory.unreadable_image_refusal(entry))
                    {
                        return Err(refused);
                    }
                    let in_memory =
                        |record: &VolumeRecord| findings.undestaged.get(&record.volume_id).map(|entry| entry.in_memory);
                    let discards = accept.give_up.is_some() || facts.is_destaged;
                    let drops_memory = discards && records().filter_map(in_memory).any(|blocks| blocks > 0);
                    let admission = self.identify(state, config, facts, (&findings, evidence), accept, &names)?;
                    // A new backing without the volume's data begins a new history.
                    let is_unclean = is_unclean && (has_record || known_id == Some(admission.volume_id));
                    // The blocks given up were acknowledged by a killed daemon to clients that may still be running.
                    let given_up = LossRecord { generation, remote_clients: false };
                    let loss = if drops_memory { Some(given_up) } else { loss };
                    names.served.push(config.name.clone());
                    let policy = effective_policy(state.by_id(admission.volume_id), config.policy);
                    let undestaged = findings.undestaged.get(&admission.volume_id);
                    let has_blocks_in_log = undestaged.is_some_and(|blocks| blocks.in_log > 0);
                    let is_durable = acknowledges_durable_writes(policy, config.policy, has_blocks_in_log);
                    let record = state.by_id_mut(admission.volume_id).expect("the record was just created");
                    (record.loss, record.durable_writes) = (loss, config.read_only || is_durable);
                    if loss.is_some() {
                        with_loss.push(&config.name);
                    }
                    if is_unclean {
                        unclean.push(&config.name);
                        record.lost_before = generation;
                    }
                    Ok(admission)
                });
            let admissions = admissions.collect::<Vec<Result<Admission, Failure>>>();
            let volume_id = |entry: &Result<Admission, Failure>| {
                entry.as_ref().map(|entry| entry.volume_id).map_err(Failure::clone)
            };
            let mut volume_ids: Vec<Result<VolumeId, Failure>> = admissions.iter().map(volume_id).collect();
            self.units.assign_luns(state, &self.volumes.names(), requested, &mut volume_ids, accept.adopt);
            admissions.into_iter().zip(volume_ids).map(|(entry, volume_id)| volume_id.and(entry)).collect::<Vec<_>>()
        });
        for name in unclean.iter().filter(|_| identified.is_ok()) {
            log::warn!(
                target: VOLUME, volume = name,
                "volume {name} was not cleanly stopped: flushed data is safe, unflushed data may be lost"
            );
        }
        for name in with_loss.iter().filter(|_| identified.is_ok()) {
            log::warn!(
                target: VOLUME, volume = name,
                "volume {name}: unflushed writes of its last daemon may be lost; to report that, the first flush of a \
                 client that may have written them fails with an I/O error, until hotset has been stopped cleanly and \
                 started again"
            );
        }
        identified.unwrap_or_else(|failure| requested.iter().map(|_| Err(failure.clone())).collect())
    }

    /// Discards the data in the log past the end of each shrunk backing whose volume would be admitted, and collects
    /// the findings again. The records have the former sizes until then. So if the daemon is killed before the discard,
    /// the volume is refused again, and no attach that fails later leaves data in the log that a growth would bring
    /// back. Data in persisted memory is discarded by the attach.
    pub(super) async fn discard_past_end(
        &self,
        requested: &[RequestedVolume],
        opened: &[Result<OpenedBacking, Failure>],
        findings: Findings,
        accept: &Acceptance,
        limit: Duration,
    ) -> Result<Findings, Failure> {
        let mut shrunk = Vec::new();
        {
            let (state, names) = (self.records.view(), self.names_of(requested));
            for (((config, _), opened), evidence) in requested.iter().zip(opened).zip(&findings.evidence) {
                let (Ok(OpenedBacking { core, facts, .. }), Some(Ok(evidence))) = (opened, evidence) else { continue };
                let is_match =
                    |identity: &String| *identity == facts.identity || facts.former_identities.contains(identity);
                let record = state.volumes.iter().find(|record| is_match(&record.backing_identity));
                let evidence_of_volume = (&findings, Some(evidence));
                let checked =
                    self.with_claim(config, facts, evidence_of_volume, accept, &names, |claim| state.check(claim));
                if let Some(record) = record.filter(|_| evidence.blocks_past_end > 0 && checked.is_ok()) {
                    shrunk.push((config.name.as_str(), *core, record.volume_id, evidence.content.size_bytes));
                }
            }
        }
        for (name, core, volume_id, size_bytes) in shrunk {
            self.cores.discard_past_end(name, core, volume_id, size_bytes).await?;
        }
        self.collect_findings(requested, opened, limit).await
    }

    /// Identifies one volume and applies the effects of its admission to `state` and the flash log.
    fn identify(
        &self,
        state: &mut State,
        config: &VolumeConfig,
        facts: &OpenFacts,
        (findings, evidence): (&Findings, Option<&Evidence>),
        accept: &Acceptance,
        names: &Names,
    ) -> Result<Admission, Failure> {
        let drawn = random_number().map_err(|error| {
            Failure::new(ErrorKind::Failed, format!("cannot read a random volume ID from /dev/urandom: {error}"))
        })?;
        let store = self.flash.store();
        let admission = self.with_claim(config, facts, (findings, evidence), accept, names, |claim| {
            state.identify(claim, || VolumeId(drawn))
        });
        let admission =
            admission.map_err(|refusal| Failure::refused(refusal.code(), refusal.text(&self.settings.file())))?;
        let volume_id = admission.volume_id;
        for key in set_by_command() {
            state.expire_override(volume_id, key, &config.setting(key));
        }
        let policy = effective_policy(state.by_name(&config.name), config.policy);
        if store.is_some() && policy == WritePolicy::WriteBack && !config.read_only && !self.flash.is_by_command() {
            state.mark_on_flash(volume_id, store.as_deref());
        }
        if admission.drops_pages
            && let Some(store) = store
        {
            self.flash.plan_drop(volume_id, store);
        }
        Ok(admission)
    }

    fn names_of(&self, requested: &[RequestedVolume]) -> Names {
        let requested_names = requested.iter().map(|(config, _)| config.name.clone());
        let configured = self.volumes.names().into_iter().chain(requested_names).collect();
        Names { served: self.volumes.occupied_names(requested), configured }
    }

    /// Calls `work` with the claim of a volume on its open backing.
    fn with_claim<T>(
        &self,
        config: &VolumeConfig,
        facts: &OpenFacts,
        (findings, evidence): (&Findings, Option<&Evidence>),
        accept: &Acceptance,
        names: &Names,
        work: impl FnOnce(&Claim<'_>) -> T,
    ) -> T {
        let store = self.flash.store();
        work(&Claim {
            name: &config.name,
            identity: &facts.identity,
            path: &config.backing.to_string(),
            aliases: &facts.former_identities,
            served: &names.served,
            configured: &names.configured,
            store: store.as_deref(),
            unread_flash: &self.flash.unread_devices(),
            why_unused: &|store| self.flash.unused_reason(store),
            undestaged: &findings.undestaged,
            evidence,
            writes: !config.read_only,
            accept,
            is_destaged: facts.is_destaged,
        })
    }
}
