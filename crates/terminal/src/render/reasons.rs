//! Descriptions of the reason codes in reports, in the words of the web console. JSON contains the codes.

/// Describes the reason for a miss or for a page that was not promoted. An unknown code is shown without hyphens.
pub fn cache_reason(code: &str) -> String {
    let description = match code {
        "absent" => "not cached",
        "part-absent" => "partly cached",
        "joined" => "joined an array read in flight",
        "unchecked" => "flash copy not verified yet",
        "suspect" => "being verified against the array after a crash",
        "bad-copy" => "flash copy unreadable",
        "failed" => "request failed",
        "first-use" => "first use",
        "burst" => "one burst of uses",
        "stream" => "sequential stream",
        "off" => "volume paused, frozen or excluded from flash, or pages being verified",
        "queue-full" => "promotion queue full",
        "no-content" => "content not in memory",
        "no-slot" => "no free cache slot",
        "all-hot" => "all cache slots hold hotter pages",
        "share-used" => "flash quota of the volume used up",
        "device-failed" => "device write failed",
        "endurance" => "daily write budget used up",
        "low-gain" => "too few hits expected",
        _ => return code.replace('-', " "),
    };
    description.to_owned()
}

/// Describes the step in which a request waited longest.
pub fn latency_step(code: &str) -> String {
    let description = match code {
        "limit" => "limit of the volume",
        "gate" => "change of the volume in progress",
        "throttle" => "write back-pressure",
        "flash" => "flash device",
        "joined" => "array read in flight",
        "shares" => "contention",
        "backing" => "array",
        "destage" => "destage",
        "log" => "flash log",
        _ => return code.replace('-', " "),
    };
    description.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_become_plain_words() {
        assert_eq!(cache_reason("queue-full"), "promotion queue full");
        assert_eq!(cache_reason("new-reason"), "new reason");
        assert_eq!(latency_step("new-step"), "new step");
    }
    /// Codes and words of the list that follows `start` in a component of the web console.
    fn words_of_page(component: &str, start: &str) -> Vec<(String, String)> {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/src/parts").join(component);
        let text = std::fs::read_to_string(&file).expect("the component exists");
        let (_, list) = text.split_once(start).expect("the component has the list");
        let (list, _) = list.split_once("};").expect("the list ends");
        let entry = |line: &str| {
            let (code, words) = line.trim().trim_end_matches(',').split_once(": ")?;
            Some((code.trim_matches('\'').to_owned(), words.trim_matches('\'').to_owned()))
        };
        list.lines().filter_map(entry).collect()
    }

    #[test]
    fn commands_and_web_page_use_the_same_words() {
        let miss_reasons = ("MissReasons.svelte", "const labels: Record<string, string> = {");
        let pin_reasons = ("Pins.svelte", "const reasons: Record<string, string> = {");
        let steps = ("SlowRequests.svelte", "const steps: Record<string, string> = {");
        let reason: fn(&str) -> String = cache_reason;
        for ((component, start), words) in [(miss_reasons, reason), (pin_reasons, reason), (steps, latency_step)] {
            let page = words_of_page(component, start);
            assert!(page.len() > 4, "{component}: {page:?}");
            for (code, expected) in page {
                assert_eq!(words(&code), expected, "{component}: {code}");
            }
        }
    }
}
