//! Parses a recording: cases with their commands.

use std::io::Read;
use std::path::{Path, PathBuf};

use verbless_prm::CommandInfo;
use verbless_prm::dump::parse_log;

use crate::mark;
use crate::result::Result;

/// A command as the device received it, with its answer.
#[derive(Debug, Clone)]
pub struct Command {
    /// Its description.
    pub info: &'static CommandInfo,
    /// The input mailbox.
    pub input: Vec<u8>,
    /// The output mailbox.
    pub output: Vec<u8>,
}

impl Command {
    /// The command of an input, if its opcode is known.
    #[must_use]
    pub fn new(input: &[u8], output: &[u8]) -> Option<Self> {
        let info = CommandInfo::of_input(input)?;
        Some(Self { info, input: input.to_vec(), output: output.to_vec() })
    }

    /// Whether the device's status is OK.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.output.first() == Some(&0)
    }
}

/// The commands between a mark and the next.
#[derive(Debug, Clone)]
pub struct Section {
    /// The sender: `theirs`, `ours`.
    pub side: String,
    /// The case's name.
    pub case: String,
    /// The commands, without the mark.
    pub commands: Vec<Command>,
}

/// A mark's name: side and case.
#[must_use]
pub fn mark_of(side: &str, case: &str) -> String {
    format!("{side}: {case}")
}

/// The sections of a run of commands; commands before the first mark, or after a mark called `end`,
/// belong to none.
#[must_use]
pub fn sections(commands: impl IntoIterator<Item = Command>) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut within = false;
    for command in commands {
        if let Some(name) = mark::name(&command.input) {
            let (side, case) = name.split_once(": ").unwrap_or((name, ""));
            within = side != "end";
            if within {
                let (side, case) = (side.to_owned(), case.to_owned());
                sections.push(Section { side, case, commands: Vec::new() });
            }
        } else if let (true, Some(section)) = (within, sections.last_mut()) {
            section.commands.push(command);
        }
    }
    sections
}

/// A recording of `prm/evidence`.
#[derive(Debug)]
pub struct Recording {
    /// The recording's name, without the common prefix: `linux-6.1`.
    pub name: String,
    /// The recording's sections.
    pub sections: Vec<Section>,
}

impl Recording {
    /// All recordings in the repository, by name.
    ///
    /// # Errors
    /// If there is none, or one is unreadable.
    pub fn all() -> Result<Vec<Self>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../prm/evidence");
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let mut all = Vec::new();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix("-commands.txt.gz") {
                let bytes = std::fs::read(&file)?;
                let mut text = String::new();
                flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
                all.push(Self { name: name.to_owned(), sections: parse(&text)? });
            }
        }
        if all.is_empty() {
            return Err("there are no recordings in prm/evidence".into());
        }
        Ok(all)
    }

    /// The section of a side's case.
    #[must_use]
    pub fn section(&self, side: &str, case: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.side == side && section.case == case)
    }
}

/// The sections of a recording's text.
///
/// # Errors
/// If the text is not a recording, or holds an unknown command.
pub fn parse(text: &str) -> Result<Vec<Section>> {
    let mut commands = Vec::new();
    for dumped in parse_log(text)? {
        let output = dumped.output.unwrap_or_default();
        let command = Command::new(&dumped.input, &output)
            .ok_or_else(|| format!("{}: no command of that opcode", dumped.title))?;
        commands.push(command);
    }
    Ok(sections(commands))
}
