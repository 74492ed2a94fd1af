//! Colours, if the terminal supports them and NO_COLOR is not set.

use std::io::IsTerminal;

/// All SGR codes (colours and weights) in use; 0 resets them.
const SGR_CODES: [&str; 6] = ["0", "1", "2", "31", "32", "33"];

/// Escapes all control characters in `text`, except for line ends and [`SGR_CODES`].
pub fn escape_foreign_codes(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for (index, piece) in text.split('\u{1b}').enumerate() {
        let known_code = SGR_CODES.iter().find(|code| {
            piece
                .strip_prefix('[')
                .and_then(|piece| piece.strip_prefix(**code))
                .is_some_and(|rest| rest.starts_with('m'))
        });
        if index > 0 {
            escaped.push_str(if known_code.is_some() { "\u{1b}" } else { "\\u{1b}" });
        }
        escaped.push_str(&messages::plain_lines(piece));
    }
    escaped
}

/// The style of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// Without colours.
    pub const PLAIN: Style = Style { colours: false };

    /// The style for standard output: plain unless it is a terminal and NO_COLOR is not set.
    pub fn of_stdout() -> Style {
        let is_allowed = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let is_supported = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Style { colours: is_allowed && is_supported && std::io::stdout().is_terminal() }
    }

    fn apply(self, code: &'static str, text: &str) -> String {
        debug_assert!(SGR_CODES.contains(&code), "each printed code is listed in SGR_CODES");
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.apply("1", text)
    }

    /// Less important.
    pub fn dim(self, text: &str) -> String {
        self.apply("2", text)
    }

    /// Good state.
    pub fn good(self, text: &str) -> String {
        self.apply("32", text)
    }

    /// State that needs attention.
    pub fn warn(self, text: &str) -> String {
        self.apply("33", text)
    }

    /// Bad state.
    pub fn bad(self, text: &str) -> String {
        self.apply("31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_style_codes_reach_the_terminal() {
        let style = Style { colours: true };
        let own = format!("{} {}\n{}", style.bold("a"), style.bad("b"), style.dim("c"));
        assert_eq!(escape_foreign_codes(&own), own);
        let foreign = "x\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[31;5m\r\u{9b}m\u{1b}";
        assert_eq!(escape_foreign_codes(foreign), r"x\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[31;5m\u{d}\u{9b}m\u{1b}");
    }
}
