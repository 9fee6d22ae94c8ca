//! The list of what each program links, in the JSON form of SPDX 2.3.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::build::Built;
use super::files::sha256;
use super::packages::{Package, Packages};
use crate::commands::output_of;
use crate::workspace::Result;

/// The list of an architecture's programs.
pub(super) struct Document<'a> {
    pub(super) built: &'a [Built],
    pub(super) packages: &'a Packages,
    pub(super) target: &'a str,
    pub(super) commit: Option<&'a str>,
    /// As [`created`] says.
    pub(super) created: &'a str,
}

/// The variable that fixes the time, in seconds since 1970.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// The time of the sources' commit, or of `SOURCE_DATE_EPOCH`: two lists of one commit are equal.
pub(super) fn created(source: &Path) -> Result<String> {
    let seconds = match std::env::var(EPOCH) {
        Ok(seconds) => seconds,
        Err(_) => {
            let output = Command::new("git")
                .args(["log", "-1", "--format=%ct"])
                .current_dir(source)
                .output()
                .ok()
                .filter(|output| output.status.success())
                .ok_or_else(|| format!("git has no commit time of the sources: set {EPOCH}"))?;
            String::from_utf8(output.stdout)?.trim().to_owned()
        }
    };
    utc(&seconds)
}

/// Seconds since 1970 as SPDX writes a time.
fn utc(seconds: &str) -> Result<String> {
    let seconds: u64 = seconds.parse().map_err(|_| {
        format!("{EPOCH} is {seconds:?}: it must be a number of seconds since 1970")
    })?;
    let at = format!("--date=@{seconds}");
    let text = output_of(Command::new("date").args(["--utc", &at, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(text.trim().to_owned())
}

/// An identifier of SPDX: letters, digits, dots and hyphens.
fn id(kind: &str, name: &str) -> String {
    let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.', "-");
    format!("SPDXRef-{kind}-{name}")
}

fn relationship(one: &str, kind: &str, other: &str) -> Value {
    json!({ "spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other })
}

const DOCUMENT: &str = "SPDXRef-DOCUMENT";

impl Document<'_> {
    pub(super) fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.value()?)? + "\n")
    }

    fn value(&self) -> Result<Value> {
        let standard = self.standard_library()?;
        let mut packages = BTreeMap::new();
        let mut relationships = Vec::new();
        for Built { program, path, links } in self.built {
            let own = links.iter().map(|link| self.packages.get(link));
            let own = own.collect::<Result<Vec<_>>>()?;
            let program_id = id("Program", program.name);
            packages.insert(
                program_id.clone(),
                json!({
                    "SPDXID": program_id,
                    "name": program.name,
                    "versionInfo": self.version(env!("CARGO_PKG_VERSION")),
                    "packageFileName": program.name,
                    "downloadLocation": "NOASSERTION",
                    "filesAnalyzed": false,
                    "checksums": [{ "algorithm": "SHA256", "checksumValue": sha256(path)? }],
                    "licenseDeclared": "MIT OR Apache-2.0",
                    "licenseConcluded": "NOASSERTION",
                    "copyrightText": "NOASSERTION",
                    "primaryPackagePurpose": "APPLICATION",
                }),
            );
            relationships.push(relationship(DOCUMENT, "DESCRIBES", &program_id));
            for package in own {
                let (package_id, value) = self.package(package);
                relationships.push(relationship(&program_id, "STATIC_LINK", &package_id));
                packages.insert(package_id, value);
            }
            for value in &standard {
                let library = value["SPDXID"].as_str().unwrap_or_default().to_owned();
                relationships.push(relationship(&program_id, "STATIC_LINK", &library));
                packages.insert(library, value.clone());
            }
        }
        let version = self.version(env!("CARGO_PKG_VERSION"));
        let namespace = format!("{}/spdx/{version}/{}", env!("CARGO_PKG_REPOSITORY"), self.target);
        Ok(json!({
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": DOCUMENT,
            "name": format!("verbless-{version}-{}", self.target),
            "documentNamespace": namespace,
            "creationInfo": { "created": self.created, "creators": ["Tool: cargo-xtask-dist"] },
            "packages": packages.into_values().collect::<Vec<_>>(),
            "relationships": relationships,
        }))
    }

    /// A version of ours, with the commit.
    fn version(&self, version: &str) -> String {
        self.commit.map_or_else(|| version.to_owned(), |commit| format!("{version}-{commit}"))
    }

    fn package(&self, package: &Package) -> (String, Value) {
        let Package { name, version, source, repository, .. } = package;
        let package_id = id("Package", &format!("{name}-{version}"));
        let mut value = json!({
            "SPDXID": package_id,
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseDeclared": package.licence(),
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        });
        if source.is_none() {
            value["versionInfo"] = self.version(version).into();
        } else {
            let file = format!("https://crates.io/api/v1/crates/{name}/{version}/download");
            value["downloadLocation"] = file.into();
            value["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }]);
        }
        if let Some(checksum) = self.packages.checksum(package) {
            value["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": checksum }]);
        }
        if let Some(repository) = repository {
            value["homepage"] = repository.as_str().into();
        }
        (package_id, value)
    }

    /// The standard library and the C library that rustup brings, which are compiled already.
    fn standard_library(&self) -> Result<[Value; 2]> {
        let version = output_of(Command::new("rustc").arg("--version"))?;
        let version = version.split_whitespace().nth(1).ok_or("rustc does not say its version")?;
        let of = |name: &str, licence: &str, comment: String| {
            json!({
                "SPDXID": id("Package", name),
                "name": name,
                "versionInfo": version,
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": false,
                "licenseDeclared": licence,
                "licenseConcluded": "NOASSERTION",
                "copyrightText": "NOASSERTION",
                "comment": comment,
            })
        };
        let comment = format!("with its own dependencies, as compiled for {}", self.target);
        let rust = of("rust-std", "MIT OR Apache-2.0", comment);
        let comment = format!("musl's libc, of the version in Rust {version}'s own build");
        Ok([rust, of("rust-self-contained-musl", "MIT", comment)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::{Document, id, utc};
    use crate::dist::LIST;
    use crate::dist::build::Built;
    use crate::dist::packages::Packages;
    use crate::dist::program::{HWTEST, MODEL};
    use crate::workspace::workspace_root;

    #[test]
    fn time_is_utc_without_fraction() {
        assert_eq!(utc("86399").unwrap(), "1970-01-01T23:59:59Z");
        assert!(utc("yesterday").unwrap_err().to_string().contains("yesterday"));
    }

    #[test]
    fn identifier_has_only_letters_that_spdx_allows() {
        assert_eq!(id("Package", "toml-1.2.1+spec_1"), "SPDXRef-Package-toml-1.2.1-spec-1");
    }

    /// The ids of the packages that a program links, in the list.
    fn linked<'a>(list: &'a Value, program: &str) -> BTreeSet<&'a str> {
        let all = list["relationships"].as_array().unwrap();
        let of_it = all.iter().filter(|it| {
            it["spdxElementId"] == id("Program", program) && it["relationshipType"] == "STATIC_LINK"
        });
        of_it.map(|it| it["relatedSpdxElement"].as_str().unwrap()).collect()
    }

    #[test]
    fn program_links_only_its_own_packages() {
        let target = "aarch64-unknown-linux-musl";
        let packages = Packages::read(workspace_root(), target).unwrap();
        let path = workspace_root().join("Cargo.lock");
        let of = |program, names: &[&str]| {
            let links = packages.ids(names);
            assert_eq!(links.len(), names.len());
            Built { program, path: path.clone(), links }
        };
        let built =
            [of(&HWTEST, &["clap", "verbless-ring"]), of(&MODEL, &["clap", "tracing", "libc"])];
        let created = "1970-01-01T00:00:00Z";
        let commit = Some("0123");
        let document = Document { built: &built, packages: &packages, target, commit, created };
        let list: Value = serde_json::from_str(&document.text().unwrap()).unwrap();
        assert_eq!(list["spdxVersion"], "SPDX-2.3", "{LIST}");
        let (hwtest, model) = (linked(&list, "hwtest"), linked(&list, "verbless-model"));
        // Each also links the standard library and musl.
        assert_eq!((hwtest.len(), model.len()), (4, 5));
        let both: Vec<_> = hwtest.intersection(&model).collect();
        assert_eq!(both.len(), 3, "{both:?}");
        // Whatever is named in a relationship is in the list, once.
        let packages = list["packages"].as_array().unwrap();
        let ids: BTreeSet<&str> =
            packages.iter().map(|it| it["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), packages.len());
        assert!(hwtest.union(&model).all(|id| ids.contains(id)));
        let clap = packages.iter().find(|it| it["name"] == "clap").unwrap();
        assert_eq!(clap["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
    }
}
