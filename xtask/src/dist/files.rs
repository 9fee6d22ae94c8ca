//! The files of a directory: their names, and checksums in the form of `sha256sum`.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::workspace::Result;

/// The names of a directory's files, in order.
pub(super) fn names(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

pub(super) fn sha256(file: &Path) -> Result<String> {
    let digest = Sha256::digest(fs::read(file)?);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::sha256;

    #[test]
    fn checksum_is_in_the_form_of_sha256sum() {
        let file = std::env::temp_dir().join(format!("verbless-sum-{}", std::process::id()));
        std::fs::write(&file, "abc").unwrap();
        let sum = sha256(&file);
        std::fs::remove_file(&file).unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sum.unwrap(), expected);
    }
}
