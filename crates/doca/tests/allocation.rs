//! After the start, jobs and instances of graphs allocate nothing.
//!
//! With a million instances, and a million jobs across races of arming and submitting:
//! `cargo test --release -p verbless-doca --test stress --test allocation`.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use verbless_doca::dma::Dma;
use verbless_doca::graph::{Graph, Instance, Node};
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{Buf, Event, JobType, Retrieve, WorkQ};

use support::{dev, plain};

/// Counts the allocations of the current thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u32> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller promises the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller promises the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A million in an optimized build; otherwise as many as take a second.
const SUBMISSIONS: u64 = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };
const DEPTH: usize = 8;

fn hash_bufs(result: Option<Event>) -> (Buf, Buf) {
    match result {
        Some(Event::Sha(mut done)) => {
            let mut digest = done.destination.take().unwrap();
            digest.reset_data_len();
            (done.source, digest)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn graph_submissions_allocate_nothing() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 1 << 16, 64);
    let sha = Sha::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(DEPTH as u32).unwrap();
    workq.add(&sha).unwrap();
    // A hash in a sub-graph, a callback, another hash.
    let mut inner = Graph::builder();
    let below = inner.ctx_node(&sha, JobType::ShaHash);
    let inner = inner.start().unwrap();
    let mut graph = Graph::builder();
    let sub = graph.sub_graph_node(&inner);
    let user = graph.user_node(|node| {
        *node.data::<u64>().unwrap() += 1;
        Ok(())
    });
    let hash = graph.ctx_node(&sha, JobType::ShaHash);
    graph.add_dependency(sub, user).unwrap();
    graph.add_dependency(user, hash).unwrap();
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();

    let set = |instance: &Instance, node: Node, (from, to): (Buf, Buf)| {
        instance.set_ctx_node_data(node, sha.hash(Algorithm::Sha256, from, to)).unwrap();
    };
    let bufs = |at: usize| {
        let address = map.address() + 256 * at as u64;
        let from = inventory.buf_by_data(&map, address, 16).unwrap();
        (from, inventory.buf_by_addr(&map, address + 64, 64).unwrap())
    };
    let mut instances = Vec::new();
    for at in 0..DEPTH {
        let (instance, inside) = (graph.instance(), inner.instance());
        instance.set_sub_graph_node_data(sub, inside.clone()).unwrap();
        instance.set_user_node_data(user, 0u64).unwrap();
        set(&instance, hash, bufs(2 * at));
        set(&inside, below, bufs(2 * at + 1));
        instances.push((instance, inside));
    }

    let before = ALLOCATIONS.get();
    let (mut submitted, mut ended) = (0, 0);
    while ended < SUBMISSIONS {
        while submitted < SUBMISSIONS && submitted - ended < DEPTH as u64 {
            // Instances may end in another order than they began.
            let idle = instances.iter().position(|(instance, _)| !instance.is_running()).unwrap();
            let (instance, inside) = &instances[idle];
            if let Some(event) = instance.take_result(hash).unwrap() {
                set(instance, hash, hash_bufs(Some(event)));
                set(inside, below, hash_bufs(inside.take_result(below).unwrap()));
            }
            workq.submit_graph(instance, idle as u64).unwrap();
            submitted += 1;
        }
        match workq.progress_retrieve() {
            Ok(Event::Graph(done)) => {
                assert_eq!(done.status(), 0);
                ended += 1;
            }
            Err(Retrieve::Again) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
    let calls = instances.iter().map(|(it, _)| it.take_user_node_data::<u64>(user));
    assert_eq!(calls.map(|it| it.unwrap().unwrap()).sum::<u64>(), SUBMISSIONS);
}

#[test]
fn graph_copies_allocate_nothing_after_warm_up() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 1 << 16, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    let from = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let to = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    instance.set_ctx_node_data(copy, dma.memcpy(from, to)).unwrap();
    let mut before = 0;
    for round in 0..1000 {
        // The model is in this process: its initial allocations are not the library's.
        if round == 100 {
            before = ALLOCATIONS.get();
        }
        workq.submit_graph(&instance, 0).unwrap();
        while workq.in_flight() > 0 {
            let _node = workq.progress_retrieve();
        }
        let Some(Event::Dma(mut done)) = instance.take_result(copy).unwrap() else { panic!() };
        done.destination.reset_data_len();
        let again = dma.memcpy(done.source, done.destination);
        instance.set_ctx_node_data(copy, again).unwrap();
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
