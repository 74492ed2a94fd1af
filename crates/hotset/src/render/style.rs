//! Colours, where the terminal shows them and nobody asked for none.

use std::io::IsTerminal;

/// How text is set off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// Without any.
    #[cfg(test)]
    pub const PLAIN: Style = Style { colours: false };

    /// For standard output: plain unless it is a terminal and NO_COLOR is not set.
    pub fn of_stdout() -> Style {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let able = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Style { colours: wanted && able && std::io::stdout().is_terminal() }
    }

    fn set(self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.set("1", text)
    }

    /// Less important.
    pub fn dim(self, text: &str) -> String {
        self.set("2", text)
    }

    /// As it should be.
    pub fn good(self, text: &str) -> String {
        self.set("32", text)
    }

    /// To be looked at.
    pub fn warn(self, text: &str) -> String {
        self.set("33", text)
    }

    /// Wrong.
    pub fn bad(self, text: &str) -> String {
        self.set("31", text)
    }
}
