//! `dpa build`: compiles a crate for the cores of a DPA and checks where its code and data lie.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use verbless_riscv::Program;

use super::TARGET;
use crate::test::std_sources;
use crate::{Result, workspace_root};

/// Where code and constants lie, and where data, as `crates/flexio-dev/dpa.ld` has it.
const CODE: std::ops::Range<u64> = 0x4000_0000..0x8000_0000;
const DATA: std::ops::Range<u64> = 0x8000_0000..0x1_0000_0000;

/// Builds the programs of the crate in `directory`; where they are.
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

/// Compiles the crate in `directory`; its executables.
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
    if !has_target()? {
        command
            .args(["-Zbuild-std=core", "-Zbuild-std-features=compiler-builtins-mem"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", std_sources()?);
    }
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
    // The default model has code below 2 GiB only, and data within 2 GiB of it.
    let script = format!("link-arg=-T{}", script.display());
    ["-C", &script, "-C", "code-model=medium", "-C", "relocation-model=static"].join("\u{1f}")
}

/// Whether rustup has installed the target.
fn has_target() -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let directory = String::from_utf8(rustc.output()?.stdout)?;
    Ok(std::fs::read_dir(directory.trim()).is_ok_and(|mut entries| entries.next().is_some()))
}

/// That a file is a program that a process can be made of; what is in it.
fn check(file: &[u8]) -> Result<String> {
    let program = Program::parse(file)?;
    let mut report = String::new();
    for segment in &program.segments {
        let end = segment.address + segment.length;
        let (what, place) = match segment.permissions {
            it if it.execute && it.write => {
                return Err("code that can be written: link it by crates/flexio-dev/dpa.ld".into());
            }
            it if it.write => ("data", DATA),
            it if it.execute => ("code", CODE),
            _ => ("constants", CODE),
        };
        if segment.address < place.start || end > place.end {
            let (from, to) = (segment.address, place.end);
            let room = to - place.start;
            return Err(format!(
                "{what} from {from:#x} to {end:#x} are not between {:#x} and {to:#x}: there is \
                 room for {room} bytes",
                place.start
            )
            .into());
        }
        report += &format!("  {what:9} {:#11x}  {:>8} bytes\n", segment.address, segment.length);
    }
    let mut functions: Vec<_> =
        program.symbols().filter_map(|(name, _)| name.strip_prefix("dpa:")).collect();
    functions.sort_unstable();
    if functions.is_empty() {
        return Err("no function has #[rpc] or #[event_handler]: a host could call nothing".into());
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
    fn what_is_no_crate_and_what_is_no_program_is_refused_with_a_reason() {
        let error = build(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("not the directory of a crate"), "{error}");
        assert!(check(b"\x7fELF").is_err());
    }

    #[test]
    fn the_linker_s_script_has_the_addresses_that_are_checked() {
        let script = include_str!("../../../crates/flexio-dev/dpa.ld");
        for address in [CODE.start, DATA.start] {
            assert!(script.contains(&format!("    . = {address:#x};")), "{address:#x}");
        }
    }
}
