//! Follows the links of the site.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::repository::Result;

/// Follows every link of the pages in `site` to other pages, and their anchors; returns how many.
pub(super) fn check(site: &Path) -> Result<usize> {
    let mut pages = BTreeMap::new();
    read(site, site, &mut pages)?;
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, attributes(text, " id=\"").collect())).collect();
    let (mut count, mut wrong) = (0, Vec::new());
    for (path, text) in &pages {
        let base = path.parent().unwrap_or(Path::new(""));
        for href in attributes(text, " href=\"").filter(|href| !href.contains("://")) {
            let (page, anchor) = href.split_once('#').unwrap_or((href, ""));
            let target = if page.is_empty() { path.clone() } else { normal(&base.join(page)) };
            let found = match anchors.get(&target) {
                Some(ids) => anchor.is_empty() || ids.contains(anchor),
                None => site.join(&target).is_file(),
            };
            count += 1;
            if !found {
                wrong.push(format!("{}: {href}", path.display()));
            }
        }
    }
    match wrong.len() {
        0 => Ok(count),
        number => {
            wrong.truncate(20);
            Err(format!("{number} of {count} links lead nowhere:\n{}", wrong.join("\n")).into())
        }
    }
}

fn read(site: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(site, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let name = path.strip_prefix(site)?.to_owned();
            pages.insert(name, std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The values of an attribute.
fn attributes<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}
