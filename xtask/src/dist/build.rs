//! Builds static programs, and records which libraries the linker got for each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::packages::Packages;
use super::program::{Kind, Program};
use crate::commands::output_of;
use crate::workspace::Result;

/// A build of programs for a musl target.
pub(super) struct Build<'a> {
    pub(super) source: &'a Path,
    /// cargo's directory. It is not `target`, where the profile's name would be that of our output.
    pub(super) directory: &'a Path,
    pub(super) target: &'a str,
    pub(super) profile: &'a str,
    pub(super) programs: &'static [Program],
    pub(super) commit: Option<&'a str>,
}

/// A program that was built.
pub(super) struct Built {
    pub(super) program: &'static Program,
    pub(super) path: PathBuf,
    /// The ids of the packages that it links.
    pub(super) links: BTreeSet<String>,
}

fn sysroot() -> Result<PathBuf> {
    Ok(output_of(Command::new("rustc").args(["--print", "sysroot"]))?.trim().into())
}

/// A message of cargo's about a compiled crate; all other messages lack these fields.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    target: Target,
    filenames: Vec<PathBuf>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Build<'_> {
    /// Builds all in one run of cargo: features of shared crates depend on the programs in a build,
    /// so single builds would compile most crates several times.
    pub(super) fn run(&self, packages: &Packages) -> Result<Vec<Built>> {
        let mut cargo = self.cargo(packages)?.stdout(Stdio::piped()).spawn()?;
        let output = cargo.stdout.take().ok_or("cargo has no output")?;
        let (mut libraries, mut paths) = (BTreeMap::new(), BTreeMap::new());
        for line in BufReader::new(output).lines() {
            let line = line?;
            if let Ok(artifact) = serde_json::from_str::<Artifact>(&line) {
                for file in artifact.filenames {
                    libraries.insert(file, artifact.package_id.clone());
                }
                if let Some(path) = artifact.executable {
                    paths.insert(artifact.target.name, path);
                }
            } else if let Some((name, files)) = linked(&line) {
                fs::write(self.record(&name), files.join("\n"))?;
            }
        }
        if !cargo.wait()?.success() {
            return Err(format!("the programs do not build for {}", self.target).into());
        }
        let built = |program: &'static Program| {
            let name = program.name;
            let path = paths.remove(name).ok_or_else(|| format!("cargo built no {name}"))?;
            let record = self.record(name);
            // cargo prints the linker's arguments only when it links, so they are kept in a file.
            let files = fs::read_to_string(&record).map_err(|error| {
                let directory = self.directory.display();
                let record = record.display();
                format!("{record}, which has what {name} links: {error}: rm -r {directory}")
            })?;
            let links = files.lines().filter_map(|file| libraries.get(Path::new(file)).cloned());
            let links = links.collect::<BTreeSet<_>>();
            Ok(Built { program, path, links })
        };
        self.programs.iter().map(built).collect()
    }

    /// The file with the linker's inputs for a program.
    fn record(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{}-{}-{name}.links", self.target, self.profile))
    }

    fn cargo(&self, packages: &Packages) -> Result<Command> {
        fs::create_dir_all(self.directory)?;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--locked", "--profile", self.profile, "--target", self.target])
            .args(["--message-format", "json-render-diagnostics"])
            .env("CARGO_TARGET_DIR", self.directory)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(packages)?.join("\x1f"))
            .env("CARGO_INCREMENTAL", "0")
            .env_remove("VERBLESS_COMMIT")
            .current_dir(self.source);
        let names: BTreeSet<_> = self.programs.iter().map(|program| program.package).collect();
        cargo.args(names.iter().flat_map(|name| ["--package", name]));
        for program in self.programs {
            let kind = match program.kind {
                Kind::Bin => "--bin",
                Kind::Example => "--example",
            };
            cargo.args([kind, program.name]);
        }
        if let Some(commit) = self.commit {
            cargo.env("VERBLESS_COMMIT", commit);
        }
        Ok(cargo)
    }

    /// The compiler's flags: Rust's own linker, no symbols, and no path of this machine.
    fn flags(&self, packages: &Packages) -> Result<Vec<String>> {
        let version = output_of(Command::new("rustc").arg("-vV"))?;
        let hash = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
        let hash = hash.ok_or("rustc does not say its commit")?;
        let mut flags = vec![
            "-Clinker=rust-lld".into(),
            // `strip = true` leaves symbols where the linker is rust-lld.
            "-Clink-arg=--strip-all".into(),
            // Both make the file a tenth smaller: short relocations (RELR), and one copy of
            // functions with the same code. `safe` keeps functions apart whose addresses are
            // compared.
            "-Clink-arg=--pack-dyn-relocs=relr".into(),
            "-Clink-arg=--icf=safe".into(),
            "--print=link-args".into(),
        ];
        let mut remap = |from: &Path, to: &str| {
            flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        };
        remap(self.source, "verbless");
        for registry in packages.registries() {
            remap(&registry, "registry");
        }
        // The name that the standard library's sources have in its own panics.
        remap(&sysroot()?.join("lib/rustlib/src/rust"), &format!("/rustc/{hash}"));
        Ok(flags)
    }
}

/// The program and its libraries in a line with the linker's command, whose words are in quotes.
fn linked(line: &str) -> Option<(String, Vec<&str>)> {
    let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
    let output = words.windows(2).find(|pair| pair[0] == "-o")?[1];
    // The crate's name, with cargo's hash.
    let (name, _) = Path::new(output).file_name()?.to_str()?.rsplit_once('-')?;
    let libraries = words.into_iter().filter(|word| word.ends_with(".rlib")).collect();
    Some((name.replace('_', "-"), libraries))
}

#[cfg(test)]
mod tests {
    use super::{Build, linked};
    use crate::dist::PROGRAMS;
    use crate::dist::packages::Packages;
    use crate::workspace::workspace_root;

    #[test]
    fn link_line_names_program_and_libraries() {
        let line = "LC_ALL=\"C\" PATH=\"/bin\" \"rust-lld\" \"/t/deps/a-1.o\" \
                    \"/t/deps/liblibc-2.rlib\" \"-lc\" \"/s/libstd-3.rlib\" \"-o\" \
                    \"/t/deps/verbless_model-84\"";
        let files = vec!["/t/deps/liblibc-2.rlib", "/s/libstd-3.rlib"];
        assert_eq!(linked(line), Some(("verbless-model".into(), files)));
        assert_eq!(linked(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn build_flags_name_no_path_without_remap() {
        let target = "x86_64-unknown-linux-musl";
        let packages = Packages::read(workspace_root(), target).unwrap();
        let source = workspace_root();
        let build = Build {
            source,
            directory: source,
            target,
            profile: "dist",
            programs: PROGRAMS,
            commit: None,
        };
        let flags = build.flags(&packages).unwrap();
        let remaps =
            flags.iter().filter_map(|flag| flag.strip_prefix("--remap-path-prefix=")).count();
        assert!(remaps >= 3, "the sources, a registry and the standard library: {flags:?}");
        let plain = flags.iter().filter(|flag| !flag.starts_with("--remap-path-prefix="));
        assert!(plain.clone().all(|flag| !flag.contains('/')), "{flags:?}");
    }
}
