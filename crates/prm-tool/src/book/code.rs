//! The files of this repository that use a structure: by the name of its generated type.

use std::collections::BTreeMap;
use std::path::Path;

/// Files by words: the names of generated types.
pub(super) struct Code {
    files: BTreeMap<String, Vec<String>>,
}

/// The parts of the repository, with the folders of their files.
pub(super) const PARTS: [(&str, &[&str]); 3] = [
    (
        "driver",
        &[
            "crates/ring",
            "crates/queue",
            "crates/command",
            "crates/devx",
            "crates/doca",
            "crates/flexio",
        ],
    ),
    ("model", &["crates/model", "crates/model-kernel", "crates/model-host", "crates/dpa"]),
    ("tests", &["tests"]),
];

impl Code {
    /// Reads the Rust files of the repository at `root`.
    pub(super) fn read(root: &Path) -> crate::repository::Result<Self> {
        let mut code = Self { files: BTreeMap::new() };
        for folder in PARTS.iter().flat_map(|(_, folders)| *folders) {
            code.folder(root, &root.join(folder))?;
        }
        Ok(code)
    }

    fn folder(&mut self, root: &Path, folder: &Path) -> crate::repository::Result {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                if path.file_name().is_none_or(|name| name != "target") {
                    self.folder(root, &path)?;
                }
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
                self.file(&name, &std::fs::read_to_string(&path)?);
            }
        }
        Ok(())
    }

    fn file(&mut self, name: &str, text: &str) {
        let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with(|letter: char| letter.is_uppercase())) {
            let files = self.files.entry(word.to_owned()).or_default();
            if files.last().is_none_or(|last| last != name) {
                files.push(name.to_owned());
            }
        }
    }

    /// The files of one of [`PARTS`] that use the type, sorted.
    pub(super) fn of(&self, part: &[&str], type_name: &str) -> Vec<&str> {
        let files = self.files.get(type_name).map_or(&[][..], Vec::as_slice);
        let in_part = |file: &&String| part.iter().any(|it| file.starts_with(&format!("{it}/")));
        let mut files: Vec<&str> = files.iter().filter(in_part).map(String::as_str).collect();
        files.sort_unstable();
        files
    }
}
