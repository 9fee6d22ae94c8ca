//! Valid commands that create, modify and destroy objects.

use arbitrary::{Arbitrary, Unstructured};
use verbless_prm::{
    AllocPdIn, AllocQCounterIn, AllocTransportDomainIn, AllocUarIn, AllocXrcdIn, AtomicMode,
    CommandInput, CqeSize, CreateCqIn, CreateEqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn,
    CreateUctxIn, CreateUmemIn, CreateXrcSrqIn, DeallocPdIn, DeallocQCounterIn,
    DeallocTransportDomainIn, DeallocUarIn, DeallocXrcdIn, DestroyCqIn, DestroyEqIn, DestroyMkeyIn,
    DestroyQpIn, DestroyRmpIn, DestroyUctxIn, DestroyUmemIn, DestroyXrcSrqIn, Init2initQpIn,
    Init2rtrQpIn, MkeyAccessMode, PathMigrationState, PathMtu, Qp2errIn, Qp2rstIn, QpContext,
    RmpState, RqType, Rst2initQpIn, Rtr2rtsQpIn, Rts2rtsQpIn, ServiceType, SqdRtsQpIn,
    Sqerr2rtsQpIn, WqType,
};

use crate::address::{Address, DATA, DATA_BYTES, QUEUES};
use crate::machine::{ObjectKind, ObjectNumbers};

/// The low byte of every key.
pub const VARIANT: u8 = 0x5a;
/// The Q_Key of every datagram QP.
pub const Q_KEY: u32 = 0x1234;
/// log2 of the send WQEBBs, of the receive WQEs, and of their stride.
pub const LOG_SQ: u8 = 4;
pub const LOG_RQ: u8 = 3;
pub const LOG_STRIDE: u8 = 6;
/// Bytes of a receive ring, in front of the send ring.
pub const RQ_BYTES: u64 = 1 << (LOG_RQ + LOG_STRIDE);

/// Translation entries of keys that UMR fills, in 16 bytes.
const TABLE: u32 = 64;
const PAGE: u64 = 4096;

/// An object to create.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Object {
    Pd,
    Td,
    Uar,
    Xrcd,
    Counter,
    Uid,
    Umem {
        pages: u8,
        log_page_size: u8,
    },
    Mkey {
        key: Key,
        pd: u8,
    },
    Cq {
        big: bool,
        log_size: u8,
        umem: bool,
        eq: u8,
        uar: u8,
    },
    /// `events`: it takes all events except completions.
    Eq {
        events: bool,
        log_size: u8,
        uar: u8,
    },
    Qp {
        #[arbitrary(with = service)]
        service: ServiceType,
        receives: Receives,
        umem: bool,
        pd: u8,
        cqs: [u8; 2],
        uar: u8,
    },
    XrcSrq {
        pd: u8,
        cq: u8,
        xrcd: u8,
    },
    Rmp {
        pd: u8,
        umem: bool,
    },
}

/// The translation of a key.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Key {
    /// Pages of the data; `same`: the same page throughout.
    Pages {
        umr: bool,
        same: bool,
    },
    Umem {
        id: u8,
    },
    /// Ranges of other keys (KLMs).
    Klms {
        keys: [u8; 3],
        length: u32,
        count: u8,
    },
    Ksms {
        keys: [u8; 3],
        log_size: u8,
        count: u8,
    },
    Physical,
    /// UMR fills it later.
    Free {
        mode: u8,
    },
}

/// A service of a queue pair: each existing one is equally likely.
fn service(input: &mut Unstructured<'_>) -> arbitrary::Result<ServiceType> {
    let known = [
        ServiceType::RC,
        ServiceType::UC,
        ServiceType::UD,
        ServiceType::XRC,
        ServiceType::QP0,
        ServiceType::QP1,
        ServiceType::REG_UMR,
    ];
    // As the derive macro reads an enumeration, so that earlier findings keep their meaning.
    let at = u64::from(u32::arbitrary(input)?) * known.len() as u64 >> 32;
    Ok(known[at as usize])
}

#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Receives {
    Own,
    Shared(u8),
    None,
}

/// A command, and the data that the guest keeps of it.
pub struct Built {
    pub input: Vec<u8>,
    pub sort: ObjectKind,
    /// The bits of the output's third word that are the number.
    pub mask: u32,
    pub ring: u64,
    pub record: u64,
    pub uar: u32,
    /// Memory content that must be written before the command.
    pub memory: Option<(u64, Vec<u8>)>,
}

impl Built {
    fn new<I: CommandInput>(sort: ObjectKind, mut input: I, list: &[u64]) -> Self {
        let opcode = <I as CommandInput>::INFO.opcode;
        input.as_mut_bytes()[..2].copy_from_slice(&opcode.to_be_bytes());
        let list = list.iter().flat_map(|entry| entry.to_be_bytes());
        let mask = match sort {
            ObjectKind::Counter | ObjectKind::Eq => 0xff,
            ObjectKind::Uid => 0xffff,
            _ => 0xff_ffff,
        };
        let input = input.as_bytes().iter().copied().chain(list).collect();
        Self { input, sort, mask, ring: 0, record: 0, uar: 0, memory: None }
    }
}

/// The command that creates an object.
pub fn build(object: &Object, known: &mut ObjectNumbers) -> Built {
    match *object {
        Object::Pd => Built::new(ObjectKind::Pd, AllocPdIn::new(), &[]),
        Object::Td => Built::new(ObjectKind::Td, AllocTransportDomainIn::new(), &[]),
        Object::Uar => Built::new(ObjectKind::Uar, AllocUarIn::new(), &[]),
        Object::Xrcd => Built::new(ObjectKind::Xrcd, AllocXrcdIn::new(), &[]),
        Object::Counter => Built::new(ObjectKind::Counter, AllocQCounterIn::new(), &[]),
        Object::Uid => Built::new(ObjectKind::Uid, CreateUctxIn::new(), &[]),
        Object::Umem { pages, log_page_size } => umem(pages, log_page_size),
        Object::Mkey { key, pd } => mkey(key, pd, known),
        Object::Cq { big, log_size, umem, eq, uar } => {
            let ring = known.allocate(2);
            let record = ring + 0x1f80;
            let mut input = CreateCqIn::new();
            let context = input.cq_context_mut();
            context.set_cqe_sz(if big { CqeSize::BYTES_128 } else { CqeSize::BYTES_64 });
            context.set_log_cq_size(1 + log_size % 5);
            context.set_c_eqn_or_apu_element(known.pick(ObjectKind::Eq, eq));
            context.set_uar_page(known.pick(ObjectKind::Uar, uar)).set_dbr_addr(record);
            let mut list = vec![ring, ring + PAGE];
            if umem {
                let id = known.pick(ObjectKind::Umem, 0);
                context.set_dbr_umem_valid(true).set_dbr_umem_id(id).set_dbr_addr(record - QUEUES);
                input.set_cq_umem_valid(true).set_cq_umem_id(id).set_cq_umem_offset(ring - QUEUES);
                list.clear();
            }
            let memory = Some((ring, vec![0xf1; 0x1000]));
            Built { ring, record, memory, ..Built::new(ObjectKind::Cq, input, &list) }
        }
        Object::Eq { events, log_size, uar } => {
            let ring = known.allocate(1);
            let mut input = CreateEqIn::new();
            let context = input.eq_context_entry_mut();
            context.set_log_eq_size(log_size % 7).set_uar_page(known.pick(ObjectKind::Uar, uar));
            context.set_intr(u16::from(events));
            if events {
                // The events that the model posts, except completions, whose EQ the CQ names.
                for kind in [0x01, 0x02, 0x04, 0x05, 0x07, 0x09, 0x0a, 0x10, 0x11, 0x13, 0x14] {
                    input.set_event_bitmask(0, input.event_bitmask(0) | 1 << kind);
                }
            }
            Built { ring, ..Built::new(ObjectKind::Eq, input, &[ring]) }
        }
        Object::Qp { service, receives, umem, pd, cqs, uar } => {
            queue(service, receives, umem, [pd, cqs[0], cqs[1], uar], known)
        }
        Object::XrcSrq { pd, cq, xrcd } => {
            let ring = known.allocate(1);
            let record = ring + 0xf80;
            let mut input = CreateXrcSrqIn::new();
            let context = input.xrc_srq_context_entry_mut();
            context.set_log_xrc_srq_size(4).set_log_rq_stride(2);
            context.set_pd(known.pick(ObjectKind::Pd, pd)).set_cqn(known.pick(ObjectKind::Cq, cq));
            context.set_xrcd(known.pick(ObjectKind::Xrcd, xrcd)).set_lwm(2);
            context.set_db_record_addr_h((record >> 32) as u32);
            context.set_db_record_addr_l(record as u32 >> 2);
            let memory = Some((ring, links()));
            Built { ring, record, memory, ..Built::new(ObjectKind::Shared, input, &[ring]) }
        }
        Object::Rmp { pd, umem } => {
            let ring = known.allocate(1);
            let record = ring + 0xf80;
            let mut input = CreateRmpIn::new();
            let context = input.ctx_mut();
            context.set_state(RmpState::RDY);
            let wq = context.wq_mut();
            wq.set_wq_type(WqType::LINKED_LIST).set_pd(known.pick(ObjectKind::Pd, pd)).set_lwm(2);
            wq.set_log_wq_sz(4).set_log_wq_stride(6).set_dbr_addr(record);
            let mut list = vec![ring];
            if umem {
                let id = known.pick(ObjectKind::Umem, 0);
                wq.set_dbr_umem_valid(true).set_dbr_umem_id(id).set_dbr_addr(record - QUEUES);
                wq.set_wq_umem_valid(true).set_wq_umem_id(id).set_wq_umem_offset(ring - QUEUES);
                list.clear();
            }
            let memory = Some((ring, links()));
            Built { ring, record, memory, ..Built::new(ObjectKind::Shared, input, &list) }
        }
    }
}

/// The ring of an SRQ whose WQEs link to each other in order.
fn links() -> Vec<u8> {
    let mut ring = vec![0; 1 << 10];
    for (index, wqe) in ring.chunks_exact_mut(64).enumerate() {
        wqe[3] = (index as u8 + 1) % 16;
    }
    ring
}

/// The first one covers everything after the mailboxes.
fn umem(pages: u8, log_page_size: u8) -> Built {
    let mut input = CreateUmemIn::new();
    let all = (DATA + DATA_BYTES - QUEUES) / PAGE;
    let count = if pages == 0 { all } else { pages.into() };
    let list: Vec<u64> = (0..count).map(|page| QUEUES + page % all * PAGE | 3).collect();
    input.umem_mut().set_num_of_mtt(count).set_log_page_size(log_page_size % 32);
    Built::new(ObjectKind::Umem, input, &list)
}

fn mkey(key: Key, pd: u8, known: &ObjectNumbers) -> Built {
    const ALL: u32 = (DATA_BYTES / PAGE) as u32;
    let mut input = CreateMkeyIn::new();
    let pd = known.pick(ObjectKind::Pd, pd);
    let mut list = Vec::new();
    let mut octwords = ALL / 2;
    {
        let context = input.memory_key_mkey_entry_mut();
        context.set_pd(pd).set_qpn(0xff_ffff).set_mkey_7_0(VARIANT).set_en_rinval(true);
        context.set_lr(true).set_lw(true).set_rr(true).set_rw(true).set_a(true);
        context.set_start_addr(DATA).set_len(DATA_BYTES).set_log_page_size(12);
    }
    let mut umem = None;
    let context = input.memory_key_mkey_entry_mut();
    let mode = match key {
        Key::Pages { umr, same } => {
            context.set_umr_en(umr);
            let step = if same { 0 } else { PAGE };
            list.extend((0..u64::from(ALL)).map(|page| DATA + page * step));
            MkeyAccessMode::MTT
        }
        Key::Umem { id } => {
            umem = Some(known.pick(ObjectKind::Umem, id));
            MkeyAccessMode::MTT
        }
        Key::Klms { keys, length, count } => {
            octwords = u32::from(count % 16) + 1;
            let length = if length & 1 == 0 { length } else { length % (1 << 14) };
            for index in 0..octwords as usize {
                let key = known.pick(ObjectKind::Key, keys[index % 3]);
                list.extend([u64::from(length) << 32 | u64::from(key), DATA]);
            }
            context.set_len(u64::from(length) * u64::from(octwords));
            MkeyAccessMode::KLMS
        }
        Key::Ksms { keys, log_size, count } => {
            octwords = u32::from(count % 16) + 1;
            let log_size = log_size % 64;
            for index in 0..octwords as usize {
                list.extend([u64::from(known.pick(ObjectKind::Key, keys[index % 3])), DATA]);
            }
            context.set_log_page_size(log_size);
            context.set_len((1_u64 << log_size).saturating_mul(u64::from(octwords)) & !(1 << 63));
            MkeyAccessMode::KSM
        }
        Key::Physical => {
            context.set_length64(true).set_start_addr(0).set_len(0);
            MkeyAccessMode::PA
        }
        Key::Free { mode } => {
            context.set_free(true).set_umr_en(true);
            octwords = 0;
            [MkeyAccessMode::MTT, MkeyAccessMode::KLMS, MkeyAccessMode::KSM][usize::from(mode) % 3]
        }
    };
    context.set_access_mode_1_0(mode.0 & 3).set_access_mode_4_2(mode.0 >> 2);
    context.set_translations_octword_size(if octwords == 0 { TABLE } else { octwords });
    input.set_translations_octword_actual_size(octwords);
    if let Some(id) = umem {
        input.set_mkey_umem_valid(true).set_mkey_umem_id(id).set_mkey_umem_offset(DATA - QUEUES);
    }
    Built::new(ObjectKind::Mkey, input, &list)
}

fn queue(
    service: ServiceType,
    receives: Receives,
    umem: bool,
    [pd, send_cq, receive_cq, uar]: [u8; 4],
    known: &mut ObjectNumbers,
) -> Built {
    let ring = known.allocate(1);
    let record = ring + 0xf80;
    let page = known.pick(ObjectKind::Uar, uar);
    let mut input = CreateQpIn::new();
    let context = input.qpc_mut();
    context.set_st(service);
    context.set_pm_state(PathMigrationState::MIGRATED).set_pd(known.pick(ObjectKind::Pd, pd));
    context.set_log_sq_size(LOG_SQ).set_uar_page(page).set_user_index(0xff_ffff);
    context.set_cqn_snd(known.pick(ObjectKind::Cq, send_cq));
    context.set_cqn_rcv(known.pick(ObjectKind::Cq, receive_cq));
    context.set_log_rq_size(LOG_RQ).set_log_rq_stride(LOG_STRIDE - 4);
    context.set_rq_type(match receives {
        Receives::Own => RqType::REGULAR,
        Receives::Shared(_) => RqType::SRQ,
        Receives::None => RqType::NONE,
    });
    if let Receives::Shared(index) = receives {
        context.set_srqn_rmpn_xrqn(known.pick(ObjectKind::Shared, index));
    }
    context.set_dbr_addr(record);
    let mut list = vec![ring];
    if umem {
        let id = known.pick(ObjectKind::Umem, 0);
        context.set_dbr_umem_valid(true).set_dbr_umem_id(id).set_dbr_addr(record - QUEUES);
        input.set_wq_umem_valid(true).set_wq_umem_id(id).set_wq_umem_offset(ring - QUEUES);
        list.clear();
    }
    let own = matches!(receives, Receives::Own);
    // The send ring has the offset that it has after receives.
    let ring = if own { ring } else { ring.wrapping_sub(RQ_BYTES) };
    let memory = Some((record, vec![0; 8]));
    Built { ring, record, uar: page, memory, ..Built::new(ObjectKind::Qp, input, &list) }
}

/// A transition of a QP.
#[derive(Arbitrary, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Init,
    InitAgain,
    Receive,
    Send,
    SendAgain,
    Recover,
    Undrain,
    Error,
    Reset,
}

/// The command for a transition; the peer is a LID and a QP.
pub fn step(step: Step, qpn: u32, (lid, peer): (u16, u32)) -> Vec<u8> {
    macro_rules! command {
        ($input:ident) => {{
            let mut input = $input::new();
            input.set_qpn(qpn);
            fill(input.qpc_mut(), lid, peer);
            input.as_bytes().to_vec()
        }};
    }
    match step {
        Step::Init => command!(Rst2initQpIn),
        Step::InitAgain => command!(Init2initQpIn),
        Step::Receive => command!(Init2rtrQpIn),
        Step::Send => command!(Rtr2rtsQpIn),
        Step::SendAgain => command!(Rts2rtsQpIn),
        Step::Recover => command!(Sqerr2rtsQpIn),
        Step::Undrain => command!(SqdRtsQpIn),
        Step::Error => Qp2errIn::new().set_qpn(qpn).as_bytes().to_vec(),
        Step::Reset => Qp2rstIn::new().set_qpn(qpn).as_bytes().to_vec(),
    }
}

fn fill(context: &mut QpContext, lid: u16, peer: u32) {
    context.set_pm_state(PathMigrationState::MIGRATED).set_q_key(Q_KEY);
    context.set_rre(true).set_rwe(true).set_rae(true).set_atomic_mode(AtomicMode::IB_SPEC);
    context.set_mtu(PathMtu::MTU_1024).set_log_msg_max(30).set_remote_qpn(peer);
    context.set_retry_count(3).set_rnr_retry(3).set_log_rra_max(2).set_log_sra_max(2);
    let path = context.primary_address_path_mut();
    path.set_vhca_port_num(1).set_rlid(lid).set_ack_timeout(10);
}

/// The command that destroys an object.
pub fn destroy(sort: ObjectKind, number: u32, rmp: bool) -> Vec<u8> {
    macro_rules! command {
        ($input:ident, $set:ident) => {
            $input::new().$set(number as _).as_bytes().to_vec()
        };
    }
    match sort {
        ObjectKind::Pd => command!(DeallocPdIn, set_pd),
        ObjectKind::Td => command!(DeallocTransportDomainIn, set_transport_domain),
        ObjectKind::Uar => command!(DeallocUarIn, set_uar),
        ObjectKind::Xrcd => command!(DeallocXrcdIn, set_xrcd),
        ObjectKind::Counter => command!(DeallocQCounterIn, set_counter_set_id),
        ObjectKind::Uid => command!(DestroyUctxIn, set_uid),
        ObjectKind::Umem => command!(DestroyUmemIn, set_umem_id),
        ObjectKind::Mkey | ObjectKind::Key => command!(DestroyMkeyIn, set_mkey_index),
        ObjectKind::Cq => command!(DestroyCqIn, set_cqn),
        ObjectKind::Eq => command!(DestroyEqIn, set_eq_number),
        ObjectKind::Qp => command!(DestroyQpIn, set_qpn),
        ObjectKind::Shared if rmp => command!(DestroyRmpIn, set_rmpn),
        ObjectKind::Shared => command!(DestroyXrcSrqIn, set_xrc_srqn),
    }
}

/// A memory range as a work request names it.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub struct RemoteRange {
    pub key: u8,
    pub at: Address,
    pub length: u32,
}
