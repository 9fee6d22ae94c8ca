//! The kernel modules that the guest loads: found, decompressed, and sorted into loading order.
//!
//! Debian's packages carry no `modules.dep` (their installation makes it), so the dependencies come
//! from each module: `depends=` in its `.modinfo`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf;
use crate::workspace::Result;

/// One module, ready to be loaded.
#[derive(Debug)]
pub(crate) struct Module {
    /// The name, as in `lsmod`.
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

/// The modules `wanted` of the kernel with its modules in `folder`, each after its dependencies.
/// Built-in modules are left out.
pub(crate) fn in_order(folder: &Path, wanted: &[&str], busybox: &Path) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    find(folder, &mut files)?;
    let built_in: Vec<String> = fs::read_to_string(folder.join("modules.builtin"))?
        .lines()
        .filter_map(|line| name_of(Path::new(line)))
        .collect();
    let mut load = |name: &str| match files.get(name) {
        Some(file) => content(file, busybox).map(Some),
        None if built_in.iter().any(|built_in| built_in == name) => Ok(None),
        None => Err(format!("{} has no module {name}", folder.display()).into()),
    };
    let mut order = Vec::new();
    for name in wanted {
        add(name, &mut load, &mut order, &mut Vec::new())?;
    }
    Ok(order)
}

/// Adds a module after its dependencies. `above` are the modules whose dependencies are being
/// added.
fn add(
    name: &str,
    load: &mut dyn FnMut(&str) -> Result<Option<Vec<u8>>>,
    order: &mut Vec<Module>,
    above: &mut Vec<String>,
) -> Result<()> {
    if order.iter().any(|module| module.name == name) {
        return Ok(());
    }
    if above.iter().any(|module| module == name) {
        return Err(format!("modules depend on each other: {above:?} and {name}").into());
    }
    let Some(content) = load(name)? else { return Ok(()) };
    above.push(name.to_string());
    for dependency in depends(&content) {
        add(&dependency, load, order, above)?;
    }
    above.pop();
    order.push(Module { name: name.to_string(), content });
    Ok(())
}

/// The dependencies that a module lists.
fn depends(module: &[u8]) -> Vec<String> {
    elf::section(module, ".modinfo")
        .unwrap_or_default()
        .split(|&byte| byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="))
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Every module file under `folder`, by the module's name.
fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else if let Some(name) = name_of(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The name of the module in a file `NAME.ko`, compressed or not; `-` and `_` are the same in
/// names.
fn name_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (stem, compression) = name.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"].contains(&compression).then(|| stem.replace('-', "_"))
}

/// A module's bytes. The host decompresses: the guest, emulated, would take seconds for it.
fn content(file: &Path, busybox: &Path) -> Result<Vec<u8>> {
    let tool = match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(fs::read(file)?),
        Some("xz") => "xzcat",
        Some("gz") => "zcat",
        _ => return Err(format!("{}: unknown compression", file.display()).into()),
    };
    let output = Command::new(busybox).arg(tool).arg(file).output()?;
    if output.status.success() && elf::is_elf(&output.stdout) {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} does not decompress: {}", file.display(), said.trim()).into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{add, name_of};
    use crate::vm::elf::tests::with_section;

    /// The order in which `wanted` are loaded, given the dependencies of each module.
    fn order(modules: &[(&str, &str)], wanted: &[&str]) -> crate::workspace::Result<Vec<String>> {
        let mut load = |name: &str| {
            if name == "built_in" {
                return Ok(None);
            }
            let (_, depends) =
                modules.iter().find(|module| module.0 == name).ok_or("no such module")?;
            let modinfo = format!("license=GPL\0depends={depends}\0name={name}\0");
            Ok(Some(with_section(".modinfo", modinfo.as_bytes())))
        };
        let mut order = Vec::new();
        for name in wanted {
            add(name, &mut load, &mut order, &mut Vec::new())?;
        }
        Ok(order.into_iter().map(|module| module.name).collect())
    }

    #[test]
    fn module_order_follows_dependencies() {
        let modules = [
            ("mlx5_core", "tls,psample,built-in"),
            ("mlx5_ib", "ib-core,mlx5_core,ib_uverbs"),
            ("ib_uverbs", "ib_core"),
            ("ib_core", ""),
            ("tls", ""),
            ("psample", ""),
            ("unrelated", ""),
        ];
        assert_eq!(
            order(&modules, &["mlx5_core", "mlx5_ib", "ib_uverbs"]).expect("an order"),
            ["tls", "psample", "mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib"]
        );
    }

    #[test]
    fn cyclic_or_missing_modules_are_rejected() {
        assert!(order(&[("a", "b"), ("b", "a")], &["a"]).is_err());
        assert!(order(&[("a", "b")], &["a"]).is_err());
    }

    #[test]
    fn module_name_comes_from_file_name() {
        let name = |file: &str| name_of(Path::new(file));
        assert_eq!(name("kernel/net/ib-core.ko.xz").as_deref(), Some("ib_core"));
        assert_eq!(name("kernel/net/psample.ko").as_deref(), Some("psample"));
        assert_eq!(name("kernel/net/psample.kot"), None);
        assert_eq!(name("modules.order"), None);
    }
}
