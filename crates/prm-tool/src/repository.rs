//! Parts that every task needs: the root of the repository, and the output of results.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The result of a task: nothing, or an error that is shown to the user verbatim.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Prints a page; a closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result {
    print_to(&mut std::io::stdout(), text)
}

fn print_to(out: &mut dyn Write, text: &str) -> Result {
    match out.write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The repository that this crate was built from.
pub(crate) fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate is in the workspace").to_owned()
}

/// A test's own directory with some files; drop removes it.
#[cfg(test)]
pub(crate) struct Scratch(PathBuf);

#[cfg(test)]
impl Scratch {
    /// Makes the directory; `test` must be a unique name.
    pub(crate) fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let name = format!("verbless-prm-{test}-{}", std::process::id());
        let this = Self(std::env::temp_dir().join(name));
        for (file, text) in files {
            this.write(file, text);
        }
        this
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and makes the directories above it.
    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// The text of a file.
    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }
}

#[cfg(test)]
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(Error::from(self.0))
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn print_to_ignores_broken_pipe() {
        let mut out = Vec::new();
        print_to(&mut out, "a page\n").unwrap();
        assert_eq!(out, b"a page\n");
        assert!(print_to(&mut Failing(ErrorKind::BrokenPipe), "a page").is_ok());
        assert!(print_to(&mut Failing(ErrorKind::StorageFull), "a page").is_err());
    }
}
