//! Graphs of copies, hashes and callbacks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::Digest;
use verbless_doca::dma::{Dma, Memcpy};
use verbless_doca::graph::{Graph, GraphDone, Instance, Node};
use verbless_doca::rdma::RdmaBuilder;
use verbless_doca::sha::{Algorithm, HashJob, Sha};
use verbless_doca::{Buf, Context, ErrorKind, Event, Inventory, JobType, Mmap, Retrieve, WorkQ};
use verbless_model::Model;
use verbless_prm::CqeSyndrome;

use crate::support::plain;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const BUFFERS: usize = 512;

struct Rig {
    model: Model,
    map: Mmap,
    inventory: Inventory,
    dma: Dma,
    sha: Sha,
    workq: WorkQ,
}

fn rig(workq: WorkQ) -> Rig {
    let (model, dev) = crate::support::disturbed();
    let (map, inventory) = plain(&dev, 1 << 20, BUFFERS);
    let (dma, sha) = (Dma::builder(&dev).start().unwrap(), Sha::builder(&dev).start().unwrap());
    let mut workq = workq;
    workq.add(&dma).unwrap();
    workq.add(&sha).unwrap();
    Rig { model, map, inventory, dma, sha, workq }
}

impl Rig {
    fn data(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_data(&self.map, self.map.address() + at, length).unwrap()
    }

    fn room(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_addr(&self.map, self.map.address() + at, length).unwrap()
    }

    /// A copy of 64 bytes.
    fn copy(&self, from: u64, to: u64) -> Memcpy {
        self.dma.memcpy(self.data(from, 64), self.room(to, 64))
    }

    fn hash(&self, from: u64, to: u64) -> HashJob {
        self.sha.hash(Algorithm::Sha256, self.data(from, 64), self.room(to, 32))
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes).unwrap();
        bytes
    }

    fn free(&self) -> usize {
        self.inventory.num_free_elements()
    }
}

fn ended(workq: &mut WorkQ) -> GraphDone {
    match workq.retrieve_within(TIMEOUT).unwrap().expect("a minute is enough") {
        Event::Graph(done) => done,
        other => panic!("{other:?}"),
    }
}

fn kind<T, E: Into<verbless_doca::Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}

/// A graph of copies; each depends on the one before.
fn chain(rig: &Rig, length: usize) -> (Graph, Vec<Node>) {
    let mut graph = Graph::builder();
    let nodes: Vec<_> = (0..length).map(|_| graph.ctx_node(&rig.dma, JobType::DmaMemcpy)).collect();
    nodes.windows(2).for_each(|two| graph.add_dependency(two[0], two[1]).unwrap());
    (graph.start().unwrap(), nodes)
}

/// Sets the jobs of such a chain: from slot 0 to 1, from 1 to 2, and so on.
fn set_chain(rig: &Rig, instance: &Instance, nodes: &[Node], base: u64) {
    for (at, &node) in nodes.iter().enumerate() {
        let from = base + 64 * at as u64;
        instance.set_ctx_node_data(node, rig.copy(from, from + 64)).unwrap();
    }
}

#[test]
fn parallel_jobs_end_before_dependent_callback() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    rig.map.write_at(0, &[7; 64]).unwrap();
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&rig.sha, JobType::ShaHash);
    let both = graph.user_node(move |node| {
        let Some(Event::Dma(copied)) = node.take_result(copy) else { return Err(ErrorKind::Empty) };
        let Some(Event::Sha(hashed)) = node.result(hash) else { return Err(ErrorKind::Empty) };
        let digest = hashed.destination.as_ref().unwrap().to_vec()?;
        let equal = copied.source.to_vec()? == copied.destination.to_vec()?;
        *node.data::<Option<(bool, Vec<u8>)>>().unwrap() = Some((equal, digest));
        Ok(())
    });
    graph.add_dependency(copy, both).unwrap();
    graph.add_dependency(hash, both).unwrap();
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(copy, rig.copy(0, 0x1000)).unwrap();
    instance.set_ctx_node_data(hash, rig.hash(0, 0x2000)).unwrap();
    instance.set_user_node_data(both, None::<(bool, Vec<u8>)>).unwrap();
    rig.workq.submit_graph(&instance, 9).unwrap();
    // Three nodes: three empty retrievals, then the instance.
    let (mut nodes, mut spins) = (0, 0);
    let done = loop {
        let before = rig.workq.in_flight();
        match rig.workq.progress_retrieve() {
            Ok(Event::Graph(done)) => break done,
            Err(Retrieve::Again) => nodes += u32::from(rig.workq.in_flight() < before),
            other => panic!("{other:?}"),
        }
        spins += 1;
        assert!(spins < 100_000_000);
    };
    assert_eq!(nodes, 2, "jobs that ended were Again each");
    assert_eq!((done.status(), done.user_data.0, done.failed), (0, 9, None));
    let (equal, digest) =
        instance.take_user_node_data::<Option<(bool, Vec<u8>)>>(both).unwrap().unwrap().unwrap();
    assert!(equal);
    assert_eq!(digest, sha2::Sha256::digest([7; 64]).to_vec());
    // The callback took the copy's buffers; the hash's are still there.
    assert!(instance.take_result(copy).unwrap().is_none());
    let Some(Event::Sha(hashed)) = instance.take_result(hash).unwrap() else { panic!() };
    assert_eq!(rig.free(), BUFFERS - 2);
    drop(hashed);
    assert_eq!((rig.free(), rig.workq.in_flight()), (BUFFERS, 0));
}

#[test]
fn node_starts_after_its_dependencies() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let (graph, nodes) = chain(&rig, 20);
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    for round in 0..50u8 {
        rig.map.write_at(0, &[round; 64]).unwrap();
        rig.map.write_at(64, &vec![0xff; 64 * 20]).unwrap();
        set_chain(&rig, &instance, &nodes, 0);
        rig.workq.submit_graph(&instance, 0).unwrap();
        assert_eq!(ended(&mut rig.workq).status(), 0);
        assert_eq!(rig.bytes(64 * 20, 64), [round; 64], "the copies went through all buffers");
    }
}

#[test]
fn cycle_is_rejected_and_named() {
    let rig = rig(WorkQ::new(1).unwrap());
    let mut graph = Graph::builder();
    let a = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let b = graph.user_node(|_| Ok(()));
    let c = graph.ctx_node(&rig.sha, JobType::ShaHash);
    let d = graph.user_node(|_| Ok(()));
    graph.add_dependency(a, b).unwrap();
    graph.add_dependency(a, d).unwrap();
    graph.add_dependency(b, c).unwrap();
    let error = graph.add_dependency(c, a).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    let cycle = "node 0 (DmaMemcpy) -> node 1 (user) -> node 2 (ShaHash) -> node 0 (DmaMemcpy)";
    assert!(error.to_string().contains(cycle), "{error}");
    let error = graph.add_dependency(b, b).unwrap_err();
    assert!(error.to_string().contains("node 1 (user) -> node 1 (user)"), "{error}");
    assert_eq!(kind(graph.add_dependency(a, b)), ErrorKind::AlreadyExist);
    let mut other = Graph::builder();
    let foreign = other.user_node(|_| Ok(()));
    assert_eq!(kind(graph.add_dependency(a, foreign)), ErrorKind::InvalidValue);
    graph.add_dependency(c, d).unwrap();
    graph.start().unwrap();
}

#[test]
fn graph_requires_context_node_or_sub_graph() {
    let rig = rig(WorkQ::new(1).unwrap());
    assert_eq!(kind(Graph::builder().start()), ErrorKind::InvalidValue);
    let mut graph = Graph::builder();
    graph.user_node(|_| Ok(()));
    assert_eq!(kind(graph.start()), ErrorKind::InvalidValue);
    let mut graph = Graph::builder();
    graph.sub_graph_node(&chain(&rig, 1).0);
    assert_eq!(graph.start().unwrap().num_nodes(), 1);
    let mut graph = Graph::builder();
    let contexts: [&dyn Context; 2] = [&rig.dma, &rig.sha];
    for (context, kind) in contexts.into_iter().zip([JobType::DmaMemcpy, JobType::ShaHash]) {
        graph.ctx_node(context, kind);
    }
    assert_eq!(graph.start().unwrap().num_nodes(), 2, "of whatever library");
}

#[test]
fn sub_graph_nodes_need_distinct_instances() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let (inner, inner_nodes) = chain(&rig, 1);
    let mut graph = Graph::builder();
    let subs = [graph.sub_graph_node(&inner), graph.sub_graph_node(&inner)];
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let (instance, inside) = (graph.instance(), [inner.instance(), inner.instance()]);
    instance.set_sub_graph_node_data(subs[0], inside[0].clone()).unwrap();
    let again = instance.set_sub_graph_node_data(subs[1], inside[0].clone());
    assert_eq!(kind(again), ErrorKind::InvalidValue);
    // The same node may be set again.
    instance.set_sub_graph_node_data(subs[0], inside[0].clone()).unwrap();
    instance.set_sub_graph_node_data(subs[1], inside[1].clone()).unwrap();
    for (at, inside) in (0..).zip(&inside) {
        inside.set_ctx_node_data(inner_nodes[0], rig.copy(at * 64, 0x1000 + at * 64)).unwrap();
    }
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(ended(&mut rig.workq).status(), 0);
    assert!(inside.iter().all(|inside| inside.take_result(inner_nodes[0]).unwrap().is_some()));
}

#[test]
fn submission_requires_matching_data_of_every_node() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let user = graph.user_node(|_| Ok(()));
    let (inner, inner_nodes) = chain(&rig, 1);
    let (stranger, _) = chain(&rig, 1);
    let sub = graph.sub_graph_node(&inner);
    let graph = graph.start().unwrap();
    let (instance, inside) = (graph.instance(), inner.instance());
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::BadState);
    rig.workq.add_graph(&graph).unwrap();
    assert_eq!(kind(rig.workq.add_graph(&graph)), ErrorKind::AlreadyExist);

    // A job of another type is refused.
    let hash = rig.hash(0, 0x2000);
    assert_eq!(kind(instance.set_ctx_node_data(copy, hash)), ErrorKind::InvalidValue);
    let other = Dma::builder(rig.dma.dev()).start().unwrap();
    let job = other.memcpy(rig.data(0, 64), rig.room(64, 64));
    assert_eq!(kind(instance.set_ctx_node_data(copy, job)), ErrorKind::InvalidValue);
    assert_eq!(kind(instance.set_user_node_data(copy, ())), ErrorKind::InvalidValue);
    let strange = instance.set_sub_graph_node_data(sub, stranger.instance());
    assert_eq!(kind(strange), ErrorKind::InvalidValue);
    assert_eq!(kind(instance.take_result(inner_nodes[0])), ErrorKind::InvalidValue);
    assert_eq!(rig.free(), BUFFERS, "refused jobs came back");

    // Whichever part is missing, no job begins.
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InvalidValue);
    instance.set_ctx_node_data(copy, rig.copy(0, 0x1000)).unwrap();
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InvalidValue);
    instance.set_user_node_data(user, ()).unwrap();
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InvalidValue);
    instance.set_sub_graph_node_data(sub, inside.clone()).unwrap();
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InvalidValue);
    assert_eq!(rig.workq.in_flight(), 0);
    inside.set_ctx_node_data(inner_nodes[0], rig.copy(0, 0x3000)).unwrap();
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(ended(&mut rig.workq).status(), 0);
    // The run consumed its jobs.
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InvalidValue);
}

#[test]
fn running_instance_keeps_graph_and_ctx_in_use() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let (graph, nodes) = chain(&rig, 2);
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    set_chain(&rig, &instance, &nodes, 0);
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert!(instance.is_running());
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InUse);
    assert_eq!(kind(instance.take_result(nodes[0])), ErrorKind::InUse);
    assert_eq!(kind(instance.take_job::<Memcpy>(nodes[0])), ErrorKind::InUse);
    let again = instance.set_ctx_node_data(nodes[0], rig.copy(0, 64));
    assert_eq!(kind(again), ErrorKind::InUse);
    assert_eq!(kind(rig.workq.remove_graph(&graph)), ErrorKind::InUse);
    assert_eq!(kind(rig.workq.remove(&rig.dma)), ErrorKind::InUse);
    rig.workq.remove(&rig.sha).unwrap();
    let done = ended(&mut rig.workq);
    assert!(!done.instance().is_running());
    let graph = graph.stop().unwrap_err().given;
    rig.workq.remove_graph(&graph).unwrap();
    assert_eq!(kind(rig.workq.remove_graph(&graph)), ErrorKind::NotFound);
    graph.stop().unwrap();
}

#[test]
fn ctx_of_pending_node_is_in_use() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&rig.sha, JobType::ShaHash);
    graph.add_dependency(copy, hash).unwrap();
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(copy, rig.copy(0, 64)).unwrap();
    instance.set_ctx_node_data(hash, rig.hash(64, 128)).unwrap();
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(kind(rig.workq.remove(&rig.sha)), ErrorKind::InUse);
    assert_eq!(ended(&mut rig.workq).status(), 0);
    rig.workq.remove(&rig.sha).unwrap();
}

#[test]
fn graphs_and_jobs_share_workq() {
    // 16 instances of 3 parallel copies each, and jobs of the program, on a work queue for 16.
    let mut rig = rig(WorkQ::new(16).unwrap());
    rig.map.write_at(0, &[3; 64]).unwrap();
    let mut graph = Graph::builder();
    let nodes = [(); 3].map(|()| graph.ctx_node(&rig.dma, JobType::DmaMemcpy));
    let last = graph.ctx_node(&rig.sha, JobType::ShaHash);
    nodes.iter().for_each(|&node| graph.add_dependency(node, last).unwrap());
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instances: Vec<_> = (0..17).map(|_| graph.instance()).collect();
    for round in 0..20 {
        let (mut ends, mut own) = ([0; 16], 0);
        for (number, instance) in instances.iter().enumerate() {
            let base = 0x1000 * (1 + number as u64);
            for (at, &node) in nodes.iter().enumerate() {
                let copy = rig.copy(0, base + 64 * at as u64);
                instance.set_ctx_node_data(node, copy).unwrap();
            }
            instance.set_ctx_node_data(last, rig.hash(0, base + 0x800)).unwrap();
            let submitted = rig.workq.submit_graph(instance, number as u64);
            match number {
                16 => assert_eq!(kind(submitted), ErrorKind::Again),
                _ => submitted.unwrap(),
            }
        }
        let mut left = 10;
        while rig.workq.in_flight() > 0 || left > 0 {
            if left > 0 && rig.workq.submit(rig.copy(0, 0xf_0000).user_data(99)).is_ok() {
                left -= 1;
            }
            match rig.workq.progress_retrieve() {
                Ok(Event::Graph(done)) => {
                    assert_eq!(done.status(), 0);
                    ends[done.user_data.0 as usize] += 1;
                }
                Ok(event) => {
                    assert_eq!(event.user_data().0, 99, "jobs of nodes are not the program's");
                    own += 1;
                }
                Err(Retrieve::Again) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!((ends, own), ([1; 16], 10), "round {round}");
        for base in (1..17).map(|number| 0x1000 * number) {
            assert_eq!(rig.bytes(base, 192), [3; 192]);
            let digest = sha2::Sha256::digest([3; 64]).to_vec();
            assert_eq!(rig.bytes(base + 0x800, 32), digest);
            rig.map.write_at(base, &[0; 0x900]).unwrap();
        }
    }
    drop(instances);
    assert_eq!(rig.free(), BUFFERS);
}

#[test]
fn failed_node_stops_dependents_and_keeps_bufs() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    // a -> b -> c, and beside it d -> e; the device fails a.
    let called = Arc::new(AtomicU32::new(0));
    let mut graph = Graph::builder();
    let [a, b, d] = [(); 3].map(|()| graph.ctx_node(&rig.dma, JobType::DmaMemcpy));
    let count = called.clone();
    let c = graph.user_node(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let e = graph.ctx_node(&rig.sha, JobType::ShaHash);
    for (from, to) in [(a, b), (b, c), (a, c), (d, e)] {
        graph.add_dependency(from, to).unwrap();
    }
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_user_node_data(c, ()).unwrap();
    let submit = |rig: &mut Rig| {
        instance.set_ctx_node_data(a, rig.copy(0, 0x1000)).unwrap();
        instance.set_ctx_node_data(b, rig.copy(0x1000, 0x2000)).unwrap();
        instance.set_ctx_node_data(d, rig.copy(0, 0x3000)).unwrap();
        instance.set_ctx_node_data(e, rig.hash(0, 0x4000)).unwrap();
        rig.workq.submit_graph(&instance, 5).unwrap();
    };
    rig.model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    submit(&mut rig);
    let done = ended(&mut rig.workq);
    assert_eq!((done.failed, done.user_data.0), (Some(a), 5));
    assert_eq!(done.status(), u64::from(ErrorKind::NotPermitted.number()));
    assert!(rig.workq.retrieve_within(Some(Duration::from_millis(5))).unwrap().is_none());
    assert_eq!((rig.workq.in_flight(), called.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(rig.free(), BUFFERS - 8, "the instance has them");
    let failed = instance.take_result(a).unwrap().unwrap();
    assert_eq!(failed.result().unwrap_err().kind(), ErrorKind::NotPermitted);
    assert!(instance.take_result(b).unwrap().is_none());
    let (source, _) = instance.take_job::<Memcpy>(b).unwrap().unwrap().into_bufs();
    assert_eq!(source.head(), rig.map.address() + 0x1000);
    assert!(instance.take_result(d).unwrap().unwrap().result().is_ok());
    assert!(instance.take_result(e).unwrap().unwrap().result().is_ok());
    drop((failed, source));
    assert_eq!(rig.free(), BUFFERS);
    // It runs again.
    submit(&mut rig);
    let done = ended(&mut rig.workq);
    assert_eq!((done.status(), done.failed, called.load(Ordering::Relaxed)), (0, None, 1));
}

#[test]
fn rejected_job_or_failed_callback_fails_its_node() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    let mut graph = Graph::builder();
    let before = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let user = graph.user_node(|node| match node.data::<u32>() {
        Some(0) => Ok(()),
        Some(1) => Err(ErrorKind::TimeOut),
        _ => panic!("as the test wants"),
    });
    let after = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    graph.add_dependency(before, user).unwrap();
    graph.add_dependency(user, after).unwrap();
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    let mut run = |first: Memcpy, what: u32, last: Memcpy| {
        instance.set_ctx_node_data(before, first).unwrap();
        instance.set_user_node_data(user, what).unwrap();
        instance.set_ctx_node_data(after, last).unwrap();
        rig.workq.submit_graph(&instance, 0).unwrap();
        loop {
            let retrieve = std::panic::AssertUnwindSafe(|| rig.workq.retrieve_within(TIMEOUT));
            match std::panic::catch_unwind(retrieve) {
                Ok(Ok(Some(Event::Graph(done)))) => break (done.status(), done.failed),
                Ok(other) => panic!("{other:?}"),
                Err(_) => assert_eq!(what, 2),
            }
        }
    };
    let (map, inventory, dma) = (&rig.map, &rig.inventory, &rig.dma);
    let long = || inventory.buf_by_data(map, map.address(), 128).unwrap();
    let short = || inventory.buf_by_addr(map, map.address() + 0x1000, 128).unwrap();
    let good = || dma.memcpy(long(), short());
    let bad = || dma.memcpy(long(), long());
    let number = |kind: ErrorKind| u64::from(kind.number());
    assert_eq!(run(good(), 0, good()), (0, None));
    assert_eq!(run(bad(), 0, good()), (number(ErrorKind::InvalidValue), Some(before)));
    assert_eq!(run(good(), 0, bad()), (number(ErrorKind::InvalidValue), Some(after)));
    assert_eq!(run(good(), 1, good()), (number(ErrorKind::TimeOut), Some(user)));
    assert_eq!(run(good(), 2, good()), (number(ErrorKind::Unexpected), Some(user)));
    assert_eq!(run(good(), 0, good()), (0, None));
    drop(instance);
    assert_eq!((rig.free(), rig.workq.in_flight()), (BUFFERS, 0));
}

#[test]
fn rejected_node_job_can_be_submitted_standalone() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    let (graph, nodes) = chain(&rig, 1);
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    let source = rig.data(0, 64);
    let reference = source.add_ref().unwrap();
    instance.set_ctx_node_data(nodes[0], rig.dma.memcpy(source, rig.room(64, 64))).unwrap();
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(ended(&mut rig.workq).status(), u64::from(ErrorKind::InvalidValue.number()));
    drop(reference);
    let job = instance.take_job::<Memcpy>(nodes[0]).unwrap().unwrap().user_data(6);
    // Another instance gets the slot of the refused one.
    let other = graph.instance();
    other.set_ctx_node_data(nodes[0], rig.copy(0, 0x1000)).unwrap();
    rig.workq.submit_graph(&other, 7).unwrap();
    rig.workq.submit(job).unwrap();
    let mut events: Vec<_> = rig
        .workq
        .drain()
        .map(|event| event.unwrap())
        .map(|it| (it.job_type(), it.user_data().0))
        .collect();
    events.sort_by_key(|event| event.1);
    assert_eq!(events, [(JobType::DmaMemcpy, 6), (JobType::Graph, 7)]);
}

#[test]
fn callback_sets_job_of_later_node() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    rig.map.write_at(0, &[5; 64]).unwrap();
    let sha = Arc::new(Sha::builder(rig.dma.dev()).start().unwrap());
    rig.workq.add(&*sha).unwrap();
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&*sha, JobType::ShaHash);
    let hasher = sha.clone();
    // Hashes the copied bytes instead of the configured ones.
    let between = graph.user_node(move |node| {
        let Some(Event::Dma(copied)) = node.take_result(copy) else { return Err(ErrorKind::Empty) };
        let (_, digest) = node.take_job::<HashJob>(hash).ok_or(ErrorKind::Empty)?.into_bufs();
        let digest = digest.ok_or(ErrorKind::Empty)?;
        let job = hasher.hash(Algorithm::Sha256, copied.destination, digest);
        node.set_job(hash, job).map_err(|refused| refused.error.kind())
    });
    graph.add_dependency(copy, between).unwrap();
    graph.add_dependency(between, hash).unwrap();
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(copy, rig.copy(0, 0x1000)).unwrap();
    instance.set_user_node_data(between, ()).unwrap();
    // The work queue's other context of this type is not the node's.
    assert_eq!(
        kind(instance.set_ctx_node_data(hash, rig.hash(0, 0x2000))),
        ErrorKind::InvalidValue
    );
    let zeros = sha.hash(Algorithm::Sha256, rig.data(0x3000, 64), rig.room(0x2000, 32));
    instance.set_ctx_node_data(hash, zeros).unwrap();
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(ended(&mut rig.workq).status(), 0);
    assert_eq!(rig.bytes(0x2000, 32), sha2::Sha256::digest([5; 64]).to_vec());
}

/// A graph with a callback after a copy, nested in a graph, nested in a graph, and so on.
fn nested(rig: &Rig, depth: usize) -> (Vec<Graph>, Vec<Node>, Arc<Mutex<Vec<usize>>>) {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (inner, nodes) = chain(rig, 1);
    let (mut graphs, mut nodes) = (vec![inner], nodes);
    for level in 1..depth {
        let mut graph = Graph::builder();
        let sub = graph.sub_graph_node(graphs.last().unwrap());
        let order = order.clone();
        let user = graph.user_node(move |_| {
            order.lock().unwrap().push(level);
            Ok(())
        });
        graph.add_dependency(sub, user).unwrap();
        graphs.push(graph.start().unwrap());
        nodes.extend([sub, user]);
    }
    (graphs, nodes, order)
}

#[test]
fn nested_sub_graphs_run_and_report_failure() {
    let mut rig = rig(WorkQ::builder(4).event_driven().build().unwrap());
    let (graphs, nodes, order) = nested(&rig, 10);
    rig.workq.add_graph(graphs.last().unwrap()).unwrap();
    let instances: Vec<_> = graphs.iter().map(Graph::instance).collect();
    for (level, two) in instances.windows(2).enumerate() {
        let (sub, user) = (nodes[1 + 2 * level], nodes[2 + 2 * level]);
        two[1].set_sub_graph_node_data(sub, two[0].clone()).unwrap();
        two[1].set_user_node_data(user, ()).unwrap();
    }
    for round in 0..40 {
        order.lock().unwrap().clear();
        let fails = round % 2 == 1;
        if fails {
            rig.model.fail_request(0, None, 1, CqeSyndrome::LOCAL_QP_OPERATION);
        }
        instances[0].set_ctx_node_data(nodes[0], rig.copy(0, 64)).unwrap();
        rig.workq.submit_graph(instances.last().unwrap(), round).unwrap();
        // An instance that runs inside another is in use, too.
        assert_eq!(kind(instances[0].take_result(nodes[0])), ErrorKind::InUse);
        let done = ended(&mut rig.workq);
        assert_eq!((done.status() != 0, done.user_data.0), (fails, round));
        assert_eq!(done.failed, fails.then(|| nodes[nodes.len() - 2]));
        let expected: Vec<usize> = if fails { vec![] } else { (1..10).collect() };
        assert_eq!(*order.lock().unwrap(), expected);
        assert!(instances.iter().all(|instance| !instance.is_running()));
    }
}

#[test]
fn event_driven_workq_misses_no_graph() {
    let mut rig = rig(WorkQ::builder(8).event_driven().build().unwrap());
    let mut graph = Graph::builder();
    let first = graph.user_node(|_| Ok(()));
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&rig.sha, JobType::ShaHash);
    let last = graph.user_node(|_| Ok(()));
    for (from, to) in [(first, copy), (copy, hash), (hash, last)] {
        graph.add_dependency(from, to).unwrap();
    }
    let graph = graph.start().unwrap();
    rig.workq.add_graph(&graph).unwrap();
    let instances = [graph.instance(), graph.instance(), graph.instance()];
    for round in 0..500 {
        let count = 1 + round % 3;
        // A thread may already sleep: work that the submission begins wakes it.
        if round % 2 == 0 {
            rig.workq.arm().unwrap();
        }
        for instance in &instances[..count] {
            instance.set_user_node_data(first, ()).unwrap();
            instance.set_user_node_data(last, ()).unwrap();
            instance.set_ctx_node_data(copy, rig.copy(0, 0x1000)).unwrap();
            instance.set_ctx_node_data(hash, rig.hash(0, 0x2000)).unwrap();
            rig.workq.submit_graph(instance, 0).unwrap();
        }
        if round % 2 == 0 {
            use nix::poll::{PollFd, PollFlags, poll};
            let mut files = [PollFd::new(rig.workq.event_handle(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut files, 10_000u16).unwrap(), 1, "round {round}");
            rig.workq.clear().unwrap();
        }
        (0..count).for_each(|_| assert_eq!(ended(&mut rig.workq).status(), 0));
    }
    assert!(rig.workq.retrieve_within(Some(Duration::from_millis(5))).unwrap().is_none());
}

#[test]
fn abort_fails_instance_and_drop_frees_bufs() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    let (graph, nodes) = chain(&rig, 4);
    rig.workq.add_graph(&graph).unwrap();
    let instances = [graph.instance(), graph.instance()];
    for instance in &instances {
        set_chain(&rig, instance, &nodes, 0);
        rig.workq.submit_graph(instance, 0).unwrap();
    }
    rig.workq.abort(&rig.dma).unwrap();
    for _ in &instances {
        let done = ended(&mut rig.workq);
        assert_eq!(done.status(), u64::from(ErrorKind::Shutdown.number()));
    }
    rig.workq.remove(&rig.dma).unwrap();
    rig.workq.add(&rig.dma).unwrap();
    // An instance without handles runs on to its one event.
    let [one, other] = instances;
    set_chain(&rig, &one, &nodes, 0);
    rig.workq.submit_graph(&one, 4).unwrap();
    drop(one);
    let done = ended(&mut rig.workq);
    assert_eq!((done.status(), done.user_data.0), (0, 4));
    drop(done);
    // A dropped work queue returns the instance.
    set_chain(&rig, &other, &nodes, 0);
    rig.workq.submit_graph(&other, 0).unwrap();
    drop(std::mem::replace(&mut rig.workq, WorkQ::new(1).unwrap()));
    assert!(!other.is_running());
    assert!(other.take_job::<Memcpy>(nodes[3]).unwrap().is_some(), "the node did not run");
    assert_eq!(graph.workqs(), 0);
    graph.stop().unwrap();
    drop(other);
    assert_eq!(rig.free(), BUFFERS);
}

#[test]
fn full_ctx_delays_no_job_of_another() {
    let small = |builder: RdmaBuilder| builder.recv_queue_size(1);
    let mut ends = crate::support::rdma::ends("bluefield3", small, crate::support::rdma::all());
    // The receiver and the sender of its messages are on one work queue.
    let mut workq = std::mem::replace(&mut ends[0].workq, WorkQ::new(1).unwrap());
    let sender = &mut ends[1];
    sender.workq.remove(sender.rdma.as_ref().unwrap()).unwrap();
    workq.add(sender.rdma.as_ref().unwrap()).unwrap();
    crate::support::rdma::connect(&ends);
    let [a, b] = ends;
    let dma = Dma::builder(&a.dev).start().unwrap();
    workq.add(&dma).unwrap();
    let receive = |at| a.rdma().receive(a.room(at, 64));
    let send = |at| b.rdma().send(b.data(at, 64));
    let mut graph = Graph::builder();
    let receives = [0, 1].map(|_| graph.ctx_node(a.rdma(), JobType::RdmaReceive));
    let sends = [0, 1].map(|_| graph.ctx_node(b.rdma(), JobType::RdmaSend));
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    for (number, (&receiving, &sending)) in (0..).zip(receives.iter().zip(&sends)) {
        instance.set_ctx_node_data(receiving, receive(64 * number)).unwrap();
        instance.set_ctx_node_data(sending, send(64 * number)).unwrap();
    }
    // The second receive has no room before the first send is done.
    workq.submit_graph(&instance, 1).unwrap();
    let mut other = Graph::builder();
    let copy = other.ctx_node(&dma, JobType::DmaMemcpy);
    let other = other.start().unwrap();
    workq.add_graph(&other).unwrap();
    let copying = other.instance();
    let job = dma.memcpy(a.data(1024, 64).unwrap(), a.room(2048, 64).unwrap());
    copying.set_ctx_node_data(copy, job).unwrap();
    workq.submit_graph(&copying, 2).unwrap();
    let mut done =
        [ended(&mut workq), ended(&mut workq)].map(|done| (done.user_data.0, done.status()));
    done.sort_unstable();
    assert_eq!(done, [(1, 0), (2, 0)]);
}
