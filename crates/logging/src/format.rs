//! The formats: lines of text for people, JSON lines for programs.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{self, JsonFields};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

use super::Filter;

/// A format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Sentences without their fields: `hotset: warning: …`.
    #[default]
    Text,
    /// One JSON object per line, with time, level, target, message and fields.
    Json,
}

/// Changes the filter of a subscriber.
pub(crate) type FilterHandle = reload::Handle<Targets, Registry>;

/// A subscriber that writes to `writer`, a line a call.
pub(crate) fn subscriber<W>(
    filter: &Filter,
    format: Format,
    is_journal: bool,
    writer: W,
) -> (impl Subscriber + Send + Sync, FilterHandle)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter.targets());
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        Format::Text => lines.event_format(Text { is_journal }).boxed(),
        Format::Json => {
            let json = format::format().json().flatten_event(true).with_current_span(false).with_span_list(false);
            lines.fmt_fields(JsonFields::new()).event_format(Json(json)).boxed()
        }
    };
    (tracing_subscriber::registry().with(filter).with(lines), handle)
}

struct Text {
    /// The system's journal reads the lines, and takes a priority from their beginning.
    is_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: format::Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (priority, label) = match *event.metadata().level() {
            Level::ERROR => (3, "error: "),
            Level::WARN => (4, "warning: "),
            Level::INFO => (6, ""),
            Level::DEBUG | Level::TRACE => (7, "debug: "),
        };
        let mut message = Message(label.to_owned());
        event.record(&mut message);
        for line in message.0.lines() {
            if self.is_journal {
                write!(writer, "<{priority}>")?;
            }
            writeln!(writer, "hotset: {}", messages::plain(line))?;
        }
        Ok(())
    }
}

/// The sentence of a log entry.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("a string takes all text");
        }
    }
}

/// JSON in which characters that control a terminal are escaped, too.
struct Json<F>(F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, format::Writer::new(&mut line), event)?;
        for c in line.trim_end_matches('\n').chars() {
            match c {
                // Such characters occur only inside of strings.
                c if messages::is_control(c) => write!(writer, "\\u{:04x}", u32::from(c))?,
                c => writer.write_char(c)?,
            }
        }
        writer.write_char('\n')
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::level_filters::LevelFilter;
    use tracing::{debug, error, info, warn};

    use super::*;
    use crate::{DAEMON, FLASH, VOLUME};

    /// Everything that was written.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics here").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: Filter, format: Format, is_journal: bool, log: impl FnOnce(FilterHandle)) -> String {
        let output = Output::default();
        let writer = output.clone();
        let (subscriber, handle) = subscriber(&filter, format, is_journal, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || log(handle));
        let bytes = output.0.lock().expect("no test panics here").clone();
        String::from_utf8(bytes).expect("it is text")
    }

    fn each_level(_: FilterHandle) {
        error!(target: FLASH, device = "/dev/nvme0n1", "flash device out of service");
        warn!(target: VOLUME, volume = "web01", blocks = 7, "two\nlines \u{1b}[2J\u{202e}");
        info!(target: DAEMON, "serving {} volumes", 2);
        debug!(target: DAEMON, "more");
    }

    #[test]
    fn text_has_level_and_sentence_alone() {
        let text = logged(Filter::new(LevelFilter::DEBUG), Format::Text, false, each_level);
        let expected = "hotset: error: flash device out of service\nhotset: warning: two\n\
                        hotset: lines \\u{1b}[2J\\u{202e}\nhotset: serving 2 volumes\nhotset: debug: more\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn text_for_the_journal_has_priorities() {
        let text = logged(Filter::default(), Format::Text, true, each_level);
        let priorities: Vec<&str> = text.lines().map(|line| line.split_once("hotset: ").expect("a name").0).collect();
        assert_eq!(priorities, ["<3>", "<4>", "<4>", "<6>"]);
    }

    #[test]
    fn json_has_a_line_an_event_and_its_fields() {
        let text = logged(Filter::default(), Format::Json, true, each_level);
        assert!(!text.chars().any(|c| c != '\n' && messages::is_control(c)), "{text:?}");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["level"], &lines[0]["target"]), (&"ERROR".into(), &"flash".into()));
        assert_eq!(lines[0]["device"], "/dev/nvme0n1");
        assert_eq!((&lines[1]["volume"], &lines[1]["blocks"]), (&"web01".into(), &7.into()));
        assert_eq!(lines[1]["message"], "two\nlines \u{1b}[2J\u{202e}");
        assert!(lines[2]["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{}", lines[2]);
    }

    #[test]
    fn filter_hides_other_levels_and_libraries_and_can_be_replaced() {
        let filter = Filter::default().with("error,volume=warn").expect("it is a filter");
        let text = logged(filter, Format::Text, false, |handle| {
            each_level(handle.clone());
            error!(target: "hyper::proto", "of a library");
            handle.reload(Filter::new(LevelFilter::OFF).targets()).expect("the subscriber lives");
            each_level(handle);
        });
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
