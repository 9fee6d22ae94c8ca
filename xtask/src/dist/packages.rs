//! The packages of a source tree as cargo knows them: licences, versions, checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::workspace::Result;

/// All packages of a tree, by their ids.
pub(super) struct Packages {
    by_id: BTreeMap<String, Package>,
    /// Checksums of the packages of registries, by name and version.
    checksums: BTreeMap<(String, String), String>,
}

/// What `cargo metadata` says about a package.
#[derive(Deserialize)]
pub(super) struct Package {
    id: String,
    pub(super) name: String,
    pub(super) version: String,
    license: Option<String>,
    /// `None` for a package of the workspace.
    pub(super) source: Option<String>,
    pub(super) repository: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// `Cargo.lock`.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl Packages {
    /// Reads the packages that a target needs; cargo fetches them.
    pub(super) fn read(source: &Path, target: &str) -> Result<Self> {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--format-version=1", "--locked", "--filter-platform", target])
            .current_dir(source)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err("cargo metadata failed".into());
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
        let by_id = metadata.packages.into_iter().map(|it| (it.id.clone(), it)).collect();
        let lock: Lock = toml::from_str(&fs::read_to_string(source.join("Cargo.lock"))?)?;
        let checksums = lock
            .package
            .into_iter()
            .filter_map(|it| Some(((it.name, it.version), it.checksum?)))
            .collect();
        Ok(Self { by_id, checksums })
    }

    pub(super) fn get(&self, id: &str) -> Result<&Package> {
        self.by_id.get(id).ok_or_else(|| format!("cargo metadata has no package {id}").into())
    }

    /// The SHA-256 of the archive in the registry; `None`: the package is of the workspace.
    pub(super) fn checksum(&self, package: &Package) -> Option<&str> {
        let key = (package.name.clone(), package.version.clone());
        package.source.as_ref().and_then(|_| self.checksums.get(&key)).map(String::as_str)
    }

    /// The ids of packages, by their names.
    #[cfg(test)]
    pub(super) fn ids(&self, names: &[&str]) -> BTreeSet<String> {
        let named = self.by_id.values().filter(|package| names.contains(&&*package.name));
        named.map(|package| package.id.clone()).collect()
    }

    /// The directories that have the sources of registries' packages.
    pub(super) fn registries(&self) -> BTreeSet<PathBuf> {
        let foreign = self.by_id.values().filter(|package| package.source.is_some());
        foreign.filter_map(|it| it.manifest_path.parent()?.parent().map(Path::to_owned)).collect()
    }
}

impl Package {
    /// The licence as SPDX writes it: old packages have `/` for `OR`.
    pub(super) fn licence(&self) -> String {
        let licence = self.license.as_deref().unwrap_or("NOASSERTION");
        licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
    }
}

#[cfg(test)]
mod tests {
    use super::Packages;
    use crate::workspace::workspace_root;

    fn packages() -> Packages {
        Packages::read(workspace_root(), "aarch64-unknown-linux-musl").unwrap()
    }

    #[test]
    fn every_foreign_package_has_licence_and_checksum() {
        let packages = packages();
        let (foreign, own): (Vec<_>, Vec<_>) =
            packages.by_id.values().partition(|package| package.source.is_some());
        assert!(foreign.len() > 20 && own.len() > 10, "{} and {}", foreign.len(), own.len());
        for package in foreign {
            let sum = packages.checksum(package).unwrap_or_default();
            assert_eq!(sum.len(), 64, "{} of {}", sum, package.name);
            let licence = package.licence();
            assert!(licence != "NOASSERTION" && !licence.contains('/'), "{}", package.name);
        }
        assert!(own.iter().all(|package| packages.checksum(package).is_none()));
    }
}
