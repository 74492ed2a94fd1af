//! Attaching and detaching volumes: open the backing, identify the volume, save its record, attach it; and the reverse.

mod identify;
mod late;
mod open;

pub use open::pool_target;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use control::ProgressSender;
use engine::{VolumeId, VolumeSpec};
use messages::Failure;
use rbd::Claim;
use seam::real::PATH_TIMEOUT;

use super::cores::{AttachOutcome, AttachRequest, CachedData, ConnectedClients, Cores, LateAttach, OpenedBacking};
use super::flash::FlashLog;
use super::forwarding::Forwarding;
use super::iscsi_units::Units;
use super::persisted_memory::PersistedMemory;
use super::records::Records;
use super::settings::Settings;
use super::volume_settings::{flash_quota_of, memory_quota_of, qos_of};
use super::volumes::{Placement, RequestedVolume, STANDBY, Volumes};
use config::VolumeConfig;
use logging::{self as log, VOLUME};
use state::{Acceptance, Admission, effective_mode, effective_policy};

/// Attaches and detaches volumes, through the daemon's parts that this involves. A clone is another handle to them.
#[derive(Clone)]
pub struct Attachments {
    /// The configuration in force.
    pub settings: Rc<Settings>,
    /// The durable records.
    pub records: Rc<Records>,
    /// The data cores.
    pub cores: Rc<Cores>,
    /// All volumes.
    pub volumes: Rc<Volumes>,
    /// The flash log.
    pub flash: Rc<FlashLog>,
    /// Persisted memory.
    pub memory: Rc<PersistedMemory>,
    /// The volumes as units of the iSCSI target.
    pub units: Rc<Units>,
    /// Volumes on standby whose reads are forwarded.
    pub forwarding: Rc<Forwarding>,
}

impl Attachments {
    /// Attaches a volume, or records why it cannot be served.
    pub async fn attach(&self, config: VolumeConfig, from_file: bool, accept: Acceptance) -> Result<(), Failure> {
        self.attach_all(vec![(config, from_file)], accept, PATH_TIMEOUT).await.pop().expect("one result per volume")
    }

    /// As [`Attachments::attach`] for many volumes, with one call per core and one write of the state directory for all
    /// of them. Attaching a thousand volumes one by one takes a minute on a busy processor.
    ///
    /// All volumes wait for the slowest backing. If a backing has not answered for `limit`, its volume is refused and
    /// retried. If a backing hangs after the volume was identified, the attach continues, and the volume is served at
    /// its end.
    pub async fn attach_all(
        &self,
        requested: Vec<RequestedVolume>,
        accept: Acceptance,
        limit: Duration,
    ) -> Vec<Result<(), Failure>> {
        self.flash.wait_for_start_check().await;
        let _guard = match self.volumes.begin_attach() {
            Ok(guard) => guard,
            Err(failure) => return requested.iter().map(|_| Err(failure.clone())).collect(),
        };
        for (config, _) in &requested {
            let known = self.volumes.find(&config.name);
            // The clients of a volume on standby stay connected to its image, and to no other backing.
            let is_same = known.is_none_or(|known| known.config.backing == config.backing);
            // A core that has ended fails the attach as well.
            let (Ok(()) | Err(_)) = match is_same {
                true => self.forwarding.end(&config.name).await,
                false => self.forwarding.remove(&config.name).await,
            };
        }
        let opened = self.open_all(&requested, &accept, limit).await;
        // Many volumes on few disks are identified at once, so a healthy backing may take longer than its opening.
        let request_limit = limit.max(PATH_TIMEOUT);
        let findings = match self.collect_findings(&requested, &opened, request_limit).await {
            Ok(findings) if accept.discard_past_end => {
                self.discard_past_end(&requested, &opened, findings, &accept, request_limit).await
            }
            findings => findings,
        };
        let is_destaged = opened.iter().flatten().any(|opened| opened.facts.is_destaged);
        let identified = self.identify_all(&requested, &opened, findings, &accept);
        // The flash devices get the new records before any volume relies on them.
        self.flash.save_manifest().await;
        let (placements, late) = self.serve_all(&requested, opened, identified, request_limit).await;
        if is_destaged && let Err(failure) = self.flash.discard_given_up().await {
            log::warn!(target: VOLUME, "{}", failure.message);
        }
        if let Err(failure) = self.memory.delete_unneeded_images().await {
            log::error!(target: VOLUME, "{}", failure.message);
        }
        let refused =
            placements.iter().zip(&requested).filter(|(result, _)| result.is_err()).map(|(_, (config, _))| config);
        self.units.report_absent(refused).await;
        let late: Vec<_> =
            late.into_iter().map(|(index, placement, attach)| (requested[index].clone(), placement, attach)).collect();
        let results = requested.into_iter().zip(placements).map(|((config, from_file), result)| {
            let name = config.name.clone();
            self.volumes.record_attached((config, from_file), result.clone());
            result.map(|_| ()).map_err(|failure| {
                let state = if failure.refusal.as_deref() == Some(STANDBY) { "on standby" } else { "not served" };
                let message = format!("volume {name} is {state}: {}", failure.message);
                Failure { message, ..failure }
            })
        });
        let results = results.collect();
        late.into_iter().for_each(|(requested, placement, attach)| self.finish_later(requested, placement, attach));
        results
    }

    /// Attaches identified volumes to their open backings, and closes the other backings. Also returns the attaches
    /// that continue, with the index of the volume and its placement: their backings leave a request unanswered for
    /// `limit`.
    async fn serve_all(
        &self,
        requested: &[RequestedVolume],
        opened: Vec<Result<OpenedBacking, Failure>>,
        identified: Vec<Result<Admission, Failure>>,
        limit: Duration,
    ) -> (Vec<Result<Placement, Failure>>, Vec<(usize, Placement, LateAttach)>) {
        let mut requests_by_core: BTreeMap<usize, Vec<(usize, AttachRequest)>> = BTreeMap::new();
        let mut results = Vec::with_capacity(requested.len());
        let (mut not_on_flash, mut late) = (Vec::new(), Vec::new());
        for (index, ((config, _), (opened, identified))) in
            requested.iter().zip(opened.into_iter().zip(identified)).enumerate()
        {
            results.push(match (opened, identified) {
                (Ok(opened), Ok(Admission { volume_id, drops_pages })) => match self.units.plan(config, volume_id) {
                    Err(failure) => Err(self.cores.close(&opened, failure).await),
                    Ok(unit) => {
                        let OpenedBacking { core, backing_key, facts } = opened;
                        let is_released = self.volumes.claim_of(&config.name) == Some(Claim::Record);
                        let awaits_transfer = facts.ownership.filter(|_| is_released);
                        let spec = VolumeSpec { drops_pages, awaits_transfer, ..self.spec_of(config, volume_id) };
                        let lost_before = self.records.view().by_id(volume_id).map(|record| record.lost_before);
                        let lost_before = lost_before.unwrap_or(0);
                        let file_policy = config.policy;
                        let request = AttachRequest { backing_key, spec, file_policy, unit, lost_before };
                        requests_by_core.entry(core).or_default().push((index, request));
                        Ok(Placement {
                            volume_id,
                            identity: facts.identity,
                            core,
                            geometry: facts.geometry,
                            ownership: facts.ownership,
                            released_version: facts.released_version,
                        })
                    }
                },
                (Ok(opened), Err(failure)) => Err(self.cores.close(&opened, failure).await),
                (Err(failure), _) => Err(failure),
            });
        }
        for (core, requests) in requests_by_core {
            let (indices, requests): (Vec<usize>, Vec<AttachRequest>) = requests.into_iter().unzip();
            let outcomes = self.cores.attach(core, requests, limit).await;
            for (index, attached) in indices.into_iter().zip(outcomes) {
                match (attached, &results[index]) {
                    (AttachOutcome::Ended(Ok(false)), Ok(placement))
                        if !self.records.policy_allows_log(&requested[index].0) =>
                    {
                        not_on_flash.push(placement.volume_id)
                    }
                    (AttachOutcome::Ended(Ok(_)), _) => {}
                    (AttachOutcome::Ended(Err(failure)), _) => results[index] = Err(failure),
                    (AttachOutcome::Hung(attach), _) => {
                        let refused = Err(self.hung(&requested[index]));
                        let placement = std::mem::replace(&mut results[index], refused);
                        late.extend(placement.ok().map(|placement| (index, placement, attach)));
                    }
                }
            }
        }
        self.clear_flash_marks(&not_on_flash);
        (results, late)
    }

    /// Clears the "dirty on flash" mark of volumes that have nothing in the flash log. A failure does not affect
    /// service: a stale mark only causes one more check at the next start.
    fn clear_flash_marks(&self, volume_ids: &[VolumeId]) {
        if self.flash.store().is_none() {
            return;
        }
        let saved = self.records.change(|state| {
            volume_ids.iter().for_each(|volume_id| state.mark_on_flash(*volume_id, None));
        });
        if let Err(error) = saved {
            log::error!(target: VOLUME, "{error}");
        }
    }

    /// The volume's specification, with the settings by command and by the file that are in force.
    fn spec_of(&self, config: &VolumeConfig, volume_id: VolumeId) -> VolumeSpec {
        let state = self.records.view();
        let record = state.by_name(&config.name);
        VolumeSpec {
            policy: effective_policy(record, config.policy),
            mode: effective_mode(record),
            read_only: config.read_only,
            datastore: config.datastore.clone(),
            labels: config.labels.clone(),
            memory: memory_quota_of(record, config, self.settings.current().memory_bytes),
            flash: flash_quota_of(record, config),
            qos: qos_of(record, config.qos).of_engine(),
            unflushed_loss: state::unflushed_loss(record, state.generation),
            allows_log: !self.flash.is_by_command() || record.is_some_and(|record| record.dirty_on_flash.is_some()),
            deferral_age: seam::Nanos(u64::try_from(config.defer.as_nanos()).unwrap_or(u64::MAX)),
            ..VolumeSpec::new(&config.name, volume_id)
        }
    }

    /// True when the flash log in use holds undestaged data of a volume that is not served.
    pub async fn has_blocks_in_log(&self, name: &str) -> Result<bool, Failure> {
        let undestaged = self.cores.undestaged_blocks().await?;
        let volume_id = self.records.view().by_name(name).map(|record| record.volume_id);
        Ok(volume_id.and_then(|volume_id| undestaged.get(&volume_id)).is_some_and(|blocks| blocks.in_log > 0))
    }

    /// Detaches a volume and disconnects its clients ([`Cores::detach`](super::cores::Cores::detach)).
    pub async fn detach(&self, name: &str, core: usize, progress: &ProgressSender) -> Result<(), Failure> {
        self.detach_from(ConnectedClients::Disconnect, CachedData::Destage, name, core, progress).await
    }

    /// As [`Attachments::detach`] for a volume whose backing is lost: its dirty data is discarded.
    pub async fn detach_lost(&self, name: &str, core: usize, progress: &ProgressSender) -> Result<(), Failure> {
        self.detach_from(ConnectedClients::Disconnect, CachedData::Discard, name, core, progress).await
    }

    /// As [`Attachments::detach`], with this treatment of its clients and its data.
    pub async fn detach_from(
        &self,
        clients: ConnectedClients,
        cached: CachedData,
        name: &str,
        core: usize,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let lost_before = self.records.lost_before(name);
        self.cores.detach(name, core, clients, cached, lost_before, progress).await
    }
}
