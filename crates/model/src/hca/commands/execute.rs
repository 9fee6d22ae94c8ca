//! From opcode to handler: the table of implemented commands, and the state in which each is legal.

use std::cell::OnceCell;

use verbless_prm as prm;
use verbless_prm::{CommandInfo, CommandInput, GeneralObjectType};

// The modules of the handlers.
use super::call::{Call, Outcome};
use super::*;
use crate::hca::kinds::kinds;
use crate::hca::objects::SHARED_UID;
use crate::hca::refusal::{Refusal, Refused};
use crate::hca::registry::kind;
use crate::hca::state::{Hca, Life};

/// The function state that a command requires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequiredLife {
    /// Any time.
    Always,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Up,
}

/// Who may send a command. Later variants have the rights of earlier ones too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Privilege {
    /// Every user context.
    User,
    /// User contexts with TOOLS_RESOURCES.
    Tools,
    /// Only uid 0.
    Kernel,
}

/// An implemented command.
struct CommandEntry {
    command: &'static CommandInfo,
    /// The general object type of the command, sent in op_mod's bits.
    object_type: Option<GeneralObjectType>,
    life: RequiredLife,
    privilege: Privilege,
    /// Whether the kernel may send it with [`SHARED_UID`], to create and destroy objects that all
    /// may use.
    shared: bool,
    run: fn(&mut Call<'_>) -> Outcome,
}

macro_rules! entry {
    ($life:ident $privilege:ident $input:ident of [$($type:ident)?] for [$($sharer:ident)?]
        from [$($least:literal)?] => $handler:expr) => {
        CommandEntry {
            command: <prm::$input as CommandInput>::INFO,
            object_type: entry!(@type $($type)?),
            life: RequiredLife::$life,
            privilege: entry!(@ $privilege),
            shared: entry!(@shared $($sharer)?),
            run: |call| call.run::<prm::$input>(entry!(@least $($least)?), $handler),
        }
    };
    (@ kernel) => { Privilege::Kernel };
    (@ tools) => { Privilege::Tools };
    (@ user) => { Privilege::User };
    (@type) => { None };
    (@type $type:ident) => { Some(GeneralObjectType::$type) };
    (@shared) => { false };
    (@shared all) => { true };
    (@least) => { usize::MAX };
    (@least $bytes:literal) => { $bytes };
}

macro_rules! commands {
    ($($life:ident $privilege:ident $input:ident $(from $least:literal)? => $handler:path;)*) => {
        /// The commands without an object.
        static COMMANDS: &[CommandEntry] =
            &[$(entry!($life $privilege $input of [] for [] from [$($least)?] => $handler)),*];
    };
}

macro_rules! object_commands {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($numbers:tt)*],
        object: { $($entry:tt)* },
        refusals: { $($refusals:tt)* },
        removed: [$($removed:tt)*],
        commands: {
            $($privilege:ident $input:ident $(of $type:ident)? $(for $sharer:ident)?
                $(from $least:literal)? => $handler:expr;)*
        }
    })*) => {
        /// The commands on objects.
        static OBJECT_COMMANDS: &[CommandEntry] = &[$($(entry!(
            Up $privilege $input of [$($type)?] for [$($sharer)?] from [$($least)?] => $handler
        )),*),*];
    };
}

kinds!(object_commands);

commands! {
    Always kernel EnableHcaIn => lifecycle::enable;
    Enabled kernel DisableHcaIn => lifecycle::disable;
    Enabled kernel QueryPagesIn => pages::query;
    Enabled kernel ManagePagesIn => pages::manage;
    Enabled kernel InitHcaIn from 0x10 => lifecycle::init;
    Enabled kernel TeardownHcaIn => lifecycle::teardown;
    Enabled user QueryIssiIn => lifecycle::query_issi;
    Enabled kernel SetIssiIn => lifecycle::set_issi;
    Enabled user QueryHcaCapIn => capability::query;
    Enabled kernel SetHcaCapIn => capability::set;
    Enabled user QueryAdapterIn => query::adapter;
    Enabled user NopIn => query::nop;
    Enabled user QueryVuidIn => query::vuid;
    Enabled user QueryEswFunctionsIn => query::esw_functions;
    Enabled user QueryLagIn => query::lag;
    Up user QuerySpecialContextsIn => query::special_contexts;
    Enabled tools AccessRegisterIn => register::access;
    Up user AccessRegisterUserIn => units::access_user;
    Up kernel MadIfcIn => mad::mad_ifc;
    Up user QueryNicVportContextIn => vport::query_nic;
    Up kernel ModifyNicVportContextIn => vport::modify_nic;
    Up user QueryHcaVportContextIn => vport::query_hca;
    Up kernel ModifyHcaVportContextIn => vport::modify_hca;
    Up user QueryHcaVportGidIn => vport::query_gid;
    Up user QueryHcaVportPkeyIn => vport::query_pkey;
    Up user QueryVportStateIn => vport::query_state;
    Up user QueryRoceAddressIn => vport::query_roce_address;
    Up kernel SetRoceAddressIn => vport::set_roce_address;
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
        match dispatch(self, &[OBJECT_COMMANDS, COMMANDS], input, output) {
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
fn entry<'a>(tables: &[&'a [CommandEntry]], opcode: u16, op_mod: u16) -> Option<&'a CommandEntry> {
    tables.iter().copied().flatten().find(|entry| {
        entry.command.opcode == opcode && entry.object_type.is_none_or(|it| it.0 == op_mod)
    })
}

fn dispatch(
    hca: &mut Hca,
    tables: &[&[CommandEntry]],
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
    let Some(entry) = entry(tables, opcode, op_mod) else {
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
    if uid != 0 && !(uid == SHARED_UID && entry.shared) {
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
    let listed = entry.object_type.is_some()
        || entry.command.op_mods.iter().any(|&(_, known)| known == op_mod);
    let capabilities = [prm::QUERY_HCA_CAP.opcode, prm::SET_HCA_CAP.opcode].contains(&opcode);
    if !(listed || capabilities || op_mod == 0 && entry.command.op_mods.is_empty()) {
        return Err(Refusal::UnknownOpMod.into());
    }
    if stores_more(entry.command) {
        hca.budget.set_objects(hca.objects.bytes());
        if hca.budget.is_full() {
            return Err(Refusal::OverBudget.into());
        }
    }
    let mut call = Call { hca, uid, op_mod, input, output, list: &[], detail: OnceCell::new() };
    if let Err(refusal) = (entry.run)(&mut call) {
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
        AllocPdOut, CreateGeneralObjectIn, CreateGeneralObjectOut, DestroyGeneralObjectIn,
        IntoBytes,
    };

    use super::*;
    use crate::profile::Profile;

    // A registry with one kind that has opcodes of its own and one that is a general object type.
    object_commands! {
        /// Protection domains.
        pds: Pd(u32) => Uid {
            numbers: [],
            object: {},
            refusals: {},
            removed: [],
            commands: {
                user AllocPdIn => alloc_pd;
            }
        }
        /// Flow samplers, plain numbers of the same range here.
        samplers: Sampler(u32) => Uid {
            numbers: [],
            object: {},
            refusals: {},
            removed: [],
            commands: {
                user CreateGeneralObjectIn of SAMPLER => create;
                user DestroyGeneralObjectIn of SAMPLER =>
                    |call, input, _| call.destroy(kind::Pd, input.obj_id());
            }
        }
    }

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
        tables: &[&[CommandEntry]],
        edit: impl FnOnce(&mut I),
    ) -> Result<I::Output, Refusal> {
        let mut input = I::default();
        edit(&mut input);
        input.as_mut_bytes()[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
        let mut output = I::Output::default();
        match dispatch(hca, tables, input.as_bytes(), output.as_mut_bytes()) {
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
        let ours: &[&[CommandEntry]] = &[OBJECT_COMMANDS];
        let sampler = |input: &mut CreateGeneralObjectIn| {
            input.set_obj_type(GeneralObjectType::SAMPLER);
        };
        assert_eq!(send::<prm::AllocPdIn>(&mut hca, ours, |_| {}).unwrap().pd(), 7);
        let made = send::<CreateGeneralObjectIn>(&mut hca, ours, sampler).unwrap().obj_id();
        assert!(hca.objects.pds.contains_key(&made));
        let other = send::<CreateGeneralObjectIn>(&mut hca, ours, |input| {
            input.set_obj_type(GeneralObjectType::IPSEC);
        });
        assert_eq!(other.err(), Some(Refusal::NotModelled), "another type is not an entry");
        send::<DestroyGeneralObjectIn>(&mut hca, ours, |input| {
            input.set_obj_type(GeneralObjectType::SAMPLER).set_obj_id(made);
        })
        .unwrap();
        assert!(!hca.objects.pds.contains_key(&made));
        let real = send::<CreateGeneralObjectIn>(&mut hca, &[super::OBJECT_COMMANDS], sampler);
        assert_eq!(real.err(), Some(Refusal::NotModelled), "the model has no such type");
    }
}
