//! Linux releases that differ in what a client can see.

use super::abi::attr;

/// The Linux release that the modelled kernel is like. Only the differences of UMEM_REG are
/// modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelRelease {
    /// Linux 5.10: UMEM_REG has no page-size bitmap, no dmabuf and no relaxed ordering, and the
    /// address bounds the pages (`mlx5_ib_cont_pages`).
    V5_10,
    /// The newest release that is modelled.
    #[default]
    Newest,
}

impl KernelRelease {
    /// Whether UMEM_REG has attribute `id`.
    pub(super) fn has_umem_attribute(self, id: u16) -> bool {
        self > Self::V5_10 || !matches!(id, attr::UMEM_PGSZ_BITMAP | attr::UMEM_DMABUF_FD)
    }
}
