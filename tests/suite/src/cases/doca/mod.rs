//! DOCA Core on the lab's devices: what a device and a kernel must do for its objects. The rules of
//! the objects themselves are tested in the crate `verbless-doca`.

mod buffers;
mod capabilities;
mod copies;
mod device;
mod dpu;
mod external;
mod graphs;
mod hashes;
mod maps;
mod pair;
mod rdma;
mod rdma_states;
mod representors;
mod rig;
mod sync;
mod work;

use crate::Group;

/// The groups, in the order in which they run.
pub(super) static GROUPS: [&Group; 14] = [
    &device::GROUP,
    &capabilities::GROUP,
    &representors::GROUP,
    &maps::GROUP,
    &buffers::GROUP,
    &work::GROUP,
    &external::GROUP,
    &copies::GROUP,
    &dpu::GROUP,
    &hashes::GROUP,
    &graphs::GROUP,
    &sync::GROUP,
    &rdma::GROUP,
    &rdma_states::GROUP,
];
