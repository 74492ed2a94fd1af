//! Files of the repository, and Rust code with its comments and literals blanked.

use std::path::Path;
use std::{fs, io};

/// Folders without source files of the project.
const SKIPPED_FOLDERS: [&str; 7] = ["target", ".git", "node_modules", "dist", "out", "corpus", "artifacts"];
/// Endings of the text files that the rules check; files without an ending (scripts, the Makefile) are checked as well.
const ENDINGS: [&str; 13] =
    ["rs", "toml", "md", "sh", "py", "yml", "json", "c", "ts", "js", "svelte", "css", "service"];

/// One text file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path from the repository's root, with slashes.
    pub path: String,
    /// Unchanged text.
    pub text: String,
    /// For Rust: the same lines with comments, strings and characters replaced by spaces; else empty.
    pub code: Vec<String>,
}

impl Source {
    /// A file with this content.
    pub fn new(path: &str, text: &str) -> Self {
        let code =
            if path.ends_with(".rs") { blank_literals(text).lines().map(str::to_owned).collect() } else { vec![] };
        Source { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// True for Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for source code in any language.
    pub fn is_code(&self) -> bool {
        !matches!(self.path.rsplit('.').next(), Some("md" | "json" | "toml")) || self.is_rust()
    }

    /// Lines of [`Source::code`] before the file's unit tests; none in a file of tests.
    pub fn production_code(&self) -> &[String] {
        if self.path.ends_with("tests.rs") || self.path.contains("/tests/") {
            return &[];
        }
        let tests = self.code.iter().position(|line| line.trim_start().starts_with("#[cfg(test)]"));
        &self.code[..tests.unwrap_or(self.code.len())]
    }
}

/// Every text file below `root`, ordered by path.
pub fn read_all(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
            if path.is_symlink() {
                continue;
            } else if path.is_dir() {
                if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if name != ".git" && (ENDINGS.contains(&ending) || !name.contains('.')) {
                // A file that is not text is skipped.
                let Ok(text) = fs::read_to_string(&path) else { continue };
                let relative = path.strip_prefix(root).expect("found below the root");
                sources.push(Source::new(&relative.to_string_lossy(), &text));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

/// `text` with comments, strings and character literals replaced by spaces; line ends stay.
fn blank_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut position = 0;
    while position < chars.len() {
        let end = literal_end(&chars, position);
        if end == position {
            out.push(chars[position]);
            position += 1;
        } else {
            out.extend(chars[position..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            position = end;
        }
    }
    out
}

/// The end of the comment or literal that begins at `start`, or `start` if none begins there.
fn literal_end(chars: &[char], start: usize) -> usize {
    let next = chars.get(start + 1).copied();
    let after_word = start > 0 && (chars[start - 1].is_alphanumeric() || chars[start - 1] == '_');
    match (chars[start], next) {
        ('/', Some('/')) => end_after(chars, start, |rest| rest[0] == '\n', 0),
        ('/', Some('*')) => end_after(chars, start + 2, |rest| rest.starts_with(&['*', '/']), 2),
        ('"', _) => string_end(chars, start),
        ('r', Some('"' | '#')) if !after_word || chars[start - 1] == 'b' => {
            let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
            if chars.get(start + 1 + hashes) != Some(&'"') {
                return start;
            }
            let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            end_after(chars, start + 2 + hashes, |rest| rest.starts_with(&close), close.len())
        }
        ('\'', Some('\\')) => end_after(chars, start + 3, |rest| rest[0] == '\'', 1),
        ('\'', Some(_)) if chars.get(start + 2) == Some(&'\'') => start + 3,
        _ => start,
    }
}

/// The end of the string literal that begins at `start`.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut end = start + 1;
    while end < chars.len() && chars[end] != '"' {
        end += if chars[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(chars.len())
}

/// The end of the first closing delimiter from `from` on, which `closes` recognises at the start of the rest; the end
/// of `chars` if there is none.
fn end_after(chars: &[char], from: usize, closes: impl Fn(&[char]) -> bool, delimiter_len: usize) -> usize {
    let delimiter = (from..chars.len()).find(|&position| closes(&chars[position..]));
    delimiter.map_or(chars.len(), |position| position + delimiter_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blanked_and_code_stays() {
        let text =
            "let a = \"unsafe // \\\" x\"; // unsafe\nlet c = '\"'; let r = r#\"a \" b\"#; /* x\n */ f::<'a>();\n";
        let blank = blank_literals(text);
        assert_eq!(blank.lines().count(), text.lines().count());
        assert!(!blank.contains("unsafe"));
        for kept in ["let a =", "let c =", "let r =", "f::<'a>();"] {
            assert!(blank.contains(kept), "{kept} is missing in {blank}");
        }
    }

    #[test]
    fn production_code_ends_where_the_unit_tests_begin() {
        let source = Source::new("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {}\n");
        assert_eq!(source.production_code(), ["fn a() {}"]);
        assert!(Source::new("crates/a/src/b/tests.rs", "fn a() {}\n").production_code().is_empty());
    }
}
