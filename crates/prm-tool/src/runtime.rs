//! Makes the generated code's reflection (`verbless_prm::reflect`) directly from the tables, so
//! decoding works before generation.

use std::collections::BTreeMap;

use verbless_prm::command::Variant;
use verbless_prm::numbers::{Code, CodeTable};
use verbless_prm::reflect::{EnumInfo, FieldInfo, StructInfo};
use verbless_prm::{CommandInfo, Devx};

use super::description::{Command, Content, Description, Structure};
use super::find::prefixes;

/// The structures, enums and commands of a description. They leak: a run has one description.
pub(crate) struct Runtime {
    structures: BTreeMap<String, &'static StructInfo>,
    enums: BTreeMap<String, &'static EnumInfo>,
    commands: BTreeMap<u16, &'static CommandInfo>,
}

impl Runtime {
    /// Converts a description whose only mistakes are missing texts.
    pub(crate) fn new(description: &Description) -> Self {
        let mut this =
            Self { structures: BTreeMap::new(), enums: BTreeMap::new(), commands: BTreeMap::new() };
        for e in &description.enums {
            let values = e.values.iter().map(|v| (leak(&v.name), v.value)).collect::<Vec<_>>();
            let model_only = e.values.iter().filter(|value| e.is_model_only(value));
            let info = EnumInfo {
                name: leak(&e.name),
                bits: e.bits,
                values: values.leak(),
                model_only: model_only.map(|value| value.value).collect::<Vec<_>>().leak(),
            };
            this.enums.insert(e.name.clone(), Box::leak(Box::new(info)));
        }
        for structure in &description.structures {
            this.add(description, structure);
        }
        for command in &description.commands {
            if let Some(info) = this.command_info(command) {
                this.commands.insert(command.opcode, Box::leak(Box::new(info)));
            }
        }
        this
    }

    /// The structure of this name.
    pub(crate) fn structure(&self, name: &str) -> Option<&'static StructInfo> {
        self.structures.get(name).copied()
    }

    /// The enum of this name.
    pub(crate) fn enumeration(&self, name: &str) -> Option<&'static EnumInfo> {
        self.enums.get(name).copied()
    }

    /// The command with this opcode.
    pub(crate) fn command(&self, opcode: u16) -> Option<&'static CommandInfo> {
        self.commands.get(&opcode).copied()
    }

    /// The command of an input buffer.
    pub(crate) fn command_of(&self, input: &[u8]) -> Option<&'static CommandInfo> {
        self.command(u16::from_be_bytes(*input.first_chunk()?))
    }

    fn add(&mut self, description: &Description, structure: &Structure) -> &'static StructInfo {
        if let Some(info) = self.structures.get(&structure.name) {
            return info;
        }
        let mut fields = Vec::new();
        for field in &structure.fields {
            let (name, start) = (leak(&field.name), field.start);
            let mut info = match description.content(field) {
                Content::Number => FieldInfo::number(name, start, field.width),
                Content::Enum(e) => FieldInfo::number(name, start, field.width).of(self.enums[e]),
                Content::Bytes => FieldInfo::bytes(name, start, field.width / 8),
                Content::Struct(nested) => {
                    let nested = description.structure(nested).expect("checked by prm check");
                    FieldInfo::nested(name, start, self.add(description, nested))
                }
            };
            info.count = if field.tail { 0 } else { field.count };
            info.overlay = field.overlay;
            info.model_only = field.is_model_only();
            fields.push(info);
        }
        let info: &'static StructInfo = Box::leak(Box::new(StructInfo {
            name: leak(&structure.name),
            bytes: structure.bytes as usize,
            sources: leak_all(&structure.sources),
            fields: fields.leak(),
            reserved: structure
                .gaps()
                .iter()
                .map(|gap| (gap.start, gap.width))
                .collect::<Vec<_>>()
                .leak(),
        }));
        self.structures.insert(structure.name.clone(), info);
        info
    }

    fn command_info(&self, command: &Command) -> Option<CommandInfo> {
        let variants: Vec<Variant> = command
            .variants
            .iter()
            .filter_map(|variant| {
                Some(Variant {
                    field: leak(&variant.field),
                    when: leak(&variant.when),
                    values: variant.values.clone().leak(),
                    info: self.structure(&variant.structure)?,
                })
            })
            .collect();
        Some(CommandInfo {
            name: leak(&command.name.to_uppercase()),
            opcode: command.opcode,
            input: self.structure(&command.input)?,
            output: self.structure(&command.output)?,
            devx: match command.devx.as_str() {
                "create" => Devx::Create,
                "query" => Devx::Query,
                "modify" => Devx::Modify,
                "destroy" => Devx::Destroy,
                "general" => Devx::General,
                _ => Devx::None,
            },
            op_mods: &[],
            states: &[],
            capability: None,
            statuses: &[],
            variants: variants.leak(),
            sources: leak_all(&command.sources),
        })
    }
}

/// The error codes that appear in messages.
pub(crate) fn code_tables(description: &Description) -> &'static [CodeTable] {
    let mut all = Vec::new();
    for e in &description.enums {
        let Some(called) = &e.called else { continue };
        let codes = e.values.iter().map(|value| Code {
            value: value.value,
            name: leak(&value.name),
            texts: leak_all(&value.says),
            doc: leak(&value.doc),
        });
        all.push(CodeTable {
            kind: leak(called),
            decimal: e.decimal,
            c_prefixes: leak_all(&prefixes(e)),
            messages: leak_all(&e.shown_in),
            codes: codes.collect::<Vec<_>>().leak(),
        });
    }
    all.leak()
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn leak_all(texts: &[String]) -> &'static [&'static str] {
    texts.iter().map(|text| leak(text)).collect::<Vec<_>>().leak()
}

#[cfg(test)]
mod tests {
    use verbless_prm::ModelOnly;

    use super::super::generate;
    use super::*;

    /// A public command with parts that only the model has, and a command that only the model has.
    const MIXED: &str = r#"
        [make_thing]
        kind = "command"
        opcode = 0x900
        doc = "Makes a thing."
        input = "make_thing_in"
        output = "plain_out"
        devx = "create"
        variants = [
            { field = "body", when = "obj_type", values = [0x7001], struct = "model_thing" },
            { field = "body", when = "obj_type", values = [2], struct = "public_thing" },
        ]
        sources = ["linux"]

        [make_thing_in]
        bytes = 0x28
        doc = "Input."
        sources = ["linux"]
        reserved = ["0x0c.30:0"]
        fields.opcode = { at = "0x00.31:16", doc = "Opcode." }
        fields.uid = { at = "0x00.15:0", doc = "Uid." }
        fields.op_mod = { at = "0x04.31:16", doc = "Modifier." }
        fields.obj_type = { at = "0x04.15:0", enum = "thing_type", doc = "Type." }
        fields.fast = { at = "0x08", sources = ["model"], doc = "Fast." }
        fields.known = { at = "0x0c.31", doc = "Known." }
        fields.body = { at = "0x10", bytes = 0x10, doc = "The thing." }
        fields.inner = { at = "0x20", struct = "model_thing", doc = "More of the model's." }

        [thing_type]
        kind = "enum"
        bits = 16
        doc = "Types."
        sources = ["linux"]
        values.PUBLIC = { value = 2, doc = "Public." }
        values.THREAD = { value = 0x7000, sources = ["model"], doc = "The model's." }
        values.BOTH = { value = 0x7002, sources = ["model", "linux"], doc = "Known elsewhere." }

        [model_thing]
        bytes = 0x08
        doc = "A layout of the model's own."
        sources = ["model"]
        reserved = ["0x04"]
        fields.entry = { at = "0x00", doc = "Entry." }

        [public_thing]
        bytes = 0x08
        doc = "A layout that hardware has."
        sources = ["linux"]
        reserved = ["0x04"]
        fields.entry = { at = "0x00", doc = "Entry." }

        [plain_out]
        bytes = 0x10
        doc = "Output."
        sources = ["linux"]
        reserved = ["0x00.23:0", "0x08:8"]
        fields.status = { at = "0x00.31:24", doc = "Status." }
        fields.syndrome = { at = "0x04", doc = "Syndrome." }

        [run_thing]
        kind = "command"
        opcode = 0x901
        doc = "Runs a thing."
        input = "run_thing_in"
        output = "plain_out"
        devx = "general"
        sources = ["model"]

        [run_thing_in]
        bytes = 0x10
        doc = "Input."
        sources = ["linux"]
        reserved = ["0x04.31:16", "0x08:8"]
        fields.opcode = { at = "0x00.31:16", doc = "Opcode." }
        fields.uid = { at = "0x00.15:0", doc = "Uid." }
        fields.op_mod = { at = "0x04.15:0", doc = "Modifier." }
    "#;

    fn of(words: &[(usize, u32)]) -> Option<ModelOnly> {
        let description = Description::parse([("prm/dpa/thing.toml", MIXED)]);
        assert_eq!(description.problems, []);
        let mut input = [0; 0x28];
        for &(at, word) in words {
            input[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        Runtime::new(&description).command_of(&input).expect("a known command").model_only(&input)
    }

    const MAKE: (usize, u32) = (0, 0x0900_0000);

    #[test]
    fn public_command_is_not_model_only() {
        assert_eq!(of(&[MAKE]), None);
        assert_eq!(of(&[MAKE, (4, 2), (0xc, 1 << 31), (0x10, 7)]), None);
        assert_eq!(of(&[MAKE, (4, 0x7002), (0x10, 7)]), None);
    }

    #[test]
    fn model_only_parts_are_found_at_any_depth() {
        let thread = ModelOnly::Value { field: "obj_type", value: 0x7000, name: "THREAD" };
        assert_eq!(of(&[MAKE, (4, 0x7000)]), Some(thread));
        assert_eq!(of(&[MAKE, (8, 1)]), Some(ModelOnly::Field("fast")));
        assert_eq!(of(&[MAKE, (0x20, 1)]), Some(ModelOnly::Structure("model_thing")));
        assert_eq!(of(&[MAKE, (4, 0x7001)]), Some(ModelOnly::Structure("model_thing")));
        assert_eq!(of(&[(0, 0x0901_0000)]), Some(ModelOnly::Command));
    }

    #[test]
    fn devx_class_comes_from_table() {
        for (text, devx) in [
            ("create", Devx::Create),
            ("query", Devx::Query),
            ("modify", Devx::Modify),
            ("destroy", Devx::Destroy),
            ("general", Devx::General),
            ("none", Devx::None),
        ] {
            let text = MIXED.replacen("\"create\"", &format!("\"{text}\""), 1);
            let runtime = Runtime::new(&Description::parse([("prm/x.toml", text.as_str())]));
            assert_eq!(runtime.command(0x900).unwrap().devx, devx);
        }
    }

    #[test]
    fn generated_code_marks_model_only_parts() {
        let description = Description::parse([("prm/dpa/thing.toml", MIXED)]);
        let code = generate::one_file(&description, "prm/dpa/thing.toml");
        for line in [
            "} model [0x7000]\n",
            "fast set_fast: number(u32, 64, 32) model_only;",
            "known set_known: flag(96);",
            "sources: &[\"model\"],",
            "sources: [\"model\"];",
        ] {
            assert!(code.contains(line), "{line} is not in\n{code}");
        }
    }
}
