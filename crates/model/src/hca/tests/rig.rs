//! One function under test, and short helpers for its commands.

use std::sync::Arc;

use verbless_prm::{
    AccessRegisterIn, AliasContext, AllocPdIn, AllocUarIn, AllowOtherVhcaAccessIn, CommandInfo,
    CommandInput, CommandOutput, CommandStatus, CreateCqIn, CreateEqIn, CreateGeneralObjectIn,
    CreateMkeyIn, CreateQpIn, CreateSqIn, CreateUctxIn, CreateUmemIn, EnableHcaIn,
    GeneralObjectType, InitHcaIn, ManagePagesIn, MkeyAccessMode, PathMigrationState, QueryPagesIn,
    RqType, ServiceType, Structure, WqType,
};

use crate::engine::{FunctionEngine, execute};
use crate::hca::objects::ObjectCounts;
use crate::hca::{Hca, Refusal};
use crate::locked::LockedFunctions;
use crate::memory::{Fault, HostMemory};
use crate::profile::{Link, Profile};

/// Memory without contents: commands must not need any. Only the first bytes of the UMEM of
/// [`Rig::umem`] can be read: a program for the DPA.
struct NoMemory;

/// The address of that UMEM.
const UMEM_AT: u64 = 0x10_0000_0000;

/// A program of one instruction, at 0x4000_0000.
pub(super) fn program() -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([2_u16, 243].into_iter().flat_map(u16::to_le_bytes));
    file.extend(1_u32.to_le_bytes());
    file.extend([0_u64, 64, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend(0_u32.to_le_bytes());
    file.extend([64_u16, 56, 1, 0, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    file.extend([1_u32, 5].into_iter().flat_map(u32::to_le_bytes));
    let fields = [0x100_u64, 0x4000_0000, 0x4000_0000, 4, 4, 0x100];
    file.extend(fields.into_iter().flat_map(u64::to_le_bytes));
    file.resize(0x100, 0);
    // ret
    file.extend(0x8067_u32.to_le_bytes());
    file
}

impl HostMemory for NoMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let fault = Fault { address, length: into.len() as u64 };
        let at = address.checked_sub(UMEM_AT).ok_or(fault)? as usize;
        let program = program();
        into.copy_from_slice(program.get(at..at + into.len()).ok_or(fault)?);
        Ok(())
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        Err(Fault { address, length: from.len() as u64 })
    }
    fn load32(&self, address: u64) -> Result<u32, Fault> {
        Err(Fault { address, length: 4 })
    }
    fn store32(&self, address: u64, _: u32) -> Result<(), Fault> {
        Err(Fault { address, length: 4 })
    }
    fn store8(&self, address: u64, _: u8) -> Result<(), Fault> {
        Err(Fault { address, length: 1 })
    }
    fn compare_exchange64(&self, address: u64, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { address, length: 8 })
    }
    fn copy_to(&self, address: u64, _: &dyn HostMemory, _: u64, length: u64) -> Result<(), Fault> {
        Err(Fault { address, length })
    }
    fn direct(&self, _: u64, _: u64) -> Option<std::ptr::NonNull<u8>> {
        None
    }
}

pub(super) struct Rig {
    pub locked: LockedFunctions,
    /// Every inbox that was accepted.
    pub accepted: Vec<Vec<u8>>,
}

/// Bytes of the UMEM of [`Rig::umem`].
pub(super) const UMEM: u64 = 1 << 20;

/// A user context with the objects that every queue needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub uid: u16,
    pub pd: u32,
    pub uar: u32,
    pub umem: u32,
    pub cq: u32,
}

impl Rig {
    /// A fresh function of a BlueField-3.
    pub(super) fn new(link: Link) -> Self {
        Self::of(Profile::load("bluefield3").expect("the profile is built in").with_link(link))
    }

    /// A fresh function of this profile.
    pub(super) fn of(profile: Profile) -> Self {
        let hca = Hca::new(0, Arc::new(profile), Arc::new(NoMemory), crate::engine::qp_type);
        let locked = LockedFunctions::new(vec![FunctionEngine::new(hca)], true);
        Self { locked, accepted: Vec::new() }
    }

    /// A function of a BlueField-3 in use, with one EQ of number 0x10.
    pub(super) fn up(link: Link) -> Self {
        Self::new(link).brought_up()
    }

    /// A function of this profile in use, with one EQ of number 0x10.
    pub(super) fn up_of(profile: Profile) -> Self {
        Self::of(profile).brought_up()
    }

    fn brought_up(self) -> Self {
        let mut rig = self;
        rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
        for kind in [QueryPagesIn::BOOT_PAGES, QueryPagesIn::INIT_PAGES] {
            let query = rig.call::<QueryPagesIn>(0, kind, &[], 0, |_| {}).unwrap();
            rig.give_pages(query.0.num_pages()).unwrap();
        }
        rig.send::<InitHcaIn>(0, |_| {}).unwrap();
        let uar = rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
        rig.eq(uar, 0).unwrap();
        rig
    }

    /// Allows other functions to access a key (ALLOW_OTHER_VHCA_ACCESS).
    pub(super) fn allow_access(
        &mut self,
        uid: u16,
        index: u32,
        access_key: [u8; 32],
    ) -> Result<(), Refusal> {
        self.send::<AllowOtherVhcaAccessIn>(uid, |input| {
            input
                .set_object_type_to_be_accessed(GeneralObjectType::MKEY)
                .set_object_id_to_be_accessed(index)
                .set_access_key(&access_key);
        })
        .map(|_| ())
    }

    /// Creates an alias of a key, by the function's vhca_id and the key's index there.
    pub(super) fn alias(
        &mut self,
        user: User,
        key: (u16, u32),
        access_key: [u8; 32],
    ) -> Result<u32, Refusal> {
        self.alias_with(AliasContext::BYTES, user, key, access_key).map(|(number, _)| number)
    }

    /// Creates an alias of a key, with `room` bytes after the output's head; returns its number
    /// and those bytes.
    pub(super) fn alias_with(
        &mut self,
        room: usize,
        user: User,
        (vhca_id, index): (u16, u32),
        access_key: [u8; 32],
    ) -> Result<(u32, Vec<u8>), Refusal> {
        let mut context = AliasContext::zeroed();
        let mut metadata = [0; 16];
        metadata[..4].copy_from_slice(&user.pd.to_be_bytes());
        context
            .set_vhca_id_to_be_accessed(vhca_id)
            .set_object_id_to_be_accessed(index)
            .set_access_key(&access_key)
            .set_metadata(&metadata);
        let list = *context.as_bytes();
        self.call::<CreateGeneralObjectIn>(
            user.uid,
            GeneralObjectType::MKEY.0,
            &list,
            room,
            |input| {
                input.set_alias_object(true);
            },
        )
        .map(|(output, rest)| (output.obj_id(), rest))
    }

    pub(super) fn give_pages(&mut self, count: u32) -> Result<(), Refusal> {
        let given = self.locked.functions[0].hca.pages.given.len() as u64;
        let list: Vec<u8> =
            (0..u64::from(count)).flat_map(|n| ((given + n + 1) << 12).to_be_bytes()).collect();
        self.call::<ManagePagesIn>(0, ManagePagesIn::ALLOCATION_SUCCESS, &list, 0, |input| {
            input.set_input_num_entries(count);
        })
        .map(|_| ())
    }

    /// Sends a command without a list and with op_mod 0.
    pub(super) fn send<I: CommandInput>(
        &mut self,
        uid: u16,
        edit: impl FnOnce(&mut I),
    ) -> Result<I::Output, Refusal> {
        self.call(uid, 0, &[], 0, edit).map(|(output, _)| output)
    }

    /// Sends a command with a list after it, and with room for a list after the answer.
    pub(super) fn call<I: CommandInput>(
        &mut self,
        uid: u16,
        op_mod: u16,
        list: &[u8],
        room: usize,
        edit: impl FnOnce(&mut I),
    ) -> Result<(I::Output, Vec<u8>), Refusal> {
        let mut input = I::default();
        edit(&mut input);
        let mut bytes = [input.as_bytes(), list].concat();
        bytes[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
        bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        bytes[6..8].copy_from_slice(&op_mod.to_be_bytes());
        let mut output = vec![0xa5; <I::Output as Structure>::BYTES + room];
        self.raw(&bytes, &mut output)?;
        self.accepted.push(bytes);
        let typed = I::Output::read(&output).expect("whole");
        assert_eq!(typed.syndrome(), 0);
        Ok((typed, output[<I::Output as Structure>::BYTES..].to_vec()))
    }

    /// Sends bytes. For a refusal, checks that status and syndrome agree, that the outbox holds
    /// nothing else, and that the PRM's description of the command lists the status.
    pub(super) fn raw(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        execute(&mut self.locked, 0, input, output);
        if output.first().is_none_or(|&status| status == CommandStatus::OK.0) {
            return Ok(());
        }
        let syndrome = u32::from_be_bytes(output[4..8].try_into().expect("four bytes"));
        let refusal = Refusal::of_syndrome(syndrome).expect("one of the model's own");
        assert_eq!(CommandStatus(output[0]), refusal.status(), "{refusal:?}");
        if let Some(command) = CommandInfo::of_input(input) {
            let listed = command.statuses.iter().any(|rule| rule.status == output[0]);
            assert!(listed || of_any_command(refusal), "{}: {refusal:?}", command.name);
        }
        assert!(output[1..4].iter().chain(&output[8..]).all(|&byte| byte == 0));
        Err(refusal)
    }

    pub(super) fn counts(&self) -> ObjectCounts {
        self.locked.functions[0].hca.objects.counts()
    }

    pub(super) fn eq(&mut self, uar: u32, kind: u32) -> Result<u8, Refusal> {
        let (output, _) = self.call::<CreateEqIn>(0, 0, &pages(1), 0, |input| {
            let context = input.eq_context_entry_mut();
            context.set_log_eq_size(4).set_uar_page(uar).set_intr(1);
            if kind != 0 {
                input.set_event_bitmask(kind as usize / 64, 1 << (kind % 64));
            }
        })?;
        Ok(output.eq_number())
    }

    pub(super) fn uctx(&mut self) -> u16 {
        self.uctx_with_caps(1)
    }

    /// A user context with these capabilities.
    pub(super) fn uctx_with_caps(&mut self, cap: u32) -> u16 {
        let made = self.send::<CreateUctxIn>(0, |input| _ = input.uctx_mut().set_cap(cap));
        made.expect("a user context").uid()
    }

    /// A UMEM of [`UMEM`] bytes; its first byte is `offset` bytes into its first page.
    pub(super) fn umem(&mut self, uid: u16, offset: u32, writable: bool) -> Result<u32, Refusal> {
        let count = UMEM / 4096 + u64::from(offset != 0);
        let list: Vec<u8> = (0..count)
            .flat_map(|n| ((UMEM_AT + (n << 12)) | 1 | (u64::from(writable) << 1)).to_be_bytes())
            .collect();
        let (output, _) = self.call::<CreateUmemIn>(uid, 0, &list, 0, |input| {
            input.umem_mut().set_page_offset(offset).set_num_of_mtt(count);
        })?;
        Ok(output.umem_id())
    }

    /// CREATE_GENERAL_OBJECT with this context.
    pub(super) fn general<S: Structure>(
        &mut self,
        uid: u16,
        kind: GeneralObjectType,
        context: &S,
    ) -> Result<u32, Refusal> {
        let list = context.as_bytes().to_vec();
        self.call::<CreateGeneralObjectIn>(uid, kind.0, &list, 0, |_| {})
            .map(|(output, _)| output.obj_id())
    }

    /// A user context with a PD, a UAR page, a UMEM and a CQ.
    pub(super) fn user(&mut self) -> User {
        let uid = self.uctx();
        self.user_of(uid)
    }

    /// Gives a user context a PD, a UAR page, a UMEM and a CQ.
    pub(super) fn user_of(&mut self, uid: u16) -> User {
        let pd = self.send::<AllocPdIn>(uid, |_| {}).unwrap().pd();
        let uar = self.send::<AllocUarIn>(uid, |_| {}).unwrap().uar();
        let umem = self.umem(uid, 0, true).unwrap();
        let mut user = User { uid, pd, uar, umem, cq: 0 };
        user.cq = self.cq(user, |_| {}).unwrap();
        user
    }

    /// A CQ of 64 entries at the start of the user's UMEM, its record in the last page.
    pub(super) fn cq(
        &mut self,
        user: User,
        edit: impl FnOnce(&mut CreateCqIn),
    ) -> Result<u32, Refusal> {
        let output = self.send::<CreateCqIn>(user.uid, |input| {
            input.set_cq_umem_valid(true).set_cq_umem_id(user.umem);
            let context = input.cq_context_mut();
            context.set_log_cq_size(6).set_c_eqn_or_apu_element(0x10).set_uar_page(user.uar);
            context.set_dbr_umem_valid(true).set_dbr_umem_id(user.umem).set_dbr_addr(UMEM - 8);
            edit(input);
        })?;
        Ok(output.cqn())
    }

    /// An RC QP of 16 receives and 64 send blocks at 64 KiB of the user's UMEM.
    pub(super) fn qp(
        &mut self,
        user: User,
        edit: impl FnOnce(&mut CreateQpIn),
    ) -> Result<u32, Refusal> {
        self.qp_with(user, &[], edit)
    }

    /// Creates a QP, with `list` after the command's input.
    pub(super) fn qp_with(
        &mut self,
        user: User,
        list: &[u8],
        edit: impl FnOnce(&mut CreateQpIn),
    ) -> Result<u32, Refusal> {
        let (output, _) = self.call::<CreateQpIn>(user.uid, 0, list, 0, |input| {
            input.set_wq_umem_valid(true).set_wq_umem_id(user.umem).set_wq_umem_offset(0x1_0000);
            let context = input.qpc_mut();
            context.set_st(ServiceType::RC).set_pm_state(PathMigrationState::MIGRATED);
            context.set_pd(user.pd).set_uar_page(user.uar).set_rq_type(RqType::REGULAR);
            context.set_log_rq_size(4).set_log_rq_stride(2).set_log_sq_size(6);
            context.set_cqn_snd(user.cq).set_cqn_rcv(user.cq);
            context.set_dbr_umem_valid(true).set_dbr_umem_id(user.umem).set_dbr_addr(UMEM - 16);
            edit(input);
        })?;
        Ok(output.qpn())
    }

    /// An SQ of 64 blocks at 128 KiB of the user's UMEM.
    pub(super) fn sq(
        &mut self,
        user: User,
        edit: impl FnOnce(&mut CreateSqIn),
    ) -> Result<u32, Refusal> {
        let output = self.send::<CreateSqIn>(user.uid, |input| {
            let context = input.ctx_mut();
            context.set_flush_in_error_en(true).set_cqn(user.cq);
            let wq = context.wq_mut();
            wq.set_wq_type(WqType::CYCLIC).set_log_wq_stride(6).set_log_wq_sz(6);
            wq.set_pd(user.pd).set_uar_page(user.uar);
            wq.set_wq_umem_valid(true).set_wq_umem_id(user.umem).set_wq_umem_offset(0x2_0000);
            wq.set_dbr_umem_valid(true).set_dbr_umem_id(user.umem).set_dbr_addr(UMEM - 24);
            edit(input);
        })?;
        Ok(output.sqn())
    }

    /// A key over 8 KiB of the user's UMEM, from its second page on.
    pub(super) fn mkey(
        &mut self,
        user: User,
        edit: impl FnOnce(&mut CreateMkeyIn),
    ) -> Result<u32, Refusal> {
        let output = self.send::<CreateMkeyIn>(user.uid, |input| {
            input.set_mkey_umem_valid(true).set_mkey_umem_id(user.umem).set_mkey_umem_offset(4096);
            input.set_translations_octword_actual_size(2);
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_pd(user.pd);
            context.set_qpn(0xff_ffff).set_mkey_7_0(0x5a).set_lr(true).set_lw(true).set_rw(true);
            context.set_start_addr(0x7000_0000).set_len(8192).set_log_page_size(12);
            context.set_translations_octword_size(2);
            edit(input);
        })?;
        Ok(output.mkey_index())
    }

    /// Reads a register; `input` is the register in the inbox.
    pub(super) fn register(&mut self, id: u16, input: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.call::<AccessRegisterIn>(0, AccessRegisterIn::READ, input, input.len(), |input| {
            input.set_register_id(verbless_prm::RegisterId(id));
        })
        .map(|(_, register)| register)
    }
}

/// Whether a refusal applies to all commands, so that no command's description lists it.
fn of_any_command(refusal: Refusal) -> bool {
    use Refusal::{DeviceFatal, NoSuchUid, OverBudget, Reserved};
    let status = refusal.status();
    let common = [
        CommandStatus::BAD_OP,
        CommandStatus::BAD_SYS_STATE,
        CommandStatus::BAD_INP_LEN,
        CommandStatus::BAD_OUTP_LEN,
    ];
    common.contains(&status) || [DeviceFatal, OverBudget, NoSuchUid, Reserved].contains(&refusal)
}

/// A list of `count` page addresses.
pub(super) fn pages(count: u64) -> Vec<u8> {
    (0..count).flat_map(|n| (0x20_0000_0000_u64 + (n << 12)).to_be_bytes()).collect()
}
