//! Relative links among the pages (Markdown files) lead to existing pages and headings.

use std::collections::BTreeMap;

use super::{at, prose};
use crate::Violation;
use crate::source::Source;

/// Links to pages that do not exist, or to headings that a page does not have.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let pages = sources.iter().filter(|source| source.path.ends_with(".md"));
    let headings: BTreeMap<&str, Vec<String>> = pages.clone().map(|page| (page.path.as_str(), anchors(page))).collect();
    let mut violations = Vec::new();
    for page in pages {
        for (index, line) in prose(page) {
            let broken = targets(line).filter_map(|target| fault(&page.path, target, &headings));
            violations.extend(broken.map(|text| at(page, index, text)));
        }
    }
    violations
}

/// Addresses of the links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Reason why a link of `page` is broken; `None` for a good link, and for one that leads out of the pages.
fn fault(page: &str, target: &str, headings: &BTreeMap<&str, Vec<String>>) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    if target.contains(':') || !(path.is_empty() || path.ends_with(".md")) {
        return None;
    }
    let path = if path.is_empty() { page.to_owned() } else { resolve(page, path) };
    match headings.get(path.as_str()) {
        None => Some(format!("the link {target} leads to {path}, which does not exist")),
        Some(anchors) if !anchor.is_empty() && !anchors.iter().any(|known| known == anchor) => {
            Some(format!("{path} has no heading #{anchor}"))
        }
        Some(_) => None,
    }
}

/// The path of the relative link `target` in `page`.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors that GitHub makes of a page's headings.
fn anchors(page: &Source) -> Vec<String> {
    let headings = prose(page).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_missing_pages_and_headings_are_found() {
        let page = Source::new("docs/a/x.md", "# X\n## One `b`, two\n");
        let count = |text: &str| check(&[page.clone(), Source::new("docs/y.md", text)]).len();
        for good in
            ["[x](a/x.md)", "[x](a/x.md#one-b-two)", "[x](../docs/a/x.md)", "[x](https://a.b/c.md)", "[x](a.png)"]
        {
            assert_eq!(count(good), 0, "{good}");
        }
        for bad in ["[x](x.md)", "[x](a/x.md#three)", "[x](#none)"] {
            assert_eq!(count(bad), 1, "{bad}");
        }
        assert_eq!(count("```\n[x](x.md)\n```\n"), 0);
    }
}
