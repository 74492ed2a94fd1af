//! An event as a line.

use std::time::Duration;

use messages::report::{EventKind, EventReport};
use messages::unix_time;

use super::style::Style;

/// Time, kind, subject, text and actor of an event.
pub fn line(event: &EventReport, style: Style) -> String {
    let time = style.dim(&unix_time::format(Duration::from_millis(event.at_unix_ms)));
    let kind = format!("{:<6}", event.kind.name());
    let kind = match event.kind {
        EventKind::Alert => style.warn(&kind),
        _ => kind,
    };
    let subject = event.subject.as_ref().map_or(String::new(), |subject| format!("{}: ", style.bold(subject)));
    let actor = event.actor.as_ref().map_or(String::new(), |actor| style.dim(&format!(" ({actor})")));
    format!("{time}  {kind}  {subject}{}{actor}", event.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_subject_and_actor_if_known() {
        let event = EventReport {
            number: 7,
            at_unix_ms: 1_795_326_300_500,
            kind: EventKind::Change,
            subject: Some("web01".to_owned()),
            actor: Some("user root".to_owned()),
            text: "pause: state changed from active to paused".to_owned(),
            phase: None,
        };
        let text = line(&event, Style::PLAIN);
        assert_eq!(text, "2026-11-22T05:45:00Z  change  web01: pause: state changed from active to paused (user root)");
        let short = EventReport { kind: EventKind::Alert, subject: None, actor: None, ..event };
        assert_eq!(
            line(&short, Style::PLAIN),
            "2026-11-22T05:45:00Z  alert   pause: state changed from active to paused"
        );
    }
}
