//! Parts of the VM, from Debian: QEMU, kernels, busybox, rdma-core. Unpacked under `target/vm` and
//! kept there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

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
}

impl Qemu {
    /// The oldest version that has `vfio-user-pci`.
    const OLDEST: (u32, u32) = (10, 1);

    /// QEMU, fetched if missing.
    pub(crate) fn get() -> Result<Self> {
        let suite = "trixie-backports";
        let tree = get("QEMU", "qemu", suite, &[Choice::Named("qemu-system-x86")], |_| true)?;
        let qemu = Self { tree };
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
        let mut command = in_tree(&self.tree, &self.tree.join("usr/bin/qemu-system-x86_64"))?;
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
    pub(crate) fn get(series: Series, flavour: KernelFlavour) -> Result<Self> {
        let own = format!("{series}.");
        let start = format!("linux-image-{own}");
        let tree = get(
            &format!("Linux {series}"),
            &match flavour {
                KernelFlavour::Cloud => format!("linux-{series}"),
                KernelFlavour::Full => format!("linux-{series}-whole"),
            },
            series.suite(),
            &[Choice::Newest { start: &start, end: flavour.suffix() }],
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

/// Static busybox: the guest's shell and tools; the host decompresses modules with it.
pub(crate) fn busybox() -> Result<PathBuf> {
    let tree =
        get("busybox", "busybox", "trixie", &[Choice::Named("busybox-static")], |package| {
            package == "busybox-static"
        })?;
    Ok(tree.join("usr/bin/busybox"))
}

/// rdma-core's programs and perftest from the series' own suite, with their libraries.
pub(crate) fn rdma_core(series: Series) -> Result<PathBuf> {
    let suite = series.suite();
    let packages = ["ibverbs-utils", "ibverbs-providers", "perftest"].map(Choice::Named);
    get(&format!("rdma-core of {suite}"), &format!("rdma-core-{suite}"), suite, &packages, |_| true)
}

/// iproute2's programs from the series' own suite, with their libraries.
pub(crate) fn iproute(series: Series) -> Result<PathBuf> {
    let suite = series.suite();
    let packages = ["iproute2"].map(Choice::Named);
    get(&format!("iproute2 of {suite}"), &format!("iproute2-{suite}"), suite, &packages, |_| true)
}

/// kexec's program as a series' own suite has it, with its libraries.
pub(crate) fn kexec(series: Series) -> Result<PathBuf> {
    let suite = series.suite();
    let packages = ["kexec-tools"].map(Choice::Named);
    get(&format!("kexec of {suite}"), &format!("kexec-{suite}"), suite, &packages, |package| {
        package == "kexec-tools" || package.starts_with("lib") || package.starts_with("zlib")
    })
}

/// A command that runs a program of an unpacked tree with that tree's loader and libraries.
pub(crate) fn in_tree(tree: &Path, program: &Path) -> Result<Command> {
    let loader = tree.join(LIBRARIES).join(LOADER);
    if !loader.exists() {
        return Err(format!("{} has no C library", tree.display()).into());
    }
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(tree.join(LIBRARIES)).arg(program);
    Ok(command)
}

/// Debian's directory of libraries.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The C library's loader, among the libraries.
pub(crate) const LOADER: &str = "ld-linux-x86-64.so.2";

/// The tree `name`, fetched if missing. Concurrent runs wait for each other.
fn get(
    what: &str,
    name: &str,
    suite: &str,
    packages: &[Choice<'_>],
    wanted: impl Fn(&str) -> bool,
) -> Result<PathBuf> {
    let tree = folder().join(name);
    if tree.exists() {
        return Ok(tree);
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err("the VM is x86-64 only: run this on an x86-64 machine".into());
    }
    fs::create_dir_all(folder())?;
    let lock = File::create(folder().join("lock"))?;
    lock.lock()?;
    if !tree.exists() {
        // A package of trixie-backports depends on trixie, so list both; `suite` selects where
        // `packages` come from.
        let suites: &[&str] =
            if suite == "bookworm" { &["bookworm"] } else { &["trixie", "trixie-backports"] };
        Debian::new(&workspace_root().join("target/debian"), suites)?
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
