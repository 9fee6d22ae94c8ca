//! The program in the guest: the conformance suite, a program of the host, or a command of the
//! guest.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::arch::Arch;
use super::elf;
use crate::commands::output_of;
use crate::workspace::{Result, cargo, workspace_root};

/// The script that runs rdma-core's and perftest's programs.
const RDMA_CORE: &str = include_str!("rdma_core.sh");

/// The programs of the conformance suite and of its cases with two processes, each with its
/// package.
const SUITE: &str = "hwtest";
const PROGRAMS: [(&str, &str); 2] =
    [(SUITE, "verbless-conformance"), ("process", "verbless-process")];

/// A program for the guest with its arguments.
pub(crate) struct Program {
    words: Vec<String>,
    /// Files for it in the guest: paths there, and contents.
    files: Vec<(String, Vec<u8>)>,
}

/// The path in the guest of a file of this machine.
fn guest_path(file: &Path) -> String {
    format!("/program/{}", file.file_name().unwrap_or_default().to_string_lossy())
}

/// A file of this machine for the guest, with its libraries. If the guest has its own C library
/// (`has_libraries`), the program uses that one.
fn with_libraries(arch: &Arch, file: &Path, has_libraries: bool) -> Result<Vec<(String, Vec<u8>)>> {
    let content = read(file)?;
    let mut files = Vec::new();
    if elf::section(&content, ".interp").is_some() && elf::machine(&content) != Some(arch.machine) {
        let (name, guest) = (file.display(), arch.name);
        return Err(format!("{name} is not a program for a guest of {guest}").into());
    }
    if let Some(loader) = elf::section(&content, ".interp")
        && !has_libraries
    {
        let loader = str::from_utf8(loader)?.trim_end_matches('\0');
        let output = Command::new(loader).arg("--list").arg(file).output()?;
        let list = String::from_utf8(output.stdout)?;
        if !output.status.success() || list.contains(" => not found") {
            let name = file.display();
            return Err(format!(
                "the libraries of {name} are not on this machine; its loader says:\n{list}{}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into());
        }
        for library in libraries_listed(&list).map(|(_, path)| path).chain([loader.into()]) {
            files.push((in_usr(&library), read(&library)?));
        }
    }
    files.push((guest_path(file), content));
    Ok(files)
}

/// The path in the guest of a library of this machine; /lib and /lib64 are links into /usr there.
fn in_usr(library: &Path) -> String {
    let path = library.display();
    if library.starts_with("/lib") || library.starts_with("/lib64") {
        format!("/usr{path}")
    } else {
        path.to_string()
    }
}

/// The libraries in a loader's list, one a line: `NAME => PATH (0xADDRESS)`.
fn libraries_listed(list: &str) -> impl Iterator<Item = (String, PathBuf)> + '_ {
    list.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let (path, _) = path.rsplit_once(" (0x")?;
        (!name.contains('/')).then(|| (name.to_string(), PathBuf::from(path)))
    })
}

fn read(file: &Path) -> Result<Vec<u8>> {
    Ok(fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?)
}

impl Program {
    /// Interprets the words after `--`. No words, or `hwtest` with its options, mean the
    /// conformance suite on the guest's first device; `process` with its options, the cases of two
    /// programs; a path is a program of the host; anything else is a command of the guest.
    /// `has_libraries` says whether the guest has a C library.
    pub(crate) fn new(arch: &Arch, words: &[String], has_libraries: bool) -> Result<Self> {
        let (name, arguments) = match words.split_first() {
            None => (SUITE, vec!["--device".to_string(), "mlx5_0".to_string()]),
            Some((name, arguments)) => (name.as_str(), arguments.to_vec()),
        };
        let ours = PROGRAMS.iter().find(|(program, _)| *program == name);
        let file = if let Some((program, package)) = ours {
            build_for(arch.target, package, program)?
        } else if name.contains('/') && Path::new(name).exists() {
            PathBuf::from(name)
        } else {
            let words = [name.to_string()].into_iter().chain(arguments).collect();
            return Ok(Self { words, files: Vec::new() });
        };
        let words = [guest_path(&file)].into_iter().chain(arguments).collect();
        Ok(Self { words, files: with_libraries(arch, &file, has_libraries)? })
    }

    /// Adds a file of this machine to the guest's `/program`.
    pub(crate) fn carrying(
        mut self,
        arch: &Arch,
        file: &Path,
        has_libraries: bool,
    ) -> Result<Self> {
        for (path, content) in with_libraries(arch, file, has_libraries)? {
            if self.files.iter().all(|(other, _)| *other != path) {
                self.files.push((path, content));
            }
        }
        Ok(self)
    }

    /// The conformance suite's program with these arguments; it is built if there is none.
    pub(crate) fn suite(arch: &Arch, built: Option<&Path>, arguments: &[String]) -> Result<Self> {
        let name = built.map_or(SUITE.to_string(), |path| path.display().to_string());
        let words = [name].into_iter().chain(arguments.iter().cloned());
        Self::new(arch, &words.collect::<Vec<_>>(), false)
    }

    /// rdma-core's and perftest's programs, one after the other.
    pub(crate) fn rdma_core_suite() -> Self {
        Self::script("rdma-core-suite", RDMA_CORE.to_string())
    }

    /// A script of the guest's shell, under this name.
    pub(crate) fn script(name: &str, text: String) -> Self {
        let path = format!("/program/{name}");
        Self { words: vec![path.clone()], files: vec![(path, text.into_bytes())] }
    }

    /// The shell's command line that runs the program.
    pub(crate) fn command_line(&self) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        format!("exec {}\n", words.join(" "))
    }

    /// The files of this machine that the program needs: their paths in the guest, and their
    /// contents.
    pub(crate) fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }
}

/// Quotes a word for the shell, whatever it contains.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Builds a program of the workspace for this machine in release mode and returns its path.
pub(crate) fn build(package: &str, program: &str) -> Result<PathBuf> {
    build_for(None, package, program)
}

/// Builds a program of the workspace in release mode, for this machine or for a target whose
/// programs Rust's own linker links; returns its path.
pub(crate) fn build_for(target: Option<&str>, package: &str, program: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(["--package", package, "--bin", program])
        .current_dir(workspace_root())
        .stdout(Stdio::piped());
    if let Some(target) = target {
        has_std(target)?;
        let linker = format!("target.{target}.linker=\"rust-lld\"");
        command.args(["--target", target, "--config", &linker]);
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

/// Fails unless the toolchain has the standard library for a target, which rustup can add.
pub(crate) fn has_std(target: &str) -> Result<()> {
    let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib");
    if library.exists()
        || Command::new("rustup")
            .args(["target", "add", target])
            .current_dir(workspace_root())
            .status()
            .is_ok_and(|status| status.success())
    {
        return Ok(());
    }
    Err(format!("Rust has no standard library for {target}: rustup target add {target}").into())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Program, in_usr, libraries_listed, quoted};
    use crate::vm::arch::{AARCH64, X86_64};

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn quoted_word_survives_shell() {
        let word = "it's $HOME; `ls` \"*\"\n\\";
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(word))])
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }

    #[test]
    fn bare_name_is_guest_command() {
        let program =
            Program::new(&X86_64, &words(&["ibv_devinfo", "-v"]), true).expect("a program");
        assert_eq!(program.command_line(), "exec 'ibv_devinfo' '-v'\n");
        assert!(program.files().is_empty());
    }

    #[test]
    fn host_program_carries_its_libraries() {
        // The test itself is linked with shared libraries.
        let own = std::env::current_exe().expect("a path").display().to_string();
        let paths = |program: &Program| -> Vec<String> {
            program.files().iter().map(|(path, _)| path.clone()).collect()
        };
        let program = Program::new(&X86_64, &words(&[&own, "--list"]), true).expect("a program");
        assert!(program.command_line().starts_with("exec '/program/xtask-"));
        assert!(matches!(&paths(&program)[..], [one] if one.starts_with("/program/xtask-")));
        let program = Program::new(&X86_64, &words(&[&own]), false).expect("a program");
        let found = paths(&program);
        for library in ["/libc.so.6", "/libgcc_s.so.1", "/ld-linux-x86-64.so.2"] {
            let is_it = |path: &String| path.starts_with("/usr/") && path.ends_with(library);
            assert!(found.iter().any(is_it), "{library}: {found:?}");
        }
        assert!(
            Program::new(&AARCH64, &words(&[&own]), true).is_err(),
            "the program cannot run on aarch64"
        );
        let again = program.carrying(&X86_64, own.as_ref(), false).expect("the same");
        assert_eq!(paths(&again), found, "each file once");
        assert!(again.carrying(&X86_64, "/nowhere".as_ref(), true).is_err());
        let script = Program::script("both", "true".into());
        let script = script.carrying(&X86_64, own.as_ref(), true).expect("two files");
        assert_eq!(script.files().len(), 2);
    }

    #[test]
    fn library_path_is_moved_below_usr() {
        assert_eq!(
            in_usr("/lib/x86_64-linux-gnu/libc.so.6".as_ref()),
            "/usr/lib/x86_64-linux-gnu/libc.so.6"
        );
        assert_eq!(
            in_usr("/lib64/ld-linux-x86-64.so.2".as_ref()),
            "/usr/lib64/ld-linux-x86-64.so.2"
        );
        for path in ["/usr/lib/libm.so.6", "/nix/store/a/lib/libc.so.6", "/library/a.so"] {
            assert_eq!(in_usr(path.as_ref()), path);
        }
    }

    #[test]
    fn loader_list_yields_resolved_libraries() {
        let list = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibibverbs.so.1 => /t/usr/lib/libibverbs.so.1 (0x00007f00)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => /t/ld.so (0x00007f11)\n\
                    \tlibgone.so => not found\n";
        let libraries: Vec<_> = libraries_listed(list).collect();
        assert_eq!(
            libraries,
            [("libibverbs.so.1".into(), PathBuf::from("/t/usr/lib/libibverbs.so.1"))]
        );
    }
}
