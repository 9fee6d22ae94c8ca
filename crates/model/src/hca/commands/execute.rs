//! From opcode to handler: the table of implemented commands, and the state in which each is legal.

use std::cell::OnceCell;

use verbless_prm as prm;
use verbless_prm::{
    AccessRegisterIn, AccessRegisterUserIn, CommandInfo, DisableHcaIn, EnableHcaIn, InitHcaIn,
    MadIfcIn, ManagePagesIn, ModifyHcaVportContextIn, ModifyNicVportContextIn, NopIn,
    QueryAdapterIn, QueryEswFunctionsIn, QueryHcaCapIn, QueryHcaVportContextIn, QueryHcaVportGidIn,
    QueryHcaVportPkeyIn, QueryIssiIn, QueryLagIn, QueryNicVportContextIn, QueryPagesIn,
    QueryRoceAddressIn, QuerySpecialContextsIn, QueryVportStateIn, QueryVuidIn, SetHcaCapIn,
    SetIssiIn, SetRoceAddressIn, TeardownHcaIn,
};

use super::call::Call;
use super::command::{Command, Privilege, RequiredLife, Run, kernel, tools, user};
use super::{capability, lifecycle, mad, pages, query, register, uctx, units, vport};
use crate::hca::kinds::KINDS;
use crate::hca::objects::SHARED_UID;
use crate::hca::refusal::{Refusal, Refused};
use crate::hca::state::{Hca, Life};

/// The commands without an object.
static COMMANDS: &[Command] = &[
    kernel::<EnableHcaIn>(&Run(lifecycle::enable)).always(),
    kernel::<DisableHcaIn>(&Run(lifecycle::disable)).enabled(),
    kernel::<QueryPagesIn>(&Run(pages::query)).enabled(),
    kernel::<ManagePagesIn>(&Run(pages::manage)).enabled(),
    kernel::<InitHcaIn>(&Run(lifecycle::init)).min_input_bytes(0x10).enabled(),
    kernel::<TeardownHcaIn>(&Run(lifecycle::teardown)).enabled(),
    user::<QueryIssiIn>(&Run(lifecycle::query_issi)).enabled(),
    kernel::<SetIssiIn>(&Run(lifecycle::set_issi)).enabled(),
    user::<QueryHcaCapIn>(&Run(capability::query)).enabled(),
    kernel::<SetHcaCapIn>(&Run(capability::set)).enabled(),
    user::<QueryAdapterIn>(&Run(query::adapter)).enabled(),
    user::<NopIn>(&Run(query::nop)).enabled(),
    user::<QueryVuidIn>(&Run(query::vuid)).enabled(),
    user::<QueryEswFunctionsIn>(&Run(query::esw_functions)).enabled(),
    user::<QueryLagIn>(&Run(query::lag)).enabled(),
    user::<QuerySpecialContextsIn>(&Run(query::special_contexts)),
    tools::<AccessRegisterIn>(&Run(register::access)).enabled(),
    user::<AccessRegisterUserIn>(&Run(units::access_user)),
    kernel::<MadIfcIn>(&Run(mad::mad_ifc)),
    user::<QueryNicVportContextIn>(&Run(vport::query_nic)),
    kernel::<ModifyNicVportContextIn>(&Run(vport::modify_nic)),
    user::<QueryHcaVportContextIn>(&Run(vport::query_hca)),
    kernel::<ModifyHcaVportContextIn>(&Run(vport::modify_hca)),
    user::<QueryHcaVportGidIn>(&Run(vport::query_gid)),
    user::<QueryHcaVportPkeyIn>(&Run(vport::query_pkey)),
    user::<QueryVportStateIn>(&Run(vport::query_state)),
    user::<QueryRoceAddressIn>(&Run(vport::query_roce_address)),
    kernel::<SetRoceAddressIn>(&Run(vport::set_roce_address)),
];

/// All commands: those on objects of each kind, and those without an object.
fn all_commands() -> impl Iterator<Item = &'static Command> {
    KINDS.iter().flat_map(|kind| kind.commands).chain(COMMANDS)
}

impl Hca {
    /// Executes one command. `input` is the whole inbox with the uid stamped by the kernel's side;
    /// `output` is the whole outbox. [`Hca::effects`] then holds the command's effects on the
    /// engine.
    ///
    /// The outcome is in the outbox's status and syndrome only; the outbox of a refused command
    /// holds no more than that.
    pub(crate) fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        output.fill(0);
        match dispatch(self, all_commands(), input, output) {
            Ok(()) => {}
            Err(CommandFailure::Refused(refusal, detail)) => {
                self.refuse(input, output, refusal, detail);
            }
            Err(CommandFailure::Injected(status, syndrome)) => answer(output, status, syndrome),
        }
    }

    /// Refuses a command; `detail` is for the log.
    pub(crate) fn refuse(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        refusal: Refusal,
        detail: Option<String>,
    ) {
        let opcode = input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        if self.refused.len() < MAX_REFUSED {
            let kernel = input.get(2..4) == Some(&[0, 0]);
            self.refused.push(Refused { opcode, kernel, refusal, detail });
        }
        answer(output, refusal.status().0, refusal.syndrome());
    }

    /// Resets the function: undoes all commands and forgets its pages.
    pub(crate) fn reset(&mut self) {
        uctx::destroy_all(self);
        self.restore_defaults();
    }
}

fn answer(output: &mut [u8], status: u8, syndrome: u32) {
    output.fill(0);
    if let Some(byte) = output.first_mut() {
        *byte = status;
    }
    if let Some(bytes) = output.get_mut(4..8) {
        bytes.copy_from_slice(&syndrome.to_be_bytes());
    }
}

/// Maximum number of refusals kept for the log at one time: a thread runs one command, or a few,
/// before it gives the function back.
const MAX_REFUSED: usize = 64;

enum CommandFailure {
    /// A refusal, with a detail for the log.
    Refused(Refusal, Option<String>),
    /// Status and syndrome that a test injected.
    Injected(u8, u32),
}

impl From<Refusal> for CommandFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal, None)
    }
}

/// Whether a command makes the function store more.
fn stores_more(command: &CommandInfo) -> bool {
    ["ALLOC_", "ATTACH_", "CREATE_"].iter().any(|verb| command.name.starts_with(verb))
}

/// The entry of an opcode, and of its general object type if it has one, if the model implements
/// it.
fn entry(
    mut commands: impl Iterator<Item = &'static Command>,
    opcode: u16,
    op_mod: u16,
) -> Option<&'static Command> {
    commands.find(|entry| {
        entry.info.opcode == opcode && entry.object_type.is_none_or(|it| it.0 == op_mod)
    })
}

fn dispatch(
    hca: &mut Hca,
    commands: impl Iterator<Item = &'static Command>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), CommandFailure> {
    let Some(&[o0, o1, u0, u1, _, _, m0, m1]) = input.first_chunk() else {
        return Err(Refusal::InputTooShort.into());
    };
    let (opcode, uid) = (u16::from_be_bytes([o0, o1]), u16::from_be_bytes([u0, u1]));
    let op_mod = u16::from_be_bytes([m0, m1]);
    if hca.fatal {
        return Err(Refusal::DeviceFatal.into());
    }
    if let Some((status, syndrome)) = hca.faults.hit(|&of| of == opcode) {
        return Err(CommandFailure::Injected(status, syndrome));
    }
    let Some(entry) = entry(commands, opcode, op_mod) else {
        return Err(match prm::Opcode(opcode).name() {
            Some(_) => Refusal::NotModelled.into(),
            None => Refusal::UnknownOpcode.into(),
        });
    };
    match (entry.life, hca.life) {
        (RequiredLife::Enabled | RequiredLife::Up, Life::Disabled) => {
            return Err(Refusal::NotEnabled.into());
        }
        (RequiredLife::Up, Life::Enabled) => return Err(Refusal::NotInitialised.into()),
        _ => {}
    }
    if uid != 0 && !(uid == SHARED_UID && entry.is_shared) {
        let Some(context) = hca.objects.uctxs.get(&uid) else {
            return Err(Refusal::NoSuchUid.into());
        };
        match entry.privilege {
            Privilege::User => {}
            Privilege::Tools if context.cap & prm::UctxCap::TOOLS_RESOURCES.0 != 0 => {}
            Privilege::Tools => return Err(Refusal::ToolsOnly.into()),
            Privilege::Kernel => return Err(Refusal::KernelOnly.into()),
        }
    }
    // The capability commands have a page number in op_mod, and refuse unknown ones themselves.
    let listed =
        entry.object_type.is_some() || entry.info.op_mods.iter().any(|&(_, known)| known == op_mod);
    let capabilities = [prm::QUERY_HCA_CAP.opcode, prm::SET_HCA_CAP.opcode].contains(&opcode);
    if !(listed || capabilities || op_mod == 0 && entry.info.op_mods.is_empty()) {
        return Err(Refusal::UnknownOpMod.into());
    }
    if stores_more(entry.info) {
        hca.budget.set_objects(hca.objects.bytes());
        if hca.budget.is_full() {
            return Err(Refusal::OverBudget.into());
        }
    }
    let mut call = Call { hca, uid, op_mod, input, output, list: &[], detail: OnceCell::new() };
    if let Err(refusal) = entry.run(&mut call) {
        return Err(CommandFailure::Refused(refusal, call.detail.take()));
    }
    hca.budget.set_objects(hca.objects.bytes());
    pages::balance(hca);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use verbless_prm::{
        AllocPdOut, CommandInput, CreateGeneralObjectIn, CreateGeneralObjectOut,
        DestroyGeneralObjectIn, GeneralObjectType, IntoBytes,
    };

    use super::*;
    use crate::hca::commands::call::Outcome;
    use crate::hca::registry::kind;
    use crate::profile::Profile;

    // A command with an opcode of its own, and two on a general object type (flow sampler). Here
    // the samplers are plain numbers from the range of PDs.
    static OURS: &[Command] = &[
        user::<prm::AllocPdIn>(&Run(alloc_pd)),
        user::<CreateGeneralObjectIn>(&Run(create)).of(GeneralObjectType::SAMPLER),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::Pd, input.obj_id())
        }))
        .of(GeneralObjectType::SAMPLER),
    ];

    fn alloc_pd(_: &mut Call<'_>, _: &prm::AllocPdIn, output: &mut AllocPdOut) -> Outcome {
        output.set_pd(7);
        Ok(())
    }

    fn create(
        call: &mut Call<'_>,
        _: &CreateGeneralObjectIn,
        output: &mut CreateGeneralObjectOut,
    ) -> Outcome {
        output.set_obj_id(call.make(kind::Pd, call.uid)?);
        Ok(())
    }

    fn send<I: CommandInput>(
        hca: &mut Hca,
        commands: impl Iterator<Item = &'static Command>,
        edit: impl FnOnce(&mut I),
    ) -> Result<I::Output, Refusal> {
        let mut input = I::default();
        edit(&mut input);
        input.as_mut_bytes()[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
        let mut output = I::Output::default();
        match dispatch(hca, commands, input.as_bytes(), output.as_mut_bytes()) {
            Ok(()) => Ok(output),
            Err(CommandFailure::Refused(refusal, _)) => Err(refusal),
            Err(CommandFailure::Injected(..)) => panic!("no failure was injected"),
        }
    }

    #[test]
    fn general_object_type_dispatches_like_an_opcode() {
        let profile = Arc::new(Profile::load("bluefield3").unwrap());
        let mut hca = Hca::new(0, profile, crate::memory::in_process(), crate::engine::qp_type);
        hca.life = Life::Up;
        let ours = || OURS.iter();
        let sampler = |input: &mut CreateGeneralObjectIn| {
            input.set_obj_type(GeneralObjectType::SAMPLER);
        };
        assert_eq!(send::<prm::AllocPdIn>(&mut hca, ours(), |_| {}).unwrap().pd(), 7);
        let made = send::<CreateGeneralObjectIn>(&mut hca, ours(), sampler).unwrap().obj_id();
        assert!(hca.objects.pds.contains_key(&made));
        let other = send::<CreateGeneralObjectIn>(&mut hca, ours(), |input| {
            input.set_obj_type(GeneralObjectType::IPSEC);
        });
        assert_eq!(other.err(), Some(Refusal::NotModelled), "another type is not an entry");
        send::<DestroyGeneralObjectIn>(&mut hca, ours(), |input| {
            input.set_obj_type(GeneralObjectType::SAMPLER).set_obj_id(made);
        })
        .unwrap();
        assert!(!hca.objects.pds.contains_key(&made));
        let real = send::<CreateGeneralObjectIn>(&mut hca, all_commands(), sampler);
        assert_eq!(real.err(), Some(Refusal::NotModelled), "the model has no such type");
    }
}
