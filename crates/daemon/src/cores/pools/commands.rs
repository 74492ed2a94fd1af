//! Commands on open pools, on their cores.

use std::rc::Rc;

use messages::report::{PoolCellsReport, PoolPlanReport, PoolQueueReport, PoolReport};
use messages::{ErrorKind, Failure};
use pool::PoolError;
use pool::format::uuid_text;
use seam::real::PATH_TIMEOUT;
use seam::{Nanos, Seam};

use super::super::data_core::CoreLocal;
use super::super::{CORE_TIMEOUT, Cores, core_ended};
use super::{OpenPool, PoolTarget, pool_of_core};

/// Time for moves in progress to end at a stop.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time between two looks at them.
const STOP_STEP: Nanos = Nanos::from_millis(5);

impl Cores {
    /// The open pools of all cores, by name. A core that does not answer is left out. The lists of volumes take longer,
    /// by the number of slices.
    pub async fn pools(&self, with_volumes: bool) -> Vec<PoolReport> {
        let mut reports = Vec::new();
        for core in self.iter() {
            let report = async move |local: Rc<CoreLocal>| {
                let pools = local.pools.borrow();
                pools.values().map(|open| open.report(with_volumes)).collect::<Vec<_>>()
            };
            if let Ok(Ok(of_core)) = tokio::time::timeout(CORE_TIMEOUT, core.call(report)).await {
                reports.extend(of_core);
            }
        }
        reports.sort_by(|left, right| left.name.cmp(&right.name));
        reports
    }

    /// Opens a pool on the first core, if it is not open.
    pub async fn open_pool(&self, target: PoolTarget) -> Result<(), Failure> {
        let open = async move |local: Rc<CoreLocal>| pool_of_core(&local, &target, PATH_TIMEOUT).await.map(drop);
        let opened = self.first().call(open).await.map_err(core_ended)?;
        opened.map_err(|error| Failure::new(ErrorKind::Unavailable, error.to_string()))
    }

    /// The moves of a pool that have not ended.
    pub async fn pool_queue(&self, name: &str) -> Result<PoolQueueReport, Failure> {
        self.on_pool(name, async |open: Rc<OpenPool>| open.queue()).await
    }

    /// Tiers and load of the slices of a volume of a pool.
    pub async fn pool_cells(&self, name: &str, volume: &str) -> Result<PoolCellsReport, Failure> {
        let volume = volume.to_owned();
        self.on_pool(name, async move |open: Rc<OpenPool>| open.cells(&volume).await).await?
    }

    /// The identity of an open pool, 32 hexadecimal digits.
    pub async fn pool_identity(&self, name: &str) -> Result<String, Failure> {
        self.on_pool(name, async |open: Rc<OpenPool>| uuid_text(&open.pool.uuid())).await
    }

    /// One open pool.
    pub async fn pool(&self, name: &str) -> Result<PoolReport, Failure> {
        self.on_pool(name, async |open: Rc<OpenPool>| open.report(true)).await
    }

    /// The moves that a pool would make now.
    pub async fn plan_pool(&self, name: &str) -> Result<PoolPlanReport, Failure> {
        let plan = async |open: Rc<OpenPool>| open.plan(&open.relocation.settings()).await;
        self.on_pool(name, plan).await?.map_err(pool_failure)
    }

    /// Starts to move the slices of a plan that is made now. Returns the plan.
    pub async fn relocate_pool(&self, name: &str) -> Result<PoolPlanReport, Failure> {
        self.on_pool(name, async |open: Rc<OpenPool>| open.relocate().await).await?
    }

    /// Stops all moves of a pool.
    pub async fn pause_pool(&self, name: &str) -> Result<PoolReport, Failure> {
        let pause = async |open: Rc<OpenPool>| {
            open.relocation.pause();
            open.report(true)
        };
        self.on_pool(name, pause).await
    }

    /// Lets the slices of a pool move again.
    pub async fn resume_pool(&self, name: &str) -> Result<PoolReport, Failure> {
        let resume = async |open: Rc<OpenPool>| {
            open.relocation.resume(&open.pool);
            open.report(true)
        };
        self.on_pool(name, resume).await
    }

    /// Stops the moves of all pools, and waits for the end of those that copy.
    pub async fn stop_moves(&self) {
        for core in self.iter() {
            let stop = async |local: Rc<CoreLocal>| {
                let pools: Vec<_> = local.pools.borrow().values().cloned().collect();
                pools.iter().for_each(|open| open.relocation.stop());
                let end = local.seam.now() + STOP_TIMEOUT;
                while local.seam.now() < end && pools.iter().any(|open| open.pool.is_moving()) {
                    local.seam.sleep(STOP_STEP).await;
                }
            };
            // A core that has ended moves nothing.
            let _ = core.call(stop).await;
        }
    }

    /// Runs `work` with an open pool on its core.
    pub(super) async fn on_pool<T, F>(
        &self,
        name: &str,
        work: impl FnOnce(Rc<OpenPool>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        for core in self.iter() {
            let wanted = name.to_owned();
            let has_pool = core.call(async move |local: Rc<CoreLocal>| local.pools.borrow().contains_key(&wanted));
            if !has_pool.await.map_err(core_ended)? {
                continue;
            }
            let wanted = name.to_owned();
            let called = core.call(async move |local: Rc<CoreLocal>| {
                let open = local.pools.borrow().get(&wanted).cloned();
                work(open.expect("a pool stays open")).await
            });
            return called.await.map_err(core_ended);
        }
        let text = format!(
            "no pool \"{name}\" is open; `hotset pool list` lists the open ones. The daemon opens those of its \
             configuration"
        );
        Err(Failure::new(ErrorKind::NotFound, text))
    }
}

/// The failure of a command by an error of the pool.
pub(super) fn pool_failure(error: PoolError) -> Failure {
    let kind = match error {
        PoolError::Failed(_) | PoolError::Damaged(_) | PoolError::Disk { .. } => ErrorKind::Failed,
        _ => ErrorKind::Conflict,
    };
    Failure::new(kind, error.to_string())
}

impl OpenPool {
    async fn relocate(self: Rc<Self>) -> Result<PoolPlanReport, Failure> {
        let conflict = |text: String| Err(Failure::new(ErrorKind::Conflict, text));
        let name = &self.name;
        if self.relocation.is_paused() {
            return conflict(format!("moves of pool {name} are paused; `hotset pool resume {name}` ends that"));
        }
        let settings = self.relocation.settings_of_command();
        let plan = self.plan(&settings).await.map_err(pool_failure)?;
        let progress = self.pool.relocation();
        if progress.is_running {
            let report = progress.report;
            let ended = report.moved + report.skipped + report.failed;
            return conflict(format!("pool {name} is relocating: {ended} of {} moves have ended", report.planned));
        }
        let open = Rc::clone(&self);
        self.seam.spawn(async move {
            if let Err(error) = open.pool.relocate(&settings).await {
                logging::warn!("pool {}: slices cannot be relocated: {error}", open.name);
            }
        });
        Ok(plan)
    }
}
