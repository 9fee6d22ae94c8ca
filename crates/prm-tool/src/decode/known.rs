//! Looks up a log's error codes in the tables of prm/.

use verbless_prm::numbers::{Code, CodeTable};

use super::super::description::Description;
use super::super::refusals;
use super::super::runtime::{Runtime, code_tables};

/// The tables, and how much of them to show.
pub(super) struct Known<'a> {
    pub(super) description: &'a Description,
    pub(super) runtime: &'a Runtime,
    pub(super) code_tables: &'static [CodeTable],
    /// Show fields that are zero.
    pub(super) all: bool,
}

impl<'a> Known<'a> {
    pub(super) fn new(description: &'a Description, runtime: &'a Runtime, all: bool) -> Self {
        Self { description, runtime, code_tables: code_tables(description), all }
    }

    pub(super) fn table(&self, kind: &str) -> Option<&'static CodeTable> {
        CodeTable::of_kind(self.code_tables, kind)
    }

    /// A code of this kind with its meaning.
    pub(super) fn code(&self, kind: &str, value: u64) -> String {
        match self.table(kind).and_then(|it| it.get(value)) {
            Some(meaning) => meaning.line(),
            None => format!("{kind} {value:#x}, not in prm/"),
        }
    }

    /// A code of this kind with its name.
    pub(super) fn code_name(&self, kind: &str, value: u64) -> String {
        match self.table(kind).and_then(|it| it.get(value)) {
            Some(meaning) => {
                let text = meaning.code.texts.first().map(|text| format!(", \"{text}\""));
                format!("{kind} {value}, {}{}", meaning.code.name, text.unwrap_or_default())
            }
            None => format!("{kind} {value}"),
        }
    }

    pub(super) fn vendor_syndrome(&self, value: u64) -> String {
        if value > 0xff {
            return format!(
                "vendor error {value} ({value:#x}), not an mlx5 number: vendor_err has 8 bits"
            );
        }
        match self.table("vendor syndrome of an error CQE").and_then(|it| it.get(value)) {
            Some(meaning) => format!("vendor syndrome {value:#04x}: {}", meaning.code.doc),
            None => format!("vendor syndrome {value:#04x}: not published"),
        }
    }

    pub(super) fn severity(&self, value: u64) -> String {
        let names = self.runtime.enumeration("health_severity");
        let name = names.and_then(|it| it.name_of(value)).unwrap_or("unknown");
        format!("health severity {value}, {name}: lower is more severe")
    }

    /// The syndrome of a command: the firmware's own, with its cause if public reports name one, or
    /// the model's.
    pub(super) fn firmware_syndrome(&self, syndrome: u32) -> String {
        if let Some(text) = refusals::syndrome(syndrome) {
            return text;
        }
        let table = self.table("firmware syndrome, by public reports");
        if let Some(reported) = table.and_then(|it| it.get(syndrome.into())) {
            let Code { name, doc, .. } = *reported.code;
            return format!("syndrome {syndrome:#x}, {name} by public reports: {doc}");
        }
        match syndrome {
            0 => "syndrome 0x0: the firmware gives no reason".to_owned(),
            _ => format!(
                "syndrome {syndrome:#x}: the firmware's own, not published; the vendor's support \
                 can look it up"
            ),
        }
    }

    /// The reason that prm/ gives for a status of this command.
    pub(super) fn rule(&self, opcode: u16, status: u64) -> Option<&'a str> {
        let name = self.table("command status")?.get(status)?.code.name;
        let command = self.description.commands.iter().find(|it| it.opcode == opcode)?;
        let rule = command.statuses.iter().find(|rule| rule.name == name)?;
        Some(&rule.why)
    }
}

pub(super) fn shortfall(got: usize, whole: usize) -> String {
    if got < whole { format!(" (only {got} of {whole} bytes)") } else { String::new() }
}
