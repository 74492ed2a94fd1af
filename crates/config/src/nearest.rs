//! The most similar known name of a misspelt one.

/// The known name that is most similar to `misspelt`, if any is similar enough.
pub fn nearest<'a>(misspelt: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.into_iter().map(|name| (strsim::damerau_levenshtein(misspelt, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + misspelt.chars().count().min(name.chars().count()) / 4).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KEYS;

    #[test]
    fn misspelt_key_gets_a_suggestion_and_nonsense_gets_none() {
        let known = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("polcy", known()), Some("policy"));
        assert_eq!(nearest("baking", known()), Some("backing"));
        assert_eq!(nearest("colour", known()), None);
    }
}
