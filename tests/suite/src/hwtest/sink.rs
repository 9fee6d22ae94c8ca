//! Where hwtest writes JSON, JUnit, reports and profiles: a file, or stdout for `-`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file, or standard output, which is `-`.
pub(crate) enum Sink {
    Stdout,
    File(PathBuf, File),
}

impl Sink {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        match File::create(path) {
            Ok(file) => Ok(Self::File(path.into(), file)),
            Err(error) => Err(named(path, &error)),
        }
    }

    pub(crate) fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::Stdout => writeln!(io::stdout(), "{text}"),
            Self::File(path, mut file) => {
                writeln!(file, "{text}").map_err(|error| named(&path, &error))
            }
        }
    }
}

/// Adds the file's name to the error's text.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
