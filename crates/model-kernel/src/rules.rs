//! What DevX lets through, and what it does to a mailbox on the way: the rules of Linux 6.12
//! `hw/mlx5/devx.c`.
//!
//! An object's id within the kernel is its number and the opcode of the command that made it (for
//! general objects the object type too), since numbers of different kinds may be equal. A query or
//! modify passes only when the id in its mailbox is that of the handle.

use super::mailbox::{Field, NUMBER, NUMBER_32, OP_MOD, OPCODE, UID, VHCA_TUNNEL_ID, inbox};

pub(super) use super::opcode as op;

/// Commands of a range that OTHER passes whatever they are.
const GENERAL: std::ops::Range<u16> = 0xb00..0xd00;
const NUM_PSV: Field = Field(0x8, 31, 28);

/// The opcode of an inbox.
pub(super) fn opcode(input: &[u8]) -> u16 {
    OPCODE.get(input) as u16
}

/// Commands that OTHER passes for a context without DevX too, under a uid of the kernel's own.
pub(super) fn is_harmless(input: &[u8]) -> bool {
    matches!(
        opcode(input),
        op::QUERY_HCA_CAP
            | op::QUERY_HCA_VPORT_CONTEXT
            | op::QUERY_ESW_VPORT_CONTEXT
            | op::QUERY_ESW_FUNCTIONS
    )
}

/// Commands that OTHER passes; with `tunnel` (capability vhca_tunnel_commands) any that goes to
/// another vhca.
pub(super) fn is_general(input: &[u8], tunnel: bool) -> bool {
    let opcode = opcode(input);
    if tunnel && VHCA_TUNNEL_ID.get(input) != 0 || GENERAL.contains(&opcode) {
        return true;
    }
    matches!(
        opcode,
        op::QUERY_HCA_CAP
            | op::QUERY_HCA_VPORT_CONTEXT
            | op::QUERY_ESW_VPORT_CONTEXT
            | op::QUERY_VPORT_STATE
            | op::QUERY_ADAPTER
            | op::QUERY_ISSI
            | op::QUERY_NIC_VPORT_CONTEXT
            | op::QUERY_ROCE_ADDRESS
            | op::QUERY_VNIC_ENV
            | op::QUERY_VPORT_COUNTER
            | op::GET_DROPPED_PACKET_LOG
            | op::NOP
            | op::QUERY_CONG_STATUS
            | op::QUERY_CONG_PARAMS
            | op::QUERY_CONG_STATISTICS
            | op::QUERY_LAG
            | op::QUERY_ESW_FUNCTIONS
    )
}

/// What is known of a command that makes an object.
#[derive(Debug, Clone, Copy)]
struct Creation {
    opcode: u16,
    /// Where the object's number is: in the outbox, or in the inbox that chose it.
    number: Where,
    destroy: u16,
    /// Where the number goes in the destroy command.
    destroy_number: Field,
    /// Length of the destroy command in bytes.
    destroy_bytes: usize,
    /// Fields that the destroy command takes over from the creation, in the same place.
    copied: &'static [Field],
}

#[derive(Debug, Clone, Copy)]
enum Where {
    Inbox(Field),
    Outbox(Field),
}

const fn created(opcode: u16, destroy: u16) -> Creation {
    Creation {
        opcode,
        number: Where::Outbox(NUMBER),
        destroy,
        destroy_number: NUMBER,
        destroy_bytes: 16,
        copied: &[],
    }
}

const fn wide(opcode: u16, destroy: u16) -> Creation {
    Creation {
        number: Where::Outbox(NUMBER_32),
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
/// The same, and table_id.
const FLOW_IN_TABLE: &[Field] =
    &[Field(0x8, 31, 31), Field(0x8, 15, 0), Field(0x10, 31, 24), Field(0x14, 23, 0)];
const MULTICAST_GID: &[Field] =
    &[Field(0x10, 31, 0), Field(0x14, 31, 0), Field(0x18, 31, 0), Field(0x1c, 31, 0)];

static CREATIONS: &[Creation] = &[
    Creation { copied: &[OP_MOD], ..wide(op::CREATE_GENERAL_OBJECT, op::DESTROY_GENERAL_OBJECT) },
    created(op::CREATE_MKEY, op::DESTROY_MKEY),
    created(op::CREATE_CQ, op::DESTROY_CQ),
    created(op::ALLOC_PD, op::DEALLOC_PD),
    created(op::ALLOC_TRANSPORT_DOMAIN, op::DEALLOC_TRANSPORT_DOMAIN),
    created(op::CREATE_RMP, op::DESTROY_RMP),
    created(op::CREATE_SQ, op::DESTROY_SQ),
    created(op::CREATE_RQ, op::DESTROY_RQ),
    created(op::CREATE_RQT, op::DESTROY_RQT),
    created(op::CREATE_TIR, op::DESTROY_TIR),
    created(op::CREATE_TIS, op::DESTROY_TIS),
    Creation {
        number: Where::Outbox(COUNTER_SET),
        destroy_number: COUNTER_SET,
        ..created(op::ALLOC_Q_COUNTER, op::DEALLOC_Q_COUNTER)
    },
    Creation {
        destroy_number: TABLE_INDEX,
        destroy_bytes: 0x40,
        copied: FLOW_TABLE,
        ..created(op::CREATE_FLOW_TABLE, op::DESTROY_FLOW_TABLE)
    },
    Creation {
        destroy_number: Field(0x18, 31, 0),
        destroy_bytes: 0x40,
        copied: FLOW_IN_TABLE,
        ..created(op::CREATE_FLOW_GROUP, op::DESTROY_FLOW_GROUP)
    },
    Creation {
        number: Where::Inbox(FLOW_INDEX),
        destroy_number: FLOW_INDEX,
        destroy_bytes: 0x40,
        copied: FLOW_IN_TABLE,
        ..created(op::SET_FLOW_TABLE_ENTRY, op::DELETE_FLOW_TABLE_ENTRY)
    },
    wide(op::ALLOC_FLOW_COUNTER, op::DEALLOC_FLOW_COUNTER),
    wide(op::ALLOC_PACKET_REFORMAT_CONTEXT, op::DEALLOC_PACKET_REFORMAT_CONTEXT),
    wide(op::ALLOC_MODIFY_HEADER_CONTEXT, op::DEALLOC_MODIFY_HEADER_CONTEXT),
    Creation {
        number: Where::Outbox(Field(0x10, 31, 0)),
        destroy_number: Field(0xc, 31, 0),
        destroy_bytes: 0x40,
        copied: &[Field(0x8, 31, 24)],
        ..created(op::CREATE_SCHEDULING_ELEMENT, op::DESTROY_SCHEDULING_ELEMENT)
    },
    Creation {
        number: Where::Inbox(VXLAN_PORT),
        destroy_number: VXLAN_PORT,
        ..created(op::ADD_VXLAN_UDP_DPORT, op::DELETE_VXLAN_UDP_DPORT)
    },
    Creation {
        number: Where::Inbox(TABLE_INDEX),
        destroy_number: TABLE_INDEX,
        destroy_bytes: 0x40,
        ..created(op::SET_L2_TABLE_ENTRY, op::DELETE_L2_TABLE_ENTRY)
    },
    created(op::CREATE_QP, op::DESTROY_QP),
    created(op::CREATE_SRQ, op::DESTROY_SRQ),
    created(op::CREATE_XRC_SRQ, op::DESTROY_XRC_SRQ),
    created(op::CREATE_DCT, op::DESTROY_DCT),
    created(op::CREATE_XRQ, op::DESTROY_XRQ),
    Creation {
        number: Where::Inbox(NUMBER),
        destroy_bytes: 0x20,
        copied: MULTICAST_GID,
        ..created(op::ATTACH_TO_MCG, op::DETACH_FROM_MCG)
    },
    created(op::ALLOC_XRCD, op::DEALLOC_XRCD),
    Creation {
        number: Where::Outbox(Field(0x10, 23, 0)),
        ..created(op::CREATE_PSV, op::DESTROY_PSV)
    },
];

/// Commands that OBJ_CREATE passes: they make one object that the kernel knows how to destroy.
pub(super) fn is_create(input: &[u8]) -> bool {
    match opcode(input) {
        op::SET_FLOW_TABLE_ENTRY => OP_MOD.get(input) == 0,
        op::CREATE_PSV => NUM_PSV.get(input) == 1,
        opcode => CREATIONS.iter().any(|creation| creation.opcode == opcode),
    }
}

/// Commands that OBJ_MODIFY passes.
pub(super) fn is_modify(input: &[u8]) -> bool {
    match opcode(input) {
        op::SET_FLOW_TABLE_ENTRY => OP_MOD.get(input) == 1,
        opcode => USES.iter().any(|&(known, _, _, kind)| known == opcode && kind == Use::Modify),
    }
}

/// Commands that OBJ_QUERY and OBJ_ASYNC_QUERY pass.
pub(super) fn is_query(input: &[u8]) -> bool {
    let opcode = opcode(input);
    USES.iter().any(|&(known, _, _, kind)| known == opcode && kind == Use::Query)
}

/// An object's id within the kernel: number, creating opcode, and the type of a general object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectId {
    pub number: u32,
    pub opcode: u16,
    pub general_type: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Query,
    Modify,
}

/// Commands on an object: the opcode, the one that made the object, where its number is.
static USES: &[(u16, u16, Field, Use)] = &[
    (op::MODIFY_GENERAL_OBJECT, op::CREATE_GENERAL_OBJECT, NUMBER_32, Use::Modify),
    (op::QUERY_GENERAL_OBJECT, op::CREATE_GENERAL_OBJECT, NUMBER_32, Use::Query),
    (op::QUERY_MKEY, op::CREATE_MKEY, NUMBER, Use::Query),
    (op::QUERY_CQ, op::CREATE_CQ, NUMBER, Use::Query),
    (op::MODIFY_CQ, op::CREATE_CQ, NUMBER, Use::Modify),
    (op::QUERY_SQ, op::CREATE_SQ, NUMBER, Use::Query),
    (op::MODIFY_SQ, op::CREATE_SQ, NUMBER, Use::Modify),
    (op::QUERY_RQ, op::CREATE_RQ, NUMBER, Use::Query),
    (op::MODIFY_RQ, op::CREATE_RQ, NUMBER, Use::Modify),
    (op::QUERY_RMP, op::CREATE_RMP, NUMBER, Use::Query),
    (op::MODIFY_RMP, op::CREATE_RMP, NUMBER, Use::Modify),
    (op::QUERY_RQT, op::CREATE_RQT, NUMBER, Use::Query),
    (op::MODIFY_RQT, op::CREATE_RQT, NUMBER, Use::Modify),
    (op::QUERY_TIR, op::CREATE_TIR, NUMBER, Use::Query),
    (op::MODIFY_TIR, op::CREATE_TIR, NUMBER, Use::Modify),
    (op::QUERY_TIS, op::CREATE_TIS, NUMBER, Use::Query),
    (op::MODIFY_TIS, op::CREATE_TIS, NUMBER, Use::Modify),
    (op::QUERY_FLOW_TABLE, op::CREATE_FLOW_TABLE, TABLE_INDEX, Use::Query),
    (op::MODIFY_FLOW_TABLE, op::CREATE_FLOW_TABLE, TABLE_INDEX, Use::Modify),
    (op::QUERY_FLOW_GROUP, op::CREATE_FLOW_GROUP, Field(0x18, 31, 0), Use::Query),
    (op::QUERY_FLOW_TABLE_ENTRY, op::SET_FLOW_TABLE_ENTRY, FLOW_INDEX, Use::Query),
    (op::SET_FLOW_TABLE_ENTRY, op::SET_FLOW_TABLE_ENTRY, FLOW_INDEX, Use::Modify),
    (op::QUERY_Q_COUNTER, op::ALLOC_Q_COUNTER, Field(0x1c, 7, 0), Use::Query),
    (op::QUERY_FLOW_COUNTER, op::ALLOC_FLOW_COUNTER, Field(0x1c, 31, 0), Use::Query),
    (op::QUERY_MODIFY_HEADER_CONTEXT, op::ALLOC_MODIFY_HEADER_CONTEXT, NUMBER_32, Use::Query),
    (op::QUERY_SCHEDULING_ELEMENT, op::CREATE_SCHEDULING_ELEMENT, Field(0xc, 31, 0), Use::Query),
    (op::MODIFY_SCHEDULING_ELEMENT, op::CREATE_SCHEDULING_ELEMENT, Field(0xc, 31, 0), Use::Modify),
    (op::ADD_VXLAN_UDP_DPORT, op::ADD_VXLAN_UDP_DPORT, VXLAN_PORT, Use::Modify),
    (op::QUERY_L2_TABLE_ENTRY, op::SET_L2_TABLE_ENTRY, TABLE_INDEX, Use::Query),
    (op::SET_L2_TABLE_ENTRY, op::SET_L2_TABLE_ENTRY, TABLE_INDEX, Use::Modify),
    (op::QUERY_QP, op::CREATE_QP, NUMBER, Use::Query),
    (op::RST2INIT_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::INIT2INIT_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::INIT2RTR_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::RTR2RTS_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::RTS2RTS_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::SQERR2RTS_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::TO_ERR_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::TO_RST_QP, op::CREATE_QP, NUMBER, Use::Modify),
    (op::QUERY_DCT, op::CREATE_DCT, NUMBER, Use::Query),
    (op::ARM_DCT_FOR_KEY_VIOLATION, op::CREATE_DCT, NUMBER, Use::Modify),
    (op::QUERY_XRQ, op::CREATE_XRQ, NUMBER, Use::Query),
    (op::QUERY_XRQ_DC_PARAMS_ENTRY, op::CREATE_XRQ, NUMBER, Use::Query),
    (op::QUERY_XRQ_ERROR_PARAMS, op::CREATE_XRQ, NUMBER, Use::Query),
    (op::ARM_XRQ, op::CREATE_XRQ, NUMBER, Use::Modify),
    (op::SET_XRQ_DC_PARAMS_ENTRY, op::CREATE_XRQ, NUMBER, Use::Modify),
    (op::RELEASE_XRQ_ERROR, op::CREATE_XRQ, NUMBER, Use::Modify),
    (op::MODIFY_XRQ, op::CREATE_XRQ, NUMBER, Use::Modify),
    (op::QUERY_XRC_SRQ, op::CREATE_XRC_SRQ, NUMBER, Use::Query),
    (op::ARM_XRC_SRQ, op::CREATE_XRC_SRQ, NUMBER, Use::Modify),
    (op::QUERY_SRQ, op::CREATE_SRQ, NUMBER, Use::Query),
    (op::ARM_RQ, op::CREATE_RQ, NUMBER, Use::Modify),
    (op::QUERY_PACKET_REFORMAT_CONTEXT, op::ALLOC_PACKET_REFORMAT_CONTEXT, NUMBER_32, Use::Query),
];

/// The id of the object that a query or modify names in its mailbox.
pub(super) fn named_object(input: &[u8]) -> Option<ObjectId> {
    let opcode = opcode(input);
    let &(_, creator, number, _) = USES.iter().find(|entry| entry.0 == opcode)?;
    let general = creator == op::CREATE_GENERAL_OBJECT;
    Some(ObjectId {
        number: number.get(input),
        opcode: creator,
        general_type: if general { OP_MOD.get(input) as u16 } else { 0 },
    })
}

/// An object that was just made: its id, and the command that will destroy it.
#[derive(Debug, Clone)]
pub(super) struct Created {
    pub id: ObjectId,
    pub destroy: Vec<u8>,
    /// How many flow counters one ALLOC_FLOW_COUNTER gave.
    pub bulk: u32,
}

/// Reads what a command made from its mailboxes, and builds the command that destroys it. `None`
/// for one that makes nothing.
pub(super) fn created_object(input: &[u8], output: &[u8]) -> Option<Created> {
    let code = opcode(input);
    let creation = CREATIONS.iter().find(|creation| creation.opcode == code)?;
    let number = match creation.number {
        Where::Inbox(field) => field.get(input),
        Where::Outbox(field) => field.get(output),
    };
    let uid = UID.get(input) as u16;
    let mut destroy = inbox(creation.destroy, 0, uid, creation.destroy_bytes);
    for field in creation.copied {
        field.set(&mut destroy, field.get(input));
    }
    creation.destroy_number.set(&mut destroy, number);
    let general = code == op::CREATE_GENERAL_OBJECT;
    let id = ObjectId {
        number,
        opcode: code,
        general_type: if general { OP_MOD.get(input) as u16 } else { 0 },
    };
    let bulk = match code {
        op::ALLOC_FLOW_COUNTER => match Field(0xc, 12, 8).get(input) {
            0 => 128 * Field(0xc, 7, 0).get(input),
            log => 1 << log,
        },
        _ => 0,
    };
    Some(Created { id, destroy, bulk })
}

/// The number of the object that a destroy command destroys.
#[cfg(test)]
pub(super) fn destroyed_number(input: &[u8]) -> Option<u32> {
    let code = opcode(input);
    let creation = CREATIONS.iter().find(|creation| creation.destroy == code)?;
    Some(creation.destroy_number.get(input))
}

/// The flags that say "in user memory that the client registered". The kernel sets them, so that no
/// client can hand the device an address of its own; MKEY has a rule of its own.
pub(super) fn insist_on_umem(input: &mut [u8]) {
    const WQ: &[Field] = &[Field(0x20 + 0x30 + 0x24, 31, 31), Field(0x20 + 0x30 + 0x24, 30, 30)];
    let flags: &[Field] = match opcode(input) {
        op::CREATE_MKEY => &[MKEY_UMEM_VALID],
        op::CREATE_CQ => &[Field(0x5c, 31, 31), Field(0x10, 25, 25)],
        op::CREATE_QP => &[Field(0x18 + 0xd0, 28, 28), Field(0x10c, 31, 31)],
        op::CREATE_RQ | op::CREATE_SQ | op::CREATE_RMP => WQ,
        op::MODIFY_CQ => &[Field(0x5c, 31, 31)],
        op::CREATE_XRQ => &[Field(0x10 + 0x80 + 0x24, 31, 31), Field(0x10 + 0x80 + 0x24, 30, 30)],
        op::CREATE_XRC_SRQ => &[Field(0x5c, 31, 31), Field(0x10 + 0x8, 24, 24)],
        _ => &[],
    };
    for flag in flags {
        flag.set(input, 1);
    }
}

/// mkey_umem_valid in CREATE_MKEY.
const MKEY_UMEM_VALID: Field = Field(0xc, 30, 30);
/// Bytes of CREATE_MKEY that must be there: the header, and the mkey context.
pub(super) const CREATE_MKEY_MIN: usize = 0x50;

/// Sets mkey_umem_valid, but for keys made of other keys (KLM, KSM), which name no memory.
pub(super) fn insist_on_mkey_umem(input: &mut [u8]) {
    const KLM: u32 = 2;
    const KSM: u32 = 3;
    let mode = Field(0x10, 9, 8).get(input) | Field(0x10, 28, 26).get(input) << 2;
    if mode != KLM && mode != KSM {
        MKEY_UMEM_VALID.set(input, 1);
    }
}

/// The event queue that CREATE_CQ names, unless the CQ reports to an APU.
pub(super) fn cq_event_queue(input: &[u8], apu: bool) -> Option<u32> {
    let to_apu = apu && Field(0x10, 24, 24).get(input) == 1;
    (opcode(input) == op::CREATE_CQ && !to_apu).then(|| Field(0x24, 31, 0).get(input))
}

#[cfg(test)]
mod tests {
    use verbless_prm::{COMMANDS, Devx};

    use super::*;

    #[test]
    fn each_command_is_described_as_passed_by_devx_just_as_these_rules_pass_it() {
        for command in COMMANDS {
            let mut input = vec![0; command.input.bytes.max(16)];
            OPCODE.set(&mut input, command.opcode.into());
            if command.opcode == op::CREATE_PSV {
                NUM_PSV.set(&mut input, 1);
            }
            let destroys = CREATIONS.iter().any(|it| it.destroy == command.opcode);
            let passed = match () {
                () if is_create(&input) => Devx::Create,
                () if is_modify(&input) => Devx::Modify,
                () if is_query(&input) => Devx::Query,
                () if is_general(&input, false) => Devx::General,
                () if destroys => Devx::Destroy,
                () => Devx::None,
            };
            assert_eq!(command.devx, passed, "{}", command.name);
            let uid = command.input.field("uid").map(|field| (field.offset, field.width));
            if passed != Devx::None {
                assert_eq!(uid, Some((16, 16)), "{}: the kernel stamps a uid there", command.name);
            }
        }
    }
}
