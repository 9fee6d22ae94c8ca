//! `dpa build`: compiles a crate for the cores of a DPA and checks the addresses of its code and
//! data.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use verbless_riscv::Program;

use crate::commands::std_sources;
use crate::workspace::{Result, workspace_root};

/// The compile target of programs for the DPA.
pub(super) const TARGET: &str = "riscv64imac-unknown-none-elf";

/// Addresses of code and constants, and of data, as in `crates/flexio-dev/dpa.ld`.
const CODE: std::ops::Range<u64> = 0x4000_0000..0x8000_0000;
const DATA: std::ops::Range<u64> = 0x8000_0000..0x1_0000_0000;

/// Builds the programs of the crate in `directory`; returns their paths.
pub(super) fn build(directory: &Path) -> Result<Vec<PathBuf>> {
    let directory = std::path::absolute(directory)?;
    if !directory.join("Cargo.toml").exists() {
        return Err(format!("{} is not the directory of a crate", directory.display()).into());
    }
    let into = workspace_root().join("target/dpa");
    std::fs::create_dir_all(&into)?;
    let mut programs = Vec::new();
    for executable in compile(&directory)? {
        let file = std::fs::read(&executable)?;
        let report = check(&file).map_err(|why| format!("{}: {why}", executable.display()))?;
        let name = executable.file_name().ok_or("an executable without a name")?;
        let program = into.join(name).with_extension("elf");
        std::fs::write(&program, &file)?;
        println!("{}\n{report}", program.display());
        programs.push(program);
    }
    if programs.is_empty() {
        let why = "has no program: a src/main.rs with `#![no_std]`, `#![no_main]` and \
                   `verbless_flexio_dev::program!();`";
        return Err(format!("{} {why}", directory.display()).into());
    }
    Ok(programs)
}

/// Compiles the crate in `directory`; returns its executables.
fn compile(directory: &Path) -> Result<Vec<PathBuf>> {
    let script = workspace_root().join("crates/flexio-dev/dpa.ld");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--release", "--bins", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(directory)
        .env("CARGO_TARGET_DIR", workspace_root().join("target/riscv64imac"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&script))
        .stderr(Stdio::inherit());
    if directory.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    Core::find()?.add_to(&mut command);
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{} does not compile for {TARGET}", directory.display()).into());
    }
    let messages = String::from_utf8(output.stdout)?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    };
    Ok(messages.lines().filter_map(executable).collect())
}

/// Flags of the compiler, as cargo separates them.
fn flags(script: &Path) -> String {
    // The default code model has code below 2 GiB only, and data within 2 GiB of it.
    let script = format!("link-arg=-T{}", script.display());
    ["-C", &script, "-C", "code-model=medium", "-C", "relocation-model=static"].join("\u{1f}")
}

/// The source of a program's `core`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// The toolchain has it for the target.
    Installed,
    /// Compiled from these sources.
    Built(PathBuf),
}

impl Core {
    /// The target's `core`, if it is installed; else sources.
    ///
    /// # Errors
    /// If there is neither; the error says what to install.
    pub(crate) fn find() -> Result<Self> {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", TARGET]);
        let libraries = String::from_utf8(rustc.output()?.stdout)?;
        Self::of(Path::new(libraries.trim()), std_sources)
    }

    /// The same, with the target's libraries in `libraries`, if any.
    fn of(libraries: &Path, sources: impl FnOnce() -> Result<PathBuf>) -> Result<Self> {
        let is_core = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            (name.starts_with("libcore-") && name.ends_with(".rlib")).then_some(())
        };
        let mut entries = std::fs::read_dir(libraries).into_iter().flatten();
        if entries.any(|entry| is_core(entry).is_some()) {
            return Ok(Self::Installed);
        }
        sources().map(Self::Built).map_err(|error| {
            let why = format!(
                "the target {TARGET} is not installed, and there are no sources of the standard \
                 library to compile core from ({error}): run `rustup target add {TARGET}` or \
                 `rustup component add rust-src`"
            );
            why.into()
        })
    }

    /// Adds the options for cargo.
    pub(super) fn add_to(&self, command: &mut Command) {
        if let Self::Built(sources) = self {
            command
                .args(["-Zbuild-std=core", "-Zbuild-std-features=compiler-builtins-mem"])
                .env("RUSTC_BOOTSTRAP", "1")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources);
        }
    }
}

/// Checks that a process can be made of the file; returns a description.
fn check(file: &[u8]) -> Result<String> {
    let program = Program::parse(file)?;
    if program.tls.as_ref().is_some_and(|tls| tls.length > 0) {
        let why = "it has thread-local variables, but tp holds the address of the thread context \
                   on a DPA: keep them in the thread-local storage that the thread's metadata \
                   names, and link with crates/flexio-dev/dpa.ld";
        return Err(why.into());
    }
    let mut report = String::new();
    for segment in &program.segments {
        let end = segment.address + segment.length;
        let (what, region) = match segment.permissions {
            it if it.execute && it.write => {
                return Err("the code is writable: link it with crates/flexio-dev/dpa.ld".into());
            }
            it if it.write => ("data", DATA),
            it if it.execute => ("code", CODE),
            _ => ("constants", CODE),
        };
        if segment.address < region.start || end > region.end {
            let (from, to) = (segment.address, region.end);
            let room = to - region.start;
            return Err(format!(
                "{what} from {from:#x} to {end:#x} are not between {:#x} and {to:#x}: there is \
                 room for {room} bytes",
                region.start
            )
            .into());
        }
        report += &format!("  {what:9} {:#11x}  {:>8} bytes\n", segment.address, segment.length);
    }
    let mut functions: Vec<_> =
        program.symbols().filter_map(|(name, _)| name.strip_prefix("dpa:")).collect();
    functions.sort_unstable();
    if functions.is_empty() {
        return Err("no function has #[rpc] or #[event_handler]: add one".into());
    }
    for function in functions {
        let name = function.split('(').next().unwrap_or(function);
        let symbol = program.symbol(name).filter(|symbol| symbol.function);
        let symbol = symbol.ok_or_else(|| format!("{name} has no code"))?;
        report += &format!("  {:#11x}  {function}\n", symbol.address);
    }
    Ok(report.trim_end().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_rejects_non_crate_and_non_program() {
        let error = build(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("not the directory of a crate"), "{error}");
        assert!(check(b"\x7fELF").is_err());
    }

    #[test]
    fn core_is_installed_built_or_reported_missing() {
        let libraries = std::env::temp_dir().join(format!("verbless-core-{}", std::process::id()));
        std::fs::create_dir_all(&libraries).unwrap();
        let sources = || Ok(PathBuf::from("/sources"));
        let built = Core::Built("/sources".into());
        // The target is not installed if its directory has other files only.
        std::fs::write(libraries.join("liballoc-1.rlib"), []).unwrap();
        assert_eq!(Core::of(&libraries, sources).unwrap(), built);
        assert_eq!(Core::of(Path::new("/nowhere"), sources).unwrap(), built);
        let neither = Core::of(&libraries, || Err("no network".into())).unwrap_err().to_string();
        for part in ["no network", "rustup target add riscv64imac", "rust-src"] {
            assert!(neither.contains(part), "{neither}");
        }
        std::fs::write(libraries.join("libcore-1.rlib"), []).unwrap();
        let unasked = || panic!("sources are fetched although they are not needed");
        assert_eq!(Core::of(&libraries, unasked).unwrap(), Core::Installed);
        std::fs::remove_dir_all(&libraries).unwrap();
        let arguments = |core: Core| {
            let mut command = Command::new("cargo");
            core.add_to(&mut command);
            command.get_args().count()
        };
        assert_eq!((arguments(Core::Installed), arguments(built)), (0, 2));
    }

    #[test]
    fn thread_local_variables_are_rejected() {
        let mut file = vec![0; 64 + 2 * 56 + 8];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &[2, 0, 243, 0, 1]);
        put(32, &64_u64.to_le_bytes());
        put(52, &[64, 0, 56, 0, 2, 0, 64]);
        put(64, &[1, 0, 0, 0, 5]);
        for (at, word) in [(72, 176), (80, CODE.start), (96, 8), (104, 8), (112, 1)] {
            put(at, &u64::to_le_bytes(word));
        }
        put(120, &[7, 0, 0, 0, 4]);
        put(120 + 40, &[8]);
        let error = check(&file).unwrap_err().to_string();
        assert!(error.contains("thread-local variables") && error.contains("metadata"), "{error}");
    }

    #[test]
    fn linker_script_addresses_match_check() {
        let script = include_str!("../../../crates/flexio-dev/dpa.ld");
        for address in [CODE.start, DATA.start] {
            assert!(script.contains(&format!("    . = {address:#x};")), "{address:#x}");
        }
    }
}
