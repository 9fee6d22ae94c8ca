//! `prm decode`: a hexdump as named fields.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use verbless_prm::command::Decoded;
use verbless_prm::dump::{Dumped, parse_hex, parse_log};
use verbless_prm::reflect::View;

use super::runtime::Runtime;

/// Options of `prm decode`.
#[derive(Args)]
pub struct Options {
    /// A kernel log with dumped commands, a recording of the model, or plain hex of one command's
    /// input; - is standard input.
    file: PathBuf,
    /// Plain hex of the output that belongs to it.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The hex is this structure, not a command's input (cq_context, cqe, create_cq_out).
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// Show fields that are zero, too.
    #[arg(long)]
    all: bool,
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    let runtime = Runtime::new(&super::check::load_sound(root)?);
    super::repository::print(&decode(&runtime, options)?)
}

fn decode(runtime: &Runtime, options: &Options) -> crate::repository::Result<String> {
    let text = read(&options.file)?;
    let output = match &options.output {
        Some(file) => Some(read(file)?),
        None => None,
    };
    decode_text(runtime, options, &text, output.as_deref())
}

fn decode_text(
    runtime: &Runtime,
    options: &Options,
    text: &str,
    output: Option<&str>,
) -> crate::repository::Result<String> {
    if let Some(name) = &options.of {
        let info = runtime.structure(name).ok_or(format!("there is no structure [{name}]"))?;
        let bytes = parse_hex(text)?;
        let view = View::new(info, &bytes);
        let lines = if options.all { format!("{view:#}") } else { view.to_string() };
        return Ok(format!("{name}{}\n{lines}", shortfall(bytes.len(), info.bytes)));
    }
    let log = parse_log(text)?;
    let commands = if log.is_empty() {
        let input = parse_hex(text)?;
        let output = output.map(parse_hex).transpose()?;
        vec![Dumped { input_length: input.len(), input, output, ..Dumped::default() }]
    } else {
        log
    };
    let mut out = String::new();
    for dumped in &commands {
        if !dumped.origin.is_empty() {
            out += &format!("{}\n", dumped.origin);
        }
        let input = dumped.input.as_slice();
        match runtime.command_of(input) {
            None => {
                let start: Vec<String> =
                    input.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
                out += &format!("unknown opcode: {}\n", start.join(" "));
            }
            Some(command) => {
                let decoded = Decoded { command, input, output: dumped.output.as_deref() };
                out += &match options.all {
                    true => format!("{decoded:#}"),
                    false => decoded.to_string(),
                };
                let whole = dumped.input_length.max(command.input.bytes);
                let short = shortfall(input.len(), whole);
                if !short.is_empty() {
                    out += &format!("  input{short}\n");
                }
            }
        }
    }
    Ok(out)
}

fn shortfall(got: usize, whole: usize) -> String {
    if got < whole { format!(" (only {got} of {whole} bytes)") } else { String::new() }
}

fn read(file: &Path) -> crate::repository::Result<String> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = String::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
        return Ok(text);
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is not text", file.display()).into())
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::repository::root;
    use super::*;
    use crate::repository::Scratch;
    use std::io::Write as _;
    use verbless_prm::dump;

    fn decoded(
        of: Option<&str>,
        text: &str,
        output: Option<&str>,
    ) -> crate::repository::Result<String> {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        let (file, of) = (PathBuf::new(), of.map(str::to_owned));
        let options = Options { file, output: None, of, all: false };
        decode_text(&runtime, &options, text, output)
    }

    #[test]
    fn plain_hex_of_a_command_is_shown_as_named_fields() {
        let shown =
            decoded(None, "0107 0000 0000 0001", Some("00000000 00000000 00000000 00000006"));
        let shown = shown.unwrap();
        for part in ["QUERY_PAGES (0x107)", "in  op_mod = ", "out num_pages = 6", "only 8 of 16"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }

    #[test]
    fn a_recording_shows_when_and_by_which_function_a_command_was_executed() {
        let mut text = Vec::new();
        let origin = "[     0.500000] function 3";
        let input = [1, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        dump::write_command(&mut text, origin, "QUERY_PAGES(0x107)", &input, &[0; 16]).unwrap();
        let shown = decoded(None, &String::from_utf8(text).unwrap(), None).unwrap();
        assert!(shown.starts_with(origin), "{shown}");
        assert!(shown.contains("QUERY_PAGES (0x107)") && shown.contains("op_mod = 1"), "{shown}");
    }

    #[test]
    fn hex_of_a_structure_is_shown_under_its_name() {
        let shown = decoded(Some("ctrl_segment"), "00001008 00012303 00000008", None).unwrap();
        for part in ["opcode = WRITE", "wqe_index = 0x10", "ds = 3", "ce = ALWAYS", "12 of 16"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(decoded(Some("nonsense"), "00", None).is_err());
    }

    #[test]
    fn what_is_no_command_is_said_to_be_none() {
        assert!(decoded(None, "ffff 0000", None).unwrap().contains("unknown opcode: ff ff 00 00"));
        assert!(decoded(None, "this is no hex", None).is_err());
        assert!(decoded(None, "", None).is_err());
    }

    #[test]
    fn files_are_read_as_text_or_gzip_and_zeros_are_shown_on_request() {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        let input = "0107 0000 0000 0001 0000 0000 0000 0000";
        let scratch = Scratch::new("decode", &[("in", input), ("out", "00000000 00000005")]);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(input.as_bytes()).unwrap();
        scratch.write("in.gz", packed.finish().unwrap());
        scratch.write("binary", [0xff, 0xfe]);
        let shown = |input: &str, output: Option<&str>, all| {
            let path = |name: &str| scratch.path().join(name);
            let options = Options { file: path(input), output: output.map(path), of: None, all };
            decode(&runtime, &options).map_err(|error| error.to_string())
        };
        let plain = shown("in", None, false).unwrap();
        assert!(plain.contains("QUERY_PAGES") && !plain.contains("only"), "{plain}");
        assert!(!plain.contains("function_id"), "{plain}");
        assert_eq!(shown("in.gz", None, false).unwrap(), plain);
        let whole = shown("in", None, true).unwrap();
        assert!(whole.contains("function_id = 0"), "{whole}");
        assert!(shown("in", Some("out"), false).unwrap().contains("syndrome = 5"));
        assert!(shown("binary", None, false).unwrap_err().ends_with("binary is not text"));
        assert!(shown("none", None, false).unwrap_err().contains("none: "));
    }
}
