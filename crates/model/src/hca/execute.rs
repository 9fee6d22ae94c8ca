//! From opcode to handler: the table of the commands that the model knows, and when each is legal.

use verbless_prm as prm;
use verbless_prm::{CommandInfo, CommandInput};

use super::call::{Call, Outcome};
use super::refusal::Refusal;
use super::{Life, counter, cq, domain, eq, lifecycle, mkey, pages, qp, query, register};
use super::{capability, mad, multicast, shared, sq, transition, uctx, umem, vport};
use crate::world::{HcaId, World};

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

macro_rules! table {
    ($($when:ident $who:ident $input:ident => $handler:path;)*) => {
        /// Every command that the model knows.
        static TABLE: &[Entry] = &[$(Entry {
            command: <prm::$input as CommandInput>::INFO,
            when: When::$when,
            user: table!(@ $who),
            run: |call| call.run::<prm::$input>($handler),
        }),*];
    };
    (@ kernel) => { false };
    (@ user) => { true };
}

table! {
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

    Up user AllocPdIn => domain::alloc_pd;
    Up user DeallocPdIn => domain::dealloc_pd;
    Up user AllocTransportDomainIn => domain::alloc_td;
    Up user DeallocTransportDomainIn => domain::dealloc_td;
    Up user AllocUarIn => domain::alloc_uar;
    Up user DeallocUarIn => domain::dealloc_uar;
    Up user AllocQCounterIn => counter::alloc;
    Up user DeallocQCounterIn => counter::dealloc;
    Up user QueryQCounterIn => counter::query;
    Up kernel CreateUctxIn => uctx::create;
    Up kernel DestroyUctxIn => uctx::destroy;
    Up user CreateUmemIn => umem::create;
    Up user DestroyUmemIn => umem::destroy;

    Up user CreateMkeyIn => mkey::create;
    Up user QueryMkeyIn => mkey::query;
    Up user DestroyMkeyIn => mkey::destroy;
    Up user CreateCqIn => cq::create;
    Up user QueryCqIn => cq::query;
    Up user ModifyCqIn => cq::modify;
    Up user DestroyCqIn => cq::destroy;
    Up kernel CreateEqIn => eq::create;
    Up kernel QueryEqIn => eq::query;
    Up kernel DestroyEqIn => eq::destroy;
    Up user AllocXrcdIn => shared::alloc_xrcd;
    Up user DeallocXrcdIn => shared::dealloc_xrcd;
    Up user CreateXrcSrqIn => shared::create_xrc_srq;
    Up user QueryXrcSrqIn => shared::query_xrc_srq;
    Up user ArmXrcSrqIn => shared::arm_xrc_srq;
    Up user DestroyXrcSrqIn => shared::destroy_xrc_srq;
    Up user CreateRmpIn => shared::create_rmp;
    Up user QueryRmpIn => shared::query_rmp;
    Up user ModifyRmpIn => shared::modify_rmp;
    Up user DestroyRmpIn => shared::destroy_rmp;
    Up user CreateQpIn => qp::create;
    Up user QueryQpIn => qp::query;
    Up user DestroyQpIn => qp::destroy;
    Up user Rst2initQpIn => transition::rst2init;
    Up user Init2initQpIn => transition::init2init;
    Up user Init2rtrQpIn => transition::init2rtr;
    Up user Rtr2rtsQpIn => transition::rtr2rts;
    Up user Rts2rtsQpIn => transition::rts2rts;
    Up user Sqerr2rtsQpIn => transition::sqerr2rts;
    Up user SqdRtsQpIn => transition::sqd2rts;
    Up user Qp2errIn => transition::to_error;
    Up user Qp2rstIn => transition::to_reset;
    Up user CreateSqIn => sq::create;
    Up user QuerySqIn => sq::query;
    Up user ModifySqIn => sq::modify;
    Up user DestroySqIn => sq::destroy;
    Up user AttachToMcgIn => multicast::attach;
    Up user DetachFromMcgIn => multicast::detach;

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

/// Executes one command of function `id`: the whole inbox, uid stamped by who plays the kernel, and the whole outbox.
///
/// The outcome is in the outbox's status and syndrome, and nowhere else; of a refused command nothing else is in it.
pub(crate) fn execute(world: &mut World, id: HcaId, input: &[u8], output: &mut [u8]) {
    answer(world, id, input, output);
    if let Some(watcher) = world.hcas[id].watcher.clone() {
        world.clock.tick();
        watcher.see(id, world.clock.now, input, output);
    }
}

/// Does what the input says, and writes the whole output.
fn answer(world: &mut World, id: HcaId, input: &[u8], output: &mut [u8]) {
    output.fill(0);
    let (status, syndrome) = match dispatch(world, id, input, output) {
        Ok(()) => return,
        Err(Failure::Refused(refusal)) => {
            let opcode = input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
            let refused = &mut world.hcas[id].refused;
            if refused.len() < MOST_REFUSED {
                let kernel = input.get(2..4) == Some(&[0, 0]);
                refused.push(Refused { opcode, kernel, refusal });
            }
            (refusal.status().0, refusal.syndrome())
        }
        Err(Failure::Injected(status, syndrome)) => (status, syndrome),
    };
    output.fill(0);
    if let Some(byte) = output.first_mut() {
        *byte = status;
    }
    if let Some(bytes) = output.get_mut(4..8) {
        bytes.copy_from_slice(&syndrome.to_be_bytes());
    }
}

/// Refusals that are kept for the log at one time: whoever holds the world runs one command, or a few.
const MOST_REFUSED: usize = 64;

/// A refused command, for the log: it is told of once the world is free, since whoever writes a log may take long over it or ask
/// the model something.
#[derive(Debug)]
pub(crate) struct Refused {
    opcode: u16,
    /// Its uid is 0, the kernel's.
    kernel: bool,
    refusal: Refusal,
}

impl Refused {
    /// Says it in the log.
    pub(crate) fn log(&self) {
        let Self { opcode, kernel, refusal } = *self;
        let command = CommandInfo::by_opcode(opcode).map_or("", |command| command.name);
        let number = format_args!("{opcode:#x}");
        match refusal {
            Refusal::UnknownOpcode => tracing::warn!("opcode {number} is unknown"),
            Refusal::NotModelled => tracing::warn!("{command} ({number}) is not modelled"),
            // A kernel asks for every page that it knows of.
            Refusal::NoSuchPage if kernel => {
                tracing::debug!(command, opcode = number, ?refusal, "{}", refusal.text());
            }
            _ => tracing::info!(command, opcode = number, ?refusal, "{}", refusal.text()),
        }
    }
}

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

/// The uid that a driver stamps on an event queue which every user context may name in its CQs.
pub(super) const SHARED_UID: u16 = 0xffff;

fn dispatch(world: &mut World, id: HcaId, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
    let Some(&[o0, o1, u0, u1, _, _, m0, m1]) = input.first_chunk() else {
        return Err(Refusal::InputTooShort.into());
    };
    let (opcode, uid) = (u16::from_be_bytes([o0, o1]), u16::from_be_bytes([u0, u1]));
    let op_mod = u16::from_be_bytes([m0, m1]);
    let hca = &mut world.hcas[id];
    if hca.fatal {
        return Err(Refusal::DeviceFatal.into());
    }
    if let Some((status, syndrome)) = hca.faults.strikes(opcode) {
        return Err(Failure::Injected(status, syndrome));
    }
    let Some(entry) = TABLE.iter().find(|entry| entry.command.opcode == opcode) else {
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
    // The capability commands have a page in op_mod, and refuse one that they do not know in their own way.
    let listed = entry.command.op_mods.iter().any(|&(_, known)| known == op_mod);
    let capabilities = [prm::QUERY_HCA_CAP.opcode, prm::SET_HCA_CAP.opcode].contains(&opcode);
    if !(listed || capabilities || op_mod == 0 && entry.command.op_mods.is_empty()) {
        return Err(Refusal::UnknownOpMod.into());
    }
    if adds(entry.command) && hca.room.is_full(hca.objects.bytes()) {
        return Err(Refusal::NoRoom.into());
    }
    let mut call = Call { world, id, uid, op_mod, input, output, list: &[] };
    (entry.run)(&mut call)?;
    pages::balance(world, id);
    Ok(())
}
