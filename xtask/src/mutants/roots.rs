//! The packages of the copy, and the files at which their crates begin.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::workspace::Result;

#[derive(Deserialize)]
pub(super) struct Packages {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Target {
    /// Whether it has code that is mutated.
    fn is_mutated(&self) -> bool {
        self.kind.iter().any(|kind| kind == "bin" || kind.contains("lib"))
    }
}

impl Packages {
    /// The packages of the workspace in this folder.
    pub(super) fn of(workspace: &Path) -> Result<Self> {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(workspace)
            .stderr(Stdio::inherit())
            .output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The roots of a package's library and programs; none if the compiler runs the library.
    pub(super) fn roots(&self, package: &str) -> Result<Option<Vec<&Path>>> {
        let package = self.packages.iter().find(|it| it.name == package);
        let targets = &package.ok_or("cargo does not know the package")?.targets;
        if targets.iter().any(|it| it.kind.iter().any(|kind| kind == "proc-macro")) {
            return Ok(None);
        }
        Ok(Some(targets.iter().filter(|it| it.is_mutated()).map(|it| &*it.src_path).collect()))
    }

    /// The names of all their crates, with commas between.
    pub(super) fn crates(&self) -> String {
        let targets = self.packages.iter().flat_map(|it| &it.targets);
        let names = targets.filter(|it| it.is_mutated()).map(|it| it.name.replace('-', "_"));
        names.collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_of_library_and_programs() {
        let target = |name: &str, kind: &str| {
            format!(r#"{{"name":"{name}","kind":["{kind}"],"src_path":"/{kind}.rs"}}"#)
        };
        let package = |name: &str, targets: &[String]| {
            format!(r#"{{"name":"{name}","targets":[{}]}}"#, targets.join(","))
        };
        let a = [target("a-b", "lib"), target("p", "bin"), target("t", "test")];
        let packages = [package("a-b", &a), package("m", &[target("m", "proc-macro")])];
        let text = format!(r#"{{"packages":[{}]}}"#, packages.join(","));
        let packages: Packages = serde_json::from_str(&text).unwrap();
        let roots = packages.roots("a-b").unwrap();
        assert_eq!(roots, Some(vec![Path::new("/lib.rs"), Path::new("/bin.rs")]));
        assert_eq!(packages.roots("m").unwrap(), None);
        assert!(packages.roots("b").is_err());
        assert_eq!(packages.crates(), "a_b,p");
    }
}
