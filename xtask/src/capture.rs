//! `cargo xtask capture`: records the commands and ioctls of Linux's mlx5_ib and rdma-core in a
//! guest, as evidence.
//!
//! A guest of `cargo xtask vm` with the model as its device, and with rdma-core, runs the `capture`
//! program of `tests/capture`: it runs the same cases through libibverbs and libmlx5 and through
//! our driver. The model's recorder writes the commands that reach the device, and the program
//! writes libmlx5's ioctls. Only this task makes the files that the tests of `tests/capture` and
//! `crates/devx` read.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use verbless_prm::dump::{Dumped, parse_log, write_command};

use crate::vm::arch::X86_64;
use crate::vm::fetch::{self, Kernel};
use crate::vm::program;
use crate::vm::series::{KernelFlavour, Selection, Series};
use crate::workspace::{Result, workspace_root};

/// Options of `cargo xtask capture`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The guest's kernel: 5.10, 6.1, 6.12, 7.2, or the maintained ones one after the other.
    #[arg(long, default_value = "maintained")]
    kernel: Selection,
}

/// The capability that the device must lack so that mlx5_ib sends all of a key's fields in
/// CREATE_MKEY; otherwise it changes a key of its cache by a work request.
const PLAIN_KEYS: &str = "umr_modify_entity_size_disabled = true";

/// The profile of the devices, unless the kernel knows only older ones.
const PROFILE: &str = "bluefield3";

/// Runs the task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let program = program::build("verbless-capture", "capture")?;
    for series in options.kernel.series() {
        one(series, &program, &plain_keys(series.profile().unwrap_or(PROFILE))?)?;
    }
    Ok(true)
}

/// Writes a copy of a profile whose device lacks what [`PLAIN_KEYS`] says.
fn plain_keys(profile: &str) -> Result<PathBuf> {
    let file = workspace_root().join(format!("crates/model/profiles/{profile}.toml"));
    let text = fs::read_to_string(&file)?;
    let section = "[caps.general]\n";
    if !text.contains(section) {
        return Err(format!("{} has no {}", file.display(), section.trim()).into());
    }
    fs::create_dir_all(fetch::folder())?;
    let copy = fetch::folder().join("capture-profile.toml");
    fs::write(&copy, text.replace(section, &format!("{section}{PLAIN_KEYS}\n")))?;
    Ok(copy)
}

/// One kernel's evidence.
fn one(series: Series, program: &Path, profile: &Path) -> Result {
    let record = fetch::folder().join("capture-record.txt");
    let libraries = of_libraries(series);
    let output = Command::new(std::env::current_exe()?)
        .args(["vm", "--with-rdma-core", "--kernel", &series.to_string()])
        .args(["--rdma-core-of", &libraries.to_string()])
        .arg("--profile")
        .arg(profile)
        .arg("--record")
        .arg(&record)
        .arg("--")
        .arg(program)
        .args(if has_requests(series) { &[][..] } else { &["theirs", "ours"] })
        .stderr(Stdio::inherit())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let (chat, requests) = said.split_once("=== requests\n").unwrap_or((&said, ""));
    print!("{chat}");
    if !output.status.success() || requests.is_empty() == has_requests(series) {
        return Err(format!("the guest with Linux {series} did not finish the cases").into());
    }
    let release = Kernel::get(&X86_64, series, KernelFlavour::Cloud)?.release;
    let rdma_core = rdma_core_version(libraries)?;
    let origin = format!(
        "from Linux {release} of Debian's {} with rdma-core {rdma_core}, in a guest on the model;\n\
         # made by `cargo xtask capture --kernel {series}`.",
        series.suite()
    );

    let commands = commands(&fs::read_to_string(&record)?, &origin)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&commands)?;
    keep(&format!("prm/evidence/linux-{series}-commands.txt.gz"), &packed.finish()?)?;
    if !has_requests(series) {
        return Ok(());
    }
    let requests = format!(
        "# uverbs requests as libmlx5 makes them for calls of mlx5dv and verbs, and what the \
         kernel answered,\n# {origin}\n\
         # The format is that of recorded-requests.txt.\n\n{}\n",
        requests.trim_end()
    );
    keep(&format!("crates/devx/tests/data/linux-{series}-requests.txt"), requests.as_bytes())
}

/// The series whose suite has the rdma-core. The program needs a C library that is as new as this
/// machine's, which bullseye's is not.
const fn of_libraries(series: Series) -> Series {
    match series {
        Series::Linux5_10 => Series::Linux6_1,
        other => other,
    }
}

/// Whether libmlx5's requests are recorded: Linux 5.10 refuses the page sizes that libmlx5 asks for
/// in UMEM_REG (EPROTONOSUPPORT).
fn has_requests(series: Series) -> bool {
    series != Series::Linux5_10
}

/// The commands from the first mark to the last, without their times, which differ by run.
fn commands(record: &str, origin: &str) -> Result<Vec<u8>> {
    let commands = parse_log(record)?;
    let marks: Vec<usize> = (0..commands.len()).filter(|&at| is_mark(&commands[at])).collect();
    let [first, .., last] = marks[..] else {
        return Err("the recording has no marks: did the program run?".into());
    };
    let mut text = format!(
        "# Commands as they reached the device {origin}\n\
         # A NOP with text after it is a mark: side and case of the next commands.\n\n"
    )
    .into_bytes();
    for command in &commands[first..=last] {
        let output = command.output.as_deref().unwrap_or_default();
        write_command(&mut text, "function 0", &command.title, &command.input, output)?;
    }
    Ok(text)
}

fn is_mark(command: &Dumped) -> bool {
    command.title.starts_with("NOP(") && command.input.len() > 16
}

/// The version in the name of the library's file: `libibverbs.so.1.14.44.0`.
fn rdma_core_version(series: Series) -> Result<String> {
    let library = fetch::rdma_core(&X86_64, series)?.join(X86_64.libraries).join("libibverbs.so.1");
    let file = fs::read_link(&library)?.to_string_lossy().into_owned();
    let version = file.strip_prefix("libibverbs.so.1.").and_then(|rest| rest.split_once('.'));
    let (_, version) = version.ok_or_else(|| format!("{file} shows no version"))?;
    Ok(version.trim_end_matches(".0").to_owned())
}

fn keep(path: &str, content: &[u8]) -> Result {
    fs::write(workspace_root().join(path), content)?;
    println!("{path}: {} bytes", content.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{commands, parse_log, write_command};

    #[test]
    fn kept_commands_start_and_end_at_marks() {
        let mut record = Vec::new();
        let nop = |text: &[u8]| [&[8, 13], &[0; 14][..], text].concat();
        for (title, input) in [
            ("ENABLE_HCA(0x104)", vec![1, 4]),
            ("NOP(0x80d)", nop(b"ours: cq")),
            ("NOP(0x80d)", nop(b"")),
            ("NOP(0x80d)", nop(b"end")),
            ("DISABLE_HCA(0x105)", vec![1, 5]),
        ] {
            write_command(&mut record, "[ 1.0] function 0", title, &input, &[0; 16]).expect("text");
        }
        let record = String::from_utf8(record).expect("text");
        let kept =
            String::from_utf8(commands(&record, "from here.").expect("marks")).expect("text");
        assert_eq!(parse_log(&kept).expect("commands").len(), 3);
        assert!(kept.starts_with("# Commands") && !kept.contains("1.0"), "{kept}");
        assert!(commands("", "").is_err());
    }
}
