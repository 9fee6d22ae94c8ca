//! What the guest runs: the conformance suite, a program of the host, or a command that the guest
//! has.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::elf;
use crate::{Result, workspace_root};

/// The script that runs rdma-core's and perftest's programs: see there.
const RDMA_CORE: &str = include_str!("rdma_core.sh");

/// The conformance suite's program, and that of the cases of two programs: each with its package.
const SUITE: &str = "hwtest";
const PROGRAMS: [(&str, &str); 2] =
    [(SUITE, "verbless-conformance"), ("process", "verbless-process")];

/// A program for the guest with its arguments.
pub(crate) struct Program {
    words: Vec<String>,
    /// What is put into the guest for it: places there, and contents.
    files: Vec<(String, Vec<u8>)>,
}

/// Where files of this machine are in the guest.
fn place(file: &Path) -> String {
    format!("/program/{}", file.file_name().unwrap_or_default().to_string_lossy())
}

/// A file for the guest. If it is a program, it can run there: it needs no libraries, or the guest
/// has those of C.
fn content_of(file: &Path, libraries: bool) -> Result<Vec<u8>> {
    let content = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    if elf::section(&content, ".interp").is_some() && !libraries {
        return Err(format!(
            "{} needs shared libraries, and the guest has none; link it statically (for Rust: \
             RUSTFLAGS=-Ctarget-feature=+crt-static), or give the guest a C library by \
             --with-rdma-core",
            file.display()
        )
        .into());
    }
    Ok(content)
}

impl Program {
    /// What the words after `--` ask for. None, or `hwtest` with its options, is the conformance
    /// suite on the guest's first device; `process` with its options, the cases of two programs; a
    /// path is a program of the host; anything else is a command of the guest. `libraries` says
    /// whether the guest has a C library.
    pub(crate) fn new(words: &[String], libraries: bool) -> Result<Self> {
        let (name, arguments) = match words.split_first() {
            None => (SUITE, vec!["--device".to_string(), "mlx5_0".to_string()]),
            Some((name, arguments)) => (name.as_str(), arguments.to_vec()),
        };
        let ours = PROGRAMS.iter().find(|(program, _)| *program == name);
        let file = if let Some((program, package)) = ours {
            build(package, program, true)?
        } else if name.contains('/') && Path::new(name).exists() {
            PathBuf::from(name)
        } else {
            let words = [name.to_string()].into_iter().chain(arguments).collect();
            return Ok(Self { words, files: Vec::new() });
        };
        let (place, content) = (place(&file), content_of(&file, libraries)?);
        let words = [place.clone()].into_iter().chain(arguments).collect();
        Ok(Self { words, files: vec![(place, content)] })
    }

    /// With one more file of this machine in the guest's `/program`.
    pub(crate) fn carrying(mut self, file: &Path, libraries: bool) -> Result<Self> {
        self.files.push((place(file), content_of(file, libraries)?));
        Ok(self)
    }

    /// rdma-core's and perftest's programs, one after the other.
    pub(crate) fn rdma_core_suite() -> Self {
        Self::script("rdma-core-suite", RDMA_CORE.to_string())
    }

    /// A script of the guest's shell, which is called so there.
    pub(crate) fn script(name: &str, text: String) -> Self {
        let place = format!("/program/{name}");
        Self { words: vec![place.clone()], files: vec![(place, text.into_bytes())] }
    }

    /// The shell's line that runs it.
    pub(crate) fn command_line(&self) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        format!("exec {}\n", words.join(" "))
    }

    /// The files of this machine that it needs: their places in the guest, and their contents.
    pub(crate) fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }
}

/// A word as the shell reads it back, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Builds a program of the workspace in release mode and says where it is. A static one is built in
/// a folder of its own, so that its flags do not rebuild everything else.
pub(crate) fn build(package: &str, program: &str, is_static: bool) -> Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(["--package", package, "--bin", program])
        .current_dir(workspace_root())
        .stdout(Stdio::piped());
    if is_static {
        let flags = std::env::var_os("RUSTFLAGS").unwrap_or_default();
        let flags = format!("{} -Ctarget-feature=+crt-static", flags.to_string_lossy());
        // With a target named, the flags do not reach procedural macros, which cannot be static.
        command
            .args(["--target", "x86_64-unknown-linux-gnu"])
            .env("RUSTFLAGS", flags.trim())
            .env("CARGO_TARGET_DIR", super::fetch::folder().join("build"));
    }
    let mut child = command.spawn()?;
    let messages = BufReader::new(child.stdout.take().ok_or("cargo's output was not captured")?);
    let mut built = None;
    for message in serde_json::Deserializer::from_reader(messages).into_iter::<serde_json::Value>()
    {
        let message = message?;
        if message["target"]["name"] == program
            && let Some(path) = message["executable"].as_str()
        {
            built = Some(PathBuf::from(path));
        }
    }
    if !child.wait()?.success() {
        return Err(format!("{program} of {package} does not build").into());
    }
    built.ok_or_else(|| format!("cargo built {package} without a program {program}").into())
}

#[cfg(test)]
mod tests {
    use super::{Program, quoted};

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_word_reaches_the_program_as_it_was_given() {
        let word = "it's $HOME; `ls` \"*\"\n\\";
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(word))])
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }

    #[test]
    fn a_name_without_a_path_is_a_command_of_the_guest() {
        let program = Program::new(&words(&["ibv_devinfo", "-v"]), true).expect("a program");
        assert_eq!(program.command_line(), "exec 'ibv_devinfo' '-v'\n");
        assert!(program.files().is_empty());
    }

    #[test]
    fn a_program_of_the_host_needs_no_libraries_or_brings_them() {
        // The test itself is linked with shared libraries.
        let own = std::env::current_exe().expect("a path").display().to_string();
        let error = Program::new(&words(&[&own]), false).err().expect("an error");
        assert!(error.to_string().contains("shared libraries"), "{error}");
        let program = Program::new(&words(&[&own, "--list"]), true).expect("a program");
        assert!(program.command_line().starts_with("exec '/program/xtask-"));
        assert!(program.files()[0].0.starts_with("/program/xtask-"));
        assert!(program.carrying("/nowhere".as_ref(), true).is_err());
        let script = Program::script("both", "true".into());
        let script = script.carrying(own.as_ref(), true).expect("two files");
        assert_eq!(script.files().len(), 2);
    }
}
