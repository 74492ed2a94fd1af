//! Access lists of units: names of initiators, with `*` as a wildcard.

/// A list of names and patterns. An empty list admits every initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessList(Vec<String>);

impl AccessList {
    /// A list of patterns in which `*` stands for any text. Case is ignored, as the protocol requires for iSCSI names.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        AccessList(patterns.into_iter().map(|pattern| pattern.as_ref().to_ascii_lowercase()).collect())
    }

    /// True if the list is empty and so admits every initiator.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the list admits `name`.
    pub fn admits(&self, name: &str) -> bool {
        // This runs for every command; names of logged-in initiators are already in lower case.
        let matches_any = |name: &str| self.0.iter().any(|pattern| matches(pattern, name));
        let has_upper = || name.bytes().any(|byte| byte.is_ascii_uppercase());
        self.0.is_empty() || if has_upper() { matches_any(&name.to_ascii_lowercase()) } else { matches_any(name) }
    }
}

/// Matches a pattern: text between two stars matches at its first occurrence; text after the last star must end the
/// name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut fragments: Vec<&str> = rest.split('*').collect();
    let last = fragments.pop().expect("a split has at least one part");
    for fragment in fragments {
        let Some(start) = name.find(fragment) else { return false };
        name = &name[start + fragment.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_list_admits_all_and_others_only_matching_names() {
        assert!(AccessList::default().admits("iqn.a:b"));
        let list = AccessList::new(["iqn.1998-01.com.vmware:*", "iqn.x:exact", "*:mid*le:*end"]);
        for name in ["iqn.1998-01.com.vmware:esx1", "IQN.X:Exact", "a:middle:the end", "a:midle:end"] {
            assert!(list.admits(name), "{name}");
        }
        for name in ["iqn.1998-01.com.vmwar", "iqn.x:exactly", "an iqn.x:exact", "a:mid:end", "a:midle:en"] {
            assert!(!list.admits(name), "{name}");
        }
    }

    #[test]
    fn wildcard_does_not_overlap_the_text_after_it() {
        assert!(!AccessList::new(["ab*ba"]).admits("aba") && AccessList::new(["ab*ba"]).admits("abba"));
    }
}
