//! The description as reflection: what `verbless_prm::reflect` shows of the generated code, made
//! straight from the tables, so that decoding works before anything is generated.

use std::collections::BTreeMap;

use verbless_prm::command::Variant;
use verbless_prm::reflect::{EnumInfo, FieldInfo, StructInfo};
use verbless_prm::{CommandInfo, Devx};

use super::description::{Command, Content, Description, Structure};

/// Structures and commands of a description. They live as long as the program: there is one
/// description in a run.
pub(crate) struct Runtime {
    structures: BTreeMap<String, &'static StructInfo>,
    enums: BTreeMap<String, &'static EnumInfo>,
    commands: BTreeMap<u16, &'static CommandInfo>,
}

impl Runtime {
    /// All of a description that holds no mistakes but missing texts.
    pub(crate) fn new(description: &Description) -> Self {
        let mut this =
            Self { structures: BTreeMap::new(), enums: BTreeMap::new(), commands: BTreeMap::new() };
        for e in &description.enums {
            let values = e.values.iter().map(|v| (leak(&v.name), v.value)).collect::<Vec<_>>();
            let info = EnumInfo { name: leak(&e.name), bits: e.bits, values: values.leak() };
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

    /// The structure of that name.
    pub(crate) fn structure(&self, name: &str) -> Option<&'static StructInfo> {
        self.structures.get(name).copied()
    }

    /// The command with that opcode.
    pub(crate) fn command(&self, opcode: u16) -> Option<&'static CommandInfo> {
        self.commands.get(&opcode).copied()
    }

    /// The command that an input buffer is for.
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

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn leak_all(texts: &[String]) -> &'static [&'static str] {
    texts.iter().map(|text| leak(text)).collect::<Vec<_>>().leak()
}
