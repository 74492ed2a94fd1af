//! Calls of inherent methods across the top-level modules of a crate.
//!
//! A module may define methods of a type that another module defines. A call of such a method needs no `use`, but it
//! depends on the module of the method all the same. The method is recognised by its name, if the crate defines no
//! other function of the name, or by the type of `self`.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// A call of a method from a module other than its own.
pub struct Call<'a> {
    /// File of the call.
    pub source: &'a Source,
    /// Top-level module of the call.
    pub from: &'a str,
    /// Top-level module that defines the method.
    pub to: &'a str,
    /// Line of the call, counted from 0.
    pub line: usize,
}

/// An inherent method.
struct Method<'a> {
    name: &'a str,
    /// Its type.
    of: String,
    /// The top-level module that defines it; `None` for the crate's root.
    module: Option<&'a str>,
}

/// Calls between the top-level modules of one crate. `files`: its files, each with its top-level module; `None` for the
/// crate's root.
pub fn calls<'a>(files: &[(&'a Source, Option<&'a str>)]) -> Vec<Call<'a>> {
    let methods = ForeignMethods::of(files);
    let mut calls = Vec::new();
    for (source, from) in files.iter().filter_map(|(source, module)| Some((*source, (*module)?))) {
        for (line, (code, of)) in lines_with_type(source).enumerate() {
            let called = called_names(code).filter_map(|(name, is_of_self)| {
                let of = of.as_ref().filter(|_| is_of_self).map(|of| of.name.as_str());
                methods.module_of(name, of)
            });
            calls.extend(called.filter(|to| *to != from).map(|to| Call { source, from, to, line }));
        }
    }
    calls
}

/// The methods that are defined in another module than their type.
struct ForeignMethods<'a> {
    /// Modules by type and name of the method.
    by_type: BTreeMap<(String, &'a str), &'a str>,
    /// Modules by name, without the names of which the crate defines several functions.
    by_name: BTreeMap<&'a str, &'a str>,
}

impl<'a> ForeignMethods<'a> {
    fn of(files: &[(&'a Source, Option<&'a str>)]) -> Self {
        let (mut definitions, mut types) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, BTreeSet<&str>>::new());
        let mut methods = Vec::new();
        for (source, module) in files {
            for (line, of) in lines_with_type(source) {
                if let (Some(name), Some(module)) = (defined_type(line), *module) {
                    types.entry(name).or_default().insert(module);
                }
                if let Some(name) = defined_function(line) {
                    *definitions.entry(name).or_default() += 1;
                    let of = of.filter(|of| of.is_inherent);
                    methods.extend(of.map(|of| Method { name, of: of.name, module: *module }));
                }
            }
        }
        let mut foreign = ForeignMethods { by_type: BTreeMap::new(), by_name: BTreeMap::new() };
        for Method { name, of, module } in methods {
            if let Some(module) = module
                && types.get(of.as_str()).is_some_and(|modules| !modules.contains(module))
            {
                if definitions[name] == 1 {
                    foreign.by_name.insert(name, module);
                }
                foreign.by_type.insert((of, name), module);
            }
        }
        foreign
    }

    /// The module of the method `name`, of the type `of` if that is known.
    fn module_of(&self, name: &'a str, of: Option<&str>) -> Option<&'a str> {
        let by_type = of.and_then(|of| self.by_type.get(&(of.to_owned(), name)));
        by_type.or_else(|| self.by_name.get(name)).copied()
    }
}

/// The type of an implementation.
#[derive(Clone)]
struct Implemented {
    name: String,
    /// False for the implementation of a trait.
    is_inherent: bool,
}

/// Lines of code of a file, each with the type whose implementation it is in.
fn lines_with_type(source: &Source) -> impl Iterator<Item = (&str, Option<Implemented>)> {
    let code = source.production_code();
    let mut implemented = None;
    code.iter().enumerate().map(move |(index, line)| {
        if line.starts_with("impl") {
            implemented = implemented_type(&code[index..]);
        } else if line.starts_with('}') {
            implemented = None;
        }
        (line.as_str(), implemented.clone())
    })
}

/// The type of the implementation that begins on the first line.
fn implemented_type(lines: &[String]) -> Option<Implemented> {
    let end = lines.iter().position(|line| line.contains('{'))?;
    let header = lines[..=end].join(" ");
    let header = header.strip_prefix("impl")?.split(" where ").next()?;
    let of = without_generics(&header.replace("->", ""));
    let (is_inherent, path) = of.split_once(" for ").map_or((true, of.as_str()), |(_, path)| (false, path));
    let path = path.trim_end_matches(|c: char| c == '{' || c.is_whitespace()).trim_start();
    Some(Implemented { name: path.rsplit("::").next()?.to_owned(), is_inherent })
}

/// `text` without everything in angle brackets.
fn without_generics(text: &str) -> String {
    let mut depth = 0;
    let outside = |c: &char| {
        depth += i32::from(*c == '<') - i32::from(*c == '>');
        depth == 0 && *c != '>'
    };
    text.chars().filter(outside).collect()
}

/// The name of a type that the line defines at the top of a module.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    let kinds = ["struct ", "enum ", "union "];
    kinds.iter().find_map(|kind| line.strip_prefix(kind)).map(|rest| &rest[..word_len(rest)])
}

/// The name of a function that the line defines.
fn defined_function(line: &str) -> Option<&str> {
    let (before, name) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| word.starts_with("pub") || ["const", "async", "unsafe", "extern"].contains(&word);
    let is_definition = before.split_whitespace().all(is_qualifier) && word_len(name) > 0;
    is_definition.then(|| &name[..word_len(name)])
}

/// Names on the line that are called as methods or that end a path, each with whether `self` or `Self` precedes it.
fn called_names(line: &str) -> impl Iterator<Item = (&str, bool)> {
    line.match_indices(['.', ':']).filter_map(|(position, mark)| {
        let (before, rest) = (line[..position].trim_end_matches(':'), &line[position + 1..]);
        let (name, after) = rest.split_at(word_len(rest));
        let is_call = after.starts_with('(') || after.starts_with("::<");
        let is_path_end = mark == ":" && line[..position].ends_with(':') && !after.starts_with("::");
        let is_of_self = has_last_word(before, "self") || has_last_word(before, "Self");
        (!name.is_empty() && (is_call || is_path_end)).then_some((name, is_of_self))
    })
}

/// True if the last word of `text` is `word`, and not a field.
fn has_last_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    text.strip_suffix(word).is_some_and(|before| !before.ends_with(is_part))
}

/// Length of the word at the start of the text.
fn word_len(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls in these files, as caller, definer and line.
    fn found(files: &[(&str, &str)]) -> Vec<(String, String, usize)> {
        let sources: Vec<Source> = files.iter().map(|(name, text)| Source::new(&format!("{name}.rs"), text)).collect();
        let files: Vec<_> = sources.iter().zip(files).map(|(source, (name, _))| (source, Some(*name))).collect();
        calls(&files).iter().map(|call| (call.from.to_owned(), call.to.to_owned(), call.line)).collect()
    }

    const TYPE: (&str, &str) = ("low", "pub struct Thing<T>(T);\nimpl<T> Thing<T> {\n    pub fn own(&self) {}\n}\n");

    #[test]
    fn call_of_a_method_of_a_lower_type_is_found() {
        let high = "impl<T: Fn() -> u8> Thing<T>\nwhere\n    T: Copy,\n{\n    pub async fn climb(&self) {}\n}\n";
        let user = "fn f(thing: Thing<u8>) {\n    thing\n        .climb();\n    list.map(Thing::climb);\n}\n";
        let to_high = |line| ("user".to_owned(), "high".to_owned(), line);
        assert_eq!(found(&[TYPE, ("high", high), ("user", user)]), [to_high(2), to_high(3)]);
    }

    #[test]
    fn ambiguous_method_is_found_by_the_type_of_self() {
        let high = "impl<T> Thing<T> {\n    fn climb(&self) {}\n}\n";
        let other = "struct Other;\nimpl Other {\n    fn climb(&self) {\n        self.climb();\n    }\n}\n";
        let user = "impl<T> Thing<T> {\n    fn use_both(&self) {\n        self.other.climb();\n        \
                    self.climb();\n    }\n}\nimpl fmt::Debug for Thing<u8> {\n    fn fmt(&self) {\n        \
                    Self::climb(self);\n    }\n}\n";
        let to_high = |line| ("user".to_owned(), "high".to_owned(), line);
        assert_eq!(found(&[TYPE, ("high", high), ("other", other), ("user", user)]), [to_high(3), to_high(8)]);
    }

    #[test]
    fn calls_of_own_trait_and_ambiguous_methods_are_left_out() {
        let high = "impl<T> Thing<T> {\n    fn climb(&self) {}\n    fn reach(&self) { self.climb() }\n}\n\
                    impl<T> Climb for Thing<T> {\n    fn descend(&self) {}\n}\n";
        let other = "struct Other;\nimpl Other {\n    fn climb(&self) {}\n}\n";
        let user = "fn f(thing: Thing<u8>) {\n    thing.climb();\n    thing.own();\n    thing.descend();\n    \
                    thing.reach;\n    // thing.reach()\n    reach::up();\n}\n";
        assert_eq!(found(&[TYPE, ("high", high), ("other", other), ("user", user)]), []);
    }
}
