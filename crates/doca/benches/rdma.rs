//! Instructions of RDMA jobs, beside those of their requests. `cargo xtask bench` runs this under
//! callgrind, which counts the functions `measured_…`; the arguments select the operation, and
//! `queue` or `pair`. Without that argument it only checks that all work.
//!
//! Two devices of a stepped model in this process are connected; the instructions of the model and
//! of the other side are not counted. `queue` is verbless-queue without DOCA's objects: requests
//! posted and then polled. `pair` is the retrieve of a job with its buffers, and the submit of
//! another one with the same buffers.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use verbless_devx::Backend;
use verbless_doca::context::Retrieve;
use verbless_doca::rdma::{Rdma, RdmaDone, RdmaJob};
use verbless_doca::{
    AccessFlags, Buf, Dev, DevInfo, Event, Inventory, Memory, Mmap, UserData, WorkQ,
};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::access::KeyAccess;
use verbless_queue::wr::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Qp, QpConfig, Region, RemoteAddr, Sge};

/// Operations per round; the model executes them between rounds.
const ROUND: usize = 64;
const ROUNDS: usize = 32;
/// Bytes of a message.
const LENGTH: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// An operation, as executed by both layers.
struct Operation {
    name: &'static str,
    /// Bytes of the local buffer.
    length: usize,
    /// The other side must have receives.
    takes_receives: bool,
    /// The other side must send.
    receives: bool,
    /// Whether there is a remote buffer.
    remote: bool,
    post: fn(&mut Qp, Sge, RemoteAddr),
    submit: fn(&mut Side, &mut Vec<Bufs>),
    pair: fn(&mut WorkQ, &Rdma),
}

/// Local and remote buffer.
type Bufs = (Option<Buf>, Option<Buf>);

/// Declares an operation: a module with its own functions, so that callgrind distinguishes them.
macro_rules! operations {
    ($($name:ident: $length:expr, receives $receives:literal, takes $takes:literal,
       remote $remote:literal,
       post |$qp:ident, $sge:ident, $to:ident, $cookie:ident| $post:expr,
       job |$rdma:ident, $local:ident, $there:ident| $job:expr;)*) => {
        $(mod $name {
            use super::*;

            #[inline(never)]
            fn measured_post($qp: &mut Qp, $sge: Sge, $to: RemoteAddr) {
                let _ = $to;
                for $cookie in 0..ROUND as u64 {
                    $post.expect("there is room");
                }
            }

            #[inline(always)]
            fn job($rdma: &Rdma, ($local, $there): Bufs) -> RdmaJob {
                let _ = &$there;
                $job
            }

            fn submit(side: &mut Side, bufs: &mut Vec<Bufs>) {
                for (number, bufs) in bufs.drain(..).enumerate() {
                    let job = job(&side.rdma, bufs).user_data(number as u64);
                    side.workq.submit(job).unwrap_or_else(|refused| panic!("{refused}"));
                }
            }

            /// Each retrieved job passes its buffers to a submitted one.
            #[inline(never)]
            fn measured_pair(workq: &mut WorkQ, rdma: &Rdma) {
                for number in 0..ROUND as u64 {
                    let bufs = match workq.progress_retrieve() {
                        Ok(Event::Rdma(RdmaDone { user_data, local, remote, .. })) => {
                            in_order(user_data, number);
                            (local, remote)
                        }
                        other => unexpected(other),
                    };
                    if let Err(refused) = workq.submit(job(rdma, bufs).user_data(number)) {
                        panic!("there is room: {refused}");
                    }
                }
            }

            pub(super) const OPERATION: Operation = Operation {
                name: stringify!($name),
                length: $length,
                receives: $receives,
                takes_receives: $takes,
                remote: $remote,
                post: measured_post,
                submit,
                pair: measured_pair,
            };
        })*

        const OPERATIONS: &[Operation] = &[$($name::OPERATION),*];
    };
}

operations! {
    receive: LENGTH, receives true, takes false, remote false,
        post |qp, sge, to, cookie| qp.post_receive(sge, cookie),
        job |rdma, local, there| rdma.receive(local);
    send: LENGTH, receives false, takes true, remote false,
        post |qp, sge, to, cookie| qp.post(&Send::new(sge).signaled(), cookie),
        job |rdma, local, there| rdma.send(local);
    send_imm: LENGTH, receives false, takes true, remote false,
        post |qp, sge, to, cookie| qp.post(&SendImm::new(sge, 7).signaled(), cookie),
        job |rdma, local, there| rdma.send_imm(local, 7);
    write: LENGTH, receives false, takes false, remote true,
        post |qp, sge, to, cookie| qp.post(&Write::new(sge, to).signaled(), cookie),
        job |rdma, local, there| rdma.write(local, there);
    write_imm: LENGTH, receives false, takes true, remote true,
        post |qp, sge, to, cookie| qp.post(&WriteImm::new(sge, to, 7).signaled(), cookie),
        job |rdma, local, there| rdma.write_imm(local, there, 7);
    read: LENGTH, receives false, takes false, remote true,
        post |qp, sge, to, cookie| qp.post(&Read::new(sge, to).signaled(), cookie),
        job |rdma, local, there| rdma.read(there, local);
    compare_and_swap: 8, receives false, takes false, remote true,
        post |qp, sge, to, cookie| qp.post(&CompareSwap::new(sge, to, 1, 2).signaled(), cookie),
        job |rdma, local, there| match (local, there) {
            (Some(result), Some(word)) => rdma.compare_and_swap(word, result, 1, 2),
            _ => std::process::abort(),
        };
    fetch_and_add: 8, receives false, takes false, remote true,
        post |qp, sge, to, cookie| qp.post(&FetchAdd::new(sge, to, 1).signaled(), cookie),
        job |rdma, local, there| match (local, there) {
            (Some(result), Some(word)) => rdma.fetch_and_add(word, result, 1),
            _ => std::process::abort(),
        };
}

fn main() -> Result<()> {
    let card = Profile::load("bluefield3")?;
    let model = Model::builder().device(card.clone()).device(card).stepped().build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let [name, layer] = [1, 2].map(|at| std::env::args().nth(at).unwrap_or_default());
    let named = OPERATIONS.iter().find(|operation| operation.name == name);
    // `cargo test` gives arguments of its own.
    let operations = named.map_or(OPERATIONS, std::slice::from_ref);
    for operation in operations {
        if layer != "pair" {
            queue(&model, &backend, operation)?;
        }
        if layer != "queue" {
            pair(&model, &backend, operation)?;
        }
    }
    println!("operations: {}", ROUND * ROUNDS);
    Ok(())
}

/// Checks that the device keeps the order. It aborts, so that the compiler emits no drop code for
/// the retrieved event.
#[inline(always)]
fn in_order(user_data: UserData, number: u64) {
    if user_data.0 != number {
        std::process::abort();
    }
}

#[cold]
#[inline(never)]
fn unexpected(other: std::result::Result<Event, Retrieve>) -> ! {
    panic!("the model is idle, and no job failed: {other:?}")
}

/// The same code for all operations; inlined, a linker would merge eight copies into one function.
#[inline(never)]
fn measured_poll(qp: &mut Qp, cq: &mut Cq) {
    for cookie in 0..ROUND as u64 {
        let done = qp.poll(cq).expect("the model is idle").expect("the request succeeds");
        assert_eq!(done.cookie, cookie);
    }
}

fn devices(backend: &Arc<dyn Backend>) -> Result<[Dev; 2]> {
    let open = |name| DevInfo::find_in(backend, name)?.open();
    Ok([open("mlx5_0")?, open("mlx5_1")?])
}

/// One end of a connection of verbless-queue.
struct QueueEnd {
    qp: Qp,
    /// The CQs of its sends and of its receives.
    cqs: [Cq; 2],
    region: Region,
}

impl QueueEnd {
    fn new(dev: &Dev) -> Result<Self> {
        let domain = dev.domain();
        let cqs = [
            domain.completion_queue(&CqConfig::new(256))?,
            domain.completion_queue(&CqConfig::new(256))?,
        ];
        let config = QpConfig { inline: 0, ..QpConfig::new(ROUND as u32, ROUND as u32) };
        let qp = domain.queue_pair(&config, &cqs[0], &cqs[1])?;
        Ok(Self { qp, cqs, region: domain.region(4096, KeyAccess::ALL)? })
    }

    fn receive(&mut self) -> Result<()> {
        let sge = self.region.sge(0, LENGTH)?;
        (0..ROUND as u64).try_for_each(|n| self.qp.post_receive(sge, n).map(drop))?;
        Ok(())
    }

    fn poll(&mut self, receives: bool) -> Result<()> {
        for _ in 0..ROUND {
            self.qp.poll(&mut self.cqs[usize::from(receives)]).ok_or("nothing is done")??;
        }
        Ok(())
    }
}

fn queue(model: &Model, backend: &Arc<dyn Backend>, operation: &Operation) -> Result<()> {
    let devs = devices(backend)?;
    let (mut a, mut b) = (QueueEnd::new(&devs[0])?, QueueEnd::new(&devs[1])?);
    let options = ConnectOptions::default();
    let (to_a, to_b) =
        (devs[0].domain().address(&a.qp, &options)?, devs[1].domain().address(&b.qp, &options)?);
    devs[0].domain().connect(&mut a.qp, &to_b, &options)?;
    devs[1].domain().connect(&mut b.qp, &to_a, &options)?;
    let sge = a.region.sge(0, operation.length)?;
    let to = RemoteAddr::new(b.region.address(), b.region.rkey().ok_or("no remote key")?);
    for _ in 0..ROUNDS {
        if operation.takes_receives {
            b.receive()?;
        }
        (operation.post)(&mut a.qp, black_box(sge), black_box(to));
        if operation.receives {
            let from = b.region.sge(0, LENGTH)?;
            for n in 0..ROUND as u64 {
                b.qp.post(&Send::new(from).signaled(), n)?;
            }
        }
        model.run_until_idle();
        measured_poll(&mut a.qp, &mut a.cqs[usize::from(operation.receives)]);
        if operation.takes_receives || operation.receives {
            b.poll(operation.takes_receives)?;
        }
    }
    Ok(())
}

/// One end of a connection of DOCA RDMA.
struct Side {
    workq: WorkQ,
    rdma: Rdma,
    map: Mmap,
    inventory: Inventory,
}

impl Side {
    fn new(dev: &Dev) -> Result<Self> {
        let access = AccessFlags::LOCAL_READ_WRITE
            | AccessFlags::RDMA_READ
            | AccessFlags::RDMA_WRITE
            | AccessFlags::RDMA_ATOMIC;
        let map = Mmap::builder()
            .memrange(Memory::allocate(4096)?)
            .permissions(access)
            .add_dev(dev)
            .start()?;
        let rdma = Rdma::builder(dev).permissions(access).start()?;
        let mut workq = WorkQ::new(ROUND as u32)?;
        workq.add(&rdma)?;
        Ok(Self { workq, rdma, map, inventory: Inventory::builder(3 * ROUND).start()? })
    }

    fn local(&self, length: usize) -> Result<Buf> {
        Ok(self.inventory.buf_by_data(&self.map, self.map.address(), length as u64)?)
    }

    /// Retrieves a round, and submits another one.
    fn again(&mut self, receives: bool) -> Result<()> {
        for _ in 0..ROUND {
            let Event::Rdma(done) = self.workq.progress_retrieve()? else {
                return Err("another job".into());
            };
            self.submit(receives, done.local)?;
        }
        Ok(())
    }

    fn submit(&mut self, receives: bool, buffer: Option<Buf>) -> Result<()> {
        let job = if receives { self.rdma.receive(buffer) } else { self.rdma.send(buffer) };
        Ok(self.workq.submit(job)?)
    }
}

fn pair(model: &Model, backend: &Arc<dyn Backend>, operation: &Operation) -> Result<()> {
    let devs = devices(backend)?;
    let (mut a, mut b) = (Side::new(&devs[0])?, Side::new(&devs[1])?);
    a.rdma.connect(b.rdma.export()?)?;
    b.rdma.connect(a.rdma.export()?)?;
    let there = Mmap::create_from_export(b.map.export_rdma(&devs[1])?.as_bytes(), &devs[0])?;
    let mut bufs = (0..ROUND)
        .map(|_| {
            let remote = match operation.remote {
                true => Some(a.inventory.buf_by_addr(&there, there.address(), LENGTH as u64)?),
                false => None,
            };
            Ok((Some(a.local(operation.length)?), remote))
        })
        .collect::<Result<Vec<_>>>()?;
    let other = operation.takes_receives || operation.receives;
    // The first job of a buffer records how the device reaches it.
    if operation.takes_receives {
        (0..ROUND).try_for_each(|_| b.submit(true, Some(b.local(LENGTH)?)))?;
    }
    (operation.submit)(&mut a, &mut bufs);
    if operation.receives {
        (0..ROUND).try_for_each(|_| b.submit(false, Some(b.local(LENGTH)?)))?;
    }
    for _ in 0..ROUNDS {
        model.run_until_idle();
        if other && operation.takes_receives {
            b.again(true)?;
        }
        (operation.pair)(&mut a.workq, &a.rdma);
        if other && operation.receives {
            b.again(false)?;
        }
    }
    model.run_until_idle();
    for _ in 0..ROUND {
        a.workq.progress_retrieve()?;
    }
    Ok(())
}
