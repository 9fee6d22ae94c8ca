//! A queue pair of the crate sideway that is connected to itself: SEND with immediate, WRITE, READ
//! and fetch-and-add, each with its bytes checked; once by `ibv_post_send`, once by the work
//! request API (`ibv_wr_start`).

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, GidType};
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, Mtu};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState,
    SendOperationFlags, SetScatterGatherEntry, WorkRequestFlags,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// More than two packets at the path MTU, and not a multiple of it.
const LENGTH: usize = 2500;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Offsets of a request's local and remote buffer.
const LOCAL: usize = 0;
const REMOTE: usize = 4096;
const IMMEDIATE: u32 = 0x0102_0304;
const ADDED: u64 = 5;
/// The id of the receive; a request's is its `VerbsOperation`.
const RECEIVE: u64 = 9;

#[derive(Clone, Copy)]
enum VerbsOperation {
    Send,
    Write,
    Read,
    FetchAndAdd,
}

fn main() -> Result<()> {
    let devices = DeviceList::new()?;
    let device = devices.iter().next().ok_or("no device")?;
    for extended in [false, true] {
        loopback(&device.open()?, extended)?;
        let api = if extended { "ibv_wr_start" } else { "ibv_post_send" };
        println!(
            "{}: SEND, WRITE, READ and fetch-and-add by {api}: every byte is right",
            device.name()
        );
    }
    Ok(())
}

/// Memory that the device writes, too: read and written only by volatile copies.
struct Memory(Box<[u8]>);

impl Memory {
    fn address(&self, offset: usize) -> u64 {
        self.0[offset..].as_ptr() as u64
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.0[offset..][..bytes.len()].iter_mut().zip(bytes) {
            // SAFETY: `to` is a byte of this memory.
            unsafe { std::ptr::write_volatile(to, *from) };
        }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // SAFETY: each is a byte of this memory.
        self.0[offset..][..length].iter().map(|it| unsafe { std::ptr::read_volatile(it) }).collect()
    }

    fn expect(&self, offset: usize, bytes: &[u8], what: &str) -> Result<()> {
        let found = self.read(offset, bytes.len());
        match found.iter().zip(bytes).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => {
                Err(format!("{what}: byte {at} is {:#x}, not {:#x}", found[at], bytes[at]).into())
            }
        }
    }
}

fn loopback(context: &Arc<DeviceContext>, extended: bool) -> Result<()> {
    let pd = context.alloc_pd()?;
    let mut memory = Memory(vec![0; 2 * 4096].into());
    // SAFETY: the memory is dropped after the region.
    let region = unsafe { pd.reg_mr(memory.address(0) as usize, memory.0.len(), rights())? };
    let (lkey, rkey) = (region.lkey(), region.rkey());

    let mut cq_builder = context.create_cq_builder();
    cq_builder.setup_cqe(16);
    let cq = || -> Result<GenericCompletionQueue> {
        Ok(if extended { cq_builder.build_ex()?.into() } else { cq_builder.build()?.into() })
    };
    let (send_cq, receive_cq) = (cq()?, cq()?);
    let mut qp_builder = pd.create_qp_builder();
    qp_builder
        .setup_send_cq(send_cq.clone())
        .setup_recv_cq(receive_cq.clone())
        .setup_send_ops_flags(
            SendOperationFlags::SendWithImmediate
                | SendOperationFlags::Write
                | SendOperationFlags::Read
                | SendOperationFlags::AtomicFetchAndAdd,
        );
    let mut qp: GenericQueuePair =
        if extended { qp_builder.build_ex()?.into() } else { qp_builder.build()?.into() };
    connect_loopback(context, &mut qp)?;

    let mut receives = qp.start_post_recv();
    // SAFETY: the memory outlives the queue pair.
    unsafe {
        receives.construct_wr(RECEIVE).setup_sge(lkey, memory.address(REMOTE), LENGTH as u32)
    };
    receives.post()?;
    let mut run = |memory: &Memory, operation: VerbsOperation, length: usize| -> Result<()> {
        let mut requests = qp.start_post_send();
        let request = requests.construct_wr(operation as u64, WorkRequestFlags::Signaled);
        let remote = memory.address(REMOTE);
        let request = match operation {
            VerbsOperation::Send => request.setup_send_imm(IMMEDIATE.to_be()),
            VerbsOperation::Write => request.setup_write(rkey, remote),
            VerbsOperation::Read => request.setup_read(rkey, remote),
            VerbsOperation::FetchAndAdd => request.setup_atomic_fetch_add(rkey, remote, ADDED),
        };
        // SAFETY: the memory outlives the queue pair.
        unsafe { request.setup_sge(lkey, memory.address(LOCAL), length as u32) };
        requests.post()?;
        completion(&send_cq, operation as u64).map(drop)
    };

    memory.write(LOCAL, &pattern(1));
    run(&memory, VerbsOperation::Send, LENGTH)?;
    let received = completion(&receive_cq, RECEIVE)?;
    if received != (LENGTH as u32, IMMEDIATE.to_be()) {
        return Err(format!("SEND: received length and immediate are {received:x?}").into());
    }
    memory.expect(REMOTE, &pattern(1), "SEND")?;

    memory.write(LOCAL, &pattern(2));
    run(&memory, VerbsOperation::Write, LENGTH)?;
    memory.expect(REMOTE, &pattern(2), "WRITE")?;

    memory.write(REMOTE, &pattern(3));
    run(&memory, VerbsOperation::Read, LENGTH)?;
    memory.expect(LOCAL, &pattern(3), "READ")?;

    memory.write(REMOTE, &42u64.to_ne_bytes());
    run(&memory, VerbsOperation::FetchAndAdd, 8)?;
    memory.expect(LOCAL, &42u64.to_ne_bytes(), "fetch-and-add, old value")?;
    memory.expect(REMOTE, &(42 + ADDED).to_ne_bytes(), "fetch-and-add, the sum")
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|it| (it * 7 + seed) as u8).collect()
}

fn rights() -> AccessFlags {
    AccessFlags::LocalWrite
        | AccessFlags::RemoteWrite
        | AccessFlags::RemoteRead
        | AccessFlags::RemoteAtomic
}

/// Moves the QP from RESET to RTS, connected to itself.
fn connect_loopback(context: &DeviceContext, qp: &mut GenericQueuePair) -> Result<()> {
    let mut init = QueuePairAttribute::new();
    init.setup_state(QueuePairState::Init)
        .setup_pkey_index(0)
        .setup_port(1)
        .setup_access_flags(rights());
    qp.modify(&init)?;

    let gids = context.query_gid_table()?;
    let gid = gids.iter().find(|gid| {
        gid.port_num() == 1 && matches!(gid.gid_type(), GidType::InfiniBand | GidType::RoceV2)
    });
    let gid = gid.ok_or("port 1 has no GID of InfiniBand or RoCE v2")?;
    let mut path = AddressHandleAttribute::new();
    path.setup_dest_lid(context.query_port(1)?.lid())
        .setup_port(1)
        .setup_grh_src_gid_index(gid.gid_index().try_into()?)
        .setup_grh_dest_gid(&gid.gid())
        .setup_grh_hop_limit(64);
    let mut ready = QueuePairAttribute::new();
    ready
        .setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu1024)
        .setup_dest_qp_num(qp.qp_number())
        .setup_rq_psn(1)
        .setup_max_dest_read_atomic(1)
        .setup_min_rnr_timer(1)
        .setup_address_vector(&path);
    qp.modify(&ready)?;

    let mut send = QueuePairAttribute::new();
    send.setup_state(QueuePairState::ReadyToSend)
        .setup_sq_psn(1)
        .setup_timeout(14)
        .setup_retry_cnt(7)
        .setup_rnr_retry(7)
        .setup_max_read_atomic(1);
    Ok(qp.modify(&send)?)
}

/// Waits for the next completion, which must be the success of request `id`; returns its length
/// and its immediate.
fn completion(cq: &GenericCompletionQueue, id: u64) -> Result<(u32, u32)> {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        if let Ok(mut poller) = cq.start_poll()
            && let Some(it) = poller.next()
        {
            let status = WorkCompletionStatus::from(it.status());
            if (it.wr_id(), status) != (id, WorkCompletionStatus::Success) {
                return Err(format!(
                    "expected completion of request {id}, got request {} with status {status:?}",
                    it.wr_id()
                )
                .into());
            }
            return Ok((it.byte_len(), it.imm_data()));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Err(format!("request {id} did not complete in {} s", TIMEOUT.as_secs()).into())
}
