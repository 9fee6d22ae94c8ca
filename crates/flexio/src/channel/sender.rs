//! The queue pair by which a program sends a channel's entries: send queue, completion queue and
//! data are in the heap; the program posts and polls by itself.

use verbless_command::{
    CqAttr, CqEventTarget, DatagramAttr, Eqn, InitAttr, KeyAccess, QpAttr, QpObject, RemoteAccess,
    RtrAttr, RtsAttr, ServiceType,
};
use verbless_flexio_dev::stream::control::{Carrier, Setup};
use verbless_queue::CqeSize;
use verbless_queue::{ConnectOptions, PeerAddress};

use crate::cq::UNWRITTEN;
use crate::error::Error;
use crate::memory::QueueMemory;
use crate::mkey::{Mkey, MkeyConfig};
use crate::outbox::{Outbox, OutboxConfig};
use crate::process::Process;

use super::receiver::Receiver;
use super::{ChannelConfig, EntryTransport};

const WQEBB: u64 = verbless_flexio_dev::segment::WQEBB as u64;
const CQE_BYTES: u64 = 64;
/// log2 of the maximum number of WQEBBs of a send queue.
const MAX_LOG_WQEBBS: u8 = 15;

/// The queue pair and its parts.
#[derive(Debug)]
pub(super) struct Sender {
    // The queue pair is dropped before the key.
    qp: QpObject,
    _key: Mkey,
    _outbox: Outbox,
}

impl Sender {
    /// Creates a queue pair for the ring of `bytes` bytes at `at`, connects it to the host's, and
    /// describes it in `setup`.
    pub(super) fn create(
        process: &Process,
        config: &ChannelConfig,
        (at, bytes): (u64, u64),
        receiver: &mut Receiver,
        setup: &mut Setup,
    ) -> Result<Self, Error> {
        let (service, carrier, wqebbs_each) = match config.transport {
            EntryTransport::Ud => (ServiceType::UD, Carrier::Datagram, 2),
            EntryTransport::Uc => (ServiceType::UC, Carrier::Connected, 1),
            _ => (ServiceType::RC, Carrier::Connected, 1),
        };
        // At least a WQE for each batch of the ring, and for partial batches.
        let entries = bytes >> config.log_entry_bytes;
        let sends = if config.batch == 1 { entries } else { 4 * entries / u64::from(config.batch) };
        let wqebbs = (sends * wqebbs_each).next_power_of_two().clamp(4, 1 << MAX_LOG_WQEBBS);
        let log_wqebbs = wqebbs.ilog2() as u8;

        let (wqes, cqes) = (process.alloc(wqebbs * WQEBB)?, process.alloc(wqebbs * CQE_BYTES)?);
        let records = process.alloc_from(&[0; 128])?;
        cqes.fill(UNWRITTEN)?;
        let device = process.device();
        let uar = process.uar().page().clone();
        let cq = device.create_cq(CqAttr {
            uar: uar.clone(),
            ring: QueueMemory::dpa(&cqes).for_command(),
            record: QueueMemory::dpa(&records).for_command(),
            log_cqes: log_wqebbs,
            cqe_size: CqeSize::BYTES_64,
            // The program polls it and never arms it.
            element: CqEventTarget::Eq(Eqn(device.query_eqn(0)?)),
            ignore_overrun: false,
        })?;
        let cq = std::sync::Arc::new(cq);
        let mut qp = device.create_qp(QpAttr {
            service,
            pd: process.pd().clone(),
            uar,
            send_cq: cq.clone(),
            receive_cq: cq,
            rings: QueueMemory::dpa(&wqes).for_command(),
            record: QueueMemory::at(&records, 64).for_command(),
            log_send_wqebbs: Some(log_wqebbs),
            log_receive_wqes: None,
            rmp: None,
            log_receive_stride: 4,
            user_index: 0,
            dma_mmo: false,
        })?;
        connect(process, &mut qp, config.transport, receiver, setup)?;
        let key = Mkey::to_range(process, at, bytes, &MkeyConfig::new(KeyAccess::LOCAL_READ))?;
        let outbox = Outbox::create(process, &OutboxConfig::default())?;
        setup.carrier = carrier as u8;
        setup.max_entries_per_wqe = receiver.entries_per_message();
        setup.key = key.id().0;
        setup.outbox = outbox.id().0;
        setup.queue = qp.qpn().0;
        setup.log_wqebbs = log_wqebbs;
        setup.log_cqes = log_wqebbs;
        (setup.wqes, setup.cqes) = (wqes.address(), cqes.address());
        setup.cq_record = records.address();
        Ok(Self { qp, _key: key, _outbox: outbox })
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qp.qpn().0
    }
}

fn connect(
    process: &Process,
    qp: &mut QpObject,
    transport: EntryTransport,
    receiver: &mut Receiver,
    setup: &mut Setup,
) -> Result<(), Error> {
    let options = ConnectOptions::default();
    let domain = process.domain();
    let host = receiver.address(domain, &options)?;
    // Both are on one device.
    let own = PeerAddress { qpn: qp.qpn(), psn: qp.first_psn(), ..host };
    if transport == EntryTransport::Ud {
        let q_key = receiver.start(own.qpn)?;
        qp.to_init_datagram(&DatagramAttr { port: options.port, pkey_index: 0, q_key })?;
        qp.to_rtr_datagram()?;
        qp.to_rts_datagram(own.psn)?;
        let destination = domain.destination(&host, q_key, &options)?;
        setup.destination.copy_from_slice(destination.as_bytes());
        return Ok(());
    }
    receiver.connect(domain, &own, &options)?;
    let access = RemoteAccess { read: false, write: false, atomic: false };
    qp.to_init(&InitAttr { port: options.port, pkey_index: 0, access })?;
    qp.to_rtr(&RtrAttr {
        path: domain.path(&host, &options)?,
        mtu: host.mtu,
        remote_qpn: host.qpn,
        receive_psn: host.psn,
        max_destination_reads: 0,
        min_rnr_timer: 1,
    })?;
    qp.to_rts(&RtsAttr {
        send_psn: own.psn,
        ack_timeout: 14,
        retry_count: 7,
        // Unlimited RNR retries: the host may post receives late.
        rnr_retry: 7,
        max_reads: 1,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use verbless_command::Affinity;

    use super::*;
    use crate::channel::tests::agreeing;

    #[test]
    fn sender_qp_follows_transport_type() {
        let (_model, process) = agreeing();
        let ring = process.alloc(1024).unwrap();
        for (transport, service, carrier) in [
            (EntryTransport::Rc, ServiceType::RC, Carrier::Connected),
            (EntryTransport::Uc, ServiceType::UC, Carrier::Connected),
            (EntryTransport::Ud, ServiceType::UD, Carrier::Datagram),
        ] {
            let config = ChannelConfig {
                number: 1,
                transport,
                log_entry_bytes: 6,
                ring_bytes: 1024,
                ring_at: None,
                host_bytes: 1024,
                batch: 2,
                room_retries: 0,
                affinity: Affinity::None,
            };
            let mut receiver = Receiver::queue(&process, &config).unwrap();
            let mut setup = Setup::new(ring.address(), 4, 6);
            let range = (ring.address(), 1024);
            let sender = Sender::create(&process, &config, range, &mut receiver, &mut setup);
            let sender = sender.unwrap();
            assert_eq!(sender.qp.state().unwrap().0, 3, "{transport:?} is ready to send");
            assert_eq!(sender.qp.attr().service, service);
            assert_eq!((sender.qpn(), setup.queue), (sender.qp.qpn().0, sender.qp.qpn().0));
            assert_eq!((setup.carrier, setup.max_entries_per_wqe), (carrier as u8, 2));
            // Sixteen entries in batches of two: 32 WQEs of one WQEBB or two.
            let log = if transport == EntryTransport::Ud { 6 } else { 5 };
            assert_eq!((setup.log_wqebbs, setup.log_cqes), (log, log));
            assert_eq!(setup.destination == [0; 48], transport != EntryTransport::Ud);
            let mut cqes = vec![0; 64 << log];
            process.read(setup.cqes, &mut cqes).unwrap();
            assert!(cqes.iter().all(|&byte| byte == UNWRITTEN));
        }
    }
}
