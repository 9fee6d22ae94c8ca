//! Checks which file of a crate uses which: no cycle has more files than [`MAX_CYCLE`], in the
//! engine only a file and its child may form a cycle, and a layer of the model uses only the layers
//! below it.
//!
//! Reads paths that begin with `crate`, `super`, `self` or a child module from the text, as far as
//! they lead to a file; methods on types show no path and make no edge. Tests do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// The largest cycle that a crate may have.
const MAX_CYCLE: usize = 3;

/// A module, as its path from the crate's root.
type Module = Vec<String>;

#[test]
fn crates_have_no_large_module_cycle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    let mut large = Vec::new();
    let mut seen = BTreeSet::new();
    let inside = |folder: &str| root.join(folder).read_dir().unwrap().map(|it| it.unwrap().path());
    for directory in inside("crates").chain(inside("tests")).chain([root.join("xtask")]) {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        if !directory.join("src").is_dir() {
            continue;
        }
        let graph = graph(&directory.join("src"));
        assert!(!graph.is_empty(), "no files in {name}");
        let largest = cycles(&graph).into_iter().max_by_key(Vec::len).unwrap_or_default();
        println!("{name}: {} files, largest cycle {}", graph.len(), largest.len());
        if largest.len() > MAX_CYCLE {
            let files: Vec<_> = largest.iter().map(|module| module.join("::")).collect();
            large.push(format!("{name}, {} files: {}", files.len(), files.join(", ")));
        }
        seen.insert(name);
    }
    let expected = ["model", "prm", "suite", "process", "xtask"];
    assert!(expected.iter().all(|it| seen.contains(*it)), "not found: only {seen:?}");
    assert!(large.is_empty(), "cycles of more than {MAX_CYCLE} files:\n{}", large.join("\n"));
}

#[test]
fn engine_cycles_are_of_parent_and_child() {
    let graph = graph(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let in_engine = |module: &Module| module.first().is_some_and(|it| it == "engine");
    assert!(
        graph.keys().filter(|module| in_engine(module)).count() > 50,
        "the engine is elsewhere"
    );
    let is_child =
        |cycle: &[Module]| matches!(cycle, [a, b] if b.starts_with(a) && b.len() == a.len() + 1);
    let other: Vec<String> = cycles(&graph)
        .into_iter()
        .filter(|cycle| cycle.iter().any(in_engine) && !is_child(cycle))
        .map(|cycle| cycle.iter().map(|it| it.join("::")).collect::<Vec<_>>().join(", "))
        .collect();
    assert!(other.is_empty(), "cycles of the engine:\n{}", other.join("\n"));
}

/// Layers of the model, and the layers that their files must not use, directly or indirectly.
const LAYERS: [(&str, &[&str]); 3] = [
    ("hca", &["engine", "locked", "functions", "model", "function", "links", "plan", "external"]),
    ("fabric", &["hca", "engine", "locked", "functions", "model", "function", "links", "plan"]),
    ("memory", &["fabric", "hca", "engine", "locked", "functions", "model", "function"]),
];

#[test]
fn model_layers_use_only_lower_ones() {
    let graph = graph(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for (layer, forbidden) in LAYERS {
        let above = upward(&graph, layer, forbidden);
        assert!(above.is_empty(), "{layer} uses layers above it:\n{}", above.join("\n"));
        let known =
            |name: &&&str| graph.keys().any(|module| module.first().is_some_and(|it| it == **name));
        let all = [&[layer], forbidden].concat();
        assert!(all.iter().all(|name| known(&name)), "a layer of {all:?} does not exist");
    }
}

#[test]
fn indirect_upward_use_is_found() {
    let module = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Module>();
    let graph = BTreeMap::from([
        (module(&["hca", "a"]), [module(&["between"])].into()),
        (module(&["hca", "b"]), [module(&["hca", "a"])].into()),
        (module(&["between"]), [module(&["engine", "c"])].into()),
        (module(&["engine", "c"]), BTreeSet::new()),
        (module(&["memory"]), BTreeSet::new()),
    ]);
    let path = "hca::a -> between -> engine::c";
    assert_eq!(upward(&graph, "hca", &["engine"]), [path, &format!("hca::b -> {path}")]);
    assert!(upward(&graph, "hca", &["memory"]).is_empty());
    assert!(upward(&graph, "engine", &["hca"]).is_empty());
}

/// The paths by which files of a layer use a forbidden layer; the shortest one for each.
fn upward(
    graph: &BTreeMap<Module, BTreeSet<Module>>,
    layer: &str,
    forbidden: &[&str],
) -> Vec<String> {
    let of_layer = graph.keys().filter(|module| module.first().is_some_and(|it| it == layer));
    of_layer.filter_map(|from| path_to_forbidden(graph, from, forbidden)).collect()
}

/// The shortest path from a module to one in a forbidden layer.
fn path_to_forbidden(
    graph: &BTreeMap<Module, BTreeSet<Module>>,
    from: &Module,
    forbidden: &[&str],
) -> Option<String> {
    let mut came_from = BTreeMap::from([(from, from)]);
    let mut next = VecDeque::from([from]);
    while let Some(module) = next.pop_front() {
        if module.first().is_some_and(|it| forbidden.contains(&&**it)) {
            let mut names = vec![module.join("::")];
            let mut at = module;
            while at != from {
                at = came_from[at];
                names.push(at.join("::"));
            }
            names.reverse();
            return Some(names.join(" -> "));
        }
        for used in graph.get(module).into_iter().flatten() {
            came_from.entry(used).or_insert_with(|| {
                next.push_back(used);
                module
            });
        }
    }
    None
}

#[test]
fn cycles_are_found_through_every_path_form() {
    let files = [
        (vec![], "mod a; mod b; use a::X;", true),
        (vec!["a"], "use super::b::{c, d::{E}}; // use crate::z::Z;", false),
        (vec!["b"], "mod c; mod d; fn f() { let text = \"crate::a::X\"; c::g() }", true),
        (vec!["b", "c"], "fn g() { crate::a::h(); }", false),
        (vec!["b", "d"], "#[cfg(test)]\nmod tests { use crate::a::X; }", false),
    ];
    let module = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Module>();
    let all: BTreeSet<Module> = files.iter().map(|(names, ..)| module(names)).collect();
    let graph: BTreeMap<_, _> = files
        .iter()
        .map(|(names, text, _)| (module(names), uses(text, &module(names), &all)))
        .collect();
    assert_eq!(graph[&module(&[])], [module(&["a"])].into());
    assert_eq!(graph[&module(&["a"])], [module(&["b", "c"]), module(&["b", "d"])].into());
    assert_eq!(graph[&module(&["b"])], [module(&["b", "c"])].into());
    assert_eq!(graph[&module(&["b", "c"])], [module(&["a"])].into());
    assert!(graph[&module(&["b", "d"])].is_empty());
    assert_eq!(cycles(&graph), [vec![module(&["a"]), module(&["b", "c"])]]);
}

/// Every file module, and the modules that it uses.
fn graph(src: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = BTreeMap::new();
    collect(src, &mut Vec::new(), &mut files);
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let edges = files.iter().map(|(module, path)| {
        let text = std::fs::read_to_string(path).unwrap();
        // A library's root re-exports its modules, for them too: that is no use of them.
        let is_library = module.is_empty() && path.ends_with("lib.rs");
        let uses = if is_library { BTreeSet::new() } else { uses(&text, module, &modules) };
        (module.clone(), uses)
    });
    edges.collect()
}

fn collect(directory: &Path, at: &mut Module, files: &mut BTreeMap<Module, PathBuf>) {
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            at.push(name);
            collect(&path, at, files);
            at.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut module = at.clone();
            if !["mod", "lib", "main"].contains(&&*name) {
                module.push(name);
            }
            files.insert(module, path);
        }
    }
}

/// The modules that a file uses.
fn uses(text: &str, module: &Module, modules: &BTreeSet<Module>) -> BTreeSet<Module> {
    let tokens = tokens(text);
    let child = |other: &'_ Module| other.len() == module.len() + 1 && other.starts_with(module);
    let children: BTreeSet<&str> =
        modules.iter().filter(|other| child(other)).map(|other| &*other[module.len()]).collect();
    let mut found = BTreeSet::new();
    for at in 0..tokens.len() {
        let continues = at > 0 && ["::", "in"].contains(&tokens[at - 1]);
        if continues || tokens.get(at + 1).is_none_or(|next| *next != "::") {
            continue;
        }
        let base = match tokens[at] {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            name if children.contains(name) => [&module[..], &[name.to_owned()]].concat(),
            _ => continue,
        };
        paths(&tokens, &mut (at + 2), base, modules, &mut found);
    }
    found.remove(module);
    found
}

/// Follows a path, or a tree of paths, from token `at` on.
fn paths(
    tokens: &[&str],
    at: &mut usize,
    mut path: Module,
    modules: &BTreeSet<Module>,
    found: &mut BTreeSet<Module>,
) {
    loop {
        match tokens.get(*at).copied() {
            Some("{") => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| *token != "}") {
                    paths(tokens, at, path.clone(), modules, found);
                    while tokens.get(*at).is_some_and(|token| !["}", ","].contains(token)) {
                        *at += 1;
                    }
                    *at += usize::from(tokens.get(*at).is_some_and(|token| *token == ","));
                }
                *at += 1;
                return;
            }
            Some("super") => {
                path.pop();
                *at += 1;
            }
            Some("self") => *at += 1,
            Some(name) if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push(name.to_owned());
                *at += 1;
            }
            _ => break,
        }
        if tokens.get(*at).is_none_or(|token| *token != "::") {
            break;
        }
        *at += 1;
    }
    while !modules.contains(&path) && !path.is_empty() {
        path.pop();
    }
    found.insert(path);
}

/// Words, `::` and single characters, without comments, string literals and test-only items.
fn tokens(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            1 + end_of_text(&rest[1..])
        } else if rest.starts_with("'\"'") || rest.starts_with("'{'") || rest.starts_with("'}'") {
            3
        } else if rest.starts_with("::") {
            all.push("::");
            2
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            all.push(&rest[..end]);
            end
        } else {
            all.push(&rest[..first.len_utf8()]);
            first.len_utf8()
        };
        rest = rest[length..].trim_start();
    }
    without_tests(&all)
}

/// Bytes up to the end of a string literal and its quotation mark.
fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Removes each item after `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    const MARKS: [&[&str]; 2] = [
        &["#", "[", "cfg", "(", "test", ")", "]"],
        &["#", "[", "cfg", "(", "all", "(", "test", ","],
    ];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !MARKS.iter().any(|mark| tokens[at..].starts_with(mark)) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let mut depth = 0;
        while at < tokens.len() {
            let token = tokens[at];
            depth += i32::from(token == "{") - i32::from(token == "}");
            at += 1;
            if depth == 0 && (token == ";" || token == "}") {
                break;
            }
        }
    }
    kept
}

/// The cycles: modules that all use each other, directly or indirectly (Tarjan's algorithm).
fn cycles(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    struct Search<'a> {
        graph: &'a BTreeMap<Module, BTreeSet<Module>>,
        order: BTreeMap<&'a Module, usize>,
        stack: Vec<&'a Module>,
        cycles: Vec<Vec<Module>>,
    }
    impl<'a> Search<'a> {
        /// The lowest stack index that `module` reaches.
        fn visit(&mut self, module: &'a Module) -> usize {
            let index = self.order.len();
            self.order.insert(module, index);
            self.stack.push(module);
            let mut lowest = index;
            for next in self.graph.get(module).into_iter().flatten() {
                lowest = lowest.min(match self.order.get(next) {
                    None => self.visit(next),
                    Some(&order) if self.stack.contains(&next) => order,
                    Some(_) => continue,
                });
            }
            if lowest == index {
                let at = self.stack.iter().position(|other| *other == module).unwrap();
                let mut cycle: Vec<_> = self.stack.drain(at..).cloned().collect();
                cycle.sort();
                self.cycles.extend((cycle.len() > 1).then_some(cycle));
            }
            lowest
        }
    }
    let mut search =
        Search { graph, order: BTreeMap::new(), stack: Vec::new(), cycles: Vec::new() };
    for module in graph.keys() {
        if !search.order.contains_key(module) {
            search.visit(module);
        }
    }
    search.cycles
}
