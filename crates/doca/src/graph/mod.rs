//! Graphs (`doca_graph.h`; section 3.4.7 of 2.2): jobs in the order of their dependencies.
//!
//! A graph has *context nodes*, each a job of a context; *user nodes*, which call a function of the
//! program; and *sub-graph nodes*, each an instance of another graph. A started graph does not
//! change. Any number of its *instances* can be in flight on a work queue, beside each other and
//! beside other jobs.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Event, JobType, WorkQ, dma::Dma, sha::{Algorithm, Sha}};
//! use verbless_doca::graph::Graph;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let (dma, sha) = (Dma::builder(&dev).start()?, Sha::builder(&dev).start()?);
//! # let mut workq = WorkQ::new(4)?;
//! # workq.add(&dma)?;
//! # workq.add(&sha)?;
//! # let (from, message) = (doc::data(&dev, b"copied"), doc::data(&dev, b"hashed"));
//! # let (to, digest) = (doc::room(&dev), doc::room(&dev));
//! let mut graph = Graph::builder();
//! let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
//! let hash = graph.ctx_node(&sha, JobType::ShaHash);
//! let both = graph.user_node(|_| {
//!     println!("copied and hashed");
//!     Ok(())
//! });
//! graph.add_dependency(copy, both)?;
//! graph.add_dependency(hash, both)?;
//! let graph = graph.start()?;
//! workq.add_graph(&graph)?;
//!
//! let instance = graph.instance();
//! instance.set_ctx_node_data(copy, dma.memcpy(from, to))?;
//! instance.set_ctx_node_data(hash, sha.hash(Algorithm::Sha256, message, digest))?;
//! instance.set_user_node_data(both, ())?;
//! workq.submit_graph(&instance, 7)?;
//! let Some(Event::Graph(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! assert_eq!((done.status(), done.user_data.0), (0, 7));
//! let Some(Event::Dma(copied)) = instance.take_result(copy)? else { panic!("it is a copy") };
//! assert_eq!(copied.destination.to_vec()?, b"copied");
//! # Ok(())
//! # }
//! ```
//!
//! A failed node stops its direct and indirect dependents; the rest of the instance runs to its
//! end. Then the instance has the results of the nodes that ran, and the jobs of the others, all
//! with their buffers. A run consumes the jobs of nodes: set them again for the next run. Data of
//! user nodes and of sub-graph nodes stays.

mod data;
pub(crate) mod done;
pub(crate) mod instance;
mod node;
pub(crate) mod plan;
pub(crate) mod runs;

pub use data::{Nodes, UserNode};
pub use done::GraphDone;
pub use instance::Instance;
pub use node::Node;
pub use plan::{Graph, GraphBuilder};
