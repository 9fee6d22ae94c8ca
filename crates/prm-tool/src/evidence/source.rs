//! The public descriptions that fields are compared with, and who they come from.

/// How a description is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// C structures.
    Header,
    /// Snabb's driver, which names offset and bits in each call.
    Lua,
}

/// A public description of mlx5 structures.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its name in tables and pages; the `sources` of `prm/` use the same.
    pub(crate) name: &'static str,
    /// Descriptions of one lineage were copied from each other or from one unpublished original.
    pub(crate) lineage: &'static str,
    /// The description that it is a fork of, if most of its text is the same.
    pub(crate) fork_of: Option<&'static str>,
    pub(crate) project: &'static str,
    pub(crate) licence: &'static str,
    pub(crate) form: Form,
    pub(crate) files: &'static [&'static str],
}

/// The lineage of the vendor's own headers, whatever the project.
pub(crate) const VENDOR: &str = "vendor";

/// Every description of which `prm/evidence/descriptions` has a table.
pub(crate) const SOURCES: &[Source] = &[
    Source {
        name: "linux",
        lineage: VENDOR,
        fork_of: None,
        project: "Linux",
        licence: "GPL-2.0 OR Linux-OpenIB",
        form: Form::Header,
        files: &[
            "include/linux/mlx5/mlx5_ifc_fpga.h",
            "include/linux/mlx5/mlx5_ifc_vdpa.h",
            "include/linux/mlx5/device.h",
            "include/linux/mlx5/qp.h",
            "drivers/net/ethernet/mellanox/mlx5/core/steering/mlx5_ifc_dr.h",
            "drivers/net/ethernet/mellanox/mlx5/core/steering/mlx5_ifc_dr_ste_v1.h",
            "drivers/net/ethernet/mellanox/mlx5/core/steering/hws/mlx5hws_prm.h",
            "drivers/net/ethernet/mellanox/mlx5/core/sf/mlx5_ifc_vhca_event.h",
        ],
    },
    Source {
        name: "rdma-core",
        lineage: VENDOR,
        fork_of: None,
        project: "rdma-core",
        licence: "GPL-2.0 OR Linux-OpenIB",
        form: Form::Header,
        files: &[
            "providers/mlx5/mlx5_ifc.h",
            "providers/mlx5/mlx5dv.h",
            "providers/mlx5/wqe.h",
            "providers/mlx5/mlx5.h",
        ],
    },
    Source {
        name: "dpdk",
        lineage: VENDOR,
        fork_of: None,
        project: "DPDK",
        licence: "BSD-3-Clause",
        form: Form::Header,
        files: &["drivers/common/mlx5/mlx5_prm.h", "drivers/net/mlx5/hws/mlx5dr_definer.h"],
    },
    Source {
        name: "ucx",
        lineage: VENDOR,
        fork_of: None,
        project: "UCX",
        licence: "BSD-3-Clause",
        form: Form::Header,
        files: &["src/uct/ib/mlx5/dv/ib_mlx5_ifc.h", "src/uct/ib/mlx5/ib_mlx5.h"],
    },
    Source {
        name: "freebsd",
        lineage: VENDOR,
        fork_of: None,
        project: "FreeBSD",
        licence: "BSD-2-Clause AND (GPL-2.0 OR Linux-OpenIB)",
        form: Form::Header,
        files: &[
            "sys/dev/mlx5/mlx5_ifc.h",
            "sys/dev/mlx5/mlx5_fpga/mlx5_ifc_fpga.h",
            "sys/dev/mlx5/device.h",
            "sys/dev/mlx5/qp.h",
        ],
    },
    Source {
        name: "libdpcp",
        lineage: VENDOR,
        fork_of: None,
        project: "libdpcp",
        licence: "BSD-3-Clause",
        form: Form::Header,
        files: &["src/dcmd/prm.h"],
    },
    Source {
        name: "ipxe",
        lineage: VENDOR,
        fork_of: None,
        project: "iPXE",
        licence: "GPL-2.0-or-later",
        form: Form::Header,
        files: &["src/drivers/infiniband/CIB_PRM.h"],
    },
    Source {
        name: "ofed",
        lineage: VENDOR,
        fork_of: Some("linux"),
        project: "mlnx-ofa_kernel",
        licence: "GPL-2.0 OR Linux-OpenIB",
        form: Form::Header,
        files: &[
            "include/linux/mlx5/mlx5_ifc.h",
            "include/linux/mlx5/mlx5_ifc_fpga.h",
            "include/linux/mlx5/mlx5_ifc_vdpa.h",
            "include/linux/mlx5/device.h",
            "include/linux/mlx5/qp.h",
            "drivers/net/ethernet/mellanox/mlx5/core/steering/sws/mlx5_ifc_dr.h",
            "drivers/net/ethernet/mellanox/mlx5/core/steering/sws/mlx5_ifc_dr_ste_v1.h",
            "drivers/net/ethernet/mellanox/mlx5/core/sf/mlx5_ifc_vhca_event.h",
        ],
    },
    Source {
        name: "openbsd",
        lineage: "openbsd",
        fork_of: None,
        project: "OpenBSD",
        licence: "ISC",
        form: Form::Header,
        files: &["sys/dev/pci/if_mcx.c"],
    },
    Source {
        name: "illumos",
        lineage: "illumos",
        fork_of: None,
        project: "illumos",
        licence: "CDDL-1.0",
        form: Form::Header,
        files: &["usr/src/uts/common/io/mlxcx/mlxcx_reg.h"],
    },
    Source {
        name: "snabb",
        lineage: "snabb",
        fork_of: None,
        project: "Snabb",
        licence: "Apache-2.0",
        form: Form::Lua,
        files: &["src/apps/mellanox/connectx.lua"],
    },
];

/// The description of that name.
pub(crate) fn source(name: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| source.name == name)
}
