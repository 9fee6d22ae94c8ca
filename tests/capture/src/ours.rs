//! Runs the cases with our driver.

use verbless_command::{
    DatagramAttr, Device, Gid, GlobalRoute, InitAttr, KeyAccess, Moderation, Mtu, Path, QKey, Qpn,
    RemoteAccess, RtrAttr, RtsAttr, RtsChange,
};
use verbless_devx::{Backend, Context, DeviceInfo};
use verbless_prm::ServiceType;
use verbless_queue::domain::{CqConfig, QpConfig, SrqConfig};
use verbless_queue::qp::ReceiveSide;
use verbless_queue::service;
use verbless_queue::{Domain, Rc, Uc, Ud};

use crate::memory::Pages;
use crate::recording::mark_of;
use crate::result::Result;
use crate::scenario::{Access, Case, Cq, Mr, QpCase, Route, Srq, Step};
use crate::{mark, scenario};

/// The name of our side in a recording.
pub const SIDE: &str = "ours";

/// Runs every case on the first device of a backend, each after its mark.
///
/// # Errors
/// If the device refuses a command.
pub fn run(backend: &dyn Backend, cases: &[(&'static str, Case)]) -> Result {
    let info = backend.enumerate()?.into_iter().next().ok_or("there is no device")?;
    let ours = Ours { backend, device: Device::open(backend, &info)?, info };
    for (name, case) in cases {
        send_mark(&ours.device, &mark_of(SIDE, name))?;
        ours.case(case).map_err(|error| format!("ours, {name}: {error}"))?;
    }
    send_mark(&ours.device, "end")
}

fn send_mark(context: &Context, name: &str) -> Result {
    Ok(context.devx_other(&mark::command(name), &mut [0; mark::ANSWER])?)
}

struct Ours<'a> {
    backend: &'a dyn Backend,
    device: Device,
    info: DeviceInfo,
}

impl Ours<'_> {
    fn case(&self, case: &Case) -> Result {
        match case {
            Case::Open => Device::open(self.backend, &self.info).map(drop).map_err(Into::into),
            Case::Cq(cq) => self.cq(cq),
            Case::Qp(qp) => self.qp(qp),
            Case::Mr(mr) => self.mr(mr),
            Case::Srq(srq) => self.srq(srq),
        }
    }

    fn cq(&self, case: &Cq) -> Result {
        let domain = Domain::new(&self.device)?;
        let config = CqConfig {
            cqe_size: case.cqe_size,
            ignore_overrun: case.overrun,
            ..CqConfig::new(case.cqe)
        };
        let cq = domain.completion_queue(&config)?;
        if let Some((count, period)) = case.moderation {
            cq.object().set_moderation(Moderation { period, count })?;
        }
        Ok(())
    }

    fn mr(&self, case: &Mr) -> Result {
        let domain = Domain::new(&self.device)?;
        let pages = Pages::new(case.offset + case.length)?;
        pages.region(&domain, case.offset, case.length, key_access(case.access))?;
        Ok(())
    }

    fn srq(&self, case: &Srq) -> Result {
        let domain = Domain::new(&self.device)?;
        let config = SrqConfig { receives: case.receives, sges: case.sges };
        let shared = domain.srq(&config)?;
        if let Some(limit) = case.limit {
            shared.arm_limit(limit)?;
        }
        Ok(())
    }

    fn qp(&self, case: &QpCase) -> Result {
        match case.service {
            ServiceType::RC => self.qp_of::<Rc>(case),
            ServiceType::UC => self.qp_of::<Uc>(case),
            ServiceType::UD => self.qp_of::<Ud>(case),
            other => panic!("our driver makes no QPs of {other:?}"),
        }
    }

    fn qp_of<S: service::Service>(&self, case: &QpCase) -> Result {
        let domain = Domain::new(&self.device)?;
        // As libmlx5's CQ, which may be smaller than its QPs' rings.
        let cq = CqConfig { overcommit: true, ..CqConfig::new(100) };
        let send = domain.completion_queue(&cq)?;
        let other = if case.one_cq { None } else { Some(domain.completion_queue(&cq)?) };
        let receive = other.as_ref().unwrap_or(&send);
        let config = QpConfig {
            send_sges: case.send_sges,
            receive_sges: case.receive_sges,
            inline: case.inline,
            signal_all: case.signal_all,
            ..QpConfig::new(case.sends, case.receives)
        };
        if case.shared {
            let pool = domain.srq(&SrqConfig::new(64))?;
            let mut qp = domain.queue_pair_with_srq::<S>(&config, &send, receive, &pool)?;
            case.steps.iter().try_for_each(|&step| take(&mut qp, step, case.service))?;
        } else {
            let mut qp = domain.queue_pair_of::<S>(&config, &send, receive)?;
            case.steps.iter().try_for_each(|&step| take(&mut qp, step, case.service))?;
        }
        Ok(())
    }
}

fn take<S: service::Service, R: ReceiveSide>(
    qp: &mut verbless_queue::Qp<S, R>,
    step: Step,
    service: ServiceType,
) -> Result {
    if service == ServiceType::UD { take_datagram(qp, step) } else { take_connected(qp, step) }
}

/// A transition of a connected queue pair.
fn take_connected<S: service::Service, R: ReceiveSide>(
    qp: &mut verbless_queue::Qp<S, R>,
    step: Step,
) -> Result {
    match step {
        Step::Init { pkey_index, access } => {
            qp.to_init(&InitAttr { port: 1, pkey_index, access: remote_access(access) })?;
        }
        Step::Again { access } => {
            qp.change_init(&InitAttr { port: 1, pkey_index: 0, access: remote_access(access) })?;
        }
        Step::Rtr { mtu, qpn, psn, reads, rnr_timer, route } => qp.to_rtr(&RtrAttr {
            path: path(route),
            mtu: [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
                [usize::from(mtu).clamp(1, 5) - 1],
            remote_qpn: Qpn(qpn),
            receive_psn: psn,
            max_destination_reads: reads,
            min_rnr_timer: rnr_timer,
        })?,
        Step::Rts { psn, timeout, retries, rnr_retries, reads } => qp.to_rts(&RtsAttr {
            send_psn: psn,
            ack_timeout: timeout,
            retry_count: retries,
            rnr_retry: rnr_retries,
            max_reads: reads,
        })?,
        Step::Change { rnr_timer, access } => qp.change(&RtsChange {
            access: Some(remote_access(access)),
            min_rnr_timer: Some(rnr_timer),
        })?,
        Step::Error => qp.to_error()?,
        Step::Reset => qp.reset()?,
    }
    Ok(())
}

/// A transition of a datagram queue pair, which has fewer attributes.
fn take_datagram<S: service::Service, R: ReceiveSide>(
    qp: &mut verbless_queue::Qp<S, R>,
    step: Step,
) -> Result {
    match step {
        Step::Init { pkey_index, .. } => {
            let q_key = QKey(scenario::QKEY);
            qp.to_init_datagram(&DatagramAttr { port: 1, pkey_index, q_key })?;
        }
        Step::Rtr { .. } => qp.to_rtr_datagram()?,
        Step::Rts { psn, .. } => qp.to_rts_datagram(psn)?,
        Step::Error => qp.to_error()?,
        Step::Reset => qp.reset()?,
        Step::Again { .. } | Step::Change { .. } => {
            return Err("a datagram queue pair has no such rights".into());
        }
    }
    Ok(())
}

fn remote_access(access: Access) -> RemoteAccess {
    RemoteAccess {
        read: access.remote_read,
        write: access.remote_write,
        atomic: access.remote_atomic,
    }
}

fn key_access(access: Access) -> KeyAccess {
    KeyAccess {
        local_write: access.local_write,
        remote: remote_access(access),
        relaxed_ordering: access.relaxed,
        crossing: false,
    }
}

fn path(route: Route) -> Path {
    let grh = route.global.map(|(gid, flow_label, sgid_index, hop_limit, traffic_class)| {
        GlobalRoute { dgid: Gid(gid), sgid_index, hop_limit, traffic_class, flow_label }
    });
    Path::InfiniBand { dlid: route.dlid, sl: route.sl, source_path_bits: route.path_bits, grh }
}
