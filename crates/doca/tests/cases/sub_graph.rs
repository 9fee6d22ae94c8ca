//! Instances in sub-graph nodes of others.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use verbless_doca::dma::{Dma, Memcpy};
use verbless_doca::graph::{Graph, GraphDone, Instance, Node};
use verbless_doca::{ErrorKind, Event, Inventory, JobType, Mmap, Result, WorkQ};
use verbless_model::Model;
use verbless_prm::CqeSyndrome;

use crate::support::plain;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const BUFFERS: usize = 64;

/// A graph of one copy, and a graph of a copy, a callback after it, and then two instances of the
/// first.
struct Rig {
    model: Model,
    map: Mmap,
    inventory: Inventory,
    dma: Dma,
    workq: WorkQ,
    inner: Graph,
    copy: Node,
    outer: Graph,
    first: Node,
    user: Node,
    subs: [Node; 2],
}

fn rig() -> Rig {
    let (model, dev) = crate::support::disturbed();
    let (map, inventory) = plain(&dev, 1 << 16, BUFFERS);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut inner = Graph::builder();
    let copy = inner.ctx_node(&dma, JobType::DmaMemcpy);
    let inner = inner.start().unwrap();
    let mut outer = Graph::builder();
    let first = outer.ctx_node(&dma, JobType::DmaMemcpy);
    let user = outer.user_node(|node| match node.data::<u32>() {
        Some(0) => Ok(()),
        Some(1) => Err(ErrorKind::TimeOut),
        _ => panic!("as the test wants"),
    });
    let subs = [outer.sub_graph_node(&inner), outer.sub_graph_node(&inner)];
    outer.add_dependency(first, user).unwrap();
    subs.iter().for_each(|&sub| outer.add_dependency(user, sub).unwrap());
    let outer = outer.start().unwrap();
    let workq = WorkQ::new(8).unwrap();
    let mut this = Rig { model, map, inventory, dma, workq, inner, copy, outer, first, user, subs };
    this.workq = this.workq_of(8);
    this
}

impl Rig {
    fn workq_of(&self, depth: u32) -> WorkQ {
        let mut workq = WorkQ::new(depth).unwrap();
        workq.add(&self.dma).unwrap();
        workq.add_graph(&self.outer).unwrap();
        workq
    }

    /// A copy of the first 64 bytes.
    fn job(&self, to: u64) -> Memcpy {
        let at = self.map.address();
        let source = self.inventory.buf_by_data(&self.map, at, 64).unwrap();
        self.dma.memcpy(source, self.inventory.buf_by_addr(&self.map, at + to, 64).unwrap())
    }

    /// An outer instance over two others, complete except for their jobs.
    fn over(&self, inside: [&Instance; 2], what: u32) -> Instance {
        let instance = self.outer.instance();
        for (&sub, inside) in self.subs.iter().zip(inside) {
            instance.set_sub_graph_node_data(sub, inside.clone()).unwrap();
        }
        instance.set_user_node_data(self.user, what).unwrap();
        instance.set_ctx_node_data(self.first, self.job(64)).unwrap();
        instance
    }

    /// An instance of the inner graph, with its job.
    fn inside(&self) -> Instance {
        let inside = self.inner.instance();
        inside.set_ctx_node_data(self.copy, self.job(128)).unwrap();
        inside
    }
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.kind(),
    }
}

fn ended(workq: &mut WorkQ) -> GraphDone {
    loop {
        match panic::catch_unwind(AssertUnwindSafe(|| workq.retrieve_within(TIMEOUT))) {
            Ok(Ok(Some(Event::Graph(done)))) => return done,
            Ok(other) => panic!("{other:?}"),
            // A callback's retrieval: the event comes later.
            Err(_) => {}
        }
    }
}

#[test]
fn shared_sub_instance_runs_in_one_graph_only() {
    let mut rig = rig();
    let [shared, one, two] = [rig.inside(), rig.inside(), rig.inside()];
    let [left, right] = [rig.over([&one, &shared], 0), rig.over([&two, &shared], 0)];
    let mut other = rig.workq_of(8);
    for round in 0..20u64 {
        rig.workq.submit_graph(&left, round).unwrap();
        // On either work queue, no part of the other begins.
        let before = rig.inventory.num_free_elements();
        assert_eq!(kind(rig.workq.submit_graph(&right, 9)), ErrorKind::InUse);
        assert_eq!(kind(other.submit_graph(&right, 9)), ErrorKind::InUse);
        assert_eq!(rig.inventory.num_free_elements(), before);
        assert_eq!(other.in_flight(), 0);
        assert!(shared.is_running() && one.is_running(), "before their nodes begin");
        assert!(!right.is_running() && !two.is_running(), "what was refused is as it was");
        assert_eq!(kind(shared.take_result(rig.copy)), ErrorKind::InUse);
        let done = ended(&mut rig.workq);
        assert_eq!((done.status(), done.user_data.0, rig.workq.in_flight()), (0, round, 0));
        assert!(![&left, &one, &shared].iter().any(|instance| instance.is_running()));
        assert!(shared.take_result(rig.copy).unwrap().is_some());
        // Now the other instance may run.
        shared.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
        other.submit_graph(&right, 0).unwrap();
        assert_eq!(ended(&mut other).status(), 0);
        for inside in [&shared, &one, &two] {
            inside.take_result(rig.copy).unwrap().unwrap();
            inside.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
        }
        for outer in [&left, &right] {
            outer.take_result(rig.first).unwrap().unwrap();
            outer.set_ctx_node_data(rig.first, rig.job(64)).unwrap();
        }
    }
    drop((left, right, shared, one, two));
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
}

#[test]
fn sub_instance_used_twice_is_rejected_at_submit() {
    let mut rig = rig();
    let mut top = Graph::builder();
    let sides = [top.sub_graph_node(&rig.outer), top.sub_graph_node(&rig.outer)];
    top.add_dependency(sides[0], sides[1]).unwrap();
    let top = top.start().unwrap();
    rig.workq.add_graph(&top).unwrap();
    let [shared, one, two] = [rig.inside(), rig.inside(), rig.inside()];
    let [left, right] = [rig.over([&one, &shared], 0), rig.over([&two, &shared], 0)];
    let instance = top.instance();
    instance.set_sub_graph_node_data(sides[0], left.clone()).unwrap();
    instance.set_sub_graph_node_data(sides[1], right.clone()).unwrap();
    assert_eq!(kind(rig.workq.submit_graph(&instance, 0)), ErrorKind::InUse);
    let all = [&instance, &left, &right, &shared, &one, &two];
    assert!(!all.iter().any(|instance| instance.is_running()));
    // With one instance per node it runs.
    right.set_sub_graph_node_data(rig.subs[1], rig.inside()).unwrap();
    rig.workq.submit_graph(&instance, 0).unwrap();
    assert!([&left, &right, &two].iter().all(|instance| instance.is_running()));
    assert_eq!(ended(&mut rig.workq).status(), 0);
    assert!(!all.iter().any(|instance| instance.is_running()));
}

#[test]
fn rejected_submission_releases_sub_instances() {
    let mut rig = rig();
    let [one, two] = [rig.inside(), rig.inner.instance()];
    let outer = rig.over([&one, &two], 0);
    let all_idle = || ![&outer, &one, &two].iter().any(|instance| instance.is_running());
    // The second inner instance has no job.
    assert_eq!(kind(rig.workq.submit_graph(&outer, 0)), ErrorKind::InvalidValue);
    assert!(all_idle());
    two.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
    // The work queue is not on the context.
    let mut bare = WorkQ::new(1).unwrap();
    assert_eq!(kind(bare.submit_graph(&outer, 0)), ErrorKind::BadState);
    bare.add_graph(&rig.outer).unwrap();
    assert_eq!(kind(bare.submit_graph(&outer, 0)), ErrorKind::BadState);
    assert!(all_idle());
    // The work queue is full.
    bare.add(&rig.dma).unwrap();
    let [three, four] = [rig.inside(), rig.inside()];
    bare.submit_graph(&rig.over([&three, &four], 0), 0).unwrap();
    assert_eq!(kind(bare.submit_graph(&outer, 0)), ErrorKind::Again);
    assert!(all_idle());
    assert_eq!(ended(&mut bare).status(), 0);
    bare.submit_graph(&outer, 0).unwrap();
    assert_eq!(ended(&mut bare).status(), 0);
}

#[test]
fn ended_graph_frees_sub_instances_and_unrun_jobs() {
    let rig = rig();
    let [one, two] = [rig.inside(), rig.inside()];
    let check = |outer: &Instance, jobs: bool| {
        assert!(![outer, &one, &two].iter().any(|instance| instance.is_running()));
        for inside in [&one, &two] {
            let job = inside.take_job::<Memcpy>(rig.copy).unwrap();
            assert_eq!(job.is_some(), jobs);
            drop(inside.take_result(rig.copy).unwrap());
            inside.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
        }
        let left = [rig.first].map(|node| outer.take_result(node).unwrap());
        drop((left, outer.take_job::<Memcpy>(rig.first).unwrap()));
        assert_eq!(rig.inventory.num_free_elements(), BUFFERS - 4);
    };
    let number = |kind: ErrorKind| u64::from(kind.number());
    let mut workq = rig.workq_of(8);
    // Everything succeeds.
    let outer = rig.over([&one, &two], 0);
    workq.submit_graph(&outer, 0).unwrap();
    assert_eq!(ended(&mut workq).status(), 0);
    check(&outer, false);
    // The callback fails, or panics, or the device fails the first node. The results of the last
    // run are dropped then.
    let outer = rig.over([&one, &two], 0);
    workq.submit_graph(&outer, 0).unwrap();
    assert_eq!(ended(&mut workq).status(), 0);
    for inside in [&one, &two] {
        inside.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
    }
    drop(outer);
    let outer = rig.over([&one, &two], 1);
    workq.submit_graph(&outer, 0).unwrap();
    assert_eq!(ended(&mut workq).status(), number(ErrorKind::TimeOut));
    assert!(one.take_result(rig.copy).unwrap().is_none());
    check(&outer, true);
    for (what, kind) in [(1, ErrorKind::TimeOut), (2, ErrorKind::Unexpected)] {
        let outer = rig.over([&one, &two], what);
        workq.submit_graph(&outer, 0).unwrap();
        assert_eq!(ended(&mut workq).status(), number(kind));
        check(&outer, true);
    }
    rig.model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    let outer = rig.over([&one, &two], 0);
    workq.submit_graph(&outer, 0).unwrap();
    assert_eq!(ended(&mut workq).failed, Some(rig.first));
    check(&outer, true);
    // A sub-graph fails beside another one.
    let outer = rig.over([&one, &two], 0);
    one.take_job::<Memcpy>(rig.copy).unwrap();
    let source = rig.inventory.buf_by_data(&rig.map, rig.map.address(), 64).unwrap();
    let full = rig.inventory.buf_by_data(&rig.map, rig.map.address() + 128, 64).unwrap();
    one.set_ctx_node_data(rig.copy, rig.dma.memcpy(source, full)).unwrap();
    workq.submit_graph(&outer, 0).unwrap();
    let done = ended(&mut workq);
    assert_eq!((done.failed, done.status()), (Some(rig.subs[0]), number(ErrorKind::InvalidValue)));
    drop(one.take_job::<Memcpy>(rig.copy).unwrap().expect("the job was refused"));
    one.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
    two.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
    drop(two.take_result(rig.copy).unwrap().expect("the job ran"));
    check(&outer, true);
    // Its context is aborted, or its handle dropped.
    let outer = rig.over([&one, &two], 0);
    workq.submit_graph(&outer, 0).unwrap();
    workq.abort(&rig.dma).unwrap();
    assert_eq!(ended(&mut workq).status(), number(ErrorKind::Shutdown));
    check(&outer, true);
    workq.remove(&rig.dma).unwrap();
    workq.add(&rig.dma).unwrap();
    let outer = rig.over([&one, &two], 0);
    workq.submit_graph(&outer, 0).unwrap();
    drop(outer);
    let done = ended(&mut workq);
    assert_eq!(done.status(), 0);
    check(&done.instance(), false);
    // The work queue is dropped, before the inner instances begin or while they run.
    for turns in [0, 1, 2, 3, 4, 5] {
        let outer = rig.over([&one, &two], 0);
        workq.submit_graph(&outer, 0).unwrap();
        for _ in 0..turns {
            let before = workq.in_flight();
            while workq.in_flight() == before && workq.progress_retrieve().is_err() {
                std::thread::yield_now();
            }
            if workq.in_flight() == 0 {
                break;
            }
        }
        drop(std::mem::replace(&mut workq, rig.workq_of(8)));
        let instances = [&outer, &one, &two];
        assert!(!instances.iter().any(|instance| instance.is_running()), "after {turns}");
        for inside in [&one, &two] {
            drop(inside.take_result(rig.copy).unwrap());
            inside.set_ctx_node_data(rig.copy, rig.job(128)).unwrap();
        }
        drop(outer);
        assert_eq!(rig.inventory.num_free_elements(), BUFFERS - 4, "after {turns}");
    }
}

#[test]
fn callback_reaches_sub_graph_nodes_before_and_after() {
    let rig = rig();
    let mut graph = Graph::builder();
    let (inner, copy) = (&rig.inner, rig.copy);
    let late = std::sync::Mutex::new(Some(rig.job(0x400)));
    let sub = graph.sub_graph_node(inner);
    let before = graph.user_node(move |node| {
        let mut inside = node.sub_graph(sub).map_err(|error| error.kind())?;
        let job = late.lock().unwrap().take().ok_or(ErrorKind::Empty)?;
        assert!(inside.take_result(copy).is_none(), "the node has not run");
        assert_eq!(inside.sub_graph(copy).err().unwrap().kind(), ErrorKind::InvalidValue);
        inside.set_job(copy, job).map_err(|refused| refused.error.kind())
    });
    let after = graph.user_node(move |node| {
        let mut inside = node.sub_graph(sub).map_err(|error| error.kind())?;
        let Some(Event::Dma(done)) = inside.take_result(copy) else { return Err(ErrorKind::Empty) };
        let bytes = done.destination.to_vec()?;
        *node.data::<Vec<u8>>().ok_or(ErrorKind::Empty)? = bytes;
        Ok(())
    });
    graph.add_dependency(before, sub).unwrap();
    graph.add_dependency(sub, after).unwrap();
    let graph = graph.start().unwrap();
    let mut workq = rig.workq_of(8);
    workq.add_graph(&graph).unwrap();
    rig.map.write_at(0, &[9; 64]).unwrap();
    let (instance, inside) = (graph.instance(), rig.inside());
    instance.set_sub_graph_node_data(sub, inside.clone()).unwrap();
    instance.set_user_node_data(before, ()).unwrap();
    instance.set_user_node_data(after, Vec::<u8>::new()).unwrap();
    workq.submit_graph(&instance, 0).unwrap();
    assert_eq!(ended(&mut workq).status(), 0);
    let bytes = instance.take_user_node_data::<Vec<u8>>(after).unwrap().unwrap();
    assert_eq!(bytes, [9; 64]);
    let mut there = [0; 64];
    rig.map.read_at(0x400, &mut there).unwrap();
    assert_eq!(there, [9; 64], "the job that the callback set is the one that ran");
    assert!(inside.take_result(copy).unwrap().is_none(), "the callback has it");
}

#[test]
fn running_sub_graph_nodes_are_in_use() {
    let (model, dev) = crate::support::stepped();
    let (map, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut inner = Graph::builder();
    let copy = inner.ctx_node(&dma, JobType::DmaMemcpy);
    let inner = inner.start().unwrap();
    let mut outer = Graph::builder();
    let sub = outer.sub_graph_node(&inner);
    let beside = outer.user_node(move |node| {
        let this = node.node();
        let kinds = [kind(node.sub_graph(sub).map(drop)), kind(node.sub_graph(this).map(drop))];
        assert_eq!(kinds, [ErrorKind::InUse, ErrorKind::InvalidValue]);
        Ok(())
    });
    let outer = outer.start().unwrap();
    let (inside, instance) = (inner.instance(), outer.instance());
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let into = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    inside.set_ctx_node_data(copy, dma.memcpy(source, into)).unwrap();
    instance.set_sub_graph_node_data(sub, inside).unwrap();
    instance.set_user_node_data(beside, ()).unwrap();
    let mut workq = WorkQ::new(2).unwrap();
    workq.add(&dma).unwrap();
    workq.add_graph(&outer).unwrap();
    workq.submit_graph(&instance, 1).unwrap();
    assert!(matches!(workq.progress_retrieve(), Err(verbless_doca::Retrieve::Again)));
    let refused = workq.destroy().unwrap_err();
    assert!(refused.error.to_string().contains("on 1 contexts and 1 graphs"), "{}", refused.error);
    // The graph is dropped when its last instance has ended.
    let mut workq = refused.given;
    drop(outer);
    for graphs in [1, 0] {
        let refused = workq.destroy().unwrap_err();
        let text = refused.error.to_string();
        assert!(text.contains(&format!("on 1 contexts and {graphs} graphs")), "{text}");
        workq = refused.given;
        model.run_until_idle();
        if graphs == 1 {
            assert_eq!(ended(&mut workq).status(), 0);
        }
    }
}
