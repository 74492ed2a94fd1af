//! Escaping of text for HTML and SVG.

/// Escapes `text` for use between tags and in an attribute. Control characters, which markup forbids, become U+FFFD.
pub fn escaped(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_are_escaped() {
        assert_eq!(escaped("a<b> \"c\" & d"), "a&lt;b&gt; &quot;c&quot; &amp; d");
        assert_eq!(escaped("\u{1b}[2J\0\u{9b}"), "\u{fffd}[2J\u{fffd}\u{fffd}");
    }
}
