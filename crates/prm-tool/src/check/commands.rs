//! Rules for commands: headers of input and output, states in which the command is legal, required
//! capabilities, statuses, and the payloads of its variants.

use std::collections::BTreeMap;

use super::Check;
use crate::at::At;
use crate::description::{Command, Content, Status, Structure};
use crate::find::identifiers;

impl Check<'_> {
    pub(super) fn command(&mut self, command: &Command) {
        let (file, location) = (&command.file, format!("[{}]", command.name));
        self.entry(file, &command.name, &command.doc, &command.sources);
        self.values(file, &command.name, &command.op_mods, 16);
        for op_mod in command.op_mods.iter().filter(|op_mod| op_mod.sources.is_some()) {
            let location = format!("[{}] {}", command.name, op_mod.name);
            let message = "an op_mod cannot have its own sources; describe a structure that only \
                           the model has by a variant";
            self.error(file, location, message);
        }
        let ways = ["create", "query", "modify", "destroy", "general", "none"];
        let mut named = command.op_mods.iter().filter_map(|op_mod| op_mod.devx.as_deref());
        if !named.all(|way| ways.contains(&way)) || !ways.contains(&command.devx.as_str()) {
            let message = "devx is one of create, query, modify, destroy, general, none";
            self.error(file, location.clone(), message);
        }
        if command.opcode == 0 {
            self.error(file, location.clone(), "opcode 0 is not a command");
        }
        for (role, name) in [("input", &command.input), ("output", &command.output)] {
            match self.description.structure(name) {
                None => {
                    let message = format!("{role}: there is no structure [{name}]");
                    self.error(file, location.clone(), message);
                }
                Some(structure) => self.header(command, structure, role),
            }
        }
        let shared = self
            .description
            .commands
            .iter()
            .find(|o| o.input == command.input && o.name < command.name);
        if let Some(other) = shared {
            let message =
                format!("shares its input with [{}]; give each command its own", other.name);
            self.error(file, location.clone(), message);
        }
        let statuses = self.description.enumeration("command_status");
        for Status { name: status, why, from } in &command.statuses {
            let location = format!("[{}] {status}", command.name);
            if !statuses.is_some_and(|e| e.values.iter().any(|v| v.name == *status)) {
                self.harmless(file, location.clone(), "is not a value of enum [command_status]");
            }
            if why.trim().is_empty() {
                self.harmless(file, location.clone(), "does not say why it is returned");
            }
            let source = from.split_once(": ").is_some_and(|(who, what)| {
                ["linux", "dpdk", "ucx", "rdma-core", "freebsd", "mstflint", "trace"].contains(&who)
                    && !what.trim().is_empty()
            });
            let constant = identifiers(from).find(|name| name.starts_with("MLX5_CMD_STAT_"));
            if from != "reading" && !source {
                let message = "from is \"reading\", or a source such as \"linux: NAME\"";
                self.harmless(file, location, message);
            } else if constant.is_some_and(|name| name != format!("MLX5_CMD_STAT_{status}_ERR")) {
                self.harmless(file, location, "names the constant of another status");
            }
        }
        self.states(command);
        self.needs(command);
        self.variants(command);
    }

    /// Checks that a command's states and transitions are those of its object.
    fn states(&mut self, command: &Command) {
        let (file, location) = (&command.file, format!("[{}] states", command.name));
        let Some(name) = &command.state else {
            if !command.states.is_empty() || !command.transitions.is_empty() {
                let message = "states without their enum; add state = \"qp_state\"";
                self.harmless(file, location, message);
            }
            return;
        };
        let Some(e) = self.description.enumeration(name) else {
            let message = format!("there is no enum [{name}]{}", self.near(name));
            return self.harmless(file, location, &message);
        };
        let known = |state: &str| e.values.iter().any(|value| value.name == state);
        let mut messages = Vec::new();
        for state in command.states.iter().filter(|state| *state != "any" && !known(state)) {
            messages.push(format!("{state} is not a value of enum [{name}]"));
        }
        if command.states.is_empty() {
            messages.push("is legal in no state; name its states, or \"any\"".to_owned());
        }
        for transition in &command.transitions {
            match transition.split_once(" -> ") {
                None => messages.push(format!("`{transition}` is not written A -> B")),
                Some((from, to)) => {
                    if !command.states.iter().any(|state| state == from) {
                        messages
                            .push(format!("`{transition}` does not start from one of its states"));
                    }
                    if !known(to) {
                        messages.push(format!("{to} is not a value of enum [{name}]"));
                    }
                }
            }
        }
        for message in messages {
            self.harmless(file, location.clone(), &message);
        }
    }

    /// Checks that a command's capabilities exist, and that a command has some if its object's
    /// creation has.
    fn needs(&mut self, command: &Command) {
        let (file, location) = (&command.file, format!("[{}] capability", command.name));
        let text = command.capability.as_deref().unwrap_or_default();
        for word in text.split([' ', ',', '(', ')', ';']) {
            let Some((page, field)) = word.split_once('.').filter(|(_, field)| !field.is_empty())
            else {
                continue;
            };
            let structure = self.description.structure(page);
            if !structure.is_some_and(|s| s.fields.iter().any(|f| f.name == field)) {
                let message = format!("there is no field {field} in [{page}]");
                self.harmless(file, location.clone(), &message);
            }
        }
        let object = ["destroy_", "dealloc_", "query_", "modify_"]
            .iter()
            .find_map(|verb| command.name.strip_prefix(verb));
        let creation = object.and_then(|object| {
            let names = [format!("create_{object}"), format!("alloc_{object}")];
            self.description.commands.iter().find(|other| names.contains(&other.name))
        });
        if let Some(creation) = creation
            && creation.capability.is_some()
            && command.capability.is_none()
        {
            let message = format!("is missing; [{}] has one for the same object", creation.name);
            self.harmless(file, location, &message);
        }
    }

    /// Checks that an input begins with opcode, uid and op_mod, an output with status and syndrome.
    fn header(&mut self, command: &Command, structure: &Structure, role: &str) {
        let header: &[(&str, u32, u32)] = match role {
            "input" => &[("opcode", 0, 16), ("uid", 16, 16), ("op_mod", 48, 16)],
            _ => &[("status", 0, 8), ("syndrome", 32, 32)],
        };
        for &(name, start, width) in header {
            let at = At::of_field(start, width).0;
            let here = format!("[{}]", structure.name);
            match structure.fields.iter().find(|f| f.name == name) {
                // Some commands have no user context; DESTROY_UCTX has a uid elsewhere.
                Some(field) if name == "uid" && field.start >= 32 => {}
                None if name == "uid" && command.devx == "none" => {}
                None if name == "uid" => {
                    let message = format!(
                        "has no `uid` at {at}, which the kernel stamps: devx of [{}] is \"{}\"",
                        command.name, command.devx
                    );
                    self.error(&structure.file, here, message);
                }
                // General object commands have obj_type there.
                None if name == "op_mod"
                    && structure.fields.iter().any(|f| f.name == "obj_type") => {}
                None => {
                    let message = format!("is a command's {role}, but has no `{name}` at {at}");
                    self.error(&structure.file, here, message);
                }
                Some(field) if (field.start, field.width) != (start, width) => {
                    let message = format!("is a command's {role}, so its `{name}` is at {at}");
                    self.error(&structure.file, here, message);
                }
                Some(field) => {
                    if name == "status" && field.content != Content::Enum("command_status".into()) {
                        let message = "an output's `status` has enum = \"command_status\"";
                        self.error(&structure.file, here, message);
                    }
                }
            }
        }
    }

    fn variants(&mut self, command: &Command) {
        let input = self.description.structure(&command.input);
        let output = self.description.structure(&command.output);
        for variant in &command.variants {
            let location = format!("[{}] variants", command.name);
            let held = [output, input].into_iter().flatten().find_map(|structure| {
                structure.fields.iter().find(|field| field.name == variant.field)
            });
            match (held, self.description.structure(&variant.structure)) {
                (None, _) => {
                    let message =
                        format!("neither output nor input has a field `{}`", variant.field);
                    self.error(&command.file, location.clone(), message);
                }
                (_, None) => {
                    let message = format!("there is no structure [{}]", variant.structure);
                    self.harmless(&command.file, location.clone(), &message);
                }
                (Some(field), Some(structure)) => {
                    if !field.tail && field.span().width < structure.bytes * 8 {
                        let message =
                            format!("[{}] is larger than `{}`", structure.name, field.name);
                        self.error(&command.file, location.clone(), message);
                    }
                }
            }
            let mut inside = input;
            for part in variant.when.split('.') {
                let field = inside.and_then(|s| s.fields.iter().find(|f| f.name == part));
                if field.is_none() && input.is_some() {
                    let message = format!("the input has no field `{}`", variant.when);
                    self.error(&command.file, location.clone(), message);
                    break;
                }
                inside = field.and_then(|field| match &field.content {
                    Content::Struct(name) => self.description.structure(name),
                    _ => None,
                });
            }
            if variant.values.is_empty() {
                self.error(&command.file, location, "has no values");
            }
        }
    }

    pub(super) fn opcodes(&mut self) {
        let mut seen: BTreeMap<u16, &str> = BTreeMap::new();
        for command in &self.description.commands {
            if let Some(other) = seen.insert(command.opcode, &command.name) {
                let message = format!("has the opcode 0x{:x} of [{other}]", command.opcode);
                self.error(&command.file, format!("[{}]", command.name), message);
            }
        }
    }
}
