//! Parts of the VM, from Debian: QEMU, kernels, busybox, rdma-core. Unpacked under `target/vm` and
//! kept there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::arch::{Arch, X86_64};
use super::series::{KernelFlavour, Series};
use crate::debian::{Choice, Debian};
use crate::workspace::{Result, workspace_root};

/// The folder of the fetched files.
pub(crate) fn folder() -> PathBuf {
    workspace_root().join("target/vm")
}

/// QEMU with its own C library, so that it does not depend on the host's.
pub(crate) struct Qemu {
    tree: PathBuf,
    emulator: &'static str,
}

impl Qemu {
    /// The oldest version that has `vfio-user-pci`.
    const OLDEST: (u32, u32) = (10, 1);

    /// QEMU, fetched if missing.
    pub(crate) fn get(arch: &'static Arch) -> Result<Self> {
        let suite = "trixie-backports";
        // A program of this machine, whatever it emulates.
        let tree = arch.tree("qemu");
        let tree = get("QEMU", &tree, &X86_64, suite, &[Choice::Named(arch.qemu)], |_| true)?;
        let qemu = Self { tree, emulator: arch.emulator };
        let output = qemu.command()?.arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match version(&text) {
            Some(version) if version >= Self::OLDEST => Ok(qemu),
            Some((major, minor)) => Err(format!(
                "{suite} has QEMU {major}.{minor}; attaching the model needs {}.{} or newer",
                Self::OLDEST.0,
                Self::OLDEST.1
            )
            .into()),
            None => Err(format!(
                "QEMU in {} does not run: {}",
                qemu.tree.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            )
            .into()),
        }
    }

    /// A command that starts it, with the paths of its own libraries and firmware.
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = in_tree(&self.tree, &self.tree.join("usr/bin").join(self.emulator))?;
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(self.tree.join(firmware));
        }
        Ok(command)
    }
}

/// A kernel of one series with its modules, as Debian built them.
pub(crate) struct Kernel {
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The file that QEMU boots.
    pub(crate) image: PathBuf,
    /// The folder of its modules.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// The kernel of a series, fetched if missing.
    pub(crate) fn get(arch: &Arch, series: Series, flavour: KernelFlavour) -> Result<Self> {
        let own = format!("{series}.");
        let start = format!("linux-image-{own}");
        let tree = get(
            &format!("Linux {series}"),
            &arch.tree(&format!("linux-{series}{}", flavour.mark())),
            arch,
            series.suite(),
            &[Choice::Newest { start: &start, end: &flavour.suffix(arch.debian) }],
            |package| package.starts_with("linux-"),
        )?;
        let mut releases: Vec<String> = Vec::new();
        for entry in fs::read_dir(tree.join("lib/modules"))? {
            releases.push(entry?.file_name().to_string_lossy().into_owned());
        }
        let release =
            releases.iter().find(|release| release.starts_with(&own)).ok_or_else(|| {
                let tree = tree.display();
                format!(
                    "{tree} has Linux {releases:?}, not {series}; delete it, and it is fetched anew"
                )
            })?;
        let modules = tree.join("lib/modules").join(release);
        let image = [tree.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")]
            .into_iter()
            .find(|image| image.exists())
            .ok_or_else(|| format!("no image of Linux {release} in {}", tree.display()))?;
        Ok(Self { release: release.clone(), image, modules })
    }
}

/// Static busybox: the guest's shell and tools; the host decompresses modules with its own.
pub(crate) fn busybox(arch: &Arch) -> Result<PathBuf> {
    let packages = [Choice::Named("busybox-static")];
    let tree = get("busybox", &arch.tree("busybox"), arch, "trixie", &packages, |package| {
        package == "busybox-static"
    })?;
    Ok(tree.join("usr/bin/busybox"))
}

/// rdma-core's programs and perftest from the series' own suite, with their libraries.
pub(crate) fn rdma_core(arch: &Arch, series: Series) -> Result<PathBuf> {
    let packages = ["ibverbs-utils", "ibverbs-providers", "perftest"].map(Choice::Named);
    programs(arch, series, "rdma-core", &packages, |_| true)
}

/// iproute2's programs from the series' own suite, with their libraries.
pub(crate) fn iproute(arch: &Arch, series: Series) -> Result<PathBuf> {
    programs(arch, series, "iproute2", &["iproute2"].map(Choice::Named), |_| true)
}

/// kexec's program as a series' own suite has it, with its libraries.
pub(crate) fn kexec(arch: &Arch, series: Series) -> Result<PathBuf> {
    programs(arch, series, "kexec", &["kexec-tools"].map(Choice::Named), |package| {
        package == "kexec-tools" || package.starts_with("lib") || package.starts_with("zlib")
    })
}

/// Programs of the series' own suite.
fn programs(
    arch: &Arch,
    series: Series,
    what: &str,
    packages: &[Choice<'_>],
    wanted: impl Fn(&str) -> bool,
) -> Result<PathBuf> {
    let suite = series.suite();
    let tree = arch.tree(&format!("{what}-{suite}"));
    get(&format!("{what} of {suite}"), &tree, arch, suite, packages, wanted)
}

/// A command that runs a program of an unpacked tree with that tree's loader and libraries.
fn in_tree(tree: &Path, program: &Path) -> Result<Command> {
    let loader = X86_64.loader_in(tree);
    if !loader.exists() {
        return Err(format!("{} has no C library", tree.display()).into());
    }
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(tree.join(X86_64.libraries)).arg(program);
    Ok(command)
}

/// The tree `name`, fetched if missing. Concurrent runs wait for each other.
fn get(
    what: &str,
    name: &str,
    arch: &Arch,
    suite: &str,
    packages: &[Choice<'_>],
    wanted: impl Fn(&str) -> bool,
) -> Result<PathBuf> {
    let tree = folder().join(name);
    if tree.exists() {
        return Ok(tree);
    }
    if std::env::consts::ARCH != X86_64.name {
        return Err("guests run on x86-64 only: run this on an x86-64 machine".into());
    }
    fs::create_dir_all(folder())?;
    let lock = File::create(folder().join("lock"))?;
    lock.lock()?;
    if !tree.exists() {
        // A package of trixie-backports depends on trixie, so list both; `suite` selects where
        // `packages` come from.
        let suites: &[&str] = match suite {
            "bullseye" => &["bullseye"],
            "bookworm" => &["bookworm"],
            _ => &["trixie", "trixie-backports"],
        };
        Debian::new(&workspace_root().join("target/debian"), suites, arch.foreign())?
            .unpack_with_dependencies(what, suite, packages, wanted, &tree)?;
    }
    Ok(tree)
}

/// Major and minor version in the output of `qemu --version`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("QEMU emulator version ")?.split(['.', ' ', '\n']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn qemu_version_is_parsed() {
        let text = "QEMU emulator version 11.1.0 (Debian 1:11.1.0+ds-1)\nCopyright";
        assert_eq!(version(text), Some((11, 1)));
        assert_eq!(version("QEMU emulator version 10.1\n"), Some((10, 1)));
        assert_eq!(version("error while loading shared libraries"), None);
    }
}
