//! Declared but unused dependencies: each costs our users compile time, and misstates our needs.
//!
//! A package uses a dependency if its sources name it in a path (`memmap2::`, `use libc;`). The
//! compiler knows more, but this is enough: our sources name the crates that they use. Sources of a
//! dependency of the library are `src` and `build.rs`; one that only tests, benches or examples
//! name belongs in the dev-dependencies.
//!
//! The driver builds on seven widely used packages (`BUILDS_ON`), rather than on code of its own:
//! for each of them, a crate of the driver must declare the package and name it in its sources
//! (`missing`).
//!
//! Programs outside of the workspace have lock files of their own, which must know its packages
//! (`outdated`).
//!
//! It also bounds the crates that a user compiles with us (`compiled`), including macros and their
//! helpers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

use crate::workspace::Result;

/// Directories of a package whose sources may use its dependencies.
const SOURCES: [&str; 1] = ["src"];
/// Further directories, whose sources may use its dev-dependencies.
const TESTS: [&str; 4] = ["tests", "benches", "examples", "fuzz_targets"];

/// The crates that a program of the driver links, by their directories in `crates`.
const DRIVER: [&str; 8] =
    ["prm", "ring", "devx", "command", "queue", "doca", "flexio", "flexio-dev"];
/// The packages that the driver builds on: system calls, maps, layouts, cache lines, typed views.
const BUILDS_ON: [&str; 7] =
    ["nix", "libc", "memmap2", "zerocopy", "bitfield-struct", "crossbeam-utils", "bytemuck"];

/// One line for each package of [`BUILDS_ON`] that no crate of the driver declares and names.
pub(crate) fn missing(root: &Path) -> Result<Vec<String>> {
    let mut crates = Vec::new();
    for name in DRIVER {
        let package = root.join("crates").join(name);
        if package.join("Cargo.toml").exists() {
            let manifest = manifest(&package.join("Cargo.toml"))?;
            crates.push((dependencies(&manifest, "dependencies"), sources(&package, &SOURCES)?));
        }
    }
    let mut lines = Vec::new();
    for package in BUILDS_ON {
        let declares = |(declared, _): &&(Vec<(String, Value)>, String)| {
            declared.iter().any(|(name, _)| name == package)
        };
        let declaring: Vec<_> = crates.iter().filter(declares).collect();
        if declaring.is_empty() {
            lines.push(format!("{package}: no crate of the driver declares it in [dependencies]"));
        } else if !declaring.iter().any(|(_, code)| uses(code, package)) {
            lines.push(format!("{package}: the crates that declare it do not name it"));
        }
    }
    Ok(lines)
}

/// One line for each declaration without a user: in a package of the workspace at `root`, or in the
/// workspace's own list.
pub(crate) fn unused(root: &Path) -> Result<Vec<String>> {
    let workspace = manifest(&root.join("Cargo.toml"))?;
    let mut lines = Vec::new();
    let mut taken = BTreeSet::new();
    for package in packages(root, &workspace)? {
        let path = package.join("Cargo.toml");
        let manifest = manifest(&path)?;
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let own = sources(&package, &SOURCES)?;
        let tests = sources(&package, &TESTS)?;
        for (kind, of_tests) in [("dependencies", false), ("dev-dependencies", true)] {
            for (name, said) in dependencies(&manifest, kind) {
                if said.get("workspace").is_some() {
                    taken.insert(name.clone());
                }
                let used = uses(&own, &name) || of_tests && uses(&tests, &name);
                if !used && uses(&tests, &name) {
                    lines.push(format!(
                        "{shown}: [{kind}] {name} is used by tests only; it is a dev-dependency"
                    ));
                } else if !used {
                    lines.push(format!("{shown}: [{kind}] {name} is not used; remove it"));
                }
            }
        }
    }
    let all = workspace.get("workspace").and_then(Value::as_table).cloned().unwrap_or_default();
    for (name, _) in dependencies(&all, "dependencies") {
        if !taken.contains(&name) {
            lines.push(format!(
                "Cargo.toml: [workspace.dependencies] {name} is used by no package; remove it"
            ));
        }
    }
    Ok(lines)
}

/// One line for each `Cargo.lock` at or below `root` that lacks what its manifest needs: a build
/// with `--locked` refuses it.
pub(crate) fn outdated(root: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for directory in locked(root)? {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["update", "--workspace", "--locked"])
            .current_dir(&directory)
            .output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let error = errors.lines().find(|line| line.starts_with("error")).unwrap_or(&errors);
            let shown = directory.strip_prefix(root).unwrap_or(&directory).join("Cargo.lock");
            let remedy = "run `cargo update --workspace` beside it";
            lines.push(format!("{}: {error}; {remedy}", shown.display()));
        }
    }
    Ok(lines)
}

/// The directories with a `Cargo.lock`, at or below `root`, without those of builds.
fn locked(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "Cargo.lock" {
                found.push(directory.clone());
            } else if entry.file_type()?.is_dir()
                && name != "target"
                && !name.to_string_lossy().starts_with('.')
            {
                left.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Every crate, with its version, that a dependent of our package compiles with these features;
/// those of procedural macros and build scripts too.
#[cfg(test)]
fn compiled(package: &str, features: &str) -> Result<BTreeSet<String>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--no-dedupe"])
        .args(["--package", package, "--features", features, "--format", "{p}"])
        .current_dir(crate::workspace::workspace_root())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let crates = text.lines().filter(|line| !line.is_empty());
    // Name and version; a path or a mark may follow.
    Ok(crates.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect())
}

fn manifest(path: &Path) -> Result<Table> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse().map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The directories of the workspace's members.
fn packages(root: &Path, workspace: &Table) -> Result<Vec<PathBuf>> {
    let members = workspace.get("workspace").and_then(|table| table.get("members"));
    let mut packages = Vec::new();
    for member in members.and_then(Value::as_array).into_iter().flatten() {
        match member.as_str().map(|member| (member, member.strip_suffix("/*"))) {
            Some((_, Some(parent))) => {
                for entry in std::fs::read_dir(root.join(parent))? {
                    packages.push(entry?.path());
                }
            }
            Some((member, None)) => packages.push(root.join(member)),
            None => {}
        }
    }
    packages.retain(|package| package.join("Cargo.toml").exists());
    packages.sort();
    Ok(packages)
}

fn dependencies(manifest: &Table, kind: &str) -> Vec<(String, Value)> {
    let table = manifest.get(kind).and_then(Value::as_table);
    table.into_iter().flatten().map(|(name, said)| (name.clone(), said.clone())).collect()
}

/// The code of a package in these of its directories, without comments.
fn sources(package: &Path, directories: &[&str]) -> Result<String> {
    let mut code = String::new();
    for directory in directories {
        collect(&package.join(directory), &mut code)?;
    }
    if directories.contains(&"src")
        && let Ok(text) = std::fs::read_to_string(package.join("build.rs"))
    {
        add(&text, &mut code);
    }
    Ok(code)
}

fn collect(directory: &Path, code: &mut String) -> Result {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, code)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            add(&std::fs::read_to_string(&path)?, code);
        }
    }
    Ok(())
}

fn add(text: &str, code: &mut String) {
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        code.push_str(line);
        code.push('\n');
    }
}

/// Whether code names a crate: as the beginning of a path, or in a `use` of just the crate.
fn uses(code: &str, dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    code.match_indices(&name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let whole = before.is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
        let inside = code[..at].ends_with("::")
            && !code[..at].trim_end_matches("::").ends_with([' ', '(', '\n']);
        let after = &code[at + name.len()..];
        let path = after.starts_with("::");
        let alone = after.starts_with([';', ' ', ',', '}'])
            && code[..at].trim_end().ends_with(['{', ',']) | code[..at].trim_end().ends_with("use");
        whole && !inside && (path || alone)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_of_the_workspace_has_a_user() {
        assert_eq!(unused(crate::workspace::workspace_root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn driver_uses_all_packages_that_it_builds_on() {
        assert_eq!(missing(crate::workspace::workspace_root()).unwrap(), Vec::<String>::new());
    }

    /// The kernel's part depends on the device, so this is both.
    #[test]
    fn model_test_compiles_few_crates_without_toml() {
        let crates = compiled("verbless-model-kernel", "").unwrap();
        assert!(crates.iter().any(|it| it.starts_with("verbless-model ")), "{crates:?}");
        // 7 of them derive layouts: zerocopy, bitfield-struct, and what procedural macros need.
        assert!(crates.len() <= 26, "{} crates: {crates:?}", crates.len());
        let toml = |it: &String| it.starts_with("toml");
        assert!(!compiled("verbless", "model").unwrap().iter().any(toml), "in a program's tests");
    }

    #[test]
    fn model_feature_compiles_one_syn() {
        let crates = compiled("verbless", "model").unwrap();
        let syn: Vec<_> = crates.iter().filter(|it| it.starts_with("syn ")).collect();
        assert!(syn.len() <= 1, "{syn:?}");
    }

    #[test]
    fn only_path_or_use_names_a_crate() {
        for code in [
            "use memmap2::Mmap;",
            "fn f() { memmap2::x() }",
            "use memmap2;",
            "use memmap2 as maps;",
            "#[derive(memmap2::Derive)]",
        ] {
            assert!(uses(code, "memmap2"), "{code}");
        }
        for code in ["use crate::memmap2::X;", "let memmap2 = 5;", "my_memmap2::x()", "memmap2x::y"]
        {
            assert!(!uses(code, "memmap2"), "{code}");
        }
        assert!(uses("use crossbeam_utils::CachePadded;", "crossbeam-utils"));
    }

    /// Writes files below a new directory.
    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("verbless-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn missing_names_packages_that_are_undeclared_or_unused() {
        let declared = "[dependencies]\nnix = \"1\"\nlibc = \"1\"\nmemmap2 = \"1\"\n\
                        zerocopy = \"1\"\nbitfield-struct = \"1\"\nbytemuck = \"1\"\n";
        let root = tree(
            "missing",
            &[
                ("crates/prm/Cargo.toml", declared),
                (
                    "crates/prm/src/lib.rs",
                    "use nix::poll;\nuse libc::c_int;\nuse memmap2::Mmap;\n\
                     use bitfield_struct::bitfield;\nuse bytemuck::Pod;\n// zerocopy::IntoBytes\n",
                ),
                // No crate of the driver.
                ("crates/model/Cargo.toml", "[dependencies]\ncrossbeam-utils = \"1\"\n"),
                ("crates/model/src/lib.rs", "use crossbeam_utils::CachePadded;\n"),
            ],
        );
        let lines = missing(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            lines,
            [
                "zerocopy: the crates that declare it do not name it",
                "crossbeam-utils: no crate of the driver declares it in [dependencies]",
            ]
        );
    }

    #[test]
    fn unused_dependency_is_reported_with_location() {
        let root = tree(
            "unused",
            &[
                (
                    "Cargo.toml",
                    "[workspace]\nmembers = [\"crates/*\"]\n[workspace.dependencies]\nlibc = \
                     \"1\"\nnix = \"1\"\n",
                ),
                (
                    "crates/one/Cargo.toml",
                    "[dependencies]\nlibc.workspace = true\nonly-tests = \"1\"\nabsent = \
                     \"1\"\n",
                ),
                ("crates/one/src/lib.rs", "// absent::cares\nuse libc::c_int;\n"),
                ("crates/one/tests/it.rs", "use only_tests::X;\n"),
            ],
        );
        let lines = unused(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            lines,
            [
                "crates/one/Cargo.toml: [dependencies] only-tests is used by tests only; it is a \
                 dev-dependency",
                "crates/one/Cargo.toml: [dependencies] absent is not used; remove it",
                "Cargo.toml: [workspace.dependencies] nix is used by no package; remove it",
            ]
        );
    }

    #[test]
    fn outdated_lock_file_is_reported() {
        let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
        let depends = package("one") + "[workspace]\n[dependencies]\ntwo.path = \"../two\"\n";
        let lock = "version = 4\n\n[[package]]\nname = \"one\"\nversion = \"0.0.0\"\n";
        let root = tree(
            "outdated",
            &[
                ("one/Cargo.toml", &depends),
                ("one/Cargo.lock", lock),
                ("one/src/lib.rs", ""),
                ("two/Cargo.toml", &(package("two") + "[workspace]\n")),
                ("two/Cargo.lock", &lock.replace("one", "two")),
                ("two/src/lib.rs", ""),
                ("target/Cargo.lock", "of a build"),
            ],
        );
        let lines = outdated(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.starts_with("one/Cargo.lock: error: cannot update the lock file"), "{line}");
    }
}
