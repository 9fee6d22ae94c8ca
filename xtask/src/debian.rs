//! Debian packages unpacked under `target/`, without touching the system's package database.
//!
//! Some of what the tests need (the sources of the standard library, a recent QEMU, kernels of other series) is not in the
//! suite that the machine runs, or must not be installed there. apt fetches and checks it with a state directory of
//! its own; dpkg unpacks it. The archive's address is the one that the machine's own apt configuration names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// A private apt state for some suites of the Debian archive.
pub(crate) struct Debian {
    state: PathBuf,
    options: Vec<String>,
}

impl Debian {
    /// Prepares apt for `suites` under `directory`, and fetches their package lists unless that was done before.
    pub(crate) fn new(directory: &Path, suites: &[&str]) -> Result<Self> {
        let state = directory.join(format!("apt-{}", suites.join("-")));
        for part in ["lists/partial", "cache/archives/partial", "preferences"] {
            fs::create_dir_all(state.join(part))?;
        }
        fs::write(state.join("status"), "")?;
        let archive = archive_address()?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={keyring}] {archive} {suite} main\n"))
            .collect();
        fs::write(state.join("sources.list"), sources)?;
        let at = |part: &str| state.join(part).display().to_string();
        let settings = [
            format!("Dir::State={}", at("")),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=-".into(),
            format!("Dir::Etc::preferencesparts={}", at("preferences")),
            "APT::Sandbox::User=root".into(),
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "APT::Install-Recommends=false".into(),
            "Debug::NoLocking=1".into(),
        ];
        let mut options = vec!["-qq".to_string()];
        options.extend(settings.into_iter().flat_map(|setting| ["-o".to_string(), setting]));
        let debian = Self { state, options };
        if !debian.state.join("updated").exists() {
            debian.run("apt-get", &["update"])?;
            fs::write(debian.state.join("updated"), "")?;
        }
        Ok(debian)
    }

    /// Fetches one package, without what it depends on, and unpacks it under `into`. `version` is the start of the version wanted.
    pub(crate) fn unpack_one(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        let offered = self.run("apt-cache", &["madison", package])?;
        let exact = offered
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim))
            .find(|offer| offer.starts_with(version))
            .ok_or_else(|| format!("Debian offers no {package} of version {version}"))?;
        let archives = self.state.join("cache/archives");
        self.run_in(&archives, "apt-get", &["download", &format!("{package}={exact}")])?;
        fs::create_dir_all(into)?;
        for entry in fs::read_dir(&archives)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&format!("{package}_{version}")) {
                run(Command::new("dpkg").arg("-x").arg(&path).arg(into))?;
                return Ok(());
            }
        }
        Err(format!(
            "apt fetched {package} {exact}, but its archive is not in {}",
            archives.display()
        )
        .into())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run_in(Path::new("."), program, arguments)
    }

    fn run_in(&self, directory: &Path, program: &str, arguments: &[&str]) -> Result<String> {
        run(Command::new(program).args(&self.options).args(arguments).current_dir(directory))
    }
}

/// The archive that the machine's apt uses, without a suite.
fn archive_address() -> Result<String> {
    let no_apt = "this needs a Debian system: apt's list of sources names no Debian archive";
    let sources = Path::new("/etc/apt/sources.list.d/debian.sources");
    let classic = Path::new("/etc/apt/sources.list");
    if let Ok(text) = fs::read_to_string(sources)
        && let Some(address) = text
            .lines()
            .filter_map(|line| line.strip_prefix("URIs:"))
            .flat_map(str::split_whitespace)
            .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
    {
        return Ok(address.to_string());
    }
    let text = fs::read_to_string(classic).map_err(|_| no_apt)?;
    text.lines()
        .filter(|line| line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .find(|word| word.trim_end_matches('/').ends_with("/debian"))
        .map(str::to_string)
        .ok_or_else(|| no_apt.into())
}

/// Runs a command to its end; what it printed on failure becomes the error.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "{:?} failed ({}): {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    )
    .into())
}
