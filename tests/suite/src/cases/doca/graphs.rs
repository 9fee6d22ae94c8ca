//! Graphs of jobs.

use verbless_doca::dma::Dma;
use verbless_doca::graph::{Graph, GraphDone};
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{ErrorKind, Event, JobType};

use super::rig::{Rig, event, refusal};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_graph",
    "Graphs of jobs of DOCA.",
    needs [cap!(dma_mmo_qp)]:
    dependent_copies_run_in_order,
    user_node_sees_results_of_its_dependencies,
    graph_instances_run_concurrently,
    callback_panic_fails_instance_with_unexpected,
);

fn ended(rig: &mut Rig) -> Result<GraphDone, Stop> {
    match event(&mut rig.workq)? {
        Event::Graph(done) => Ok(done),
        other => Err(Stop::fail(format!("not a graph: {other:?}"))),
    }
}

/// Copies of 64 bytes; each reads the target of the one before.
fn chain(dma: &Dma, length: usize) -> Result<(Graph, Vec<verbless_doca::graph::Node>), Stop> {
    let mut graph = Graph::builder();
    let nodes: Vec<_> = (0..length).map(|_| graph.ctx_node(dma, JobType::DmaMemcpy)).collect();
    for two in nodes.windows(2) {
        graph.add_dependency(two[0], two[1])?;
    }
    Ok((graph.start()?, nodes))
}

fn dependent_copies_run_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let (graph, nodes) = chain(&dma, 8)?;
    rig.workq.add_graph(&graph)?;
    rig.fill(0, &pattern(1, 64))?;
    let instance = graph.instance();
    for (at, &node) in nodes.iter().enumerate() {
        let job = dma.memcpy(rig.data(64 * at, 64)?, rig.room(64 * (at + 1), 64)?);
        instance.set_ctx_node_data(node, job).map_err(|refused| refused.error)?;
    }
    rig.workq.submit_graph(&instance, 3)?;
    ensure_eq!(refusal(rig.workq.submit_graph(&instance, 4))?, ErrorKind::InUse, "once more");
    let done = ended(&mut rig)?;
    ensure_eq!((done.user_data.0, done.failed), (3, None), "user data and what failed");
    ensure!(rig.bytes(64 * 8, 64)? == pattern(1, 64), "other bytes at the end");
    Ok(())
}

fn user_node_sees_results_of_its_dependencies(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let sha = Sha::builder(&rig.dev).start()?;
    rig.workq.add(&sha)?;
    rig.fill(0, &pattern(2, 4096))?;
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&sha, JobType::ShaHash);
    let both = graph.user_node(move |node| {
        let seen = node.result(copy).is_some() && node.result(hash).is_some();
        if seen { Ok(()) } else { Err(ErrorKind::Empty) }
    });
    graph.add_dependency(copy, both)?;
    graph.add_dependency(hash, both)?;
    let graph = graph.start()?;
    rig.workq.add_graph(&graph)?;
    let instance = graph.instance();
    let job = dma.memcpy(rig.data(0, 4096)?, rig.room(8192, 4096)?);
    instance.set_ctx_node_data(copy, job).map_err(|refused| refused.error)?;
    let job = sha.hash(Algorithm::Sha256, rig.data(0, 4096)?, rig.room(16_384, 32)?);
    instance.set_ctx_node_data(hash, job).map_err(|refused| refused.error)?;
    instance.set_user_node_data(both, ())?;
    rig.workq.submit_graph(&instance, 0)?;
    let done = ended(&mut rig)?;
    ensure_eq!((done.status(), done.failed), (0, None), "status and what failed");
    ensure!(rig.bytes(8192, 4096)? == pattern(2, 4096), "other bytes");
    Ok(())
}

fn graph_instances_run_concurrently(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let (graph, nodes) = chain(&dma, 3)?;
    rig.workq.add_graph(&graph)?;
    let instances: Vec<_> = (0..4).map(|_| graph.instance()).collect();
    for (number, instance) in instances.iter().enumerate() {
        let base = 4096 * number;
        rig.fill(base, &pattern(number as u8, 64))?;
        for (at, &node) in nodes.iter().enumerate() {
            let from = rig.data(base + 64 * at, 64)?;
            let job = dma.memcpy(from, rig.room(base + 64 * (at + 1), 64)?);
            instance.set_ctx_node_data(node, job).map_err(|refused| refused.error)?;
        }
        rig.workq.submit_graph(instance, number as u64)?;
    }
    let mut seen = Vec::new();
    for _ in &instances {
        seen.push(ended(&mut rig)?.user_data.0);
    }
    seen.sort_unstable();
    ensure_eq!(seen, [0, 1, 2, 3], "user data");
    for number in 0..4 {
        let last = rig.bytes(4096 * number + 192, 64)?;
        ensure!(last == pattern(number as u8, 64), "bytes of instance {number}");
    }
    Ok(())
}

fn callback_panic_fails_instance_with_unexpected(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let mut graph = Graph::builder();
    let (callback, copy) =
        (graph.user_node(|_| unwind()), graph.ctx_node(&dma, JobType::DmaMemcpy));
    graph.add_dependency(callback, copy)?;
    let graph = graph.start()?;
    rig.workq.add_graph(&graph)?;
    let instance = graph.instance();
    instance.set_user_node_data(callback, ())?;
    let job = dma.memcpy(rig.data(0, 64)?, rig.room(64, 64)?);
    instance.set_ctx_node_data(copy, job).map_err(|refused| refused.error)?;
    rig.workq.submit_graph(&instance, 0)?;
    // The panic propagates to the caller that retrieves, and the instance ends as it should.
    let retrieve = std::panic::AssertUnwindSafe(|| rig.workq.progress_retrieve());
    ensure!(std::panic::catch_unwind(retrieve).is_err(), "the panic is lost");
    let done = ended(&mut rig)?;
    ensure_eq!(done.failed, Some(callback), "what failed");
    ensure_eq!(done.result.map_err(|why| why.kind()), Err(ErrorKind::Unexpected), "why");
    Ok(())
}

/// A panic that no hook reports.
fn unwind() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}
