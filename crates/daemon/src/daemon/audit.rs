//! Audit events: a change that a request makes is recorded with its actor.

use std::rc::Rc;

use control::{Actor, ProgressSender};
use events::{Touched, asked};
use messages::{Answer, ErrorKind, Failure, Request};

use super::super::reload_outcome::{ReloadOutcome, reload_answer};
use super::Daemon;

impl Daemon {
    /// Executes a request. A change that it makes is recorded with its actor.
    pub async fn act_for(
        self: &Rc<Self>,
        actor: &Actor,
        request: Request,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let Some(asked) = asked(&request) else { return self.act(actor, request, progress).await };
        let journal = &self.journal;
        match &request {
            Request::Reload {} if !self.stop.is_stopping() => {
                return self.reload_for(actor.show().as_deref().unwrap_or("unknown")).await.map(reload_answer);
            }
            // The event comes first because the daemon ends with the answer.
            Request::Stop { .. } => {
                journal.note_change(actor.show(), None, asked.what);
                return self.act(actor, request, progress).await;
            }
            _ => {}
        }
        let is_removal = matches!(request, Request::VolumeRemove { .. });
        let under_way = asked.volume.clone().map(|name| journal.begin(Touched::Volume(name)));
        let result = self.act(actor, request, progress).await;
        let became = match (&result, &asked.volume) {
            (Ok(Answer::Volume(report)), _) => journal.compare(report),
            (Ok(_), Some(name)) if is_removal => {
                journal.forget(name);
                Vec::new()
            }
            _ => Vec::new(),
        };
        drop(under_way);
        let subject = asked.volume.or(asked.device);
        match &result {
            Ok(_) if became.is_empty() => journal.note_change(actor.show(), subject, asked.what),
            Ok(_) => journal.note_change(actor.show(), subject, format!("{}: {}", asked.what, became.join("; "))),
            // A refused request changes nothing; a failed one may have changed something.
            Err(failure) if failure.kind == ErrorKind::Failed => {
                journal.note_change(actor.show(), subject, format!("{} failed: {failure}", asked.what));
            }
            Err(_) => {}
        }
        result
    }

    /// Reads the configuration again for `whom`. Each result becomes an event.
    pub async fn reload_for(&self, whom: &str) -> Result<Vec<ReloadOutcome>, Failure> {
        let actor = format!("configuration reload ({whom})");
        let under_way = self.journal.begin(Touched::All);
        let result = self.reload().await;
        let reports = self.volume_reports().await;
        self.journal.learn(&reports);
        drop(under_way);
        match &result {
            Ok(outcomes) => {
                for outcomes in outcomes {
                    self.journal.note_change(Some(actor.clone()), outcomes.subject(), outcomes.event());
                }
            }
            Err(failure) => self.journal.note_change(Some(actor), None, format!("failed: {failure}")),
        }
        result
    }
}
