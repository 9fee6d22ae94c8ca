//! From opcode to handler: the table of the commands that the model knows, and when each is legal.

use verbless_prm as prm;
use verbless_prm::{CommandInfo, CommandInput};

use super::call::{Call, Outcome};
use super::{
    capability, counter, cq, domain, eq, lifecycle, mad, mkey, multicast, pages, qp, query,
};
use super::{register, sq, srq, transition, uctx, umem, vport};
use crate::hca::kinds::kinds;
use crate::hca::objects::SHARED_UID;
use crate::hca::refusal::{Refusal, Refused};
use crate::hca::state::{Hca, Life};

/// How far a function must have come for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Any time.
    Always,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Up,
}

/// A command that the model knows.
struct Entry {
    command: &'static CommandInfo,
    when: When,
    /// User contexts may send it.
    user: bool,
    run: fn(&mut Call<'_>) -> Outcome,
}

macro_rules! entry {
    ($when:ident $who:ident $input:ident => $handler:path) => {
        Entry {
            command: <prm::$input as CommandInput>::INFO,
            when: When::$when,
            user: entry!(@ $who),
            run: |call| call.run::<prm::$input>($handler),
        }
    };
    (@ kernel) => { false };
    (@ user) => { true };
}

macro_rules! commands {
    ($($when:ident $who:ident $input:ident => $handler:path;)*) => {
        /// The commands that are about no object.
        static COMMANDS: &[Entry] = &[$(entry!($when $who $input => $handler)),*];
    };
}

macro_rules! object_commands {
    ($($(#[$doc:meta])* $kind:ident: $key:ty => $object:ty {
        context: $context:literal,
        numbers: [$($numbers:tt)*],
        remove: $remove:path,
        commands: { $($who:ident $input:ident => $handler:path;)* }
    })*) => {
        /// The commands on objects.
        static OBJECT_COMMANDS: &[Entry] = &[$($(entry!(Up $who $input => $handler)),*),*];
    };
}

kinds!(object_commands);

commands! {
    Always kernel EnableHcaIn => lifecycle::enable;
    Enabled kernel DisableHcaIn => lifecycle::disable;
    Enabled kernel QueryPagesIn => pages::query;
    Enabled kernel ManagePagesIn => pages::manage;
    Enabled kernel InitHcaIn => lifecycle::init;
    Enabled kernel TeardownHcaIn => lifecycle::teardown;
    Enabled user QueryIssiIn => lifecycle::query_issi;
    Enabled kernel SetIssiIn => lifecycle::set_issi;
    Enabled user QueryHcaCapIn => capability::query;
    Enabled kernel SetHcaCapIn => capability::set;
    Enabled user QueryAdapterIn => query::adapter;
    Enabled user NopIn => query::nop;
    Enabled user QueryVuidIn => query::vuid;
    Enabled user QueryLagIn => query::lag;
    Up user QuerySpecialContextsIn => query::special_contexts;
    Enabled kernel AccessRegisterIn => register::access;
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
    /// Executes one command: the whole inbox, uid stamped by who plays the kernel, and the whole
    /// outbox. What the engine is to hear of it is in [`Hca::effects`] then.
    ///
    /// The outcome is in the outbox's status and syndrome, and nowhere else; of a refused command
    /// nothing else is in it.
    pub(crate) fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        output.fill(0);
        match dispatch(self, input, output) {
            Ok(()) => {}
            Err(Failure::Refused(refusal)) => self.refuse(input, output, refusal),
            Err(Failure::Injected(status, syndrome)) => answer(output, status, syndrome),
        }
    }

    /// Answers a command by a refusal.
    pub(crate) fn refuse(&mut self, input: &[u8], output: &mut [u8], refusal: Refusal) {
        let opcode = input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        if self.refused.len() < MOST_REFUSED {
            let kernel = input.get(2..4) == Some(&[0, 0]);
            self.refused.push(Refused { opcode, kernel, refusal });
        }
        answer(output, refusal.status().0, refusal.syndrome());
    }

    /// Resets the function: nothing is left of what commands did, and of the pages that it was
    /// given.
    pub(crate) fn reset(&mut self) {
        uctx::destroy_all(self);
        self.start_afresh();
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

/// Refusals that are kept for the log at one time: whoever holds the world runs one command, or a
/// few.
const MOST_REFUSED: usize = 64;

enum Failure {
    Refused(Refusal),
    /// Status and syndrome that a test chose.
    Injected(u8, u32),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Whether a command makes the function keep more than it did.
fn adds(command: &CommandInfo) -> bool {
    ["ALLOC_", "ATTACH_", "CREATE_"].iter().any(|verb| command.name.starts_with(verb))
}

/// The entry of an opcode, if the model knows it.
fn entry(opcode: u16) -> Option<&'static Entry> {
    let mut entries = OBJECT_COMMANDS.iter().chain(COMMANDS);
    entries.find(|entry| entry.command.opcode == opcode)
}

fn dispatch(hca: &mut Hca, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
    let Some(&[o0, o1, u0, u1, _, _, m0, m1]) = input.first_chunk() else {
        return Err(Refusal::InputTooShort.into());
    };
    let (opcode, uid) = (u16::from_be_bytes([o0, o1]), u16::from_be_bytes([u0, u1]));
    let op_mod = u16::from_be_bytes([m0, m1]);
    if hca.fatal {
        return Err(Refusal::DeviceFatal.into());
    }
    if let Some((status, syndrome)) = hca.faults.strikes(opcode) {
        return Err(Failure::Injected(status, syndrome));
    }
    let Some(entry) = entry(opcode) else {
        return Err(match CommandInfo::by_opcode(opcode) {
            Some(_) => Refusal::NotModelled.into(),
            None => Refusal::UnknownOpcode.into(),
        });
    };
    match (entry.when, hca.life) {
        (When::Enabled | When::Up, Life::Disabled) => return Err(Refusal::NotEnabled.into()),
        (When::Up, Life::Enabled) => return Err(Refusal::NotInitialised.into()),
        _ => {}
    }
    // What belongs to everybody is the kernel's to make and to destroy.
    let shared = [prm::CREATE_EQ.opcode, prm::ALLOC_Q_COUNTER.opcode].contains(&opcode);
    if uid != 0 && !(uid == SHARED_UID && shared) {
        if !hca.objects.uctxs.contains_key(&uid) {
            return Err(Refusal::NoSuchUid.into());
        }
        if !entry.user {
            return Err(Refusal::KernelOnly.into());
        }
    }
    // The capability commands have a page in op_mod, and refuse one that they do not know in their
    // own way.
    let listed = entry.command.op_mods.iter().any(|&(_, known)| known == op_mod);
    let capabilities = [prm::QUERY_HCA_CAP.opcode, prm::SET_HCA_CAP.opcode].contains(&opcode);
    if !(listed || capabilities || op_mod == 0 && entry.command.op_mods.is_empty()) {
        return Err(Refusal::UnknownOpMod.into());
    }
    if adds(entry.command) {
        hca.budget.set_objects(hca.objects.bytes());
        if hca.budget.is_full() {
            return Err(Refusal::OverBudget.into());
        }
    }
    let mut call = Call { hca, uid, op_mod, input, output, list: &[] };
    (entry.run)(&mut call)?;
    hca.budget.set_objects(hca.objects.bytes());
    pages::balance(hca);
    Ok(())
}
