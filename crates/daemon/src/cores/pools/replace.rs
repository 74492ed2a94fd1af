//! Replacement of a device of an open pool: another one joins its tier, and the slices move away from it. A device that
//! does not come back is given up.

use std::rc::Rc;

use messages::report::PoolReport;
use messages::{ErrorKind, Failure};
use pool::{GroupReport, MemberState};
use units::show_bytes;

use super::super::Cores;
use super::OpenPool;
use super::commands::pool_failure;
use super::devices::NewDevice;

impl Cores {
    /// Replaces a device of a pool. With `lost` it is absent and given up, and a new device is optional.
    pub async fn replace_pool_device(
        &self,
        name: &str,
        device: &str,
        new: Option<NewDevice>,
        lost: bool,
    ) -> Result<PoolReport, Failure> {
        let device = device.to_owned();
        self.on_pool(name, async move |open: Rc<OpenPool>| open.replace(&device, new, lost).await).await?
    }
}

impl OpenPool {
    async fn replace(self: Rc<Self>, device: &str, new: Option<NewDevice>, lost: bool) -> Result<PoolReport, Failure> {
        let group = self.member(device)?;
        let shown = self.device(&group);
        self.check_replacement(&group, new.is_some(), lost)?;
        if let Some(new) = new {
            let tier = self.pool.tiers().swap_remove(usize::from(group.tier.0));
            self.add_device(&tier, &new).await?;
        }
        if lost {
            self.pool.give_up(group.group).await.map_err(pool_failure)?;
            logging::warn!("pool {}: {shown} was given up by command; requests to its slices fail", self.name);
            self.log_notices();
            return Ok(self.report(true));
        }
        if group.state == MemberState::Draining {
            return Ok(self.report(true));
        }
        // The new device stays if this fails, and the message says why.
        self.drain(&shown, false).await
    }

    fn check_replacement(&self, group: &GroupReport, has_new: bool, lost: bool) -> Result<(), Failure> {
        let (name, shown) = (&self.name, self.device(group));
        let text = match (lost, group.is_present) {
            (true, true) => {
                format!("{shown} is present; without --lost its slices move to the other devices, and nothing is lost")
            }
            (false, false) => {
                let used_bytes = u64::from(group.slots - group.free) * self.pool.slice_bytes();
                format!(
                    "{shown} is absent and holds {}: attach it again and restart the daemon; or give up what it holds \
                     (`hotset pool lost {name}` lists it) with --lost",
                    show_bytes(used_bytes)
                )
            }
            (false, true) if !has_new => "name the new device".to_owned(),
            _ => return Ok(()),
        };
        Err(Failure::new(ErrorKind::Conflict, text))
    }
}
