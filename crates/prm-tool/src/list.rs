//! `prm list`: the commands of the tables, by what DevX does with them, what gates them, and the
//! states in which they are legal.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;

use super::description::Command;

/// Options of `prm list`.
#[derive(Args)]
pub struct Options {
    /// Only commands with which DevX does this: create, query, modify, destroy, general, or none
    /// (it does not pass them).
    #[arg(long, value_name = "METHOD")]
    devx: Option<String>,
    /// Only commands that need a capability whose name contains this: dct, hca_cap.log_max_rmp.
    #[arg(long, value_name = "CAPABILITY")]
    gate: Option<String>,
    /// Only commands that are legal in this state of their object, or that move it there: RTR.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only commands of this file of prm/: qp, flow.
    #[arg(long)]
    family: Option<String>,
}

/// What DevX may do with a command.
const METHODS: [&str; 6] = ["create", "query", "modify", "destroy", "general", "none"];

impl Options {
    fn chooses(&self, command: &Command) -> bool {
        let family = command.file.trim_start_matches("prm/").trim_end_matches(".toml");
        let is =
            |wanted: &Option<String>, has: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(has);
        is(&self.family, &|wanted| family == wanted)
            && is(&self.devx, &|method| {
                command.devx == method
                    || command.op_mods.iter().any(|it| it.devx.as_deref() == Some(method))
            })
            && is(&self.gate, &|part| {
                command.capability.as_ref().is_some_and(|capability| capability.contains(part))
            })
            && is(&self.state, &|state| {
                let to = format!(" -> {state}");
                command.states.iter().any(|it| it == state)
                    || command.transitions.iter().any(|it| it.ends_with(&to))
            })
    }
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    if let Some(method) = options.devx.as_deref().filter(|method| !METHODS.contains(method)) {
        return Err(format!("--devx {method}: not one of {}", METHODS.join(", ")).into());
    }
    let description = super::check::load_sound(root)?;
    super::repository::print(&table(&description.commands, options)?)
}

fn table(commands: &[Command], options: &Options) -> Result<String, String> {
    let mut chosen: Vec<&Command> = commands.iter().filter(|it| options.chooses(it)).collect();
    if chosen.is_empty() {
        return Err("no command fits; leave an option out, or see `prm find WORDS`".into());
    }
    chosen.sort_by_key(|command| command.opcode);
    let name = chosen.iter().map(|command| command.name.len()).max().unwrap_or(0);
    let devx = chosen.iter().map(|command| command.devx.len()).max().unwrap_or(0).max(4);
    let mut out = format!("opcode  {:name$}  {:devx$}  needs\n", "command", "DevX");
    for Command { opcode, name: own, devx: method, capability, .. } in &chosen {
        let needs = capability.as_deref().unwrap_or("-");
        let _ =
            writeln!(out, "{opcode:#06x}  {:name$}  {method:devx$}  {needs}", own.to_uppercase());
    }
    let _ = writeln!(out, "{} of {} commands", chosen.len(), commands.len());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::root;

    fn listed(devx: &str, gate: &str, state: &str) -> Result<String, String> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let options =
            Options { devx: some(devx), gate: some(gate), state: some(state), family: None };
        let description = crate::check::load_sound(&root()).unwrap();
        table(&description.commands, &options)
    }

    #[test]
    fn list_filters_by_devx_gate_and_state() {
        let none = listed("none", "", "").unwrap();
        assert!(none.contains(" CREATE_EQ ") && !none.contains(" CREATE_CQ "), "{none}");
        let dct = listed("create", "dct", "").unwrap();
        assert!(dct.contains(" CREATE_DCT ") && !dct.contains(" CREATE_CQ "), "{dct}");
        let rtr = listed("", "", "RTR").unwrap();
        assert!(rtr.contains(" INIT2RTR_QP ") && rtr.contains(" RTR2RTS_QP "), "{rtr}");
        assert!(listed("create", "no_such_capability", "").is_err());
    }
}
