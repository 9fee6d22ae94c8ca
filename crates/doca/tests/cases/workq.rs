//! Work queues: dropped contexts and graphs, capabilities before a device is opened, results of a
//! retrieval.

use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, poll};
use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::graph::Graph;
use verbless_doca::rdma::Rdma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{
    AsyncWorkQ, Buf, Dev, DevInfo, Error, ErrorKind, Inventory, JobType, Mmap, Retrieve, WorkQ,
};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::CqeSyndrome;

use crate::support::{backend, dev, plain};

fn kind<T>(result: Result<T, impl Into<Error>>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}

fn ends((map, inventory): &(Mmap, Inventory)) -> (Buf, Buf) {
    let from = inventory.buf_by_data(map, map.address(), 64).unwrap();
    (from, inventory.buf_by_addr(map, map.address() + 64, 64).unwrap())
}

#[test]
fn workq_leaves_dropped_ctx_and_graph_when_idle() {
    let dev = dev();
    let memory = plain(&dev, 4096, 8);
    let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
    let (dma, kept) = (Dma::builder(&dev).start().unwrap(), Dma::builder(&dev).start().unwrap());
    workq.add(&dma).unwrap();
    workq.add(&kept).unwrap();
    let mut graph = Graph::builder();
    let node = graph.ctx_node(&kept, JobType::DmaMemcpy);
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    let (from, to) = ends(&memory);
    instance.set_ctx_node_data(node, kept.memcpy(from, to)).unwrap();
    let (from, to) = ends(&memory);
    workq.submit(dma.memcpy(from, to)).unwrap();
    workq.submit_graph(&instance, 1).unwrap();
    drop((dma, graph, instance));
    let refused = workq.set_depth(8).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadState, "{refused}");
    let refused = workq.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    workq = refused.given;
    assert_eq!(workq.drain().filter(Result::is_ok).count(), 2);
    // A work queue is on it.
    assert_eq!(kind(workq.set_depth(8)), ErrorKind::BadState);
    workq.remove(&kept).unwrap();
    workq.set_depth(8).unwrap();
    workq.add(&kept).unwrap();
    drop(kept);
    workq.set_event_driven(false).unwrap();
    workq.destroy().unwrap();
    assert_eq!(memory.1.num_free_elements(), 8);
}

#[test]
fn dropped_ctx_leaves_each_workq() {
    let dev = dev();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut queues = [WorkQ::new(4).unwrap(), WorkQ::new(4).unwrap()];
    queues.iter_mut().for_each(|workq| workq.add(&dma).unwrap());
    queues.iter_mut().for_each(|workq| assert_eq!(kind(workq.set_depth(2)), ErrorKind::BadState));
    drop(dma);
    queues.into_iter().for_each(|workq| workq.destroy().unwrap());
}

#[test]
fn capabilities_are_known_of_unopened_device() {
    for (profile, copies) in [("bluefield3", true), ("connectx6dx", false)] {
        let info = &DevInfo::list_of(&backend(profile)).unwrap()[0];
        assert_eq!(Dma::memcpy_supported(info).is_ok(), copies);
        assert_eq!(Dma::max_buf_size(info).is_ok(), copies);
        assert_eq!(Dma::max_list_buf_num_elem(info).is_ok(), copies);
        Sha::job_supported(info, Algorithm::Sha1).unwrap();
        assert_eq!(kind(Sha::hardware_supported(info)), ErrorKind::NotSupported);
        SyncEvent::job_supported(info, JobType::SyncEventAdd).unwrap();
        let dev: Dev = info.open().unwrap();
        for (closed, open) in [
            (SyncEvent::export_to_dpu_supported(info), SyncEvent::export_to_dpu_supported(&dev)),
            (
                SyncEvent::create_from_export_supported(info),
                SyncEvent::create_from_export_supported(&dev),
            ),
            (SyncEvent::export_to_dpa_supported(info), SyncEvent::export_to_dpa_supported(&dev)),
            (SyncEvent::export_to_gpu_supported(info), SyncEvent::export_to_gpu_supported(&dev)),
        ] {
            assert_eq!(closed.map_err(|it| it.kind()), open.map_err(|it| it.kind()));
        }
    }
}

#[test]
fn full_workq_rejects_every_job_with_again() {
    let dev = dev();
    let memory = plain(&dev, 4096, 8);
    let [dma, other] = [(); 2].map(|()| Dma::builder(&dev).start().unwrap());
    let (sha, rdma) = (Sha::builder(&dev).start().unwrap(), Rdma::builder(&dev).start().unwrap());
    let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
    let event = event.subscriber_add_location(Location::Cpu).unwrap().as_ctx().start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    workq.add(&sha).unwrap();
    workq.add(&event).unwrap();
    workq.add(&rdma).unwrap();
    // It is in flight until it is retrieved.
    let (from, to) = ends(&memory);
    workq.submit(sha.hash(Algorithm::Sha1, from, to)).unwrap();

    let again = |(from, to): (Buf, Buf), what: &str| {
        assert_eq!((from.data_len(), to.data_len()), (64, 0), "{what}");
    };
    let full = |refused: &Error| assert_eq!(refused.kind(), ErrorKind::Again, "{refused}");
    for (context, what) in [(&dma, "there is nothing else"), (&other, "it is not on it")] {
        let (from, to) = ends(&memory);
        let refused = workq.submit(context.memcpy(from, to)).unwrap_err();
        full(&refused.error);
        again(refused.given.into_bufs(), what);
    }
    let (from, to) = ends(&memory);
    let held = from.add_ref().unwrap();
    let refused = workq.submit(dma.memcpy(from, to)).unwrap_err();
    full(&refused.error);
    again(refused.given.into_bufs(), "the buffer has two references");
    drop(held);
    let (from, to) = ends(&memory);
    let refused = workq.submit(sha.update(sha.partial(Algorithm::Sha512), from)).unwrap_err();
    full(&refused.error);
    assert_eq!(refused.given.into_bufs().0.data_len(), 64, "half a block");
    drop(to);
    full(&workq.submit(event.wait_gt(255)).unwrap_err().error);
    full(&workq.submit(event.get()).unwrap_err().error);
    full(&workq.submit(rdma.send(None)).unwrap_err().error);
    full(&workq.submit(rdma.receive(None)).unwrap_err().error);

    // With room again, each job is refused for its own reason.
    assert!(workq.retrieve_within(None).unwrap().is_some());
    assert_eq!(kind(workq.submit(event.wait_gt(255))), ErrorKind::InvalidValue);
    assert_eq!(kind(workq.submit(rdma.send(None))), ErrorKind::NotConnected);
    let (from, to) = ends(&memory);
    assert_eq!(kind(workq.submit(other.memcpy(from, to))), ErrorKind::BadState);
    let (from, to) = ends(&memory);
    workq.submit(dma.memcpy(from, to)).unwrap();
    assert!(workq.retrieve_within(None).unwrap().is_some(), "refusals took no place");
}

#[test]
fn retrieve_errors_convert_to_doca_errors() {
    let (model, dev) = crate::support::disturbed();
    let memory = plain(&dev, 4096, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let again = workq.progress_retrieve().unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Again);
    assert_eq!(Error::from(again).kind(), ErrorKind::Again);
    model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    let (from, to) = ends(&memory);
    workq.submit(dma.memcpy(from, to)).unwrap();
    let failed = workq.retrieve_within(None).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::IoFailed);
    let error = Error::from(failed);
    assert_eq!(error.kind(), ErrorKind::IoFailed);
    assert!(error.to_string().contains("NOT_PERMITTED"), "{error}");
    assert_eq!(memory.1.num_free_elements(), 8, "the event is gone, and its buffers are back");
    let refused = workq.arm().unwrap_err();
    let failed = Retrieve::Failed(refused);
    assert_eq!(failed.kind(), ErrorKind::BadState);
    assert_eq!(Error::from(failed).kind(), ErrorKind::BadState);
}

#[test]
fn async_workq_adds_and_aborts_ctx_in_place() {
    let dev = dev();
    let memory = plain(&dev, 4096, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let queue = AsyncWorkQ::new(WorkQ::builder(4).event_driven().build().unwrap()).unwrap();
    queue.add(&dma).unwrap();
    let (from, to) = ends(&memory);
    drop(queue.submit(dma.memcpy(from, to)).unwrap());
    assert_eq!(kind(queue.remove(&dma)), ErrorKind::InUse);
    queue.abort(&dma).unwrap();
    let mut workq = queue.into_inner();
    assert_eq!(workq.drain().count(), 1);
    workq.remove(&dma).unwrap();
}

#[test]
fn polling_workq_never_signals_event_handle() {
    let dev = dev();
    let memory = plain(&dev, 4096, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let (from, to) = ends(&memory);
    workq.submit(dma.memcpy(from, to)).unwrap();
    assert_eq!(kind(workq.arm()), ErrorKind::BadState);
    workq.retrieve_within(None).unwrap();
    let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, 10_u8).unwrap(), 0);
}

#[test]
fn chains_fit_deepest_workq_on_short_cq() {
    let text = include_str!("../../../model/profiles/bluefield3.toml");
    let short = text.replace("log_max_cq_sz = 22", "log_max_cq_sz = 8");
    assert_ne!(short, text);
    let model = Model::builder().device(Profile::from_toml(&short).unwrap()).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    let (map, inventory) = plain(&dev, 1 << 16, 256);
    let dma = Dma::builder(&dev).start().unwrap();
    let deepest = |depth| WorkQ::new(depth).unwrap().add(&dma);
    assert_eq!(kind(deepest(127)), ErrorKind::InvalidValue);
    let mut workq = WorkQ::new(126).unwrap();
    workq.add(&dma).unwrap();
    let most = u64::from(Dma::max_list_buf_num_elem(&dev).unwrap());
    let chain = |full: bool| {
        let piece = |at| match full {
            true => inventory.buf_by_data(&map, map.address() + 16 * at, 16),
            // Misaligned pieces, for the maximum number of requests.
            false => {
                inventory.buf_by_addr(&map, map.address() + 0x8000 + 32 * at, 8 + 16 * (at % 2))
            }
        };
        let mut chain = piece(0).unwrap();
        (1..most).for_each(|at| chain.link(piece(at).unwrap()).unwrap());
        chain
    };
    for _ in 0..4 {
        workq.submit(dma.memcpy(chain(true), chain(false))).unwrap();
        workq.retrieve_within(None).unwrap();
    }
}

#[test]
fn event_handle_is_stable() {
    use std::os::fd::AsRawFd;
    let infos = DevInfo::list_of(&crate::support::backend("bluefield3")).unwrap();
    let devs = [infos[0].open().unwrap(), infos[1].open().unwrap()];
    let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
    let handle = workq.event_handle().as_raw_fd();
    let contexts = devs.each_ref().map(|dev| Dma::builder(dev).start().unwrap());
    for context in &contexts {
        workq.add(context).unwrap();
        assert_eq!(workq.event_handle().as_raw_fd(), handle);
    }
    for context in &contexts {
        workq.remove(context).unwrap();
        assert_eq!(workq.event_handle().as_raw_fd(), handle);
    }
}
