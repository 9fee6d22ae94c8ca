//! The names of the tests and cases in the repository.

use std::collections::BTreeMap;
use std::path::Path;

use crate::lines::listed;
use crate::workspace::Result;

/// Functions of the sources, by name: the files that have one of this name.
pub(super) struct Tests {
    files: BTreeMap<String, Vec<File>>,
}

/// What a test's name may have before the function's name: parts of the file's path, modules in the
/// file, and the group of the suite's cases.
#[derive(Clone)]
struct File {
    scopes: Vec<String>,
}

impl Tests {
    /// The functions in the Rust files below `root` that git knows.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let mut tests = Self { files: BTreeMap::new() };
        for path in listed(root, &["crates/*.rs", "tests/*.rs", "xtask/*.rs"])? {
            tests.add(&path, &std::fs::read_to_string(root.join(&path))?);
        }
        Ok(tests)
    }

    fn add(&mut self, path: &str, text: &str) {
        let parts = path.trim_end_matches(".rs").split('/');
        let package = path.split('/').nth(1).unwrap_or_default().replace('-', "_");
        let mut scopes: Vec<String> = parts.map(str::to_owned).collect();
        scopes.extend([format!("verbless_{package}"), package]);
        let mut functions = Vec::new();
        for line in text.lines().map(str::trim) {
            let name = |rest: &str| {
                let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                rest[..end.unwrap_or(rest.len())].to_owned()
            };
            if let Some((before, rest)) = line.split_once("fn ")
                && (before.is_empty() || before.ends_with(' '))
            {
                functions.push(name(rest));
            } else if let Some((_, rest)) = line.split_once("mod ") {
                scopes.push(name(rest));
            } else if let Some(group) = line.strip_prefix('"').and_then(|it| it.strip_suffix("\","))
            {
                scopes.push(group.to_owned());
            }
        }
        for function in functions {
            self.files.entry(function).or_default().push(File { scopes: scopes.clone() });
        }
    }

    /// Whether there is a function of this name, in a module, crate or group of the name before it.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut parts: Vec<&str> = name.split("::").collect();
        let function = parts.pop().unwrap_or_default();
        let files = self.files.get(function).map_or(&[][..], Vec::as_slice);
        let has = |file: &File, part: &str| file.scopes.iter().any(|scope| scope == part);
        !parts.is_empty() && files.iter().any(|file| parts.iter().all(|part| has(file, part)))
    }
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn name_is_found_by_function_and_scopes() {
        let mut tests = Tests { files: BTreeMap::new() };
        let case = "cases!(\n    \"rc\",\n    \"It holds.\":\n    a,\n);\nfn a(lab: &Lab) {";
        tests.add("tests/suite/src/cases/reliable.rs", case);
        tests.add("crates/model-host/src/run/b.rs", "mod tests {\n    fn c() {\n");
        for name in ["rc::a", "reliable::a", "b::c", "verbless_model_host::run::b::tests::c"] {
            assert!(tests.has(name), "{name}");
        }
        for name in ["a", "rc::b", "uc::a", "", "::", "b::tests::d"] {
            assert!(!tests.has(name), "{name}");
        }
    }
}
