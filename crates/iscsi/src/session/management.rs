//! Task management (section 11.5): commands are ended before their time. One that is answered was not aborted, and one that was is
//! not answered.

use std::rc::Rc;

use front::Stop;
use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::{Reject, TaskFunction, TaskManagement};
use iscsi_protocol::response::TaskResponse;
use scsi::{Lun, Nexus};
use seam::Seam;

use super::Session;
use super::task::Task;
use crate::options::IMMEDIATE_MAX;

impl<S: Seam> Session<S> {
    /// Does what was asked for. What is aborted is gone at once; the answer waits for commands that might still change something.
    pub(super) fn manage(self: &Rc<Self>, tag: u32, asked: &TaskManagement) -> Result<(), Reject> {
        let Some(nexus) = &self.spec.nexus else { return Err(Reject::Protocol) };
        if self.immediate.get() >= IMMEDIATE_MAX {
            return Err(Reject::TooManyImmediate);
        }
        let target = &self.spec.shared.target;
        let answer = |response| {
            self.queue(tag, ResponseBody::TaskManagement(response), &[]);
            Ok(())
        };
        let lun = asked.lun;
        let is_seen = target.sees(nexus, lun);
        let waited_for = match asked.function {
            TaskFunction::AbortTask => {
                let is_it = |task: &Task| task.tag == asked.referenced_tag && task.lun == lun;
                if !self.tasks.borrow().values().any(|task| is_it(task)) {
                    return answer(TaskResponse::NoSuchTask);
                }
                self.abort(is_it)
            }
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset if !is_seen => {
                return answer(TaskResponse::NoSuchUnit);
            }
            TaskFunction::AbortTaskSet => {
                let unit = Lun::decode(lun);
                self.abort(|task| Lun::decode(task.lun) == unit)
            }
            TaskFunction::ClearTaskSet => {
                target.commands_cleared(nexus, lun);
                self.abort_everywhere(|other| Lun::decode(other) == Lun::decode(lun))
            }
            TaskFunction::LogicalUnitReset => self.abort_everywhere(|other| Lun::decode(other) == Lun::decode(lun)),
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => {
                self.abort_everywhere(|other| target.sees(nexus, other))
            }
            TaskFunction::TaskReassign => return answer(TaskResponse::NoReassignment),
            TaskFunction::ClearAca | TaskFunction::Unknown(_) => return answer(TaskResponse::NotSupported),
        };
        let (session, nexus, function) = (Rc::clone(self), nexus.clone(), asked.function);
        self.immediate.set(self.immediate.get() + 1);
        self.spec.shared.seam.spawn(async move {
            for task in waited_for {
                task.until_ended().await;
            }
            session.end_management(&nexus, tag, function, lun).await;
        });
        Ok(())
    }

    /// Does what is left when all that was aborted has ended, and answers.
    async fn end_management(&self, nexus: &Nexus, tag: u32, function: TaskFunction, lun: [u8; 8]) {
        let target = &self.spec.shared.target;
        match function {
            TaskFunction::LogicalUnitReset => drop(target.reset(nexus, Some(lun)).await),
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => drop(target.reset(nexus, None).await),
            _ => (),
        }
        self.immediate.set(self.immediate.get() - 1);
        self.queue(tag, ResponseBody::TaskManagement(TaskResponse::Complete), &[]);
        self.control().wake();
        if function == TaskFunction::TargetColdReset {
            // It begins anew for all that share a unit with whoever wanted that.
            let luns = target.luns().into_iter().map(Lun::encode).filter(|lun| target.sees(nexus, *lun));
            let luns: Vec<_> = luns.collect();
            let shares = |other: &Nexus| luns.iter().any(|lun| target.sees(other, *lun));
            let sessions = self.spec.shared.sessions();
            let ended = sessions.iter().filter(|session| session.nexus().is_some_and(shares));
            ended.for_each(|session| session.control().ask(Stop::Drain));
        }
    }

    /// Aborts the commands of all sessions to those units that `which` means.
    fn abort_everywhere(&self, which: impl Fn([u8; 8]) -> bool) -> Vec<Rc<Task>> {
        let sessions = self.spec.shared.sessions();
        sessions.iter().flat_map(|session| session.abort(|task| which(task.lun))).collect()
    }
}
