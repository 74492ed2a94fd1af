//! Escaping of untrusted text (of initiators, drives, servers, files): control characters become `\u{…}`.

use std::borrow::Cow;

/// True for characters that control a terminal or page: controls, line and paragraph separators, and characters that
/// change the direction of text or have no width.
pub fn is_control(c: char) -> bool {
    let is_mark = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    c.is_control() || is_mark || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `text` with control characters as `\u{1b}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    escape(text, is_control)
}

/// Like [`plain`], but keeps line feeds.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_control(c))
}

fn escape(text: &str, needs_escape: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if needs_escape(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_stays() {
        assert_eq!(plain("Büro \"2\" → ok"), "Büro \"2\" → ok");
        assert_eq!(plain("\u{1b}[2J\r\u{7f}\u{9b}m\u{202e}"), r"\u{1b}[2J\u{d}\u{7f}\u{9b}m\u{202e}");
        assert_eq!((plain("a\nb"), plain_lines("a\nb\t")), (r"a\u{a}b".into(), "a\nb\\u{9}".into()));
    }
}
