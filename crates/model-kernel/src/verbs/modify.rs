//! MODIFY_QP: the attributes of verbs become one transition command.

use nix::errno::Errno;
use verbless_prm::{
    AtomicMode, Opcode, PathMigrationState, PathMtu, QpContext, Rst2initQpIn, Rst2initQpOut,
    ServiceType,
};

use super::super::abi::{attr, object};
use super::super::client::Capability;
use super::super::file::Method;
use super::super::handles::Object;
use super::super::kernel::Kernel;
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::objects::{Verbs, VerbsQp, state};
use super::path::{self, QpDestination};
use super::transitions::{self, mask};

/// `ib_access_flags` of a queue pair.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
/// log2 of the requests between two that ask for an acknowledgement.
const LOG_ACK_FREQUENCY: u8 = 8;
/// A Q_Key with this bit needs CAP_NET_RAW.
const PRIVILEGED_QKEY: u32 = 1 << 31;
/// Bytes of `mlx5_ib_modify_qp`, and of its response.
const DRIVER_BYTES: usize = 16;
const DRIVER_RESPONSE: usize = 16;

/// `ib_uverbs_modify_qp`.
struct ModifyQpAttributes {
    to: QpDestination,
    other: QpDestination,
    mask: u32,
    qkey: u32,
    receive_psn: u32,
    send_psn: u32,
    remote: u32,
    access: u32,
    pkey_index: u16,
    other_pkey_index: u16,
    state: u8,
    current: u8,
    mtu: u8,
    migration: u8,
    requester_depth: u8,
    responder_depth: u8,
    rnr_timer: u8,
    port: u8,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    other_port: u8,
    other_timeout: u8,
}

impl ModifyQpAttributes {
    fn read(from: &UverbsRequest) -> Self {
        Self {
            to: QpDestination::read(from, 0),
            other: QpDestination::read(from, QpDestination::BYTES),
            mask: from.u32(68),
            qkey: from.u32(72),
            receive_psn: from.u32(76),
            send_psn: from.u32(80),
            remote: from.u32(84),
            access: from.u32(88),
            pkey_index: from.u16(92),
            other_pkey_index: from.u16(94),
            state: from.u8(96),
            current: from.u8(97),
            mtu: from.u8(98),
            migration: from.u8(99),
            requester_depth: from.u8(101),
            responder_depth: from.u8(102),
            rnr_timer: from.u8(103),
            port: from.u8(104),
            timeout: from.u8(105),
            retries: from.u8(106),
            rnr_retries: from.u8(107),
            other_port: from.u8(108),
            other_timeout: from.u8(109),
        }
    }

    fn has(&self, attribute: u32) -> bool {
        self.mask & attribute != 0
    }
}

impl Method<'_> {
    pub(crate) fn modify_qp(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        self.change_qp(request)
    }

    pub(crate) fn modify_qp_ex(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let unknown = request.u32(68) & !(mask::STANDARD | mask::RATE_LIMIT);
        if unknown != 0 {
            let words = format!("attr_mask has bits {unknown:#x}, which Linux does not know");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        self.change_qp(request)?;
        let room = self.attrs.len(attr::CORE_OUT).unwrap_or(0).min(8) as u32;
        let mut reply = UverbsResponse::default();
        reply.u32(0).u32(room);
        self.put_extended(reply.as_bytes())
    }

    fn change_qp(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let kernel = self.file.kernel.clone();
        let handle = self.state.lookup(request.u32(64).into(), object::QP)?;
        let driver = self.driver_request(0, DRIVER_BYTES)?;
        if driver.u32(0) != 0 || driver.u16(10) != 0 {
            let words = "the driver's data has a comp_mask or reserved bits";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let mut asked = ModifyQpAttributes::read(request);
        let privileged = self.attrs.client.capable(Capability::NetRaw);
        let Some(Object::Verbs(Verbs::Qp(qp))) = self.state.object_mut(handle) else {
            return Err(Errno::EINVAL);
        };
        check(&kernel, qp, &mut asked, privileged)?;
        let current = if asked.has(mask::CUR_STATE) { asked.current } else { qp.state };
        let next = if asked.has(mask::STATE) { asked.state } else { current };
        let command = transitions::command(qp.service, current, next, asked.mask);
        let command = command.ok_or_else(|| {
            refused(Errno::EINVAL, transitions::why_not(qp.service, current, next, asked.mask))
        })?;
        if (current, next) == (state::RESET, state::RESET) {
            return Ok(());
        }
        let mut input = Rst2initQpIn::new();
        input.set_opcode(command.0).set_uid(qp.uid).set_qpn(qp.qpn);
        let ece = if kernel.caps.ece_support() { driver.u32(12) } else { 0 };
        let mut output = Rst2initQpOut::default();
        if [Opcode::QP_2RST, Opcode::QP_2ERR].contains(&command) {
            kernel.exec(&input.as_bytes()[..16], &mut output.as_bytes_mut()[..16])?;
        } else {
            let options = transitions::options(qp.service, current, next, asked.mask);
            input.set_opt_param_mask(options).set_ece(ece);
            fill(&kernel, qp, &asked, (current, next), input.qpc_mut())?;
            kernel.exec(input.as_bytes(), output.as_bytes_mut())?;
        }
        qp.state = next;
        if asked.has(mask::ACCESS_FLAGS) {
            qp.access = asked.access;
        }
        if asked.has(mask::MAX_DEST_RD_ATOMIC) {
            qp.responder_depth = asked.responder_depth;
        }
        if asked.has(mask::PORT) {
            qp.port = asked.port;
        }
        if self.attrs.len(attr::UHW_OUT).unwrap_or(0) >= DRIVER_RESPONSE {
            let mut reply = UverbsResponse::default();
            let agreed = if kernel.caps.ece_support() { output.ece() } else { 0 };
            reply.u32(DRIVER_RESPONSE as u32).u32(0).u32(agreed).u32(0);
            self.attrs.put(attr::UHW_OUT, reply.as_bytes())?;
        }
        Ok(())
    }
}

/// The kernel's checks before any command. An address that changes the path's port also changes the
/// QP's port.
fn check(
    kernel: &Kernel,
    qp: &VerbsQp,
    asked: &mut ModifyQpAttributes,
    privileged: bool,
) -> Result<(), Errno> {
    let caps = &kernel.caps;
    let invalid = |words: String| Err(refused(Errno::EINVAL, words));
    let ports = caps.num_ports();
    let port = |port: u8| (1..=ports).contains(&port);
    let no_port = |name: &str, port: u8| {
        invalid(format!("{name} {port} is no port of the device, which has 1 to {ports}"))
    };
    if asked.has(mask::PORT) && !port(asked.port) {
        return no_port("port_num", asked.port);
    }
    if asked.has(mask::AV) {
        let to = asked.to.port;
        if !port(to) {
            return no_port("ah_attr.port_num", to);
        }
        if asked.has(mask::STATE) && asked.state == state::RTR {
            if to != qp.port {
                return invalid(format!("ah_attr.port_num {to} is not the QP's port {}", qp.port));
            }
        } else if !asked.has(mask::PORT) {
            asked.mask |= mask::PORT;
            asked.port = to;
        } else if asked.port != to {
            return invalid(format!("ah_attr.port_num {to} is not port_num {}", asked.port));
        }
    }
    if asked.has(mask::ALT_PATH) {
        let (other, to) = (asked.other_port, asked.other.port);
        if !port(other) {
            return no_port("alt_port_num", other);
        }
        if to != other {
            return invalid(format!("alt_ah_attr.port_num {to} is not alt_port_num {other}"));
        }
    }
    for (attribute, name, value) in
        [(mask::CUR_STATE, "cur_qp_state", asked.current), (mask::STATE, "qp_state", asked.state)]
    {
        if asked.has(attribute) && value > state::ERR {
            return invalid(format!("{name} {value} is no state"));
        }
    }
    if asked.has(mask::QKEY) && asked.qkey & PRIVILEGED_QKEY != 0 && !privileged {
        let words = format!("Q_Key {:#x} has bit 31, which takes CAP_NET_RAW", asked.qkey);
        return Err(refused(Errno::EPERM, words));
    }
    // The driver's check, which comes after those of uverbs.
    if asked.has(mask::ALT_PATH) {
        let own = if asked.has(mask::PORT) { asked.port } else { qp.port };
        let ethernet = |port: u8| kernel.function.port(port.into()).is_some_and(|it| it.ethernet);
        if ethernet(asked.other_port) || ethernet(own) {
            return invalid("alt_ah_attr: RoCE has no alternate paths".into());
        }
    }
    if asked.has(mask::RATE_LIMIT) {
        return invalid("rate_limit is for raw packet QPs".into());
    }
    if asked.has(mask::PKEY_INDEX) && asked.pkey_index >= kernel.pkeys() {
        let (index, count) = (asked.pkey_index, kernel.pkeys());
        return invalid(format!("pkey_index {index} is beyond the table of {count} P_Keys"));
    }
    let log = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(0);
    for (attribute, name, depth, most) in [
        (
            mask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            asked.requester_depth,
            log(caps.log_max_ra_res_qp()),
        ),
        (
            mask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            asked.responder_depth,
            log(caps.log_max_ra_req_qp()),
        ),
    ] {
        if asked.has(attribute) && u32::from(depth) > most {
            return invalid(format!("{name} {depth} is above the device's {most}"));
        }
    }
    Ok(())
}

/// The context of a transition.
fn fill(
    kernel: &Kernel,
    qp: &VerbsQp,
    asked: &ModifyQpAttributes,
    (current, next): (u8, u8),
    qpc: &mut QpContext,
) -> Result<(), Errno> {
    qpc.set_st(qp.service).set_pm_state(PathMigrationState::MIGRATED);
    if asked.has(mask::PATH_MIG_STATE) {
        qpc.set_pm_state(match asked.migration {
            0 => PathMigrationState::MIGRATED,
            1 => PathMigrationState(1),
            _ => PathMigrationState(0),
        });
    }
    if qp.service == ServiceType::UD {
        qpc.set_mtu(PathMtu::MTU_4096).set_log_msg_max(12);
    } else if asked.has(mask::PATH_MTU) {
        if !(PathMtu::MTU_256.0..=PathMtu::MTU_4096.0).contains(&asked.mtu) {
            let words = format!("path_mtu {} is none: 1 (256) to 5 (4096)", asked.mtu);
            return Err(refused(Errno::EINVAL, words));
        }
        qpc.set_mtu(PathMtu(asked.mtu)).set_log_msg_max(kernel.caps.log_max_msg());
    }
    if asked.has(mask::DEST_QPN) {
        qpc.set_remote_qpn(asked.remote & 0xff_ffff);
    }
    if asked.has(mask::PKEY_INDEX) {
        qpc.primary_address_path_mut().set_pkey_index(asked.pkey_index);
    }
    if asked.has(mask::PORT) {
        qpc.primary_address_path_mut().set_vhca_port_num(asked.port);
    }
    if asked.has(mask::AV) {
        let port = if asked.has(mask::PORT) { asked.port } else { qp.port };
        let peers = asked.has(mask::DEST_QPN).then_some((qp.qpn, asked.remote));
        path::set(kernel, qpc.primary_address_path_mut(), &asked.to, port, peers)?;
    }
    if asked.has(mask::TIMEOUT) {
        qpc.primary_address_path_mut().set_ack_timeout(asked.timeout & 0x1f);
    }
    if asked.has(mask::ALT_PATH) {
        let other = qpc.secondary_address_path_mut();
        other.set_pkey_index(asked.other_pkey_index);
        path::set(kernel, other, &asked.other, asked.other_port, None)?;
        other.set_ack_timeout(asked.other_timeout & 0x1f);
    }
    let [send, receive] = qp.cqns;
    qpc.set_pd(qp.pdn).set_cqn_snd(send).set_cqn_rcv(receive);
    qpc.set_log_ack_req_freq(LOG_ACK_FREQUENCY);
    if asked.has(mask::RNR_RETRY) {
        qpc.set_rnr_retry(asked.rnr_retries & 7);
    }
    if asked.has(mask::RETRY_CNT) {
        qpc.set_retry_count(asked.retries & 7);
    }
    // The context holds log2 of a depth, rounded up.
    let log = |depth: u8| depth.saturating_sub(1).checked_ilog2().map_or(0, |log| log as u8 + 1);
    if asked.has(mask::MAX_QP_RD_ATOMIC) {
        qpc.set_log_sra_max(log(asked.requester_depth));
    }
    if asked.has(mask::MAX_DEST_RD_ATOMIC) {
        qpc.set_log_rra_max(log(asked.responder_depth));
    }
    if asked.has(mask::SQ_PSN) {
        qpc.set_next_send_psn(asked.send_psn & 0xff_ffff);
    }
    if asked.has(mask::ACCESS_FLAGS | mask::MAX_DEST_RD_ATOMIC) {
        set_rights(kernel, qp, asked, qpc)?;
    }
    if asked.has(mask::MIN_RNR_TIMER) {
        qpc.set_min_rnr_nak(asked.rnr_timer & 0x1f);
    }
    if asked.has(mask::RQ_PSN) {
        qpc.set_next_rcv_psn(asked.receive_psn & 0xff_ffff);
    }
    if asked.has(mask::QKEY) {
        qpc.set_q_key(asked.qkey);
    }
    if qp.has_receive_queue && (current, next) == (state::RESET, state::INIT) {
        qpc.set_dbr_addr(qp.record);
    }
    Ok(())
}

/// Sets the peer's rights; a queue pair that answers no requests accepts writes only.
fn set_rights(
    kernel: &Kernel,
    qp: &VerbsQp,
    asked: &ModifyQpAttributes,
    qpc: &mut QpContext,
) -> Result<(), Errno> {
    let depth = if asked.has(mask::MAX_DEST_RD_ATOMIC) {
        asked.responder_depth
    } else {
        qp.responder_depth
    };
    let mut rights = if asked.has(mask::ACCESS_FLAGS) { asked.access } else { qp.access };
    if depth == 0 {
        rights &= REMOTE_WRITE;
    }
    qpc.set_rre(rights & REMOTE_READ != 0).set_rwe(rights & REMOTE_WRITE != 0);
    if rights & REMOTE_ATOMIC != 0 {
        if !kernel.caps.atomic() {
            let words = "IBV_ACCESS_REMOTE_ATOMIC: the device has no atomics (hca_cap.atomic)";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        qpc.set_rae(true).set_atomic_mode(AtomicMode::IB_SPEC);
    }
    Ok(())
}
