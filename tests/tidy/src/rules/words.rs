//! Names and phrases that gave way to the field's words do not return (`docs/glossary.md`).

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

/// Former names of types, functions and constants, with their present names.
const FORMER_NAMES: [(&str, &str); 31] = [
    ("Asker", "ControlHandle"),
    ("Company", "FlushBatcher"),
    ("Course", "DemoResults"),
    ("FromFlash", "FlashRead"),
    ("Gated", "AdmissionLru"),
    ("Ledger", "LogTracker"),
    ("MadeDurable", "DurableScope"),
    ("Parked", "LeftOnFlash"),
    ("Patient", "a time-out layer"),
    ("Shelf", "RecordIndex"),
    ("Tally", "a name that says what it counts"),
    ("Trouble", "ErrorWindow"),
    ("UnderWay", "RequestGuard"),
    ("Unread", "PageReadError"),
    ("PATIENCE", "TIMEOUT, or the purpose of the wait"),
    ("ask_on", "send_request_on"),
    ("bring_oldest", "destage_log_tail"),
    ("by_incarnation", "by_id"),
    ("broken_promises", "lost_flushed_blocks"),
    ("end_aside", "finish_exclusive"),
    ("flash_turn", "IoSlot"),
    ("forget_unflushed", "discard_unflushed"),
    ("incarnation", "volume_id or connection_epoch"),
    ("mark_parked", "mark_left_on_flash"),
    ("mute_server", "silent_server"),
    ("park_volume", "leave_on_flash"),
    ("show_incarnation", "show_volume_id"),
    ("sort_out", "resolve_tags"),
    ("take_back", "recover"),
    ("uncache", "invalidate_flash"),
    ("with_cramped_target", "with_small_pool"),
];
/// Words that are no names of variables: they say nothing about the value.
const FUNCTION_WORDS: [&str; 3] = ["how", "said", "whom"];
/// Former phrases of messages and pages, with the words that users know.
const FORMER_PHRASES: [(&str, &str); 7] = [
    ("not yet on the array", "dirty data"),
    ("were no hits", "cache miss reasons"),
    ("who contends", "volumes of a congested datastore"),
    ("nothing can be said", "unknown"),
    ("it spares the array", "array reads avoided"),
    ("half within", "median"),
    ("resting blocks", "spilled blocks"),
];

/// Former names and bindings in Rust code, and former phrases in texts. This crate has to spell them.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| !source.path.starts_with("tests/tidy/")) {
        for (index, line) in source.code.iter().enumerate() {
            for (former, present) in FORMER_NAMES.iter().filter(|(former, _)| has_word(line, former)) {
                violations.push(at(source, index, format!("\"{former}\" is a former name: use {present}")));
            }
            for word in FUNCTION_WORDS.iter().filter(|word| is_bound(line, word)) {
                violations.push(at(source, index, format!("a variable named \"{word}\": name the value with a noun")));
            }
        }
        for (index, line) in source.text.lines().enumerate() {
            let line = line.to_lowercase();
            for (former, present) in FORMER_PHRASES.iter().filter(|(former, _)| line.contains(former)) {
                violations.push(at(source, index, format!("\"{former}\" is a former phrase: use \"{present}\"")));
            }
        }
    }
    violations
}

/// True if `line` binds a variable named `word` by `let`, or as a parameter of a function or closure.
fn is_bound(line: &str, word: &str) -> bool {
    let binds = |pattern: &str| has_word(pattern, word);
    let by_let = line.split_once("let ").is_some_and(|(_, rest)| binds(rest.split(['=', ':']).next().unwrap_or(rest)));
    let mut parts = line.split('|');
    let by_closure = parts.next().is_some() && parts.next().is_some_and(&binds);
    let by_function =
        line.split_once("fn ").is_some_and(|(_, rest)| rest.contains(&format!("{word}: ")) && binds(rest));
    by_let || by_function || (by_closure && line.matches('|').count() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn every_former_name_and_phrase_is_found() {
        for (former, _) in FORMER_NAMES {
            assert_eq!(count("crates/a/src/b.rs", &format!("let a = {former};\n")), 1, "{former}");
        }
        for (former, _) in FORMER_PHRASES {
            assert_eq!(count("docs/user/a.md", &format!("Blocks {former} now.\n")), 1, "{former}");
        }
    }

    #[test]
    fn function_words_are_found_as_variables_only() {
        for word in FUNCTION_WORDS {
            assert_eq!(count("a.rs", &format!("let {word} = 1;\n")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("let (a, mut {word}): (u8, u8) = b;\n")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("f(|a, {word}: &u8| a + 1);\n")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("fn f(a: u8, {word}: u8) {{}}\n")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("let a = b.{word}() | c; // {word} it is\n")), 0, "{word}");
        }
    }

    #[test]
    fn longer_names_and_comments_pass() {
        assert_eq!(count("a.rs", "struct TallySheet; // a Tally\n"), 0);
        assert_eq!(count("a.rs", "let shower = \"Shelf\";\n"), 0);
    }
}
