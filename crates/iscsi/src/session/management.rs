//! Task management (section 11.5): commands are ended before their time. One that is answered was not aborted, and one that was is
//! not answered.

use std::rc::Rc;

use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::{Reject, TaskFunction, TaskManagement};
use iscsi_protocol::response::TaskResponse;
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
        let on_unit = move |task: &Task| task.lun == lun;
        let needs_unit = !matches!(asked.function, TaskFunction::TargetWarmReset | TaskFunction::AbortTask);
        if needs_unit && !target.sees(nexus, lun) {
            return match asked.function {
                TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                    answer(TaskResponse::NoSuchUnit)
                }
                TaskFunction::TaskReassign => answer(TaskResponse::NoReassignment),
                _ => answer(TaskResponse::NotSupported),
            };
        }
        let waited_for = match asked.function {
            TaskFunction::AbortTask => {
                let is_it = |task: &Task| task.tag == asked.referenced_tag && on_unit(task);
                if !self.tasks.borrow().values().any(|task| is_it(task)) {
                    return answer(TaskResponse::NoSuchTask);
                }
                self.abort(is_it)
            }
            TaskFunction::AbortTaskSet => self.abort(on_unit),
            TaskFunction::ClearTaskSet => {
                target.commands_cleared(nexus, lun);
                self.abort_everywhere(&[lun])
            }
            TaskFunction::LogicalUnitReset => self.abort_everywhere(&[lun]),
            TaskFunction::TargetWarmReset => {
                let seen = target.luns().into_iter().map(|lun| lun.encode());
                self.abort_everywhere(&seen.filter(|lun| target.sees(nexus, *lun)).collect::<Vec<_>>())
            }
            TaskFunction::TaskReassign => return answer(TaskResponse::NoReassignment),
            TaskFunction::ClearAca | TaskFunction::TargetColdReset | TaskFunction::Unknown(_) => {
                return answer(TaskResponse::NotSupported);
            }
        };
        let session = Rc::clone(self);
        let (nexus, function) = (nexus.clone(), asked.function);
        self.immediate.set(self.immediate.get() + 1);
        let work = async move {
            for task in waited_for {
                task.until_ended().await;
            }
            let target = &session.spec.shared.target;
            match function {
                TaskFunction::LogicalUnitReset => drop(target.reset(&nexus, Some(lun)).await),
                TaskFunction::TargetWarmReset => drop(target.reset(&nexus, None).await),
                _ => (),
            }
            session.immediate.set(session.immediate.get() - 1);
            session.queue(tag, ResponseBody::TaskManagement(TaskResponse::Complete), &[]);
            session.control().wake();
        };
        self.spec.shared.seam.spawn(work);
        Ok(())
    }

    /// Aborts the commands of all sessions to those units.
    fn abort_everywhere(&self, luns: &[[u8; 8]]) -> Vec<Rc<Task>> {
        let sessions = self.spec.shared.sessions();
        sessions.iter().flat_map(|session| session.abort(|task| luns.contains(&task.lun))).collect()
    }
}
