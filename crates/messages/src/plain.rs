//! Escaping of foreign text (of initiators, drives, servers, files): control characters are spelled out.

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

fn escape(text: &str, is_odd: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_odd) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_odd(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out_and_other_text_stays() {
        assert_eq!(plain("Büro \"2\" → ok"), "Büro \"2\" → ok");
        assert_eq!(plain("\u{1b}[2J\r\u{7f}\u{9b}m\u{202e}"), r"\u{1b}[2J\u{d}\u{7f}\u{9b}m\u{202e}");
        assert_eq!((plain("a\nb"), plain_lines("a\nb\t")), (r"a\u{a}b".into(), "a\nb\\u{9}".into()));
    }
}
