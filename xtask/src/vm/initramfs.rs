//! The guest's root: busybox, the drivers, the program, and optionally rdma-core and iproute2. The
//! archive is uncompressed, because an emulated guest takes longer to decompress than to read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::arch::Arch;
use super::cpio::Archive;
use super::elf;
use super::modules::Module;
use super::program::Program;
use crate::workspace::Result;

/// The script `/init` of the guest.
const INIT: &str = include_str!("init.sh");

/// The settings of the guest.
pub(crate) struct Settings<'a> {
    /// The uverbs devices that must exist before the program runs.
    pub(crate) devices: u32,
    /// Unload the drivers and load them again before the program runs.
    pub(crate) reload: bool,
    /// Reboot, start another kernel by kexec, and power off with the drivers loaded.
    pub(crate) shutdown: bool,
    /// The drivers that are unloaded, in this order.
    pub(crate) drivers: &'a [&'a str],
}

/// The contents of the archive.
pub(crate) struct Contents<'a> {
    pub(crate) arch: &'a Arch,
    /// The guest's shell and tools.
    pub(crate) busybox: &'a Path,
    /// The modules in the order in which they are loaded.
    pub(crate) modules: &'a [Module],
    pub(crate) settings: &'a Settings<'a>,
    pub(crate) program: &'a Program,
    /// A script that runs after the drivers load and before the program.
    pub(crate) prepare: Option<&'a str>,
    /// The trees of rdma-core's and perftest's programs, and of iproute2's.
    pub(crate) rdma_core: Option<&'a Path>,
    pub(crate) iproute: Option<&'a Path>,
    /// The tree of kexec-tools, and the kernel that they start.
    pub(crate) kexec: Option<(&'a Path, &'a Path)>,
}

/// The archive that the kernel unpacks as its root.
pub(crate) fn build(contents: &Contents<'_>) -> Result<Vec<u8>> {
    let &Contents { arch, busybox, modules, settings, program, prepare, .. } = contents;
    let &Contents { rdma_core, iproute, kexec, .. } = contents;
    let mut archive = Archive::new();
    for path in ["lib", "lib64"] {
        archive.directory(&format!("usr/{path}"));
        archive.symlink(path, &format!("usr/{path}"));
    }
    archive.file("bin/busybox", 0o755, &fs::read(busybox)?);
    archive.file("init", 0o755, INIT.as_bytes());
    let Settings { devices, reload, shutdown, drivers } = settings;
    let (reload, shutdown) = (u8::from(*reload), u8::from(*shutdown));
    let drivers = drivers.join(" ");
    let settings =
        format!("DEVICES={devices}\nRELOAD={reload}\nSHUTDOWN={shutdown}\nDRIVERS='{drivers}'\n");
    let settings = format!("{settings}OUTPUT=/dev/{}\n", arch.output);
    archive.file("settings", 0o644, settings.as_bytes());
    archive.file("command", 0o644, program.command_line().as_bytes());
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/:/bin/sh\n");
    if let Some(script) = prepare {
        archive.file("prepare", 0o755, script.as_bytes());
    }
    let mut order = String::new();
    for Module { name, content } in modules {
        archive.file(&format!("modules/{name}.ko"), 0o644, content);
        order += &format!("{name}\n");
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    for (path, content) in program.files() {
        archive.file(path.trim_start_matches('/'), 0o755, content);
    }
    if let Some(tree) = rdma_core {
        add_rdma_core(arch, &mut archive, tree)?;
    }
    if let Some(tree) = iproute {
        let programs = ["usr/sbin/ip", "usr/bin/rdma"].map(|program| tree.join(program));
        add_programs(arch, &mut archive, tree, programs.to_vec())?;
    }
    if let Some((tree, kernel)) = kexec {
        add_programs(arch, &mut archive, tree, vec![tree.join("usr/sbin/kexec")])?;
        add_file(&mut archive, "kernel", kernel)?;
    }
    Ok(archive.finish())
}

/// rdma-core's and perftest's programs, and the providers of a guest's devices.
fn add_rdma_core(arch: &Arch, archive: &mut Archive, tree: &Path) -> Result<()> {
    let libraries = tree.join(arch.libraries);
    let mut programs = files(&tree.join("usr/bin"), |name| {
        ["ibv_", "ib_", "raw_ethernet_"].iter().any(|prefix| name.starts_with(prefix))
    })?;
    programs.extend(files(&libraries.join("libibverbs"), |name| {
        ["libmlx5-", "librxe-"].iter().any(|prefix| name.starts_with(prefix))
    })?);
    add_programs(arch, archive, tree, programs)?;
    // A Rust program of the host with shared libraries needs this one too.
    let libgcc = format!("{}/libgcc_s.so.1", arch.libraries);
    for path in [&libgcc, "etc/libibverbs.d/mlx5.driver", "etc/libibverbs.d/rxe.driver"] {
        add_file(archive, path, &tree.join(path))?;
    }
    Ok(())
}

/// Programs of an unpacked tree, with the libraries and the loader that they need.
fn add_programs(
    arch: &Arch,
    archive: &mut Archive,
    tree: &Path,
    programs: Vec<PathBuf>,
) -> Result<()> {
    let mut needed = BTreeMap::new();
    for file in &programs {
        add_needed(&read(file)?, &tree.join(arch.libraries), &mut needed)?;
    }
    for (name, content) in needed {
        archive.file(&format!("{}/{name}", arch.libraries), 0o755, &content);
    }
    for file in programs {
        add_file(archive, &file.strip_prefix(tree)?.display().to_string(), &file)?;
    }
    add_file(archive, &format!("{}/{}", arch.loaders, arch.loader), &arch.loader_in(tree))
}

/// Adds the libraries that `file` needs, and those that they need; a script needs none.
fn add_needed(file: &[u8], libraries: &Path, found: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for name in elf::needed(file) {
        if !found.contains_key(name) {
            let content = read(&libraries.join(name))?;
            found.insert(name.to_string(), content.clone());
            add_needed(&content, libraries, found)?;
        }
    }
    Ok(())
}

fn add_file(archive: &mut Archive, path: &str, file: &Path) -> Result<()> {
    archive.file(path, 0o755, &read(file)?);
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    Ok(fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?)
}

/// The files of a folder with a wanted name, in order.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
