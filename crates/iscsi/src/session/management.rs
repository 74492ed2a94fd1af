//! Task management (section 11.5). A command is either answered or aborted, never both.

use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use connection::Stop;
use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::{Reject, TaskFunction, TaskManagement};
use iscsi_protocol::response::TaskResponse;
use scsi::{Lun, Nexus};
use seam::Seam;

use super::Session;
use super::task::Task;
use crate::options::IMMEDIATE_MAX;

impl<S: Seam> Session<S> {
    /// Executes a task management function. Aborted commands end at once; the response waits for commands that may
    /// still change the medium.
    pub(super) fn manage_tasks(self: &Rc<Self>, tag: u32, request: &TaskManagement) -> Result<(), Reject> {
        let Some(nexus) = &self.spec.nexus else { return Err(Reject::Protocol) };
        if self.immediate_in_flight.get() >= IMMEDIATE_MAX {
            return Err(Reject::TooManyImmediate);
        }
        let target = &self.spec.shared.target;
        let respond = |response| {
            self.queue(tag, ResponseBody::TaskManagement(response), &[]);
            Ok(())
        };
        let (lun, function) = (request.lun, request.function);
        match function {
            TaskFunction::AbortTask => {
                let is_referenced = |task: &Task| task.tag == request.referenced_tag && task.lun == lun;
                let is_aborted = self.aborted_tasks.borrow().iter().any(|task| is_referenced(task));
                if !is_aborted && !self.tasks.borrow().values().any(|task| is_referenced(task)) {
                    return respond(TaskResponse::NoSuchTask);
                }
            }
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                if !target.is_visible(nexus, lun) {
                    return respond(TaskResponse::NoSuchUnit);
                }
            }
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => (),
            TaskFunction::TaskReassign => return respond(TaskResponse::NoReassignment),
            TaskFunction::ClearAca | TaskFunction::Unknown(_) => return respond(TaskResponse::NotSupported),
        }
        let (session, nexus) = (Rc::clone(self), nexus.clone());
        let mut target_function = Box::pin(async move { session.manage_target(&nexus, function, lun).await });
        // The first poll cancels the unit's commands now, so that later commands are not affected.
        let is_done = target_function.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let unit = Lun::decode(lun);
        let pending = match function {
            TaskFunction::AbortTask => self.abort(|task| task.tag == request.referenced_tag),
            TaskFunction::AbortTaskSet => self.abort(|task| Lun::decode(task.lun) == unit),
            TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                self.abort_everywhere(|lun| Lun::decode(lun) == unit)
            }
            _ => self.abort_everywhere(|lun| self.nexus().is_some_and(|nexus| target.is_visible(nexus, lun))),
        };
        self.immediate_in_flight.set(self.immediate_in_flight.get() + 1);
        let session = Rc::clone(self);
        self.spec.shared.seam.spawn(async move {
            if !is_done {
                target_function.await;
            }
            for task in pending {
                task.wait_until_ended().await;
            }
            session.immediate_in_flight.set(session.immediate_in_flight.get() - 1);
            session.queue(tag, ResponseBody::TaskManagement(TaskResponse::Complete), &[]);
            session.control().wake();
            if function == TaskFunction::TargetColdReset {
                session.stop_sessions_sharing_units();
            }
        });
        Ok(())
    }

    /// The target's part of a function, besides the abort of the sessions' tasks.
    async fn manage_target(&self, nexus: &Nexus, function: TaskFunction, lun: [u8; 8]) {
        let target = &self.spec.shared.target;
        match function {
            TaskFunction::ClearTaskSet => drop(target.clear_commands(nexus, lun).await),
            TaskFunction::LogicalUnitReset => drop(target.reset(nexus, Some(lun)).await),
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => drop(target.reset(nexus, None).await),
            _ => (),
        }
    }

    /// Ends the sessions of all initiators that share a unit with this session's initiator.
    fn stop_sessions_sharing_units(&self) {
        let target = &self.spec.shared.target;
        let Some(nexus) = self.nexus() else { return };
        let luns = target.luns().into_iter().map(Lun::encode).filter(|lun| target.is_visible(nexus, *lun));
        let luns: Vec<_> = luns.collect();
        let shares_unit = |other: &Nexus| luns.iter().any(|lun| target.is_visible(other, *lun));
        let sessions = self.spec.shared.sessions();
        let ended = sessions.iter().filter(|session| session.nexus().is_some_and(shares_unit));
        ended.for_each(|session| session.control().request_stop(Stop::Drain));
    }

    /// Aborts the commands of all sessions to the units for which `matches` is true.
    fn abort_everywhere(&self, matches: impl Fn([u8; 8]) -> bool) -> Vec<Rc<Task>> {
        let sessions = self.spec.shared.sessions();
        sessions.iter().flat_map(|session| session.abort(|task| matches(task.lun))).collect()
    }
}
