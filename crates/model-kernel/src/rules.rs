//! The commands that DevX passes, and its changes to their mailboxes: the rules of Linux 6.12
//! `hw/mlx5/devx.c`.
//!
//! An object's id within the kernel is its number and the opcode of the command that created it
//! (for general objects the object type too), since numbers of different kinds may be equal. A
//! query or modify passes only when the id in its mailbox is that of the handle.

use verbless_prm::Opcode;

use super::mailbox::{Field, NUMBER, NUMBER_32, OP_MOD, OPCODE, UID, VHCA_TUNNEL_ID, inbox};

/// A range of opcodes that DEVX_OTHER passes without further checks.
const GENERAL: std::ops::Range<Opcode> = Opcode(0xb00)..Opcode(0xd00);
const NUM_PSV: Field = Field(0x8, 31, 28);

/// The opcode of an inbox.
pub(super) fn opcode(input: &[u8]) -> Opcode {
    Opcode(OPCODE.get(input) as u16)
}

/// Commands that DEVX_OTHER passes without a DevX uid (`devx_is_whitelist_cmd`), under
/// `devx_whitelist_uid`.
pub(super) fn is_passed_without_devx(input: &[u8]) -> bool {
    matches!(
        opcode(input),
        Opcode::QUERY_HCA_CAP
            | Opcode::QUERY_HCA_VPORT_CONTEXT
            | Opcode::QUERY_ESW_VPORT_CONTEXT
            | Opcode::QUERY_ESW_FUNCTIONS
    )
}

/// Commands that DEVX_OTHER passes; with `tunnel` (capability vhca_tunnel_commands) any command to
/// another vhca.
pub(super) fn is_general(input: &[u8], tunnel: bool) -> bool {
    let opcode = opcode(input);
    if tunnel && VHCA_TUNNEL_ID.get(input) != 0 || GENERAL.contains(&opcode) {
        return true;
    }
    matches!(
        opcode,
        Opcode::QUERY_HCA_CAP
            | Opcode::QUERY_HCA_VPORT_CONTEXT
            | Opcode::QUERY_ESW_VPORT_CONTEXT
            | Opcode::QUERY_VPORT_STATE
            | Opcode::QUERY_ADAPTER
            | Opcode::QUERY_ISSI
            | Opcode::QUERY_NIC_VPORT_CONTEXT
            | Opcode::QUERY_ROCE_ADDRESS
            | Opcode::QUERY_VNIC_ENV
            | Opcode::QUERY_VPORT_COUNTER
            | Opcode::GET_DROPPED_PACKET_LOG
            | Opcode::NOP
            | Opcode::QUERY_CONG_STATUS
            | Opcode::QUERY_CONG_PARAMS
            | Opcode::QUERY_CONG_STATISTICS
            | Opcode::QUERY_LAG
            | Opcode::QUERY_ESW_FUNCTIONS
    )
}

/// The description of a command that creates an object.
#[derive(Debug, Clone, Copy)]
struct CreateCommand {
    opcode: Opcode,
    /// Where the object's number is: in the outbox, or in the inbox if the client chose it.
    number: NumberField,
    destroy: Opcode,
    /// The field of the destroy command that takes the number.
    destroy_number: Field,
    /// Length of the destroy command in bytes.
    destroy_bytes: usize,
    /// Fields that the destroy command copies from the creation, at the same offset.
    copied: &'static [Field],
}

#[derive(Debug, Clone, Copy)]
enum NumberField {
    Inbox(Field),
    Outbox(Field),
}

const fn created(opcode: Opcode, destroy: Opcode) -> CreateCommand {
    CreateCommand {
        opcode,
        number: NumberField::Outbox(NUMBER),
        destroy,
        destroy_number: NUMBER,
        destroy_bytes: 16,
        copied: &[],
    }
}

/// A command whose object has a 32-bit id in place of a 24-bit one.
const fn created_with_id32(opcode: Opcode, destroy: Opcode) -> CreateCommand {
    CreateCommand {
        number: NumberField::Outbox(NUMBER_32),
        destroy_number: NUMBER_32,
        ..created(opcode, destroy)
    }
}

const TABLE_INDEX: Field = Field(0x14, 23, 0);
const FLOW_INDEX: Field = Field(0x20, 31, 0);
const VXLAN_PORT: Field = Field(0xc, 15, 0);
const COUNTER_SET: Field = Field(0x8, 7, 0);
/// other_vport, vport_number and table_type.
const FLOW_TABLE: &[Field] = &[Field(0x8, 31, 31), Field(0x8, 15, 0), Field(0x10, 31, 24)];
/// The fields of [`FLOW_TABLE`], and table_id.
const FLOW_IN_TABLE: &[Field] =
    &[Field(0x8, 31, 31), Field(0x8, 15, 0), Field(0x10, 31, 24), Field(0x14, 23, 0)];
const MULTICAST_GID: &[Field] =
    &[Field(0x10, 31, 0), Field(0x14, 31, 0), Field(0x18, 31, 0), Field(0x1c, 31, 0)];

static CREATIONS: &[CreateCommand] = &[
    CreateCommand {
        copied: &[OP_MOD],
        ..created_with_id32(Opcode::CREATE_GENERAL_OBJECT, Opcode::DESTROY_GENERAL_OBJECT)
    },
    created(Opcode::CREATE_MKEY, Opcode::DESTROY_MKEY),
    created(Opcode::CREATE_CQ, Opcode::DESTROY_CQ),
    created(Opcode::ALLOC_PD, Opcode::DEALLOC_PD),
    created(Opcode::ALLOC_TRANSPORT_DOMAIN, Opcode::DEALLOC_TRANSPORT_DOMAIN),
    created(Opcode::CREATE_RMP, Opcode::DESTROY_RMP),
    created(Opcode::CREATE_SQ, Opcode::DESTROY_SQ),
    created(Opcode::CREATE_RQ, Opcode::DESTROY_RQ),
    created(Opcode::CREATE_RQT, Opcode::DESTROY_RQT),
    created(Opcode::CREATE_TIR, Opcode::DESTROY_TIR),
    created(Opcode::CREATE_TIS, Opcode::DESTROY_TIS),
    CreateCommand {
        number: NumberField::Outbox(COUNTER_SET),
        destroy_number: COUNTER_SET,
        ..created(Opcode::ALLOC_Q_COUNTER, Opcode::DEALLOC_Q_COUNTER)
    },
    CreateCommand {
        destroy_number: TABLE_INDEX,
        destroy_bytes: 0x40,
        copied: FLOW_TABLE,
        ..created(Opcode::CREATE_FLOW_TABLE, Opcode::DESTROY_FLOW_TABLE)
    },
    CreateCommand {
        destroy_number: Field(0x18, 31, 0),
        destroy_bytes: 0x40,
        copied: FLOW_IN_TABLE,
        ..created(Opcode::CREATE_FLOW_GROUP, Opcode::DESTROY_FLOW_GROUP)
    },
    CreateCommand {
        number: NumberField::Inbox(FLOW_INDEX),
        destroy_number: FLOW_INDEX,
        destroy_bytes: 0x40,
        copied: FLOW_IN_TABLE,
        ..created(Opcode::SET_FLOW_TABLE_ENTRY, Opcode::DELETE_FLOW_TABLE_ENTRY)
    },
    created_with_id32(Opcode::ALLOC_FLOW_COUNTER, Opcode::DEALLOC_FLOW_COUNTER),
    created_with_id32(
        Opcode::ALLOC_PACKET_REFORMAT_CONTEXT,
        Opcode::DEALLOC_PACKET_REFORMAT_CONTEXT,
    ),
    created_with_id32(Opcode::ALLOC_MODIFY_HEADER_CONTEXT, Opcode::DEALLOC_MODIFY_HEADER_CONTEXT),
    CreateCommand {
        number: NumberField::Outbox(Field(0x10, 31, 0)),
        destroy_number: Field(0xc, 31, 0),
        destroy_bytes: 0x40,
        copied: &[Field(0x8, 31, 24)],
        ..created(Opcode::CREATE_SCHEDULING_ELEMENT, Opcode::DESTROY_SCHEDULING_ELEMENT)
    },
    CreateCommand {
        number: NumberField::Inbox(VXLAN_PORT),
        destroy_number: VXLAN_PORT,
        ..created(Opcode::ADD_VXLAN_UDP_DPORT, Opcode::DELETE_VXLAN_UDP_DPORT)
    },
    CreateCommand {
        number: NumberField::Inbox(TABLE_INDEX),
        destroy_number: TABLE_INDEX,
        destroy_bytes: 0x40,
        ..created(Opcode::SET_L2_TABLE_ENTRY, Opcode::DELETE_L2_TABLE_ENTRY)
    },
    created(Opcode::CREATE_QP, Opcode::DESTROY_QP),
    created(Opcode::CREATE_SRQ, Opcode::DESTROY_SRQ),
    created(Opcode::CREATE_XRC_SRQ, Opcode::DESTROY_XRC_SRQ),
    created(Opcode::CREATE_DCT, Opcode::DESTROY_DCT),
    created(Opcode::CREATE_XRQ, Opcode::DESTROY_XRQ),
    CreateCommand {
        number: NumberField::Inbox(NUMBER),
        destroy_bytes: 0x20,
        copied: MULTICAST_GID,
        ..created(Opcode::ATTACH_TO_MCG, Opcode::DETACH_FROM_MCG)
    },
    created(Opcode::ALLOC_XRCD, Opcode::DEALLOC_XRCD),
    CreateCommand {
        number: NumberField::Outbox(Field(0x10, 23, 0)),
        ..created(Opcode::CREATE_PSV, Opcode::DESTROY_PSV)
    },
];

/// Commands that OBJ_CREATE passes: each creates one object that the kernel can destroy.
pub(super) fn is_create(input: &[u8]) -> bool {
    match opcode(input) {
        Opcode::SET_FLOW_TABLE_ENTRY => OP_MOD.get(input) == 0,
        Opcode::CREATE_PSV => NUM_PSV.get(input) == 1,
        opcode => CREATIONS.iter().any(|creation| creation.opcode == opcode),
    }
}

/// Commands that OBJ_MODIFY passes.
pub(super) fn is_modify(input: &[u8]) -> bool {
    match opcode(input) {
        Opcode::SET_FLOW_TABLE_ENTRY => OP_MOD.get(input) == 1,
        opcode => {
            USES.iter().any(|&(known, _, _, kind)| known == opcode && kind == ObjectUse::Modify)
        }
    }
}

/// Commands that OBJ_QUERY and OBJ_ASYNC_QUERY pass.
pub(super) fn is_query(input: &[u8]) -> bool {
    let opcode = opcode(input);
    USES.iter().any(|&(known, _, _, kind)| known == opcode && kind == ObjectUse::Query)
}

/// An object's id within the kernel: number, creating opcode, and the type of a general object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectId {
    pub number: u32,
    pub opcode: Opcode,
    pub general_type: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectUse {
    Query,
    Modify,
}

/// Commands on an object: the opcode, the opcode that created the object, the field of its number.
static USES: &[(Opcode, Opcode, Field, ObjectUse)] = &[
    (Opcode::MODIFY_GENERAL_OBJECT, Opcode::CREATE_GENERAL_OBJECT, NUMBER_32, ObjectUse::Modify),
    (Opcode::QUERY_GENERAL_OBJECT, Opcode::CREATE_GENERAL_OBJECT, NUMBER_32, ObjectUse::Query),
    (Opcode::QUERY_MKEY, Opcode::CREATE_MKEY, NUMBER, ObjectUse::Query),
    (Opcode::QUERY_CQ, Opcode::CREATE_CQ, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_CQ, Opcode::CREATE_CQ, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_SQ, Opcode::CREATE_SQ, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_SQ, Opcode::CREATE_SQ, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_RQ, Opcode::CREATE_RQ, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_RQ, Opcode::CREATE_RQ, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_RMP, Opcode::CREATE_RMP, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_RMP, Opcode::CREATE_RMP, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_RQT, Opcode::CREATE_RQT, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_RQT, Opcode::CREATE_RQT, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_TIR, Opcode::CREATE_TIR, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_TIR, Opcode::CREATE_TIR, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_TIS, Opcode::CREATE_TIS, NUMBER, ObjectUse::Query),
    (Opcode::MODIFY_TIS, Opcode::CREATE_TIS, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_FLOW_TABLE, Opcode::CREATE_FLOW_TABLE, TABLE_INDEX, ObjectUse::Query),
    (Opcode::MODIFY_FLOW_TABLE, Opcode::CREATE_FLOW_TABLE, TABLE_INDEX, ObjectUse::Modify),
    (Opcode::QUERY_FLOW_GROUP, Opcode::CREATE_FLOW_GROUP, Field(0x18, 31, 0), ObjectUse::Query),
    (Opcode::QUERY_FLOW_TABLE_ENTRY, Opcode::SET_FLOW_TABLE_ENTRY, FLOW_INDEX, ObjectUse::Query),
    (Opcode::SET_FLOW_TABLE_ENTRY, Opcode::SET_FLOW_TABLE_ENTRY, FLOW_INDEX, ObjectUse::Modify),
    (Opcode::QUERY_Q_COUNTER, Opcode::ALLOC_Q_COUNTER, Field(0x1c, 7, 0), ObjectUse::Query),
    (Opcode::QUERY_FLOW_COUNTER, Opcode::ALLOC_FLOW_COUNTER, Field(0x1c, 31, 0), ObjectUse::Query),
    (
        Opcode::QUERY_MODIFY_HEADER_CONTEXT,
        Opcode::ALLOC_MODIFY_HEADER_CONTEXT,
        NUMBER_32,
        ObjectUse::Query,
    ),
    (
        Opcode::QUERY_SCHEDULING_ELEMENT,
        Opcode::CREATE_SCHEDULING_ELEMENT,
        Field(0xc, 31, 0),
        ObjectUse::Query,
    ),
    (
        Opcode::MODIFY_SCHEDULING_ELEMENT,
        Opcode::CREATE_SCHEDULING_ELEMENT,
        Field(0xc, 31, 0),
        ObjectUse::Modify,
    ),
    (Opcode::ADD_VXLAN_UDP_DPORT, Opcode::ADD_VXLAN_UDP_DPORT, VXLAN_PORT, ObjectUse::Modify),
    (Opcode::QUERY_L2_TABLE_ENTRY, Opcode::SET_L2_TABLE_ENTRY, TABLE_INDEX, ObjectUse::Query),
    (Opcode::SET_L2_TABLE_ENTRY, Opcode::SET_L2_TABLE_ENTRY, TABLE_INDEX, ObjectUse::Modify),
    (Opcode::QUERY_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Query),
    (Opcode::RST2INIT_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::INIT2INIT_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::INIT2RTR_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::RTR2RTS_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::RTS2RTS_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::SQERR2RTS_QP, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::QP_2ERR, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::QP_2RST, Opcode::CREATE_QP, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_DCT, Opcode::CREATE_DCT, NUMBER, ObjectUse::Query),
    (Opcode::ARM_DCT, Opcode::CREATE_DCT, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_XRQ, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Query),
    (Opcode::QUERY_XRQ_DC_PARAMS_ENTRY, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Query),
    (Opcode::QUERY_XRQ_ERROR_PARAMS, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Query),
    (Opcode::ARM_XRQ, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Modify),
    (Opcode::SET_XRQ_DC_PARAMS_ENTRY, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Modify),
    (Opcode::RELEASE_XRQ_ERROR, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Modify),
    (Opcode::MODIFY_XRQ, Opcode::CREATE_XRQ, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_XRC_SRQ, Opcode::CREATE_XRC_SRQ, NUMBER, ObjectUse::Query),
    (Opcode::ARM_XRC_SRQ, Opcode::CREATE_XRC_SRQ, NUMBER, ObjectUse::Modify),
    (Opcode::QUERY_SRQ, Opcode::CREATE_SRQ, NUMBER, ObjectUse::Query),
    (Opcode::ARM_RQ, Opcode::CREATE_RQ, NUMBER, ObjectUse::Modify),
    (
        Opcode::QUERY_PACKET_REFORMAT_CONTEXT,
        Opcode::ALLOC_PACKET_REFORMAT_CONTEXT,
        NUMBER_32,
        ObjectUse::Query,
    ),
];

/// The id of the object that a query or modify names in its mailbox.
pub(super) fn named_object(input: &[u8]) -> Option<ObjectId> {
    let opcode = opcode(input);
    let &(_, creator, number, _) = USES.iter().find(|entry| entry.0 == opcode)?;
    let general = creator == Opcode::CREATE_GENERAL_OBJECT;
    Some(ObjectId {
        number: number.get(input),
        opcode: creator,
        general_type: if general { OP_MOD.get(input) as u16 } else { 0 },
    })
}

/// A new object: its id, and the command that will destroy it.
#[derive(Debug, Clone)]
pub(super) struct CreatedObject {
    pub id: ObjectId,
    pub destroy: Vec<u8>,
    /// Flow counters of one ALLOC_FLOW_COUNTER.
    pub bulk: u32,
}

/// Finds the object that a command created, by its mailboxes, and builds the command that destroys
/// it. `None` if the command creates no object.
pub(super) fn created_object(input: &[u8], output: &[u8]) -> Option<CreatedObject> {
    let code = opcode(input);
    let creation = CREATIONS.iter().find(|creation| creation.opcode == code)?;
    let number = match creation.number {
        NumberField::Inbox(field) => field.get(input),
        NumberField::Outbox(field) => field.get(output),
    };
    let uid = UID.get(input) as u16;
    let mut destroy = inbox(creation.destroy, 0, uid, creation.destroy_bytes);
    for field in creation.copied {
        field.set(&mut destroy, field.get(input));
    }
    creation.destroy_number.set(&mut destroy, number);
    let general = code == Opcode::CREATE_GENERAL_OBJECT;
    let id = ObjectId {
        number,
        opcode: code,
        general_type: if general { OP_MOD.get(input) as u16 } else { 0 },
    };
    let bulk = match code {
        Opcode::ALLOC_FLOW_COUNTER => match Field(0xc, 12, 8).get(input) {
            0 => 128 * Field(0xc, 7, 0).get(input),
            log => 1 << log,
        },
        _ => 0,
    };
    Some(CreatedObject { id, destroy, bulk })
}

/// The object number in a destroy command.
#[cfg(test)]
pub(super) fn destroyed_number(input: &[u8]) -> Option<u32> {
    let code = opcode(input);
    let creation = CREATIONS.iter().find(|creation| creation.destroy == code)?;
    Some(creation.destroy_number.get(input))
}

/// Sets the umem_valid flags (`devx_set_umem_valid`), so that the device takes ring addresses from
/// umems only. OBJ_CREATE of an mkey calls [`require_mkey_umem`] instead.
pub(super) fn require_umem(input: &mut [u8]) {
    const WQ: &[Field] = &[Field(0x20 + 0x30 + 0x24, 31, 31), Field(0x20 + 0x30 + 0x24, 30, 30)];
    let flags: &[Field] = match opcode(input) {
        Opcode::CREATE_CQ => &[Field(0x5c, 31, 31), Field(0x10, 25, 25)],
        Opcode::CREATE_QP => &[Field(0x18 + 0xd0, 28, 28), Field(0x10c, 31, 31)],
        Opcode::CREATE_RQ | Opcode::CREATE_SQ | Opcode::CREATE_RMP => WQ,
        Opcode::MODIFY_CQ => &[Field(0x5c, 31, 31)],
        Opcode::CREATE_XRQ => {
            &[Field(0x10 + 0x80 + 0x24, 31, 31), Field(0x10 + 0x80 + 0x24, 30, 30)]
        }
        Opcode::CREATE_XRC_SRQ => &[Field(0x5c, 31, 31), Field(0x10 + 0x8, 24, 24)],
        _ => &[],
    };
    for flag in flags {
        flag.set(input, 1);
    }
}

/// mkey_umem_valid in CREATE_MKEY.
const MKEY_UMEM_VALID: Field = Field(0xc, 30, 30);
/// Least bytes of CREATE_MKEY: the header and the mkey context.
pub(super) const CREATE_MKEY_MIN: usize = 0x50;

/// Sets mkey_umem_valid, except for KLM and KSM keys, which refer to other keys and not to memory.
pub(super) fn require_mkey_umem(input: &mut [u8]) {
    const KLM: u32 = 2;
    const KSM: u32 = 3;
    let mode = Field(0x10, 9, 8).get(input) + (Field(0x10, 28, 26).get(input) << 2);
    if mode != KLM && mode != KSM {
        MKEY_UMEM_VALID.set(input, 1);
    }
}

/// The event queue that CREATE_CQ names, unless the CQ's events go to an APU.
pub(super) fn cq_event_queue(input: &[u8], apu: bool) -> Option<u32> {
    let to_apu = apu && Field(0x10, 24, 24).get(input) == 1;
    (opcode(input) == Opcode::CREATE_CQ && !to_apu).then(|| Field(0x24, 31, 0).get(input))
}

#[cfg(test)]
mod tests {
    use verbless_prm::{COMMANDS, Devx};

    use super::super::cmd::succeeds_on_dead_device;
    use super::*;

    #[test]
    fn devx_rules_agree_with_command_table() {
        for command in COMMANDS {
            let mut input = vec![0; command.input.bytes.max(16)];
            OPCODE.set(&mut input, command.opcode.into());
            if command.opcode == Opcode::CREATE_PSV.0 {
                NUM_PSV.set(&mut input, 1);
            }
            for op_mod in [0, 1] {
                OP_MOD.set(&mut input, op_mod);
                let passed = passed(command.opcode, &input);
                let described = command.devx_of(op_mod as u16);
                assert_eq!(described, passed, "{} with op_mod {op_mod}", command.name);
            }
            let uid = command.input.field("uid").map(|field| (field.offset, field.width));
            if command.devx != Devx::None {
                assert_eq!(uid, Some((16, 16)), "{}: the kernel stamps a uid there", command.name);
            }
        }
    }

    #[test]
    fn devx_objects_can_be_destroyed_on_dead_device() {
        for creation in CREATIONS {
            assert!(succeeds_on_dead_device(creation.destroy), "{:?}", creation.destroy);
        }
    }

    /// The rule under which DevX passes a command.
    fn passed(opcode: u16, input: &[u8]) -> Devx {
        let destroys = CREATIONS.iter().any(|it| it.destroy.0 == opcode);
        match () {
            () if is_create(input) => Devx::Create,
            () if is_modify(input) => Devx::Modify,
            () if is_query(input) => Devx::Query,
            () if is_general(input, false) => Devx::General,
            () if destroys => Devx::Destroy,
            () => Devx::None,
        }
    }

    #[test]
    fn umem_valid_flags_are_set_per_command() {
        use verbless_prm::{
            CreateCqIn, CreateQpIn, CreateRmpIn, CreateRqIn, CreateSqIn, CreateXrcSrqIn, ModifyCqIn,
        };
        fn with_umem_required<T: Clone>(
            opcode: Opcode,
            bytes: usize,
            read: fn(&[u8]) -> Option<&T>,
        ) -> (T, u32) {
            let mut input = vec![0; bytes];
            OPCODE.set(&mut input, opcode.0.into());
            require_umem(&mut input);
            let bits = input[4..].iter().map(|byte| byte.count_ones()).sum();
            (read(&input).expect("the buffer has the whole input").clone(), bits)
        }
        macro_rules! check {
            ($input:ident, $opcode:ident, $($flag:expr),*) => {{
                let (it, bits) =
                    with_umem_required(Opcode::$opcode, $input::BYTES, $input::from_prefix);
                let flags: &[fn(&$input) -> bool] = &[$($flag),*];
                assert!(flags.iter().all(|flag| flag(&it)), stringify!($opcode));
                assert_eq!(bits, flags.len() as u32, "{} sets more", stringify!($opcode));
            }};
        }
        check!(CreateCqIn, CREATE_CQ, |it| it.cq_umem_valid(), |it| {
            it.cq_context().dbr_umem_valid()
        });
        check!(ModifyCqIn, MODIFY_CQ, |it| it.cq_umem_valid());
        check!(CreateQpIn, CREATE_QP, |it| it.wq_umem_valid(), |it| it.qpc().dbr_umem_valid());
        check!(CreateRqIn, CREATE_RQ, |it| it.ctx().wq().wq_umem_valid(), |it| {
            it.ctx().wq().dbr_umem_valid()
        });
        check!(CreateSqIn, CREATE_SQ, |it| it.ctx().wq().wq_umem_valid(), |it| {
            it.ctx().wq().dbr_umem_valid()
        });
        check!(CreateRmpIn, CREATE_RMP, |it| it.ctx().wq().wq_umem_valid(), |it| {
            it.ctx().wq().dbr_umem_valid()
        });
        let (srq, bits) = with_umem_required(
            Opcode::CREATE_XRC_SRQ,
            CreateXrcSrqIn::BYTES,
            CreateXrcSrqIn::from_prefix,
        );
        assert!(srq.xrc_srq_umem_valid() && bits == 2);
        let mut xrq = vec![0; 0x110];
        OPCODE.set(&mut xrq, Opcode::CREATE_XRQ.0.into());
        require_umem(&mut xrq);
        assert_eq!(xrq[0xb4], 0xc0, "those of the work queue at 0x90");
        assert_eq!(xrq[4..].iter().map(|byte| byte.count_ones()).sum::<u32>(), 2);
    }

    #[test]
    fn mkey_umem_valid_is_unset_for_klm_and_ksm() {
        use verbless_prm::CreateMkeyIn;
        for mode in 0..32 {
            let mut input = CreateMkeyIn::new();
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(mode & 3).set_access_mode_4_2(mode >> 2);
            let mut bytes = input.as_bytes().to_vec();
            require_mkey_umem(&mut bytes);
            let set = CreateMkeyIn::from_prefix(&bytes).is_some_and(|it| it.mkey_umem_valid());
            assert_eq!(set, mode != 2 && mode != 3, "mode {mode}");
        }
    }
}
