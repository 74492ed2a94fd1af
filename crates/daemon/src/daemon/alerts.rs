//! Actions on alerts: acknowledge, silence, and a test of the channels.

use control::Actor;
use events::alerts::SILENCE_SECONDS_MAX;
use messages::report::SilenceReport;
use messages::{Answer, ErrorKind, Failure, unix_time};

use super::Daemon;

impl Daemon {
    /// `alerts ack`.
    pub fn acknowledge_alert(&self, actor: &Actor, id: &str) -> Result<Answer, Failure> {
        self.journal.acknowledge(id, &show(actor))
    }

    /// `alerts silence`. The silence is recorded first, because it has to hold across a restart.
    pub fn silence_alert(
        &self,
        actor: &Actor,
        id: String,
        seconds: u64,
        reason: Option<String>,
    ) -> Result<Answer, Failure> {
        if seconds == 0 || seconds > SILENCE_SECONDS_MAX {
            let text =
                format!("a silence of {seconds} s is not possible; use 1 s to {} days", SILENCE_SECONDS_MAX / 86_400);
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let reason = reason.filter(|reason| !reason.is_empty());
        let until_unix_ms = unix_time::now().as_millis() as u64 + seconds * 1_000;
        let silence = SilenceReport { id, by: show(actor), until_unix_ms, reason };
        let silences = self.journal.with_silence(silence.clone())?;
        self.records.change(|state| state.silences.clone_from(&silences))?;
        self.journal.set_silences(silences);
        Ok(Answer::Silence(silence))
    }

    /// `alerts unsilence`.
    pub fn unsilence_alert(&self, id: &str) -> Result<Answer, Failure> {
        let silences = self.journal.without_silence(id)?;
        self.records.change(|state| state.silences.clone_from(&silences))?;
        self.journal.set_silences(silences);
        Ok(Answer::Said(vec![format!("the silence of {id} has ended")]))
    }

    /// `alerts test`.
    pub async fn test_alerts(&self, actor: &Actor) -> Result<Answer, Failure> {
        self.journal.test_channels(&show(actor)).await
    }
}

fn show(actor: &Actor) -> String {
    actor.show().unwrap_or_else(|| "an unknown user".to_owned())
}
