//! `cargo xtask dist`: our programs for machines without Rust, as static files.
//!
//! A directory per architecture has the programs, their licences, an SPDX list of what each one
//! links ([`spdx`]) and a file of checksums. musl and Rust's own linker make files that need
//! nothing of the machine but its kernel. Two builds of one commit are equal: `--check` makes the
//! second one from a copy of the sources at another path, and compares.

mod build;
mod check;
mod files;
mod packages;
mod program;
mod spdx;
mod step;
mod trial;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use self::build::{Build, Built};
use self::files::{names, sha256};
use self::packages::Packages;
use self::program::{AARCH64, Arch, PROGRAMS, X86_64};
pub(crate) use self::step::{arm_suite, check as step};
use crate::vm::program::has_std;
use crate::workspace::{Result, commit, workspace_root};
use clap::ValueEnum;

/// Options of `cargo xtask dist`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The architecture of the programs.
    #[arg(long, value_enum, default_value_t)]
    arch: Choice,
    /// Build again from a copy of the sources elsewhere, and fail if any file differs.
    #[arg(long)]
    check: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default)]
enum Choice {
    #[value(name = "x86_64")]
    X86_64,
    Aarch64,
    #[default]
    All,
}

impl Choice {
    fn arches(self) -> &'static [Arch] {
        match self {
            Self::X86_64 => &[X86_64],
            Self::Aarch64 => &[AARCH64],
            Self::All => &[X86_64, AARCH64],
        }
    }
}

/// Maximum size of a program in bytes: the link over which it is copied to a DPU may be slow.
const LIMIT: u64 = 12_000_000;

/// The list of what the programs link, and the file of checksums.
const LIST: &str = "verbless.spdx.json";
const SUMS: &str = "SHA256SUMS";
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Builds the files and runs the programs; returns whether they run, and whether a second build, if
/// requested, made the same files.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let arches = options.arch.arches();
    for arch in arches {
        has_std(&arch.target())?;
    }
    let target = workspace_root().join("target");
    let (commit, created) = (commit(), spdx::created(workspace_root())?);
    let (commit, created) = (commit.as_deref(), created.as_str());
    let mut good = true;
    for &arch in arches {
        let (build, output) = (target.join("dist-build"), target.join("dist").join(arch.0));
        let source = workspace_root();
        let files = Files { source, build: &build, output: &output, arch, commit, created };
        let built = files.make()?;
        for name in names(&output)? {
            println!("{:>10}  {name}", fs::metadata(output.join(&name))?.len());
        }
        println!("in {}", output.display());
        match trial::obstacle(arch) {
            Some(why) => println!("skip  {}: {why}", arch.0),
            None => good &= trial::run(arch, &built)?.1 == 0,
        }
        if options.check {
            good &= is_made_again(&files, &target.join("dist-check"))?;
        }
    }
    Ok(good)
}

/// Whether a build from a copy of the sources, at another path, makes the same files.
fn is_made_again(files: &Files<'_>, directory: &Path) -> Result<bool> {
    let arch = files.arch.0;
    let source = check::copy_sources(files.source, &directory.join("of/the/sources"))?;
    let (build, output) = (directory.join("build"), directory.join(arch));
    Files { source: &source, build: &build, output: &output, ..*files }.make()?;
    let differ = check::differences(files.output, &output)?;
    differ.iter().for_each(|line| println!("{arch}: {line}"));
    if differ.is_empty() {
        println!("{arch}: a second build made the same files");
    }
    Ok(differ.is_empty())
}

/// The files of one architecture, and where they come from and go to.
struct Files<'a> {
    source: &'a Path,
    build: &'a Path,
    output: &'a Path,
    arch: Arch,
    commit: Option<&'a str>,
    created: &'a str,
}

impl Files<'_> {
    /// Makes the files; returns the programs among them.
    fn make(&self) -> Result<Vec<Built>> {
        let &Self { source, build, output, arch, commit, created } = self;
        let target = arch.target();
        let packages = Packages::read(source, &target)?;
        let build = Build {
            source,
            directory: build,
            target: &target,
            profile: "dist",
            programs: PROGRAMS,
            commit,
        };
        let mut built = build.run(&packages)?;
        if output.exists() {
            fs::remove_dir_all(output)?;
        }
        fs::create_dir_all(output)?;
        for Built { program, path, .. } in &mut built {
            fits(program.name, arch, fs::metadata(&path)?.len())?;
            let copy = output.join(program.name);
            fs::copy(&path, &copy)?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
            *path = copy;
        }
        for licence in LICENCES {
            fs::copy(source.join(licence), output.join(licence))?;
        }
        let list =
            spdx::Document { built: &built, packages: &packages, target: &target, commit, created };
        fs::write(output.join(LIST), list.text()?)?;
        let mut sums = String::new();
        for name in names(output)? {
            sums += &format!("{}  {name}\n", sha256(&output.join(&name))?);
        }
        fs::write(output.join(SUMS), sums)?;
        Ok(built)
    }
}

/// Fails if a program is too large.
fn fits(name: &str, arch: Arch, bytes: u64) -> Result {
    if bytes > LIMIT {
        return Err(format!(
            "{name} for {} has {bytes} bytes; the limit is {LIMIT}: lower the opt-level of a crate \
             that is not measured in [profile.dist.package], or leave a dependency out",
            arch.0
        )
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{AARCH64, LIMIT, fits};

    #[test]
    fn program_above_limit_is_refused_with_its_size() {
        assert!(fits("hwtest", AARCH64, LIMIT).is_ok());
        let error = fits("hwtest", AARCH64, LIMIT + 1).unwrap_err().to_string();
        assert!(error.contains("hwtest for aarch64 has 12000001 bytes"), "{error}");
    }
}
