//! Effects of `flash add` and `flash replace` on the clean pages, determined before they begin.

use std::path::Path;
use std::rc::Rc;

use flash::{JoinPlan, StoreError};
use messages::report::FlashPlanReport;
use messages::{ErrorKind, Failure};
use seam::real::{PATH_TIMEOUT, PathCall};

use super::super::cores::{CoreLocal, core_ended};
use super::FlashLog;
use super::change::{absolute, kind_of};
use config::FlashConfig;

impl FlashLog {
    /// Plans the addition of the device at `path`, or the replacement of the device `replaced` by it. Without a store
    /// in use, the addition changes no pages.
    pub async fn plan(&self, path: &str, replaced: Option<&str>) -> Result<FlashPlanReport, Failure> {
        let path = absolute(path)?;
        let config = match self.opened_flash() {
            Ok((_, config)) => config,
            Err(_) if replaced.is_none() => return Ok(FlashPlanReport::default()),
            Err(failure) => return Err(failure),
        };
        let member = match replaced {
            Some(device) => Some(self.member_of(device).await?.0),
            None => None,
        };
        let device_bytes = size_of_device(config, &path).await?;
        let plan = async move |local: Rc<CoreLocal>| match local.engine.log() {
            Some(store) => store.plan_join(member, device_bytes),
            None => Err(StoreError::Closed),
        };
        let planned = self.core().call(plan).await.map_err(core_ended)?;
        let plan = planned.map_err(|error| Failure::new(kind_of(&error), error.to_string()))?;
        Ok(plan_report(&plan, device_bytes))
    }
}

/// Size of the device at `path`, or of the file that will be created there.
async fn size_of_device(config: FlashConfig, path: &Path) -> Result<u64, Failure> {
    let device = path.to_owned();
    let look_up = PathCall::start(path, move |_| match config.missing_device_fault(&device) {
        Some((fault, remedy)) => Err(format!("{fault}; {remedy}")),
        None => config.device_bytes(&device).ok_or_else(|| {
            format!("the size of the flash device {} cannot be read; check the daemon's access to it", device.display())
        }),
    });
    let size = look_up.answer(PATH_TIMEOUT, tokio::time::sleep).await.unwrap_or_else(|hung| Err(hung.to_string()));
    size.map_err(|reason| Failure::new(ErrorKind::Conflict, reason))
}

fn plan_report(plan: &JoinPlan, device_bytes: u64) -> FlashPlanReport {
    FlashPlanReport {
        loaded: plan.is_map_loaded,
        device_bytes,
        kept_pages: plan.kept_pages,
        dropped_pages: plan.dropped_pages,
        added_slots: plan.room_after.usable_slots().saturating_sub(plan.room_before.usable_slots()),
        unmapped_slots: plan.room_after.unmapped_slots(),
        map_slots: plan.room_after.map_slots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn size_of_a_file_to_be_created_is_that_of_the_configuration() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let [file, missing] = ["f0", "f1"].map(|name| folder.path().join(name));
        std::fs::write(&file, [1; 8192]).expect("the folder can be written");
        let without_size = FlashConfig::of_devices(Vec::new());
        assert_eq!(size_of_device(without_size.clone(), &file).await.ok(), Some(8192));
        let failure = size_of_device(without_size.clone(), &missing).await.expect_err("there is no file");
        assert!(failure.message.contains("does not exist; in a new installation create it"), "{}", failure.message);
        let with_size = FlashConfig { size_bytes: Some(1 << 30), ..without_size };
        assert_eq!(size_of_device(with_size, &missing).await.ok(), Some(1 << 30));
    }
}
