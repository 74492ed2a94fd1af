//! The top-level modules of a crate do not depend on each other in a circle (a dependency cycle). A path to a module
//! is a dependency, and so is a call of a method that a module defines for a type of another one ([`methods`]).
//! References in tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{at, methods};
use crate::Violation;
use crate::source::Source;

/// A reference from one top-level module to another.
struct Edge<'a> {
    to: String,
    source: &'a Source,
    line: usize,
}

/// A crate's references between top-level modules, by the module that they are in.
type Graph<'a> = BTreeMap<String, Vec<Edge<'a>>>;

/// Circles of modules in all crates.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let graphs = graphs(sources);
    graphs.values().flat_map(|graph| circles(graph).into_iter().map(|circle| violation(graph, &circle))).collect()
}

fn violation(graph: &Graph<'_>, circle: &BTreeSet<&str>) -> Violation {
    let edges = circle.iter().flat_map(|module| &graph[*module]).filter(|edge| circle.contains(edge.to.as_str()));
    let edge = edges.min_by_key(|edge| (&edge.source.path, edge.line)).expect("a circle has edges");
    let modules = circle.iter().copied().collect::<Vec<_>>().join(", ");
    at(
        edge.source,
        edge.line,
        format!(
            "the modules {modules} depend on each other in a circle; move the types and functions that they share into \
             a module of their own"
        ),
    )
}

/// Sets of modules that all depend on each other: the strongly connected components of more than one module.
fn circles<'a>(graph: &'a Graph<'_>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reach(graph, from))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (from, targets) in &reached {
        let mutual = targets.iter().filter(|to| reached.get(*to).is_some_and(|back| back.contains(from)));
        let circle: BTreeSet<&str> = mutual.copied().collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Modules that `from` depends on, directly or through others.
fn reach<'a>(graph: &'a Graph<'_>, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut pending) = (BTreeSet::new(), vec![from]);
    while let Some(module) = pending.pop() {
        for edge in graph.get(module).into_iter().flatten() {
            if reached.insert(edge.to.as_str()) {
                pending.push(&edge.to);
            }
        }
    }
    reached
}

/// References between top-level modules, by crate.
fn graphs(sources: &[Source]) -> BTreeMap<&str, Graph<'_>> {
    let files = || sources.iter().filter_map(|source| Some((source, module_path(source)?)));
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, (name, path)) in files() {
        modules.entry(name).or_default().insert(path[0]);
    }
    let mut graphs: BTreeMap<&str, Graph<'_>> = BTreeMap::new();
    for (source, (name, path)) in files() {
        let edges = graphs.entry(name).or_default().entry(path[0].to_owned()).or_default();
        for (to, line) in references(source, path.len()) {
            if to != path[0] && modules[name].contains(to.as_str()) {
                edges.push(Edge { to, source, line });
            }
        }
    }
    for (name, files) in files_by_crate(sources) {
        for call in methods::calls(&files) {
            let edges = graphs.entry(name).or_default().entry(call.from.to_owned()).or_default();
            edges.push(Edge { to: call.to.to_owned(), source: call.source, line: call.line });
        }
    }
    graphs
}

/// The library files of each crate, each with its top-level module; `None` for the crate's root.
fn files_by_crate(sources: &[Source]) -> BTreeMap<&str, Vec<(&Source, Option<&str>)>> {
    let mut crates: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for source in sources {
        if let Some((name, _)) = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
            && source.is_rust()
        {
            crates.entry(name).or_default().push((source, module_path(source).map(|(_, path)| path[0])));
        }
    }
    crates
}

/// The crate of a library file in `crates/`, and the path of its module; `None` for the crate's root.
fn module_path(source: &Source) -> Option<(&str, Vec<&str>)> {
    let (name, file) = source.path.strip_prefix("crates/")?.split_once("/src/")?;
    let path: Vec<&str> = file.strip_suffix(".rs")?.split('/').filter(|part| *part != "mod").collect();
    let is_root = matches!(path[..], ["lib" | "main"]) || path[0] == "bin";
    (!is_root).then_some((name, path))
}

/// First segments of all paths from the crate's root in a file whose module is `depth` levels below it, with their
/// lines.
fn references(source: &Source, depth: usize) -> Vec<(String, usize)> {
    let code = source.production_code().join("\n");
    let to_root = "super::".repeat(depth);
    let mut references = Vec::new();
    for prefix in ["crate::", &to_root] {
        for (start, _) in code.match_indices(prefix) {
            let before = code[..start].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let line = code[..start].matches('\n').count();
            let rest = &code[start + prefix.len()..];
            references.extend(first_segments(rest).into_iter().map(|name| (name, line)));
        }
    }
    references
}

/// The first segment of a path, or those of all paths in a group of a `use`.
fn first_segments(path: &str) -> Vec<String> {
    let segment = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![segment(path)] };
    let (mut depth, mut starts) = (1, vec![0]);
    for (position, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => starts.push(position + 1),
            _ => (),
        }
    }
    starts.into_iter().map(|start| segment(group[start..].trim_start())).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("crates/{path}"), text)).collect();
        check(&sources).into_iter().map(|violation| format!("{violation}")).collect()
    }

    #[test]
    fn circle_through_a_group_and_super_is_found() {
        let circles = circles(&[
            ("x/src/a.rs", "\nuse crate::{\n    other::Thing,\n    b::{B, c},\n};\n"),
            ("x/src/b/mod.rs", "mod deep;\n"),
            ("x/src/b/deep.rs", "fn f() { super::super::c::g() }\n"),
            ("x/src/c.rs", "use super::a::A;\n"),
        ]);
        assert_eq!(circles.len(), 1, "{circles:?}");
        assert!(circles[0].starts_with("crates/x/src/a.rs:2: the modules a, b, c depend"), "{circles:?}");
    }

    #[test]
    fn references_down_within_a_module_and_in_tests_are_no_circle() {
        let circles = circles(&[
            ("x/src/lib.rs", "mod a;\nmod b;\nuse crate::a::A;\n"),
            ("x/src/a.rs", "use crate::b::B;\n// crate::a is used by crate::b\n"),
            ("x/src/b/mod.rs", "use crate::b::deep::D;\nlet text = \"crate::a\";\n"),
            ("x/src/b/deep.rs", "use super::B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("y/src/b.rs", "use crate::a::A;\n"),
        ]);
        assert!(circles.is_empty(), "{circles:?}");
    }

    #[test]
    fn circle_by_calls_of_methods_is_found() {
        let data = ("x/src/data.rs", "pub struct Data;\n");
        let low = "use crate::data::Data;\nimpl Data {\n    fn low(&self) {\n        self.high();\n    }\n}\n";
        let high = "use crate::data::Data;\nimpl Data {\n    pub fn high(&self) {\n        self.low();\n    }\n}\n";
        let found = circles(&[data, ("x/src/low.rs", low), ("x/src/high.rs", high)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/x/src/high.rs:4: the modules high, low depend"), "{found:?}");
        let one_way = low.replace("self.high()", "self.data()");
        assert_eq!(circles(&[data, ("x/src/low.rs", &one_way), ("x/src/high.rs", high)]), Vec::<String>::new());
    }
}
