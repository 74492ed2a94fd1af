//! Descriptions of the reason codes in reports. JSON contains the codes.

/// Describes the reason for a miss or for a page that was not promoted. An unknown code is shown without hyphens.
pub fn cache_reason(code: &str) -> String {
    let description = match code {
        "absent" => "not cached",
        "part-absent" => "partly cached",
        "joined" => "already being read",
        "unchecked" | "suspect" => "not yet verified",
        "bad-copy" => "bad copy on flash",
        "failed" => "request failed",
        "first-use" => "first use",
        "burst" => "one burst of uses",
        "stream" => "sequential stream",
        "off" => "promotion off",
        "queue-full" => "promotion queue full",
        "no-content" => "content not in memory",
        "no-slot" => "no free slot",
        "all-hot" => "no colder page to evict",
        "share-used" => "flash quota used up",
        "device-failed" => "device write failed",
        "endurance" => "endurance budget used up",
        "low-gain" => "too few hits expected",
        _ => return code.replace('-', " "),
    };
    description.to_owned()
}

/// Describes the step in which a request waited longest.
pub fn latency_step(code: &str) -> String {
    let description = match code {
        "limit" => "volume limit",
        "gate" => "hold on the volume",
        "throttle" => "dirty data limit",
        "flash" => "flash read",
        "joined" => "concurrent read",
        "shares" => "shares",
        "backing" => "backing read",
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
}
