//! Queue pairs: creation, query, destruction. `modify` holds their transitions.

use nix::errno::Errno;
use verbless_prm::{
    CreateQpIn, CreateQpOut, EndPaddingMode, Opcode, PathMigrationState, QueryQpIn, RqType,
    ScatterToCqeRequester, ScatterToCqeResponder, ServiceType, TimestampFormat, TimestampFormatCap,
};

use super::super::abi::{attr, object};
use super::super::client::Capability;
use super::super::cmd::command;
use super::super::file::Method;
use super::super::handles::Object;
use super::super::mailbox::{NUMBER, inbox};
use super::super::refused::{NO_REGISTERS, refused};
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::listener::ListenerKind;
use super::memory::{check_doorbell_record, pin_buffer};
use super::objects::{Cq, QpCapacity, Verbs, VerbsQp, state};

/// `ib_uverbs_qp_type`.
const RC: u8 = 2;
const UC: u8 = 3;
const UD: u8 = 4;
const RAW_PACKET: u8 = 8;
/// `ib_uverbs_qp_create_flags`.
mod create {
    pub(super) const BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
    pub(super) const PCI_WRITE_END_PADDING: u32 = 1 << 11;
    pub(super) const SQ_SIG_ALL: u32 = 1 << 12;
    /// Includes SCATTER_FCS and CVLAN_STRIPPING, which are for raw packet QPs.
    pub(super) const KNOWN: u32 = 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12;
}
/// Flags of `mlx5_ib_create_qp`.
mod driver {
    pub(super) const SIGNATURE: u32 = 1;
    pub(super) const SCATTER_CQE: u32 = 1 << 1;
    pub(super) const BFREG_INDEX: u32 = 1 << 3;
    pub(super) const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub(super) const PACKET_BASED_CREDIT: u32 = 1 << 9;
    pub(super) const UAR_PAGE_INDEX: u32 = 1 << 10;
    /// Bytes of the request, and up to the end of its register index.
    pub(super) const BYTES: usize = 56;
    pub(super) const MIN_BYTES: usize = 40;
}
/// The response's register index when the client named a UAR page.
const NO_REGISTER: u32 = 1 << 31;

/// The transport service of a QP type of verbs.
fn service(kind: u8, raw: bool) -> Result<ServiceType, Errno> {
    match kind {
        RC => Ok(ServiceType::RC),
        UC => Ok(ServiceType::UC),
        UD => Ok(ServiceType::UD),
        RAW_PACKET if !raw => Err(refused(Errno::EPERM, "raw packet QPs need CAP_NET_RAW")),
        RAW_PACKET => Err(refused(Errno::EOPNOTSUPP, "raw packet QPs are not modelled")),
        9 | 10 => Err(refused(Errno::EOPNOTSUPP, "XRC QPs are not modelled")),
        0xff => Err(refused(Errno::EOPNOTSUPP, "a driver's own QP types (DC) are not modelled")),
        other => Err(refused(Errno::EINVAL, format!("qp_type {other} is unknown"))),
    }
}

impl QpCapacity {
    fn read(from: &UverbsRequest, at: usize) -> Self {
        Self {
            send_requests: from.u32(at),
            receive_requests: from.u32(at + 4),
            send_sges: from.u32(at + 8),
            receive_sges: from.u32(at + 12),
            inline_bytes: from.u32(at + 16),
        }
    }

    fn write(self, reply: &mut UverbsResponse) {
        reply.u32(self.send_requests).u32(self.receive_requests);
        reply.u32(self.send_sges).u32(self.receive_sges).u32(self.inline_bytes);
    }
}

/// The client's request, by either interface.
struct QpRequest {
    user_handle: u64,
    pd: u32,
    send_cq: u32,
    receive_cq: u32,
    srq: Option<u32>,
    kind: u8,
    flags: u32,
    capacity: QpCapacity,
    event_fd: Option<u16>,
}

/// The queue sizes, from the driver's part of the request.
struct QueueSizes {
    receive_bytes: u64,
    log_receive: u8,
    log_stride: u8,
    send_requests: u32,
}

impl QueueSizes {
    /// The capacities that QUERY_QP returns: those of the receive queue from the library's layout,
    /// not from the request, and zeros for the send queue.
    fn queried(&self, signed: bool) -> QpCapacity {
        if self.receive_bytes == 0 {
            return QpCapacity::default();
        }
        QpCapacity {
            receive_requests: (self.receive_bytes >> self.log_stride) as u32,
            receive_sges: (1 << self.log_stride >> 4) - u32::from(signed),
            ..QpCapacity::default()
        }
    }
}

impl Method<'_> {
    pub(crate) fn create_qp(&mut self) -> Result<(Object, Vec<u32>), Errno> {
        let capacity = UverbsRequest(self.attrs.bytes(attr::QP_CAP)?);
        let kind = self.attrs.number(attr::QP_TYPE, u8::MAX.into())? as u8;
        let none = || refused(Errno::EINVAL, "the QP needs a PD and two CQs");
        let named = |id| self.handle_of(id).ok_or_else(none);
        // The kernel checks the type before the objects that the type needs.
        service(kind, self.attrs.client.capable(Capability::NetRaw))?;
        if self.attrs.has(attr::QP_SOURCE_QPN) {
            return Err(refused(Errno::EOPNOTSUPP, "source_qpn is for UD QPs of ipoib"));
        }
        let wanted = QpRequest {
            user_handle: self.attrs.data(attr::QP_USER_HANDLE)?,
            pd: named(attr::QP_PD)?,
            send_cq: named(attr::QP_SEND_CQ)?,
            receive_cq: named(attr::QP_RECV_CQ)?,
            srq: self.handle_of(attr::QP_SRQ),
            kind,
            flags: self.attrs.flags(attr::QP_FLAGS, create::KNOWN)?,
            capacity: QpCapacity::read(&capacity, 0),
            event_fd: Some(attr::QP_EVENT_FD),
        };
        let (qp, uses) = self.make_qp(wanted)?;
        let mut reply = UverbsResponse::default();
        qp.capacity.write(&mut reply);
        let written = self
            .attrs
            .put_or_zero(attr::QP_RESP_CAP, reply.as_bytes())
            .and_then(|()| self.attrs.put(attr::QP_RESP_NUM, &qp.qpn.to_ne_bytes()));
        let object = Object::Verbs(Verbs::Qp(qp));
        match written {
            Ok(()) => Ok((object, uses)),
            Err(errno) => Err(self.abort(object, uses, errno)),
        }
    }

    /// CREATE_QP of the write interface.
    pub(crate) fn write_create_qp(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        self.state.context()?;
        let find = |at, kind| self.state.lookup(request.u32(at).into(), kind);
        let signal_all = if request.u8(52) != 0 { create::SQ_SIG_ALL } else { 0 };
        let shared = request.u8(54) != 0;
        let wanted = QpRequest {
            user_handle: request.u64(8),
            pd: find(16, object::PD)?,
            send_cq: find(20, object::CQ)?,
            receive_cq: find(24, object::CQ)?,
            srq: if shared { Some(find(28, object::SRQ)?) } else { None },
            kind: request.u8(53),
            flags: signal_all,
            capacity: QpCapacity::read(request, 32),
            event_fd: None,
        };
        let handle = self.state.free_handle()?;
        let (qp, uses) = self.make_qp(wanted)?;
        let mut reply = UverbsResponse::default();
        reply.u32(handle).u32(qp.qpn);
        let capacity = qp.capacity;
        reply.u32(capacity.send_requests).u32(capacity.receive_requests);
        reply.u32(capacity.send_sges).u32(capacity.receive_sges).u32(capacity.inline_bytes).u32(0);
        let object = Object::Verbs(Verbs::Qp(qp));
        if let Err(errno) = self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()) {
            return Err(self.abort(object, uses, errno));
        }
        self.state.insert_using(handle, object, uses);
        Ok(())
    }

    /// Creates a queue pair; returns it, and the handles of the objects that it uses.
    fn make_qp(&mut self, wanted: QpRequest) -> Result<(VerbsQp, Vec<u32>), Errno> {
        let context = self.state.context()?;
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let service = service(wanted.kind, self.attrs.client.capable(Capability::NetRaw))?;
        check_flags(wanted.flags, caps.block_lb_mc(), caps.end_pad())?;
        let Some(&Object::Pd { pdn }) = self.state.object(wanted.pd) else {
            return Err(Errno::EINVAL);
        };
        let (Some(Object::Verbs(Verbs::Cq(send))), Some(Object::Verbs(Verbs::Cq(receive)))) =
            (self.state.object(wanted.send_cq), self.state.object(wanted.receive_cq))
        else {
            return Err(Errno::EINVAL);
        };
        let srqn = match wanted.srq.map(|handle| self.state.object(handle)) {
            Some(Some(Object::Verbs(Verbs::Srq(srq)))) => Some(srq.srqn),
            Some(_) => return Err(Errno::EINVAL),
            None => None,
        };
        let request = self.driver_request(driver::MIN_BYTES, driver::BYTES)?;
        let flags = request.u32(28);
        let mut allowed = driver::SIGNATURE | driver::BFREG_INDEX | driver::UAR_PAGE_INDEX;
        if caps.sctr_data_cqe() {
            allowed |= driver::SCATTER_CQE | driver::ALLOW_SCATTER_CQE;
        }
        if caps.qp_packet_based() && service == ServiceType::RC {
            allowed |= driver::PACKET_BASED_CREDIT;
        }
        if flags & !allowed != 0 {
            let words = format!(
                "the driver's flags {flags:#x} have {:#x}, which the device does not offer",
                flags & !allowed
            );
            return Err(refused(Errno::EINVAL, words));
        }
        let timestamps = timestamp_format(kernel.roce_timestamps, send, receive)?;
        let user_index = context.user_index(request.u32(32))?;
        let mut capacity = wanted.capacity;
        let has_rq = srqn.is_none() && capacity.receive_requests != 0;
        if !has_rq {
            (capacity.receive_requests, capacity.receive_sges) = (0, 0);
        }
        let queues = queues(&request, wanted.capacity, has_rq, caps.log_max_qp_sz())?;
        let (uar_page, register) = match flags & (driver::UAR_PAGE_INDEX | driver::BFREG_INDEX) {
            driver::UAR_PAGE_INDEX => (request.u32(36), NO_REGISTER),
            // Linux hands out registers one by one to clients with static UAR pages. This kernel
            // always hands out the first: QPs may share it.
            0 => {
                let none = || refused(Errno::EINVAL, NO_REGISTERS);
                (*context.static_uars.first().ok_or_else(none)?, 0)
            }
            _ => {
                let words = "BFREG_INDEX is not modelled: the driver names a UAR page \
                             (UAR_PAGE_INDEX), or neither";
                return Err(refused(Errno::EINVAL, words));
            }
        };
        let bytes = queues.receive_bytes + u64::from(queues.send_requests) * 64;
        let memory = match request.u64(0) {
            address if address != 0 && bytes != 0 => {
                Some(pin_buffer((self.client, self.file.kernel.page), address, bytes, false)?)
            }
            _ => None,
        };
        let record = check_doorbell_record(self.attrs.client, request.u64(8))?;
        let uid = context.uid;
        let signal_all = wanted.flags & create::SQ_SIG_ALL != 0;
        let mut input = CreateQpIn::new();
        input.set_uid(uid);
        if caps.ece_support() {
            input.set_ece(request.u32(48));
        }
        let qpc = input.qpc_mut();
        qpc.set_st(service).set_pm_state(PathMigrationState::MIGRATED).set_pd(pdn);
        qpc.set_wq_signature(flags & driver::SIGNATURE != 0);
        qpc.set_block_lb_mc(wanted.flags & create::BLOCK_MULTICAST_LOOPBACK != 0);
        qpc.set_req_e2e_credit_mode(u8::from(flags & driver::PACKET_BASED_CREDIT != 0));
        if wanted.flags & create::PCI_WRITE_END_PADDING != 0 {
            qpc.set_end_padding_mode(EndPaddingMode(1));
        }
        if flags & driver::SCATTER_CQE != 0 && service != ServiceType::UD {
            qpc.set_cs_res(match receive.cqe_bytes {
                128 => ScatterToCqeResponder::UP_TO_64B,
                _ => ScatterToCqeResponder::UP_TO_32B,
            });
            let chosen = flags & driver::ALLOW_SCATTER_CQE != 0 || signal_all;
            if service == ServiceType::RC && chosen {
                qpc.set_cs_req(match send.cqe_bytes {
                    128 => ScatterToCqeRequester::UP_TO_64B,
                    _ => ScatterToCqeRequester::UP_TO_32B,
                });
            }
        }
        if has_rq {
            qpc.set_log_rq_stride(queues.log_stride - 4).set_log_rq_size(queues.log_receive);
        }
        qpc.set_ts_format(timestamps);
        qpc.set_rq_type(match (srqn, has_rq) {
            (Some(_), _) => RqType::SRQ,
            (None, true) => RqType::REGULAR,
            (None, false) => RqType::NONE,
        });
        match queues.send_requests {
            0 => qpc.set_no_sq(true),
            count => qpc.set_log_sq_size(count.trailing_zeros() as u8),
        };
        qpc.set_srqn_rmpn_xrqn(srqn.unwrap_or(0));
        qpc.set_cqn_snd(send.cqn).set_cqn_rcv(receive.cqn).set_dbr_addr(record);
        qpc.set_uar_page(uar_page).set_user_index(user_index);
        qpc.set_page_offset(memory.as_ref().map_or(0, |memory| memory.page_offset));
        let cqns = [send.cqn, receive.cqn];
        let mut output = CreateQpOut::default();
        let at = (&**self.client, &*self.file.kernel);
        match &memory {
            Some(memory) => memory.exec(at, input.as_bytes(), output.as_bytes_mut())?,
            None => kernel.exec(input.as_bytes(), output.as_bytes_mut())?,
        }
        let qpn = output.qpn();
        let mut destroy = inbox(Opcode::DESTROY_QP, 0, uid, 16);
        NUMBER.set(&mut destroy, qpn);
        let asynchronous = match wanted.event_fd {
            Some(id) => self.async_file(id),
            None => self.state.default_async_file(),
        };
        kernel.listeners.add(ListenerKind::Qp, qpn, wanted.user_handle, None, asynchronous);
        let qp = VerbsQp {
            qpn,
            uid,
            destroy,
            service,
            pdn,
            cqns,
            state: state::RESET,
            port: 0,
            access: 0,
            max_dest_rd_atomic: 0,
            record,
            has_receive_queue: has_rq,
            capacity,
            queried: queues.queried(flags & driver::SIGNATURE != 0),
            signal_all,
            groups: Vec::new(),
            _pinned: memory.map(|memory| memory.pinned),
        };
        let ece = if caps.ece_support() { output.ece() } else { 0 };
        let mut reply = UverbsResponse::default();
        reply.u32(register).u32(ece).bytes(&[0; 32]);
        let mut uses = vec![wanted.pd, wanted.send_cq, wanted.receive_cq];
        uses.extend(wanted.srq);
        if let Err(errno) = self.put_driver_response(reply.as_bytes()) {
            return Err(self.abort(Object::Verbs(Verbs::Qp(qp)), uses, errno));
        }
        Ok((qp, uses))
    }

    pub(crate) fn query_qp(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let handle = self.state.lookup(request.u32(8).into(), object::QP)?;
        let Some(Object::Verbs(Verbs::Qp(qp))) = self.state.object_mut(handle) else {
            return Err(Errno::EINVAL);
        };
        let mut input = QueryQpIn::new();
        input.set_qpn(qp.qpn);
        let output = command(&*self.file.kernel.function, &input)?;
        let qpc = output.qpc();
        let verbs_state = match qpc.state().0 {
            4 => state::SQE,
            5 | 7 => state::SQD,
            other => other,
        };
        qp.state = verbs_state;
        let path = qpc.primary_address_path();
        let mut reply = UverbsResponse::default();
        if qp.service == ServiceType::UD {
            reply.bytes(&[0; 64]);
        } else {
            super::path::put_destination(&mut reply, path, self.file.kernel.caps.port_type());
            super::path::put_destination(
                &mut reply,
                qpc.secondary_address_path(),
                self.file.kernel.caps.port_type(),
            );
        }
        qp.queried.write(&mut reply);
        let access_flags =
            u32::from(qpc.rwe()) * 2 + u32::from(qpc.rre()) * 4 + u32::from(qpc.rae()) * 8;
        reply.u32(qpc.q_key()).u32(qpc.next_rcv_psn()).u32(qpc.next_send_psn());
        reply.u32(qpc.remote_qpn()).u32(access_flags);
        reply.u16(path.pkey_index()).u16(qpc.secondary_address_path().pkey_index());
        let migration = match qpc.pm_state() {
            PathMigrationState::MIGRATED => 0,
            PathMigrationState(1) => 1,
            _ => 2,
        };
        reply.u8(verbs_state).u8(verbs_state).u8(qpc.mtu().0).u8(migration);
        reply.u8(u8::from(qpc.state().0 == 7));
        reply.u8(1 << qpc.log_sra_max()).u8(1 << qpc.log_rra_max()).u8(qpc.min_rnr_nak());
        reply.u8(path.vhca_port_num()).u8(path.ack_timeout());
        reply.u8(qpc.retry_count()).u8(qpc.rnr_retry());
        let other = qpc.secondary_address_path();
        reply.u8(other.vhca_port_num()).u8(other.ack_timeout());
        reply.u8(qp.signal_all.into()).bytes(&[0; 5]);
        self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes())
    }

    pub(crate) fn write_destroy_qp(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let handle = self.state.lookup_to_destroy(request.u32(8).into(), object::QP)?;
        let reported = self.file.destroy(self.state, self.client, handle)?;
        self.attrs.put_or_zero(attr::CORE_OUT, &reported.events.to_ne_bytes())
    }
}

/// Refuses flags that this device does not offer, or that are not modelled.
fn check_flags(flags: u32, block: bool, padding: bool) -> Result<(), Errno> {
    let mut offered = create::SQ_SIG_ALL;
    if block {
        offered |= create::BLOCK_MULTICAST_LOOPBACK;
    }
    if padding {
        offered |= create::PCI_WRITE_END_PADDING;
    }
    let excess = flags & !offered;
    if excess == 0 {
        return Ok(());
    }
    let words = format!("create_flags {excess:#x} are not offered by the device, or not modelled");
    Err(refused(Errno::EINVAL, words))
}

/// The sizes of both queues, from the driver's request.
fn queues(
    request: &UverbsRequest,
    wanted: QpCapacity,
    has_rq: bool,
    log_max: u8,
) -> Result<QueueSizes, Errno> {
    let max = 1u32.checked_shl(log_max.into()).unwrap_or(0);
    let (send, receive, log_stride) = (request.u32(16), request.u32(20), request.u32(24));
    let invalid = |words: String| Err(refused(Errno::EINVAL, words));
    if wanted.receive_requests > max || send > max || (send != 0 && !send.is_power_of_two()) {
        return invalid(format!(
            "max_recv_wr {} and {send} blocks of 64 bytes for sends: {max} at most \
             (log_max_qp_sz), and blocks in a power of two",
            wanted.receive_requests
        ));
    }
    if !has_rq {
        if receive != 0 || log_stride != 0 {
            return invalid(format!("a QP without a receive queue names {receive} entries for it"));
        }
        return Ok(QueueSizes {
            receive_bytes: 0,
            log_receive: 0,
            log_stride: 0,
            send_requests: send,
        });
    }
    // In Linux a smaller stride wraps around in the command, and the device refuses the result.
    if receive == 0 || receive > max || !(4..16).contains(&log_stride) {
        return invalid(format!(
            "a receive queue of {receive} entries of 2^{log_stride} bytes: 1 to {max} entries of \
             2^4 to 2^15"
        ));
    }
    Ok(QueueSizes {
        receive_bytes: u64::from(receive) << log_stride,
        log_receive: receive.ilog2() as u8,
        log_stride: log_stride as u8,
        send_requests: send,
    })
}

/// The timestamp format in a QP's context: that of its CQs, if the RoCE page offers it
/// (`get_qp_ts_format` of mlx5_ib, which reads that page on every port).
fn timestamp_format(offered: u32, send: &Cq, receive: &Cq) -> Result<TimestampFormat, Errno> {
    use TimestampFormatCap as Cap;
    let offered = Cap(offered as u8);
    let free = matches!(offered, Cap::FREE_RUNNING | Cap::FREE_RUNNING_AND_REAL_TIME);
    let real = matches!(offered, Cap::REAL_TIME | Cap::FREE_RUNNING_AND_REAL_TIME);
    let default = if free { TimestampFormat::FREE_RUNNING } else { TimestampFormat::DEFAULT };
    let of = |cq: &Cq| match (cq.real_time, cq.timestamps) {
        (true, _) if real => Ok(TimestampFormat::REAL_TIME),
        (false, true) if free => Ok(TimestampFormat::FREE_RUNNING),
        (false, false) => Ok(default),
        _ => {
            let words = "the device does not have the timestamps of this CQ (RoCE page)";
            Err(refused(Errno::EOPNOTSUPP, words))
        }
    };
    let (send, receive) = (of(send)?, of(receive)?);
    let both = ![send, receive].contains(&TimestampFormat::DEFAULT);
    if both && send != receive {
        return Err(refused(Errno::EOPNOTSUPP, "the two CQs have different timestamps"));
    }
    Ok(if send == default { receive } else { send })
}
