//! Linux releases that differ in what a client can see.

use std::fmt;
use std::str::FromStr;

use nix::errno::Errno;
use verbless_prm::Opcode;

use super::abi::attr;
use super::cmd::status_to_errno;
use super::page::PAGE;
use super::pages::SystemPage;

/// The Linux release that the modelled kernel is like. The differences are those that a client of
/// DevX can see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelRelease {
    /// Linux 5.10:
    /// - UMEM_REG has no page-size bitmap, no dmabuf and no relaxed ordering, and the address
    ///   bounds the pages (`mlx5_ib_cont_pages`).
    /// - A command that the device refuses ends with an errno of its status, without the outbox
    ///   (`cmd_status_to_err`); the outbox of an asynchronous query arrives. Commands to a dead
    ///   device end with EIO.
    /// - UARs of user contexts belong to the kernel: their uid is 0.
    /// - DevX does not pass QUERY_ESW_FUNCTIONS, and creates no CQ of the DPA: it looks for the
    ///   EQ of its DPA thread's number.
    /// - It does not know the PCI ids of BlueField-3 and newer devices.
    /// - Flow matchers and rules take 512 bytes of match parameters.
    /// - DevX delivers no event of an SRQ (85fe9f565d2d): a subscription of an RMP has the object
    ///   type of a QP, and the EQE that of an RQ.
    /// - A context does not offer SQD2RTS, real-time timestamps and the variant byte of mkeys.
    V5_10,
    /// Linux 5.15, of Ubuntu 22.04 and many a BlueField:
    /// - UMEM_REG has a page-size bitmap, no dmabuf and no relaxed ordering. A UMEM's page is not
    ///   smaller than one of the kernel (`ib_umem_find_best_pgsz` before commit 4fbc3a52cd4d).
    /// - A command that the device refuses ends as on 5.10, UARs belong to the kernel, and DevX
    ///   does not pass QUERY_ESW_FUNCTIONS.
    /// - Flow matchers and rules take 576 bytes of match parameters.
    /// - A context does not offer the variant byte of mkeys.
    V5_15,
    /// The newest release that is modelled.
    #[default]
    Newest,
}

/// `5.10`, `5.15` or `newest`, as [`FromStr`] takes it.
impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V5_10 => "5.10",
            Self::V5_15 => "5.15",
            Self::Newest => "newest",
        })
    }
}

/// `5.10`, `5.15` or `newest`.
impl FromStr for KernelRelease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "5.10" => Ok(Self::V5_10),
            "5.15" => Ok(Self::V5_15),
            "newest" => Ok(Self::Newest),
            _ => Err(format!(
                "no kernel like Linux {text} is modelled: there are 5.10, 5.15 and newest"
            )),
        }
    }
}

impl KernelRelease {
    /// Whether UMEM_REG has attribute `id`.
    pub(super) fn has_umem_attribute(self, id: u16) -> bool {
        match id {
            attr::UMEM_PGSZ_BITMAP => self > Self::V5_10,
            attr::UMEM_DMABUF_FD => self > Self::V5_15,
            _ => true,
        }
    }

    /// Whether its mlx5_core takes a device with this PCI id (the aliases of Debian's 5.10 module;
    /// 5.15 has BlueField-3's 0xa2dc).
    pub(super) const fn knows_device(self, id: u16) -> bool {
        match self {
            Self::V5_10 => matches!(id, 0x1011..=0x101f | 0x1021 | 0xa2d2 | 0xa2d3 | 0xa2d6),
            Self::V5_15 | Self::Newest => true,
        }
    }

    /// The smallest page of a UMEM that a page-size bitmap may select, in bytes.
    pub(super) const fn smallest_umem_page(self, page: SystemPage) -> u64 {
        match self {
            Self::V5_10 | Self::V5_15 => page.bytes(),
            Self::Newest => PAGE,
        }
    }

    /// Maximum bytes of a matcher's mask and of a rule's values (`MLX5_IB_DW_MATCH_PARAM`).
    pub(super) const fn match_param_bytes(self) -> u16 {
        match self {
            Self::V5_10 => 512,
            Self::V5_15 => 576,
            Self::Newest => 640,
        }
    }

    /// Whether UARs of a user context belong to its uid (5.16, commit d2c8a1554c10); otherwise to
    /// the kernel.
    pub(super) const fn uars_have_uid(self) -> bool {
        matches!(self, Self::Newest)
    }

    /// Whether DevX knows that a CQ of the DPA has no EQ (`is_apu_cq`).
    pub(super) const fn knows_apu_cqs(self) -> bool {
        !matches!(self, Self::V5_10)
    }

    /// Whether DevX delivers events of an RMP, as a limit event of an SRQ: whether it knows the
    /// type of an RMP in them (`get_legacy_obj_type`).
    #[must_use]
    pub const fn knows_rmp_events(self) -> bool {
        !matches!(self, Self::V5_10)
    }

    /// The flags of GET_CONTEXT's `comp_mask` that this release knows.
    pub(super) const fn context_flags(self) -> u32 {
        match self {
            Self::V5_10 => 0x7,
            Self::V5_15 => 0x1f,
            Self::Newest => 0x3f,
        }
    }

    /// Whether DevX passes the command as a general one or for another object.
    pub(super) fn knows(self, opcode: Opcode) -> bool {
        self > Self::V5_15 || opcode != Opcode::QUERY_ESW_FUNCTIONS
    }

    /// The errno that a client gets for a command's result: `output` has the status if that is
    /// EREMOTEIO.
    pub(super) fn refusal(self, result: Errno, output: &[u8]) -> Errno {
        match (self, result) {
            (Self::V5_10 | Self::V5_15, Errno::EREMOTEIO) => {
                status_to_errno(output).err().unwrap_or(Errno::EIO)
            }
            (Self::V5_10 | Self::V5_15, Errno::ENXIO | Errno::ENOLINK) => Errno::EIO,
            (_, errno) => errno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bluefield3_is_unknown_to_5_10() {
        for (id, known) in [(0x101d, true), (0x1021, true), (0xa2d6, true), (0xa2dc, false)] {
            assert_eq!(KernelRelease::V5_10.knows_device(id), known, "{id:#x}");
            assert!(
                KernelRelease::V5_15.knows_device(id) && KernelRelease::Newest.knows_device(id)
            );
        }
    }

    #[test]
    fn release_parses_as_it_prints() {
        for release in [KernelRelease::V5_10, KernelRelease::V5_15, KernelRelease::Newest] {
            assert_eq!(release.to_string().parse(), Ok(release));
        }
        assert_eq!("5.10".parse(), Ok(KernelRelease::V5_10));
        let unknown = "5.4".parse::<KernelRelease>().unwrap_err();
        assert!(unknown.contains("5.10"), "{unknown}");
    }
}
