//! Who may see a unit: names of initiators, with `*` for any part of one.

/// A list of names and patterns. An empty one lets everybody in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessList(Vec<String>);

impl AccessList {
    /// A list of names, in which `*` stands for any text. iSCSI names are compared without regard to case, as the protocol wants it.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        AccessList(patterns.into_iter().map(|pattern| pattern.as_ref().to_ascii_lowercase()).collect())
    }

    /// True when it names nobody, and so lets everybody in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when `name` may come in.
    pub fn admits(&self, name: &str) -> bool {
        // Asked with every command: the names of those that are logged in are in lower case already.
        let is_in = |name: &str| self.0.iter().any(|pattern| matches(pattern, name));
        let has_upper = || name.bytes().any(|byte| byte.is_ascii_uppercase());
        self.0.is_empty() || if has_upper() { is_in(&name.to_ascii_lowercase()) } else { is_in(name) }
    }
}

/// What lies between two stars is taken at its first place; what follows the last star has to be the end.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().expect("a split has at least one part");
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_admits_all_and_others_what_they_name() {
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
    fn what_a_star_stands_for_does_not_overlap_what_follows() {
        assert!(!AccessList::new(["ab*ba"]).admits("aba") && AccessList::new(["ab*ba"]).admits("abba"));
    }
}
