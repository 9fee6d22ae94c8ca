//! MODIFY_QP: translates the attributes of verbs into one transition command.

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
/// log_ack_req_freq that Linux sets.
const LOG_ACK_FREQUENCY: u8 = 8;
/// A Q_Key with this bit needs CAP_NET_RAW.
const PRIVILEGED_QKEY: u32 = 1 << 31;
/// Bytes of `mlx5_ib_modify_qp`, and of its response.
const DRIVER_BYTES: usize = 16;
const DRIVER_RESPONSE: usize = 16;

/// `ib_uverbs_modify_qp`.
struct ModifyQpAttributes {
    dest: QpDestination,
    alt_dest: QpDestination,
    mask: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qpn: u32,
    access_flags: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    state: u8,
    cur_state: u8,
    path_mtu: u8,
    path_mig_state: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port: u8,
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    alt_port: u8,
    alt_timeout: u8,
}

impl ModifyQpAttributes {
    fn read(from: &UverbsRequest) -> Self {
        Self {
            dest: QpDestination::read(from, 0),
            alt_dest: QpDestination::read(from, QpDestination::BYTES),
            mask: from.u32(68),
            qkey: from.u32(72),
            rq_psn: from.u32(76),
            sq_psn: from.u32(80),
            dest_qpn: from.u32(84),
            access_flags: from.u32(88),
            pkey_index: from.u16(92),
            alt_pkey_index: from.u16(94),
            state: from.u8(96),
            cur_state: from.u8(97),
            path_mtu: from.u8(98),
            path_mig_state: from.u8(99),
            max_rd_atomic: from.u8(101),
            max_dest_rd_atomic: from.u8(102),
            min_rnr_timer: from.u8(103),
            port: from.u8(104),
            timeout: from.u8(105),
            retry_count: from.u8(106),
            rnr_retry: from.u8(107),
            alt_port: from.u8(108),
            alt_timeout: from.u8(109),
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
        let mut requested = ModifyQpAttributes::read(request);
        let privileged = self.attrs.client.capable(Capability::NetRaw);
        let Some(Object::Verbs(Verbs::Qp(qp))) = self.state.object_mut(handle) else {
            return Err(Errno::EINVAL);
        };
        check(&kernel, qp, &mut requested, privileged)?;
        let current = if requested.has(mask::CUR_STATE) { requested.cur_state } else { qp.state };
        let next = if requested.has(mask::STATE) { requested.state } else { current };
        let command = transitions::command(qp.service, current, next, requested.mask);
        let command = command.ok_or_else(|| {
            refused(Errno::EINVAL, transitions::refusal(qp.service, current, next, requested.mask))
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
            let optional = transitions::opt_param_mask(qp.service, current, next, requested.mask);
            input.set_opt_param_mask(optional).set_ece(ece);
            fill(&kernel, qp, &requested, (current, next), input.qpc_mut())?;
            kernel.exec(input.as_bytes(), output.as_bytes_mut())?;
        }
        qp.state = next;
        if requested.has(mask::ACCESS_FLAGS) {
            qp.access = requested.access_flags;
        }
        if requested.has(mask::MAX_DEST_RD_ATOMIC) {
            qp.max_dest_rd_atomic = requested.max_dest_rd_atomic;
        }
        if requested.has(mask::PORT) {
            qp.port = requested.port;
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

/// The kernel's checks before it sends a command. An address vector with another port also changes
/// the QP's port.
fn check(
    kernel: &Kernel,
    qp: &VerbsQp,
    requested: &mut ModifyQpAttributes,
    privileged: bool,
) -> Result<(), Errno> {
    let caps = &kernel.caps;
    let invalid = |words: String| Err(refused(Errno::EINVAL, words));
    let ports = caps.num_ports();
    let port_exists = |port: u8| (1..=ports).contains(&port);
    let invalid_port = |name: &str, port: u8| {
        invalid(format!("{name} {port} is not a port of the device: 1 to {ports}"))
    };
    if requested.has(mask::PORT) && !port_exists(requested.port) {
        return invalid_port("port_num", requested.port);
    }
    if requested.has(mask::AV) {
        let to = requested.dest.port;
        if !port_exists(to) {
            return invalid_port("ah_attr.port_num", to);
        }
        if requested.has(mask::STATE) && requested.state == state::RTR {
            if to != qp.port {
                return invalid(format!("ah_attr.port_num {to} is not the QP's port {}", qp.port));
            }
        } else if !requested.has(mask::PORT) {
            requested.mask |= mask::PORT;
            requested.port = to;
        } else if requested.port != to {
            return invalid(format!("ah_attr.port_num {to} is not port_num {}", requested.port));
        }
    }
    if requested.has(mask::ALT_PATH) {
        let (alt_port, to) = (requested.alt_port, requested.alt_dest.port);
        if !port_exists(alt_port) {
            return invalid_port("alt_port_num", alt_port);
        }
        if to != alt_port {
            return invalid(format!("alt_ah_attr.port_num {to} is not alt_port_num {alt_port}"));
        }
    }
    for (attribute, name, value) in [
        (mask::CUR_STATE, "cur_qp_state", requested.cur_state),
        (mask::STATE, "qp_state", requested.state),
    ] {
        if requested.has(attribute) && value > state::ERR {
            return invalid(format!("{name} {value} is not a QP state"));
        }
    }
    if requested.has(mask::QKEY) && requested.qkey & PRIVILEGED_QKEY != 0 && !privileged {
        let words = format!("Q_Key {:#x} has bit 31: this needs CAP_NET_RAW", requested.qkey);
        return Err(refused(Errno::EPERM, words));
    }
    // The driver checks after uverbs.
    if requested.has(mask::ALT_PATH) {
        let own = if requested.has(mask::PORT) { requested.port } else { qp.port };
        let ethernet = |port: u8| kernel.function.port(port.into()).is_some_and(|it| it.ethernet);
        if ethernet(requested.alt_port) || ethernet(own) {
            return invalid("alt_ah_attr: RoCE has no alternate paths".into());
        }
    }
    if requested.has(mask::RATE_LIMIT) {
        return invalid("rate_limit is for raw packet QPs".into());
    }
    if requested.has(mask::PKEY_INDEX) && requested.pkey_index >= kernel.pkeys() {
        let (index, count) = (requested.pkey_index, kernel.pkeys());
        return invalid(format!("pkey_index {index} is beyond the P_Key table of {count} entries"));
    }
    let log = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(0);
    for (attribute, name, depth, max) in [
        (
            mask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            requested.max_rd_atomic,
            log(caps.log_max_ra_res_qp()),
        ),
        (
            mask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            requested.max_dest_rd_atomic,
            log(caps.log_max_ra_req_qp()),
        ),
    ] {
        if requested.has(attribute) && u32::from(depth) > max {
            return invalid(format!("{name} {depth} is above the device's limit of {max}"));
        }
    }
    Ok(())
}

/// Fills the QP context of a transition.
fn fill(
    kernel: &Kernel,
    qp: &VerbsQp,
    requested: &ModifyQpAttributes,
    (current, next): (u8, u8),
    qpc: &mut QpContext,
) -> Result<(), Errno> {
    qpc.set_st(qp.service).set_pm_state(PathMigrationState::MIGRATED);
    if requested.has(mask::PATH_MIG_STATE) {
        qpc.set_pm_state(match requested.path_mig_state {
            0 => PathMigrationState::MIGRATED,
            1 => PathMigrationState(1),
            _ => PathMigrationState(0),
        });
    }
    if qp.service == ServiceType::UD {
        qpc.set_mtu(PathMtu::MTU_4096).set_log_msg_max(12);
    } else if requested.has(mask::PATH_MTU) {
        if !(PathMtu::MTU_256.0..=PathMtu::MTU_4096.0).contains(&requested.path_mtu) {
            let words = format!("path_mtu {} is invalid: 1 (256) to 5 (4096)", requested.path_mtu);
            return Err(refused(Errno::EINVAL, words));
        }
        qpc.set_mtu(PathMtu(requested.path_mtu)).set_log_msg_max(kernel.caps.log_max_msg());
    }
    if requested.has(mask::DEST_QPN) {
        qpc.set_remote_qpn(requested.dest_qpn & 0xff_ffff);
    }
    if requested.has(mask::PKEY_INDEX) {
        qpc.primary_address_path_mut().set_pkey_index(requested.pkey_index);
    }
    if requested.has(mask::PORT) {
        qpc.primary_address_path_mut().set_vhca_port_num(requested.port);
    }
    if requested.has(mask::AV) {
        let port = if requested.has(mask::PORT) { requested.port } else { qp.port };
        let peers = requested.has(mask::DEST_QPN).then_some((qp.qpn, requested.dest_qpn));
        path::set(kernel, qpc.primary_address_path_mut(), &requested.dest, port, peers)?;
    }
    if requested.has(mask::TIMEOUT) {
        qpc.primary_address_path_mut().set_ack_timeout(requested.timeout & 0x1f);
    }
    if requested.has(mask::ALT_PATH) {
        let alternate = qpc.secondary_address_path_mut();
        alternate.set_pkey_index(requested.alt_pkey_index);
        path::set(kernel, alternate, &requested.alt_dest, requested.alt_port, None)?;
        alternate.set_ack_timeout(requested.alt_timeout & 0x1f);
    }
    let [send, receive] = qp.cqns;
    qpc.set_pd(qp.pdn).set_cqn_snd(send).set_cqn_rcv(receive);
    qpc.set_log_ack_req_freq(LOG_ACK_FREQUENCY);
    if requested.has(mask::RNR_RETRY) {
        qpc.set_rnr_retry(requested.rnr_retry & 7);
    }
    if requested.has(mask::RETRY_CNT) {
        qpc.set_retry_count(requested.retry_count & 7);
    }
    // The context holds log2 of a depth, rounded up.
    let log = |depth: u8| depth.saturating_sub(1).checked_ilog2().map_or(0, |log| log as u8 + 1);
    if requested.has(mask::MAX_QP_RD_ATOMIC) {
        qpc.set_log_sra_max(log(requested.max_rd_atomic));
    }
    if requested.has(mask::MAX_DEST_RD_ATOMIC) {
        qpc.set_log_rra_max(log(requested.max_dest_rd_atomic));
    }
    if requested.has(mask::SQ_PSN) {
        qpc.set_next_send_psn(requested.sq_psn & 0xff_ffff);
    }
    if requested.has(mask::ACCESS_FLAGS | mask::MAX_DEST_RD_ATOMIC) {
        set_access_flags(kernel, qp, requested, qpc)?;
    }
    if requested.has(mask::MIN_RNR_TIMER) {
        qpc.set_min_rnr_nak(requested.min_rnr_timer & 0x1f);
    }
    if requested.has(mask::RQ_PSN) {
        qpc.set_next_rcv_psn(requested.rq_psn & 0xff_ffff);
    }
    if requested.has(mask::QKEY) {
        qpc.set_q_key(requested.qkey);
    }
    if qp.has_receive_queue && (current, next) == (state::RESET, state::INIT) {
        qpc.set_dbr_addr(qp.record);
    }
    Ok(())
}

/// Sets the peer's access flags. A QP with a responder depth of 0 accepts only writes.
fn set_access_flags(
    kernel: &Kernel,
    qp: &VerbsQp,
    requested: &ModifyQpAttributes,
    qpc: &mut QpContext,
) -> Result<(), Errno> {
    let depth = if requested.has(mask::MAX_DEST_RD_ATOMIC) {
        requested.max_dest_rd_atomic
    } else {
        qp.max_dest_rd_atomic
    };
    let mut access_flags =
        if requested.has(mask::ACCESS_FLAGS) { requested.access_flags } else { qp.access };
    if depth == 0 {
        access_flags &= REMOTE_WRITE;
    }
    qpc.set_rre(access_flags & REMOTE_READ != 0).set_rwe(access_flags & REMOTE_WRITE != 0);
    if access_flags & REMOTE_ATOMIC != 0 {
        if !kernel.caps.atomic() {
            let words = "IBV_ACCESS_REMOTE_ATOMIC: the device has no atomics (hca_cap.atomic)";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        qpc.set_rae(true).set_atomic_mode(AtomicMode::IB_SPEC);
    }
    Ok(())
}
