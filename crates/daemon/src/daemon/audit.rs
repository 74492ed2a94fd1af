//! Audit events: a change that a request makes is recorded with its actor.

use std::rc::Rc;

use control::{Actor, ProgressSender};
use events::{ChangeScope, requested_change};
use messages::{Answer, ErrorKind, Failure, Request};

use super::super::reload_outcome::{ReloadOutcome, reload_answer};
use super::Daemon;

impl Daemon {
    /// Executes a request. A change that it makes is recorded with its actor.
    pub async fn execute_for(
        self: &Rc<Self>,
        actor: &Actor,
        request: Request,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let Some(change) = requested_change(&request) else { return self.execute(actor, request, progress).await };
        let journal = &self.journal;
        match &request {
            Request::Reload {} if !self.stop.is_stopping() => {
                return self.reload_as(actor.show().as_deref().unwrap_or("unknown")).await.map(reload_answer);
            }
            // The event comes first because the daemon ends with the answer.
            Request::Stop { .. } => {
                journal.record_change(actor.show(), None, change.text);
                return self.execute(actor, request, progress).await;
            }
            _ => {}
        }
        let is_removal = matches!(request, Request::VolumeRemove { .. });
        let in_progress = change.volume.clone().map(|name| journal.begin_change(ChangeScope::Volume(name)));
        let result = self.execute(actor, request, progress).await;
        let differences = match (&result, &change.volume) {
            (Ok(Answer::Volume(report)), _) => journal.take_differences(report),
            (Ok(_), Some(name)) if is_removal => {
                journal.remove_volume(name);
                Vec::new()
            }
            _ => Vec::new(),
        };
        drop(in_progress);
        let subject = change.volume.or(change.other_subject);
        match &result {
            Ok(_) if differences.is_empty() => journal.record_change(actor.show(), subject, change.text),
            Ok(_) => {
                journal.record_change(actor.show(), subject, format!("{}: {}", change.text, differences.join("; ")))
            }
            // A refused request changes nothing; a failed one may have changed something.
            Err(failure) if failure.kind == ErrorKind::Failed => {
                journal.record_change(actor.show(), subject, format!("{} failed: {failure}", change.text));
            }
            Err(_) => {}
        }
        result
    }

    /// Reads the configuration again for `requester`. Each outcome becomes an event.
    pub async fn reload_as(&self, requester: &str) -> Result<Vec<ReloadOutcome>, Failure> {
        let actor = format!("configuration reload ({requester})");
        let in_progress = self.journal.begin_change(ChangeScope::All);
        let result = self.reload().await;
        let reports = self.volume_reports().await;
        self.journal.set_volumes(&reports);
        drop(in_progress);
        match &result {
            Ok(outcomes) => {
                for outcome in outcomes {
                    self.journal.record_change(Some(actor.clone()), outcome.subject(), outcome.event_text());
                }
            }
            Err(failure) => self.journal.record_change(Some(actor), None, format!("failed: {failure}")),
        }
        result
    }
}
