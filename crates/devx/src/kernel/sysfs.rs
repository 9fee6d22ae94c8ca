//! Reading sysfs: short text files, numbers, directories.

use std::fs;
use std::path::{Path, PathBuf};

/// The text of an attribute without surrounding space; `None` if it cannot be read or is empty.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A hexadecimal number with or without `0x`.
pub(super) fn hex16(path: impl AsRef<Path>) -> Option<u16> {
    let text = text(path)?;
    u16::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// A GUID as sysfs writes it: `0c42:a103:0065:1234`.
pub(super) fn guid(path: impl AsRef<Path>) -> Option<u64> {
    let text = text(path)?;
    let groups: Option<Vec<u64>> =
        text.split(':').map(|group| u16::from_str_radix(group, 16).ok().map(u64::from)).collect();
    groups
        .filter(|groups| groups.len() == 4)
        .map(|groups| groups.iter().fold(0, |guid, group| guid << 16 | group))
}

/// The names in a directory, sorted by the text before a trailing number and then by that number;
/// empty if the directory cannot be read.
pub(super) fn names(path: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
    names
}

fn sort_key(name: &str) -> (&str, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0))
}

/// Last component of the target of a link, such as a driver's name.
pub(super) fn link_name(path: impl AsRef<Path>) -> Option<String> {
    fs::read_link(path).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// The path with links resolved, or unchanged if that fails.
pub(super) fn resolved(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_text_hex_guid_and_link_parse() {
        let dir = std::env::temp_dir().join(format!("sysfs-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let file = |content: &str| {
            fs::write(dir.join("file"), content).unwrap();
            dir.join("file")
        };
        assert_eq!(text(file(" 4: ACTIVE\n")).as_deref(), Some("4: ACTIVE"));
        assert_eq!((text(file("\n")), text(dir.join("none"))), (None, None));
        assert_eq!([hex16(file("0x15b3\n")), hex16(file("a2dc"))], [Some(0x15b3), Some(0xa2dc)]);
        assert_eq!([hex16(file("0x10000")), hex16(file("here"))], [None, None]);
        let read = guid(file("0200:00ff:fe00:0102\n"));
        assert_eq!(read, Some(0x0200_00ff_fe00_0102));
        for content in ["0200:00ff:fe00", "0200:00ff:fe00:0102:0304", "0200:00ff:fe00:x", ""] {
            assert_eq!(guid(file(content)), None, "{content}");
        }
        std::os::unix::fs::symlink("../drivers/mlx5_core", dir.join("driver")).unwrap();
        assert_eq!(link_name(dir.join("driver")).as_deref(), Some("mlx5_core"));
        assert_eq!(link_name(dir.join("file")), None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn names_sort_by_stem_then_number() {
        let dir = std::env::temp_dir().join(format!("names-{}", std::process::id()));
        let ordered = ["7", "10", "mlx5_2", "mlx5_10", "net", "net1", "uverbs0", "uverbs11"];
        for name in ordered.iter().rev() {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        assert_eq!(names(&dir), ordered);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(names(dir), [""; 0]);
    }
}
