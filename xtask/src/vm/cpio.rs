//! Writes cpio archives in the "newc" format, which Linux unpacks as its initial root.
//!
//! The format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

/// An archive under construction. Parent directories of an entry are added when first needed.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    directories: std::collections::BTreeSet<String>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

impl Archive {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), directories: Default::default(), entries: 0 }
    }

    /// Adds a directory, with its parents. `path` has no leading slash.
    pub(crate) fn directory(&mut self, path: &str) {
        if path.is_empty() || self.directories.contains(path) {
            return;
        }
        self.parents(path);
        self.directories.insert(path.to_string());
        self.entry(path, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file; `mode` is its permission bits.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | (mode & 0o7777), content);
    }

    /// Adds a symbolic link at `path` to `target`.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK | 0o777, target.as_bytes());
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    /// # Panics
    /// If the content does not fit the format's 32-bit size: no guest's file is that large.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let size = u32::try_from(content.len()).expect("less than 4 GiB");
        self.entries += 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the
        // name, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, path.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    /// (path, mode, content) of every entry, read as the kernel reads them.
    fn read(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let field = |index: usize| {
                let start = at + 6 + 8 * index;
                let text = std::str::from_utf8(&archive[start..start + 8]).expect("text");
                u32::from_str_radix(text, 16).expect("a hexadecimal number")
            };
            let (mode, size, length) = (field(1), field(6) as usize, field(11) as usize);
            let name = &archive[at + 110..at + 110 + length];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..length - 1].to_vec()).expect("a name");
            let content = (at + 110 + length).next_multiple_of(4);
            at = (content + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(at, archive.len());
                return entries;
            }
            entries.push((name, mode, archive[content..content + size].to_vec()));
        }
    }

    #[test]
    fn cpio_archive_round_trips() {
        let mut archive = Archive::new();
        archive.file("usr/bin/true", 0o755, b"odd");
        archive.symlink("bin", "usr/bin");
        archive.directory("usr/bin");
        archive.directory("dev");
        archive.file("usr/bin/empty", 0o644, b"");
        let entry = |path: &str, mode, content: &[u8]| (path.to_string(), mode, content.to_vec());
        assert_eq!(
            read(&archive.finish()),
            [
                entry("usr", 0o040_755, b""),
                entry("usr/bin", 0o040_755, b""),
                entry("usr/bin/true", 0o100_755, b"odd"),
                entry("bin", 0o120_777, b"usr/bin"),
                entry("dev", 0o040_755, b""),
                entry("usr/bin/empty", 0o100_644, b""),
            ]
        );
    }
}
