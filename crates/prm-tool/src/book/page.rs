//! The page of a command, structure, register or enum, as Markdown with HTML blocks.

use std::collections::BTreeMap;

use super::code::{Code, PARTS};
use super::diagram;
use super::example::Examples;
use super::html::{Table, escape, link, prose};
use super::place::Places;
use crate::at::At;
use crate::description::{Command, Content, Description, Enum, EnumValue, Field, Structure};
use crate::evidence::{Evidence, LEGEND};
use crate::names::type_name;
use crate::runtime::Runtime;

/// Everything that pages are made of.
pub(super) struct Book<'a> {
    pub(super) description: &'a Description,
    pub(super) runtime: &'a Runtime,
    pub(super) evidence: &'a Evidence<'a>,
    pub(super) places: Places,
    pub(super) examples: Examples,
    pub(super) code: Code,
    /// By an entry's name, its other names.
    pub(super) names: BTreeMap<String, Vec<String>>,
}

impl Book<'_> {
    /// The page of a command, with its input and output.
    pub(super) fn command(&self, command: &Command) -> String {
        let mut out = format!("# {}\n\n", command.name.to_uppercase());
        out += &self.paragraph(&command.doc);
        out += &self.command_facts(command);
        for (title, name) in [("Input", &command.input), ("Output", &command.output)] {
            let Some(structure) = self.description.structure(name) else { continue };
            out += &format!("\n## {title}: {name}\n\n");
            if self.places.is_inline(structure) {
                out += &format!("<a id=\"{name}\"></a>\n\n");
                out += &self.layout(structure);
            } else {
                let place = self.places.href(name).unwrap_or_default();
                out += &format!("Shared by several commands: {}\n", link(place, name));
            }
        }
        out
    }

    /// Opcode, DevX, states, capability, op_mods, statuses.
    fn command_facts(&self, command: &Command) -> String {
        let mut facts = Table::new("facts", &["", ""]);
        let mut fact = |name: &str, value: String| facts.row(None, &[escape(name), value]);
        fact("opcode", format!("<code>{:#x}</code>", command.opcode));
        let devx = match command.devx.as_str() {
            "none" => "not passed".to_owned(),
            method => format!("passed as <code>{}</code>", escape(method)),
        };
        fact("DevX", devx);
        if !command.states.is_empty() {
            let states = command.state.as_deref().unwrap_or_default();
            let all = escape(&command.states.join(", "));
            fact("legal in", format!("{all} ({})", self.named(states)));
        }
        if !command.transitions.is_empty() {
            fact("transitions", escape(&command.transitions.join(", ")));
        }
        if let Some(capability) = &command.capability {
            fact("needs", prose(&self.places, capability));
        }
        fact("sources", escape(&command.sources.join("; ")));
        let names = self.other_names(&command.name.to_uppercase());
        if !names.is_empty() {
            fact("other names", escape(&names));
        }
        let mut out = facts.end();
        if !command.op_mods.is_empty() {
            let mut table = Table::new("values", &["op_mod", "name", "meaning", "DevX"]);
            for value in &command.op_mods {
                let EnumValue { value, name, doc, devx, .. } = value;
                let devx = devx.as_ref().unwrap_or(&command.devx);
                let number = format!("<code>{value:#x}</code>");
                let doc = prose(&self.places, doc);
                table.row(Some(name), &[number, escape(name), doc, escape(devx)]);
            }
            out += &format!("\n## op_mod\n\n{}", table.end());
        }
        if !command.statuses.is_empty() {
            let mut table = Table::new("values", &["status", "when", "known from"]);
            for status in &command.statuses {
                let name = self.named(&format!("command_status.{}", status.name));
                let from = match status.from.as_str() {
                    "reading" => "our own reading",
                    source => source,
                };
                table.row(None, &[name, prose(&self.places, &status.why), escape(from)]);
            }
            out += &format!("\n## Statuses\n\n{}", table.end());
        }
        if !command.variants.is_empty() {
            let mut table = Table::new("values", &["field", "holds", "when"]);
            for variant in &command.variants {
                let values: Vec<String> =
                    variant.values.iter().map(|value| format!("{value:#x}")).collect();
                let when = format!("{} is {}", variant.when, values.join(" or "));
                let cells = [escape(&variant.field), self.named(&variant.structure), escape(&when)];
                table.row(None, &cells);
            }
            out += &format!("\n## Contents\n\n{}", table.end());
        }
        out
    }

    /// The page of a structure or register.
    pub(super) fn structure(&self, structure: &Structure) -> String {
        let mut out = format!("# {}\n\n", structure.name);
        out += &self.paragraph(&structure.doc);
        out += &self.layout(structure);
        out
    }

    /// Diagram, fields, example, users of a structure; its facts.
    fn layout(&self, structure: &Structure) -> String {
        let Structure { name, bytes, sources, segment, .. } = structure;
        let kind = if *segment { "part of a queue entry or record" } else { "structure" };
        let mut out =
            format!("<p class=\"kind\">{kind}, {bytes} bytes (<code>{bytes:#x}</code>)</p>\n");
        out += &diagram::structure(&self.places, structure);
        out.push('\n');
        out += &self.fields(structure, &structure.fields.iter().collect::<Vec<_>>());
        if let (Some(example), Some(info)) = (self.examples.of(name), self.runtime.structure(name))
        {
            out += &format!("\n### Example: {name}\n\n{}", example.html(info));
        }
        let mut facts = Table::new("facts", &["", ""]);
        facts.row(None, &[escape("sources"), escape(&sources.join("; "))]);
        let names = self.other_names(name);
        if !names.is_empty() {
            facts.row(None, &[escape("other names"), escape(&names)]);
        }
        let users = self.users(name);
        if !users.is_empty() {
            facts.row(None, &[escape("used by"), users.join(", ")]);
        }
        for (part, folders) in PARTS {
            let files = self.code.of(folders, &type_name(name));
            if !files.is_empty() {
                let files: Vec<String> =
                    files.iter().map(|file| format!("<code>{}</code>", escape(file))).collect();
                facts.row(None, &[escape(&format!("in the {part}")), files.join(", ")]);
            }
        }
        out + "\n" + &facts.end()
    }

    /// A table of fields of a structure.
    pub(super) fn fields(&self, structure: &Structure, fields: &[&Field]) -> String {
        let heads = ["at", "field", "holds", "confirmed", "meaning"];
        let mut table = Table::new("fields", &heads);
        for field in fields {
            let position = if field.tail {
                format!("{}, to the end", At::of_field(field.start, 32).0)
            } else {
                field.position()
            };
            let mut doc = prose(&self.places, &field.doc);
            if let Some(linux) = &field.linux {
                doc += &format!(" <small>In Linux: <code>{}</code>.</small>", escape(linux));
            }
            if let Some(sources) = &field.sources {
                doc += &format!(" <small>[{}]</small>", escape(&sources.join("; ")));
            }
            let confirmed = self.evidence.of(structure, field);
            let names: Vec<&str> = confirmed.names().collect();
            let counts = confirmed.counts();
            let count = match names.as_slice() {
                [] => counts,
                names => format!("<abbr title=\"{}\">{counts}</abbr>", names.join(", ")),
            };
            for (alias, by) in confirmed.aliases() {
                let (alias, by) = (escape(alias), by.join(", "));
                doc += &format!(" <small>In {by}: <code>{alias}</code>.</small>");
            }
            for (by, why) in self.evidence.divergences(&structure.name, &field.name) {
                doc += &format!(" <small>Elsewhere in {by}: {}</small>", escape(why));
            }
            let name = format!("<code>{}</code>", escape(&field.name));
            let cells = [format!("<code>{position}</code>"), name, self.holds(field), count, doc];
            table.row(Some(&format!("{}.{}", structure.name, field.name)), &cells);
        }
        table.end()
    }

    /// What a field holds, with a link, and its size if `at` does not show it.
    fn holds(&self, field: &Field) -> String {
        let one = match &field.content {
            Content::Number if field.width == 1 => "bit".to_owned(),
            Content::Number => format!("{} bits", field.width),
            Content::Enum(name) | Content::Struct(name) => self.named(name),
            Content::Bytes => "bytes".into(),
        };
        match (field.tail, field.array) {
            (true, _) => format!("{one}[]"),
            (_, true) => format!("{one}[{}]", field.count),
            _ => one,
        }
    }

    /// The page of an enum.
    pub(super) fn enumeration(&self, e: &Enum) -> String {
        let mut out = format!("# {}\n\n", e.name);
        out += &self.paragraph(&e.doc);
        out += &self.values(e, &e.values.iter().collect::<Vec<_>>());
        let states = diagram::transitions(self.description, &e.name);
        if !states.is_empty() {
            out += &format!("\n## Transitions\n\n{}", self.states(&e.name));
        }
        let mut facts = Table::new("facts", &["", ""]);
        facts.row(None, &[escape("bits"), e.bits.to_string()]);
        facts.row(None, &[escape("sources"), escape(&e.sources.join("; "))]);
        let names = self.other_names(&e.name);
        if !names.is_empty() {
            facts.row(None, &[escape("other names"), escape(&names)]);
        }
        if !e.shown_in.is_empty() {
            facts.row(None, &[escape("shown in"), escape(&e.shown_in.join("; "))]);
        }
        let users = self.users(&e.name);
        if !users.is_empty() {
            facts.row(None, &[escape("used by"), users.join(", ")]);
        }
        out + "\n" + &facts.end()
    }

    /// A table of values of an enum.
    pub(super) fn values(&self, e: &Enum, values: &[&EnumValue]) -> String {
        let mut table = Table::new("values", &["value", "name", "meaning"]);
        for value in values {
            let EnumValue { value: number, name, doc, says, sources, .. } = value;
            let mut doc = prose(&self.places, doc);
            if !says.is_empty() {
                doc += &format!(" <small>In messages: {}.</small>", escape(&says.join(", ")));
            }
            if let Some(sources) = sources {
                doc += &format!(" <small>[{}]</small>", escape(&sources.join("; ")));
            }
            let full = format!("{}.{name}", e.name);
            let mut name = match self.places.href(&full) {
                Some(href) if href.starts_with("../commands/") => link(href, name),
                _ => format!("<code>{}</code>", escape(name)),
            };
            let others = self.other_names(&full);
            if !others.is_empty() {
                name += &format!("<br><small>{}</small>", escape(&others.to_uppercase()));
            }
            let number = format!("<code>{number:#x}</code> ({number})");
            table.row(Some(&value.name), &[number, name, doc]);
        }
        table.end()
    }

    /// The diagram and the table of an object's transitions.
    pub(super) fn states(&self, states: &str) -> String {
        let mut table = Table::new("values", &["from", "to", "command"]);
        for ((from, to), commands) in diagram::transitions(self.description, states) {
            let commands: Vec<String> = commands.iter().map(|it| self.named(it)).collect();
            table.row(None, &[escape(from), escape(to), commands.join(", ")]);
        }
        format!("{}\n{}", diagram::states(self.description, states), table.end())
    }

    /// A table of commands.
    pub(super) fn commands(&self, commands: &[&Command]) -> String {
        let mut table = Table::new("values", &["opcode", "command", "DevX", "what it does"]);
        for command in commands {
            let opcode = format!("<code>{:#x}</code>", command.opcode);
            let name = self.named(&command.name.to_uppercase());
            let devx = if command.devx == "none" { "not passed" } else { &command.devx };
            table.row(None, &[opcode, name, escape(devx), prose(&self.places, &command.doc)]);
        }
        table.end()
    }

    /// A link to the entry of this name, if there is one.
    pub(super) fn named(&self, name: &str) -> String {
        let short = name.strip_prefix("command_status.").unwrap_or(name);
        match self.places.href(name) {
            Some(href) => link(href, short),
            None => escape(short),
        }
    }

    /// The names of an entry in drivers, in lower case.
    fn other_names(&self, name: &str) -> String {
        self.names.get(name).map(|names| names.join(", ")).unwrap_or_default()
    }

    fn paragraph(&self, text: &str) -> String {
        format!("<p>{}</p>\n\n", prose(&self.places, text))
    }

    /// Links to the commands and structures that use a structure or enum.
    fn users(&self, name: &str) -> Vec<String> {
        crate::show::users(self.description, name).iter().map(|it| self.named(it)).collect()
    }
}

/// What the column "confirmed" of fields counts.
pub(super) fn legend() -> String {
    format!(
        "The column *confirmed* of a table of fields counts, without the description that the \
         field comes from: {LEGEND}.\n"
    )
}
