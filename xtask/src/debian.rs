//! Debian packages unpacked under `target/`, without touching the system's package database.
//!
//! Some parts that the tests need (the sources of the standard library, a recent QEMU, kernels of
//! other series) are not in this machine's Debian suite, or must not be installed there. apt
//! fetches and checks them with a state directory of its own; dpkg reads the archives. The
//! archive's address comes from the machine's apt configuration.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace::Result;

/// A private apt state for some suites of the Debian archive.
pub(crate) struct Debian {
    state: PathBuf,
    options: Vec<String>,
    /// Concurrent uses wait for each other.
    _lock: fs::File,
}

/// How to choose a package.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<'a> {
    /// By its name.
    Named(&'a str),
    /// The newest package whose name has a version and no other word between these two. One suite
    /// has kernels of several series and flavours, and the package without a version follows the
    /// newest series.
    Newest { start: &'a str, end: &'a str },
}

/// Of these names, the one with the highest version between `start` and `end`.
fn newest<'a>(names: impl Iterator<Item = &'a str>, start: &str, end: &str) -> Option<&'a str> {
    // 6.12.107+deb13 is newer than 6.12.94+deb13: numbers compare as numbers.
    let version = |name: &str| -> Option<Vec<u64>> {
        let middle = name.strip_prefix(start)?.strip_suffix(end)?;
        let is_word = |part: &str| part.starts_with(|letter: char| letter.is_ascii_alphabetic());
        if middle.split('-').any(is_word) {
            return None;
        }
        let numbers = middle.split(|letter: char| !letter.is_ascii_digit());
        Some(numbers.filter_map(|number| number.parse().ok()).collect())
    };
    names.filter_map(|name| Some((version(name)?, name))).max().map(|(_, name)| name)
}

/// One package as apt would install it.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    architecture: String,
}

impl Package {
    /// A package in a line that `apt-get --simulate` prints: `Inst NAME (VERSION SUITE
    /// [ARCHITECTURE])`.
    fn from_simulation(line: &str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        let name = name.split_whitespace().next()?;
        let version = rest.split_whitespace().next()?;
        let (_, architecture) = rest.split_once(')')?.0.rsplit_once('[')?;
        let architecture = architecture.strip_suffix(']')?;
        Some(Self { name: name.into(), version: version.into(), architecture: architecture.into() })
    }

    /// The file that `apt-get download` makes.
    fn archive(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }
}

impl Debian {
    /// Prepares apt for `suites` under `directory`, and fetches their package lists unless they are
    /// there. Packages are this machine's own, or of another architecture.
    pub(crate) fn new(directory: &Path, suites: &[&str], other: Option<&str>) -> Result<Self> {
        let names: Vec<&str> = suites.iter().copied().chain(other).collect();
        let state = directory.join(format!("apt-{}", names.join("-")));
        for part in ["lists/partial", "cache/archives/partial", "preferences"] {
            fs::create_dir_all(state.join(part))?;
        }
        let lock = fs::File::create(state.join("lock"))?;
        lock.lock()?;
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
        let architecture = other.iter().flat_map(|name| {
            [format!("APT::Architecture={name}"), format!("APT::Architectures={name}")]
        });
        let mut options = vec!["-qq".to_string()];
        options.extend(
            settings
                .into_iter()
                .chain(architecture)
                .flat_map(|setting| ["-o".to_string(), setting]),
        );
        let debian = Self { state, options, _lock: lock };
        if !debian.state.join("updated").exists() {
            debian.update()?;
        }
        Ok(debian)
    }

    /// Fetches one package without its dependencies, and unpacks it under `into`. `version` is a
    /// prefix of the version.
    pub(crate) fn unpack_one(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        self.with_fresh_lists(|| self.try_to_unpack_one(package, version, into))
    }

    fn try_to_unpack_one(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        let offered = self.run("apt-cache", &["madison", package])?;
        let exact = offered
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim))
            .find(|offer| offer.starts_with(version))
            .ok_or_else(|| format!("Debian offers no {package} of version {version}"))?;
        self.download(package, &[format!("{package}={exact}")])?;
        fs::create_dir_all(into)?;
        let prefix = format!("{package}_{}", exact.replace(':', "%3a"));
        for entry in fs::read_dir(self.archives())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&prefix) {
                unpack(&path, into)?;
                fs::remove_file(path)?;
                return Ok(());
            }
        }
        Err(format!(
            "apt fetched {package} {exact}, but its archive is not in {}",
            self.archives().display()
        )
        .into())
    }

    /// Fetches packages of `suite` with all their dependencies, and unpacks those with a `wanted`
    /// name under `into`, a tree in which `/bin`, `/sbin`, `/lib` and `/lib64` are links into
    /// `/usr`. `what` names them to the user. `into` exists only once it is complete.
    pub(crate) fn unpack_with_dependencies(
        &self,
        what: &str,
        suite: &str,
        packages: &[Choice<'_>],
        wanted: impl Fn(&str) -> bool,
        into: &Path,
    ) -> Result<()> {
        self.with_fresh_lists(|| self.try_to_unpack(what, suite, packages, &wanted, into))
    }

    fn try_to_unpack(
        &self,
        what: &str,
        suite: &str,
        packages: &[Choice<'_>],
        wanted: &impl Fn(&str) -> bool,
        into: &Path,
    ) -> Result<()> {
        let names: Vec<String> =
            packages.iter().map(|choice| self.choose(suite, choice)).collect::<Result<_>>()?;
        let mut install = vec!["install", "--simulate", "--yes", "-t", suite];
        install.extend(names.iter().map(String::as_str));
        let closure: Vec<Package> = self
            .run("apt-get", &install)?
            .lines()
            .filter_map(Package::from_simulation)
            .filter(|package| wanted(&package.name))
            .collect();
        let exact: Vec<String> = closure
            .iter()
            .map(|Package { name, version, .. }| format!("{name}={version}"))
            .collect();
        self.download(what, &exact)?;

        let mut partial = into.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        for old in [&partial, into] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        for part in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(partial.join("usr").join(part))?;
            std::os::unix::fs::symlink(Path::new("usr").join(part), partial.join(part))?;
        }
        let bar = bar(&format!("unpacking {what}"), closure.len() as u64);
        for package in &closure {
            let archive = self.archives().join(package.archive());
            unpack(&archive, &partial)?;
            fs::remove_file(archive)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        fs::rename(partial, into)?;
        Ok(())
    }

    /// The name of the chosen package.
    fn choose(&self, suite: &str, choice: &Choice<'_>) -> Result<String> {
        let (start, end) = match *choice {
            Choice::Named(name) => return Ok(name.to_string()),
            Choice::Newest { start, end } => (start, end),
        };
        // apt searches by regular expression, and names may contain its special characters: so this
        // asks for all names with the same beginning.
        let first: String =
            start.chars().take_while(|letter| letter.is_alphabetic() || *letter == '-').collect();
        let offered = self.run("apt-cache", &["search", "--names-only", &format!("^{first}")])?;
        let names = offered.lines().filter_map(|line| line.split_whitespace().next());
        newest(names, start, end).map(str::to_string).ok_or_else(|| {
            format!("Debian's {suite} has no package {start}*{end}: choose another version").into()
        })
    }

    /// Makes an attempt, and another with renewed lists if it fails: the archive may have newer
    /// versions than the lists say.
    fn with_fresh_lists(&self, attempt: impl Fn() -> Result<()>) -> Result<()> {
        attempt().or_else(|_| self.update().and_then(|()| attempt()))
    }

    /// Fetches archives into the cache, with a progress bar.
    fn download(&self, what: &str, packages: &[String]) -> Result<()> {
        let mut command = Command::new("apt-get");
        command.args(&self.options).arg("download").args(packages);
        command.current_dir(self.archives());
        with_progress(&mut command, &format!("fetching {what}"))
    }

    fn update(&self) -> Result<()> {
        let mut command = Command::new("apt-get");
        command.args(&self.options).arg("update");
        with_progress(&mut command, "fetching the lists of Debian packages")?;
        Ok(fs::write(self.state.join("updated"), "")?)
    }

    fn archives(&self) -> PathBuf {
        self.state.join("cache/archives")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(Command::new(program).args(&self.options).args(arguments))
    }
}

/// Runs apt, with its progress: on a terminal as a bar, elsewhere as one line at the start.
fn with_progress(command: &mut Command, what: &str) -> Result<()> {
    let (reader, writer) = pipe()?;
    let mut child = command
        .args(["-o", "APT::Status-Fd=1"])
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .map_err(|error| not_found(command.get_program(), &error))?;
    // The command holds the pipe's write ends; without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let bar = bar(what, 100);
    let mut said = String::new();
    for line in BufReader::new(reader).lines() {
        let line = line?;
        match percent(&line) {
            Some(percent) => bar.set_position(percent),
            None => {
                said.push_str(&line);
                said.push('\n');
            }
        }
    }
    bar.finish_and_clear();
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{what}: {:?} failed ({status}): {}", command.get_program(), said.trim()).into())
}

/// apt's progress in percent, from a line of its status: `dlstatus:1:43.7:Retrieving file 3 of 9`.
fn percent(line: &str) -> Option<u64> {
    let number: f64 = line.strip_prefix("dlstatus:")?.split(':').nth(1)?.parse().ok()?;
    Some(number.clamp(0.0, 100.0) as u64)
}

/// A progress bar on standard error; without a terminal, one line says what happens.
fn bar(what: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if bar.is_hidden() {
        eprintln!("{what}");
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3}% {elapsed:>4}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Unpacks a package's files. A folder of the package does not replace a link to a folder, as it
/// does with `dpkg -x`.
fn unpack(archive: &Path, into: &Path) -> Result<()> {
    let (reader, writer) = pipe()?;
    let mut files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(writer)
        .spawn()
        .map_err(|error| not_found("dpkg-deb".as_ref(), &error))?;
    let unpacked = run(Command::new("tar")
        .args(["--extract", "--keep-directory-symlink", "--no-same-owner", "--directory"])
        .arg(into)
        .stdin(reader));
    let status = files.wait()?;
    unpacked?;
    if status.success() {
        return Ok(());
    }
    Err(format!("dpkg-deb cannot read {} ({status})", archive.display()).into())
}

/// The archive that the machine's apt uses, without a suite.
fn archive_address() -> Result<String> {
    let no_apt = "no Debian archive is among apt's sources; the packages that this needs are \
        fetched with \
                  the apt of a Debian system";
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

/// The error if a program of Debian does not start.
fn not_found(program: &OsStr, error: &std::io::Error) -> String {
    format!(
        "cannot run {program:?} ({error}); packages are fetched with the apt of a Debian system"
    )
}

/// Runs a command to its end; on failure its output becomes the error.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| not_found(command.get_program(), &error))?;
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

#[cfg(test)]
mod tests {
    use super::{Package, newest, percent};

    #[test]
    fn newest_kernel_is_chosen_by_version_number() {
        let names = [
            "linux-image-6.1.0-50-cloud-amd64",
            "linux-image-6.12.107+deb13-cloud-amd64",
            "linux-image-6.12.94+deb13-cloud-amd64",
            "linux-image-6.12.107+deb13-cloud-amd64-dbg",
            "linux-image-6.12.107+deb13-cloud-amd64-unsigned",
            "linux-image-6.12.90+deb13-amd64",
            "linux-image-6.12.107+deb13-rt-amd64",
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-image-cloud-amd64",
        ];
        let with = |start, end| newest(names.into_iter(), start, end);
        let of = |start| with(start, "-cloud-amd64");
        assert_eq!(of("linux-image-6.12."), Some("linux-image-6.12.107+deb13-cloud-amd64"));
        assert_eq!(of("linux-image-6.1."), Some("linux-image-6.1.0-50-cloud-amd64"));
        assert_eq!(of("linux-image-7.2."), None);
        let whole = Some("linux-image-6.12.90+deb13-amd64");
        assert_eq!(with("linux-image-6.12.", "-amd64"), whole, "cloud kernels have another end");
    }

    #[test]
    fn apt_simulation_names_archives() {
        let line = "Inst qemu-system-x86 (1:10.1.2+ds-3~bpo13+1 Debian Backports:stable-backports \
            [amd64])";
        let package = Package::from_simulation(line).expect("a package");
        assert_eq!(package.archive(), "qemu-system-x86_1%3a10.1.2+ds-3~bpo13+1_amd64.deb");
        let line = "Inst libgcc-s1 (14.2.0-19 Debian:13.7/stable [amd64]) []";
        let package = Package::from_simulation(line).expect("a package");
        assert_eq!(package.archive(), "libgcc-s1_14.2.0-19_amd64.deb");
        assert_eq!(Package::from_simulation("Conf libc6 (2.41-12 Debian:13 [amd64])"), None);
        assert_eq!(Package::from_simulation("Inst libc6"), None);
    }

    #[test]
    fn apt_status_lines_give_percentages() {
        assert_eq!(percent("dlstatus:1:43.7:Retrieving file 3 of 9"), Some(43));
        assert_eq!(percent("dlstatus:1:4e9:x"), Some(100));
        assert_eq!(percent("E: Unable to fetch"), None);
    }
}
