//! A graph: a hash and a copy in parallel, and then a function that compares both results.
//!
//! `cargo run --release --example graph`, on the first device that supports memory copies. Without
//! such a device: `verbless-model run -- target/release/examples/graph`.

use verbless_doca::dma::Dma;
use verbless_doca::graph::Graph;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{
    AccessFlags, Dev, DevInfo, ErrorKind, Event, Inventory, JobType, Memory, Mmap, WorkQ,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const LENGTH: u64 = 1024;
/// Instances; each runs once, all at the same time.
const INSTANCES: u64 = 10;

/// The first device that supports memory copies.
fn device() -> Result<Dev> {
    let mut why = String::from("there is no device");
    for info in DevInfo::list()? {
        let dev = info.open()?;
        match Dma::memcpy_supported(&dev) {
            Ok(()) => return Ok(dev),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why.into())
}

fn main() -> Result {
    let dev = device()?;
    let (dma, sha) = (Dma::builder(&dev).start()?, Sha::builder(&dev).start()?);
    let mut workq = WorkQ::builder(32).event_driven().build()?;
    workq.add(&dma)?;
    workq.add(&sha)?;

    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
    let hash = graph.ctx_node(&sha, JobType::ShaHash);
    let compare = graph.user_node(move |node| {
        let number = *node.data::<u64>().ok_or(ErrorKind::Empty)?;
        let Some(Event::Sha(hashed)) = node.result(hash) else { return Err(ErrorKind::Empty) };
        let digest = hashed.destination.as_ref().ok_or(ErrorKind::Empty)?.to_vec()?;
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("instance {number}: the SHA-256 is {hex}");
        let Some(Event::Dma(copied)) = node.result(copy) else { return Err(ErrorKind::Empty) };
        let equal = copied.source.to_vec()? == copied.destination.to_vec()?;
        println!("instance {number}: the copy is {}", if equal { "equal" } else { "not equal" });
        if equal { Ok(()) } else { Err(ErrorKind::IoFailed) }
    });
    graph.add_dependency(hash, compare)?;
    graph.add_dependency(copy, compare)?;
    let graph = graph.start()?;
    workq.add_graph(&graph)?;

    // For each instance: the source, the destination, the digest.
    let room = 3 * LENGTH;
    let map = Mmap::builder()
        .memrange(Memory::allocate((INSTANCES * room) as usize)?)
        .permissions(AccessFlags::LOCAL_READ_WRITE)
        .add_dev(&dev)
        .start()?;
    let inventory = Inventory::builder(4 * INSTANCES as usize).start()?;
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        let base = map.address() + number * room;
        let mut text = inventory.buf_by_addr(&map, base, LENGTH)?;
        text.append(&[number as u8; LENGTH as usize])?;
        let message = inventory.buf_by_data(&map, base, LENGTH)?;
        let destination = inventory.buf_by_addr(&map, base + LENGTH, LENGTH)?;
        let digest = inventory.buf_by_addr(&map, base + 2 * LENGTH, LENGTH)?;
        let instance = graph.instance();
        instance.set_ctx_node_data(copy, dma.memcpy(text, destination))?;
        instance.set_ctx_node_data(hash, sha.hash(Algorithm::Sha256, message, digest))?;
        instance.set_user_node_data(compare, number)?;
        workq.submit_graph(&instance, number)?;
        instances.push(instance);
    }
    for event in workq.drain() {
        let Event::Graph(done) = event? else { continue };
        if let Err(error) = done.result {
            return Err(format!("instance {}: {error}", done.user_data.0).into());
        }
    }
    Ok(())
}
