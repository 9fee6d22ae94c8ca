//! A second build: a copy of the sources at another path, and the comparison of two outputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::names;
use crate::workspace::Result;

/// Copies the files that git knows or would add, as they are now, to `copy`; returns `copy`.
pub(super) fn copy_sources(source: &Path, copy: &Path) -> Result<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(source)
        .output()?;
    if !output.status.success() {
        return Err("git lists no files of the sources: a second build takes a git checkout".into());
    }
    if copy.exists() {
        fs::remove_dir_all(copy)?;
    }
    for file in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let (from, to) = (source.join(file), copy.join(file));
        // A file that was removed, and whose removal is not committed.
        if from.symlink_metadata().is_err() {
            continue;
        }
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)?;
        }
        if from.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(copy.to_owned())
}

/// One line for each file that is not the same in both directories.
pub(super) fn differences(one: &Path, other: &Path) -> Result<Vec<String>> {
    let mut all = names(one)?;
    all.extend(names(other)?);
    all.sort_unstable();
    all.dedup();
    let mut lines = Vec::new();
    for name in all {
        let (first, second) = (fs::read(one.join(&name)), fs::read(other.join(&name)));
        let (Ok(first), Ok(second)) = (first, second) else {
            lines.push(format!("{name}: only one of the builds made it"));
            continue;
        };
        if first != second {
            let at = first.iter().zip(&second).position(|(a, b)| a != b);
            let at = at.unwrap_or(first.len().min(second.len()));
            let (size, other) = (first.len(), second.len());
            lines.push(format!("{name}: {size} and {other} bytes, which differ from byte {at} on"));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{copy_sources, differences};
    use crate::workspace::workspace_root;

    #[test]
    fn difference_names_file_and_first_byte() {
        let root = std::env::temp_dir().join(format!("verbless-dist-{}", std::process::id()));
        let (one, other) = (root.join("1"), root.join("2"));
        for (directory, files) in [
            (&one, [("same", "abc"), ("changed", "abc"), ("longer", "ab")]),
            (&other, [("same", "abc"), ("changed", "axc"), ("longer", "abc")]),
        ] {
            fs::create_dir_all(directory).unwrap();
            for (name, text) in files {
                fs::write(directory.join(name), text).unwrap();
            }
        }
        fs::write(one.join("alone"), "").unwrap();
        let found = differences(&one, &other);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found.unwrap(),
            [
                "alone: only one of the builds made it",
                "changed: 3 and 3 bytes, which differ from byte 1 on",
                "longer: 2 and 3 bytes, which differ from byte 2 on",
            ]
        );
    }

    #[test]
    fn copy_of_sources_has_no_build() {
        let copy = std::env::temp_dir().join(format!("verbless-copy-{}", std::process::id()));
        let copied = copy_sources(workspace_root(), &copy);
        let has = |path: &str| copy.join(path).exists();
        let found = [has("Cargo.lock"), has("xtask/src/dist/check.rs"), has("target"), has(".git")];
        fs::remove_dir_all(&copy).unwrap();
        copied.unwrap();
        assert_eq!(found, [true, true, false, false]);
    }
}
