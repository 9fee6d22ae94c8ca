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

/// The names in a directory, those with equal text before a trailing number in the order of that
/// number; none if the directory cannot be read.
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

/// A path without links; itself if that cannot be found out.
pub(super) fn resolved(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}
