//! Descriptions of all commands, and command buffers decoded by their opcode.

use core::fmt;

use crate::reflect::{Kind, StructInfo, View, are_model_only};

/// A command of the device.
#[derive(Debug)]
pub struct CommandInfo {
    /// The command's name, such as `CREATE_CQ`.
    pub name: &'static str,
    /// The command's opcode.
    pub opcode: u16,
    /// Layout of its input.
    pub input: &'static StructInfo,
    /// Layout of its output.
    pub output: &'static StructInfo,
    /// The DevX method of the command; some op_mods have another (`CommandInfo::devx_of`).
    pub devx: Devx,
    /// Names of its `op_mod` values.
    pub op_mods: &'static [(&'static str, u16)],
    /// Object states in which the command is legal; empty if every state is.
    pub states: &'static [&'static str],
    /// The required capabilities: text that names capability fields.
    pub capability: Option<&'static str>,
    /// Statuses that the command is known to return.
    pub statuses: &'static [StatusRule],
    /// Structures in opaque fields, selected by an input field.
    pub variants: &'static [Variant],
    /// Sources of the description; `model` as the only one means that no hardware has the command.
    pub sources: &'static [&'static str],
}

/// The DevX method that passes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devx {
    /// OBJ_CREATE.
    Create,
    /// OBJ_QUERY.
    Query,
    /// OBJ_MODIFY.
    Modify,
    /// Sent by the kernel when an object is destroyed.
    Destroy,
    /// OTHER.
    General,
    /// The kernel does not pass the command.
    None,
}

/// A status that a command is known to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRule {
    /// The status's value in the output.
    pub status: u8,
    /// The status's name, such as `BAD_PARAM`.
    pub name: &'static str,
    /// When the device returns it.
    pub why: &'static str,
}

/// `field` holds `info` if the input's field `when` is one of `values`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// A field of the output, or of the input if the output has no such field.
    pub field: &'static str,
    /// The input field that selects the structure.
    pub when: &'static str,
    /// The values of `when`.
    pub values: &'static [u64],
    /// The structure in `field`.
    pub info: &'static StructInfo,
}

impl CommandInfo {
    /// An input buffer as named fields.
    pub fn view_input<'a>(&self, input: &'a [u8]) -> View<'a> {
        let mut view = View::new(self.input, input);
        view.holds = self.held(input, |field| {
            self.input.field(field).is_some() && self.output.field(field).is_none()
        });
        view
    }

    /// An output buffer as named fields; the input selects the structure of an opaque field.
    pub fn view_output<'a>(&self, input: &[u8], output: &'a [u8]) -> View<'a> {
        let mut view = View::new(self.output, output);
        view.holds = self.held(input, |field| self.output.field(field).is_some());
        view
    }

    fn held(
        &self,
        input: &[u8],
        of: impl Fn(&str) -> bool,
    ) -> Option<(&'static str, &'static StructInfo)> {
        let input = View::new(self.input, input);
        let variant = self.variants.iter().find(|variant| {
            of(variant.field)
                && input.get(variant.when).is_some_and(|value| variant.values.contains(&value))
        })?;
        Some((variant.field, variant.info))
    }
}

/// A part of a command that only the model has. Such a command must never be sent to hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelOnly {
    /// The command itself.
    Command,
    /// A structure in its input or output.
    Structure(&'static str),
    /// A nonzero field that hardware reserves.
    Field(&'static str),
    /// A value of a field.
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The value's name.
        name: &'static str,
    },
}

impl fmt::Display for ModelOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command => f.write_str("the command"),
            Self::Structure(name) => write!(f, "the structure {name}"),
            Self::Field(name) => write!(f, "the field {name}"),
            Self::Value { field, value, name } => write!(f, "{field} {name} ({value:#x})"),
        }
    }
}

impl CommandInfo {
    /// The part of this command that only the model has, given its input; `None` if the command may
    /// be sent to hardware.
    ///
    /// A field or nested structure counts only if it is not zero.
    pub fn model_only(&self, input: &[u8]) -> Option<ModelOnly> {
        if are_model_only(self.sources) || self.input.is_model_only() || self.output.is_model_only()
        {
            return Some(ModelOnly::Command);
        }
        let view = self.view_input(input);
        let chosen = self.variants.iter().find(|variant| {
            variant.info.is_model_only()
                && view.get(variant.when).is_some_and(|value| variant.values.contains(&value))
        });
        match chosen {
            Some(variant) => Some(ModelOnly::Structure(variant.info.name)),
            None => in_view(&view),
        }
    }
}

/// The first part of a structure that only the model has.
fn in_view(view: &View<'_>) -> Option<ModelOnly> {
    view.info.fields.iter().find_map(|field| {
        let elements = view.elements(field);
        (0..elements).find_map(|index| match (view.nested(field, index), field.kind) {
            (Some(nested), _) => {
                let said = nested.bytes.iter().any(|&byte| byte != 0);
                match said {
                    true if field.model_only => Some(ModelOnly::Field(field.name)),
                    true if nested.info.is_model_only() => {
                        Some(ModelOnly::Structure(nested.info.name))
                    }
                    true => in_view(&nested),
                    false => None,
                }
            }
            (None, Kind::Number | Kind::Enum(_)) => {
                let value = field.value(view.bytes, index).filter(|&value| value != 0)?;
                match field.kind {
                    _ if field.model_only => Some(ModelOnly::Field(field.name)),
                    Kind::Enum(info) if info.model_only.contains(&value) => {
                        let name = info.name_of(value).unwrap_or_default();
                        Some(ModelOnly::Value { field: field.name, value, name })
                    }
                    _ => None,
                }
            }
            (None, _) => {
                let bytes = field.slice(view.bytes, index)?;
                let said = field.model_only && bytes.iter().any(|&byte| byte != 0);
                said.then_some(ModelOnly::Field(field.name))
            }
        })
    })
}

/// A command's buffers as named fields, one line each: `{}` prints nonzero fields, `{:#}` all.
#[derive(Clone, Copy)]
pub struct Decoded<'a> {
    /// The command.
    pub command: &'a CommandInfo,
    /// The input mailbox.
    pub input: &'a [u8],
    /// The output mailbox, if there is one.
    pub output: Option<&'a [u8]>,
}

impl<'a> Decoded<'a> {
    /// Decodes by the opcode in `input`; `None` if the opcode is unknown.
    #[cfg(feature = "structures")]
    pub fn new(input: &'a [u8], output: Option<&'a [u8]>) -> Option<Self> {
        CommandInfo::of_input(input).map(|command| Self { command, input, output })
    }
}

impl fmt::Display for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({:#x})", self.command.name, self.command.opcode)?;
        let mut out = Prefixed { f, prefix: "  in  ", at_start: true };
        out.view(self.command.view_input(self.input))?;
        if let Some(output) = self.output {
            let mut out = Prefixed { f, prefix: "  out ", at_start: true };
            out.view(self.command.view_output(self.input, output))?;
        }
        Ok(())
    }
}

/// A writer that puts a prefix before each line.
struct Prefixed<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    prefix: &'static str,
    at_start: bool,
}

impl Prefixed<'_, '_> {
    fn view(&mut self, view: View<'_>) -> fmt::Result {
        use fmt::Write;
        if self.f.alternate() { write!(self, "{view:#}") } else { write!(self, "{view}") }
    }
}

impl fmt::Write for Prefixed<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for line in text.split_inclusive('\n') {
            if self.at_start {
                self.f.write_str(self.prefix)?;
            }
            self.f.write_str(line)?;
            self.at_start = line.ends_with('\n');
        }
        Ok(())
    }
}
