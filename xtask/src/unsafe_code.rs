//! Checks that docs/architecture.md lists exactly the tree's modules with unsafe code.

use std::collections::BTreeSet;
use std::path::Path;

use crate::workspace::workspace_root;

/// A module that allows unsafe code outside of tests: `devx::sys::ioctl`.
type Module = String;

/// The modules of the crates that allow unsafe code.
fn of_tree() -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(workspace_root().join("crates")).unwrap() {
        let root = entry.unwrap().path();
        let name = root.file_name().unwrap().to_string_lossy().replace('-', "_");
        walk(&root.join("src"), &name, false, &mut found);
    }
    found
}

fn walk(folder: &Path, module: &str, is_test: bool, found: &mut BTreeSet<Module>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let tests = tests_below(folder);
    for path in paths {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_test = is_test || stem == "tests" || tests.contains(&stem);
        let name = match stem.as_str() {
            "lib" | "mod" | "main" => module.to_owned(),
            stem => format!("{module}::{stem}"),
        };
        if path.is_dir() {
            walk(&path, &name, is_test, found);
        } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
            let text = std::fs::read_to_string(&path).unwrap();
            // Tests are last in a file.
            let is_module = |at: &usize| {
                let head = text[*at..].split('{').next().unwrap_or_default();
                head.contains("mod tests")
            };
            let mut marks = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at);
            let code = &text[..marks.find(is_module).unwrap_or(text.len())];
            let uses = |line: &str| {
                let line = line.trim_start();
                let is_code =
                    !line.starts_with("//") && !line.contains("deny(") && !line.contains("forbid(");
                is_code && (line.contains("unsafe_code") || line.contains("unsafe {"))
            };
            // The macros generate such code for programs, and contain none.
            if module != "flexio_macros" && code.lines().any(uses) {
                found.insert(name);
            }
        }
    }
}

/// The modules of a folder that are compiled only for tests.
fn tests_below(folder: &Path) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    let mut owners: Vec<_> = ["lib.rs", "mod.rs", "main.rs"].map(|it| folder.join(it)).into();
    owners.push(folder.with_extension("rs"));
    for text in owners.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
        for after in text.split("#[cfg(test)]\n").skip(1) {
            let line = after.lines().next().unwrap_or_default();
            let name = line.rsplit_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
            tests.extend(name.map(str::to_owned));
        }
    }
    tests
}

/// The modules that the section of docs/architecture.md names.
fn of_page() -> BTreeSet<Module> {
    let page = std::fs::read_to_string(workspace_root().join("docs/architecture.md")).unwrap();
    let (_, section) = page.split_once("## Where unsafe lives").unwrap();
    let section = section.split("\n## ").next().unwrap_or_default();
    let quoted = section.split('`').skip(1).step_by(2);
    quoted.filter(|it| it.contains("::")).map(str::to_owned).collect()
}

#[test]
fn unsafe_module_list_matches_tree() {
    let (tree, page) = (of_tree(), of_page());
    let covers = |listed: &str, module: &str| {
        module.strip_prefix(listed).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let missing: Vec<_> =
        tree.iter().filter(|module| !page.iter().any(|listed| covers(listed, module))).collect();
    assert_eq!(missing, Vec::<&Module>::new(), "not in docs/architecture.md");
    let stale: Vec<_> =
        page.iter().filter(|listed| !tree.iter().any(|module| covers(listed, module))).collect();
    assert_eq!(stale, Vec::<&Module>::new(), "in docs/architecture.md, and without unsafe code");
}
