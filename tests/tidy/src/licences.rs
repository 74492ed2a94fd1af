//! Check of the licences of all dependencies against the list in `deny.toml`; it needs neither a network nor `cargo
//! deny`.

use serde_json::Value;

/// Packages in the output of `cargo metadata` whose licence is not `allowed`, as "name version: licence".
pub fn refused(metadata: &Value, allowed: &[String]) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let bad = packages.iter().filter(|package| !package["license"].as_str().is_some_and(|text| permits(text, allowed)));
    bad.map(|p| format!("{} {}: {}", p["name"], p["version"], p["license"])).collect()
}

/// Licences that `deny.toml` allows.
pub fn allowed(deny: &toml::Table) -> Vec<String> {
    let list = deny.get("licenses").and_then(|table| table.get("allow")).and_then(|list| list.as_array());
    list.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// True if allowed licences satisfy the SPDX expression.
fn permits(expression: &str, allowed: &[String]) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "+WITH+");
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

/// Consumes and evaluates terms joined by `OR`, which binds weaker than `AND`.
fn any_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = all_of(rest, allowed);
    while rest.first() == Some(&"OR") {
        *rest = &rest[1..];
        met |= all_of(rest, allowed);
    }
    met
}

/// Consumes and evaluates terms joined by `AND`.
fn all_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = term(rest, allowed);
    while rest.first() == Some(&"AND") {
        *rest = &rest[1..];
        met &= term(rest, allowed);
    }
    met
}

/// Consumes and evaluates one licence, or an expression in parentheses.
fn term(rest: &mut &[&str], allowed: &[String]) -> bool {
    let Some((first, tail)) = rest.split_first() else { return false };
    *rest = tail;
    if *first != "(" {
        let name = first.replace("+WITH+", " WITH ");
        return allowed.contains(&name);
    }
    let met = any_of(rest, allowed);
    let closed = rest.first() == Some(&")");
    *rest = rest.get(1..).unwrap_or_default();
    met && closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_only_by_allowed_licences() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
        let met = [
            "MIT",
            "MIT/GPL-3.0",
            "GPL-3.0 OR MIT",
            "(MIT OR X) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR X",
        ];
        let unmet = ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR X) AND GPL-3.0", "", "(MIT", "Apache-2.0"];
        assert!(met.iter().all(|text| permits(text, &allowed)));
        assert_eq!(unmet.iter().find(|text| permits(text, &allowed)), None);
    }

    #[test]
    fn package_without_a_licence_is_refused() {
        let metadata = serde_json::json!({ "packages": [{ "name": "a", "version": "1", "license": null }] });
        assert_eq!(refused(&metadata, &["MIT".to_owned()]).len(), 1);
    }
}
