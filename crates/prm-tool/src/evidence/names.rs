//! Which structure of a description corresponds to ours: by names, and a table where names differ.

use std::collections::BTreeMap;

use crate::description::Structure;
use crate::find::identifiers;

/// A structure of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match<'a> {
    /// Its name there.
    pub(super) name: &'a str,
    /// Where it begins in ours, in bytes.
    pub(super) at: i32,
    /// Whether it is ours by name; otherwise our structure only mentions it, and fields must also
    /// have its names.
    pub(super) whole: bool,
}

/// Structures by their names without prefixes and endings.
pub(super) struct Names<'a>(BTreeMap<String, &'a str>);

impl<'a> Names<'a> {
    /// The names of a description.
    pub(super) fn new(structs: impl Iterator<Item = &'a str>) -> Self {
        let mut names = BTreeMap::new();
        for name in structs {
            // A layout of bits comes before a driver's own structure of that name.
            let bits = name.ends_with("_bits");
            let entry = names.entry(bare(name)).or_insert(name);
            if bits {
                *entry = name;
            }
        }
        Self(names)
    }

    /// The structures that correspond to ours.
    pub(super) fn of(&self, description: &str, structure: &Structure) -> Vec<Match<'a>> {
        let rows = OTHERWISE.iter().filter(|row| row.0 == description && row.1 == structure.name);
        let given: Vec<Match<'a>> = rows
            .filter_map(|&(_, _, name, at)| {
                let name = self.0.values().find(|it| **it == name)?;
                Some(Match { name, at, whole: true })
            })
            .collect();
        if !given.is_empty() {
            return given;
        }
        let at = |name: &str, at| Some(Match { name: self.0.get(name)?, at, whole: true });
        let ours = &structure.name;
        let own = [ours.clone(), ours.trim_end_matches("_reg").to_owned(), format!("{ours}_reg")];
        let first = structure.sources.first().map(String::as_str);
        let named = first.into_iter().chain(structure.aliases.iter().map(String::as_str));
        let named = named.flat_map(identifiers).map(bare);
        if let Some(found) = named.chain(own).find_map(|name| at(&name, 0)) {
            // Some describe the mailbox apart from the bytes in the command queue's entry.
            let mailboxes = [("_in", "_mb_in"), ("_out", "_mb_out"), ("_in", "_in_data")];
            let mailbox = mailboxes
                .iter()
                .find_map(|(end, other)| at(&format!("{}{other}", ours.strip_suffix(end)?), 0x10));
            return [found].into_iter().chain(mailbox).collect();
        }
        let later = structure.sources.iter().skip(1).flat_map(|source| identifiers(source));
        let mentioned = later.filter_map(|name| at(&bare(name), 0));
        mentioned.map(|found| Match { whole: false, ..found }).take(1).collect()
    }
}

/// `mlx5_ifc_cqc_bits`, `uct_ib_mlx5_cqc_bits` and `mlx5_cqc` as `cqc`.
fn bare(name: &str) -> String {
    let name = name.to_lowercase();
    let prefixes = [
        "uct_ib_mlx5_",
        "uct_ib_",
        "mlx5_ifc_",
        "mlx5_",
        "mlxcx_cmd_",
        "mlxcx_",
        "mcx_cmd_",
        "mcx_",
        "golan_cmd_",
        "golan_",
    ];
    let name = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
    let name = name.strip_suffix("_bits").or_else(|| name.strip_suffix("_t")).unwrap_or(name);
    match name.strip_prefix("reg_") {
        Some(register) => format!("{register}_reg"),
        None => name.replace("_mbox_in", "_in").replace("_mbox_out", "_out"),
    }
}

/// The structures of a description with other names than ours, and ours.
#[cfg(test)]
pub(super) fn otherwise(description: &str) -> impl Iterator<Item = (&str, &str)> {
    OTHERWISE.iter().filter(move |row| row.0 == description).map(|row| (row.2, row.1))
}

/// Structures with other names: description, our structure, its name there, and the byte of ours
/// where it begins.
#[rustfmt::skip]
const OTHERWISE: &[(&str, &str, &str, i32)] = &[
    ("openbsd", "cq_context", "mcx_cq_ctx", 0),
    ("openbsd", "eq_context", "mcx_eq_ctx", 0),
    ("openbsd", "sq_context", "mcx_sq_ctx", 0),
    ("openbsd", "rq_context", "mcx_rq_ctx", 0),
    ("openbsd", "wq_context", "mcx_wq_ctx", 0),
    ("openbsd", "rqt_context", "mcx_rqt_ctx", 0),
    ("openbsd", "flow_context", "mcx_flow_ctx", 0),
    ("openbsd", "flow_table_context", "mcx_flow_table_ctx", 0),
    ("openbsd", "fte_match_param", "mcx_flow_match", 0),
    ("openbsd", "nic_vport_context", "mcx_nic_vport_ctx", 0),
    ("openbsd", "hca_cap", "mcx_cap_device", 0),
    ("openbsd", "cqe", "mcx_cq_entry", 0),
    ("openbsd", "eqe", "mcx_eq_entry", 0),
    ("openbsd", "cq_doorbell_record", "mcx_cq_doorbell", 0),
    ("openbsd", "qp_doorbell_record", "mcx_wq_doorbell", 0),
    ("openbsd", "ctrl_segment", "mcx_sq_entry", 0),
    ("openbsd", "eth_segment", "mcx_sq_entry", -0x10),
    ("openbsd", "data_segment", "mcx_sq_entry_seg", 0),
    ("openbsd", "command_queue_entry", "mcx_cmdq_entry", 0),
    ("openbsd", "command_mailbox", "mcx_cmdq_mailbox", 0),
    ("openbsd", "query_special_contexts_in", "mcx_cmd_query_special_ctx_in", 0),
    ("openbsd", "query_special_contexts_out", "mcx_cmd_query_special_ctx_out", 0),
    ("openbsd", "alloc_transport_domain_in", "mcx_cmd_alloc_td_in", 0),
    ("openbsd", "alloc_transport_domain_out", "mcx_cmd_alloc_td_out", 0),
    ("openbsd", "access_register_in", "mcx_cmd_access_reg_in", 0),
    ("openbsd", "access_register_out", "mcx_cmd_access_reg_out", 0),
    ("openbsd", "query_vport_counter_in", "mcx_cmd_query_vport_counters_in", 0),
    ("openbsd", "query_vport_counter_in", "mcx_cmd_query_vport_counters_mb_in", 0x10),
    ("openbsd", "query_vport_counter_out", "mcx_nic_vport_counters", 0x10),
    ("illumos", "cq_context", "mlxcx_completionq_ctx_t", 0),
    ("illumos", "eq_context", "mlxcx_eventq_ctx_t", 0),
    ("illumos", "sq_context", "mlxcx_sq_ctx_t", 0),
    ("illumos", "rq_context", "mlxcx_rq_ctx_t", 0),
    ("illumos", "wq_context", "mlxcx_workq_ctx_t", 0),
    ("illumos", "rqt_context", "mlxcx_rqtable_ctx_t", 0),
    ("illumos", "tir_context", "mlxcx_tir_ctx_t", 0),
    ("illumos", "tis_context", "mlxcx_tis_ctx_t", 0),
    ("illumos", "flow_context", "mlxcx_flow_entry_ctx_t", 0),
    ("illumos", "flow_table_context", "mlxcx_flow_table_ctx_t", 0),
    ("illumos", "flow_destination", "mlxcx_flow_dest_t", 0),
    ("illumos", "fte_match_param", "mlxcx_flow_match_t", 0),
    ("illumos", "fte_match_set_lyr_2_4", "mlxcx_flow_header_match_t", 0),
    ("illumos", "fte_match_set_misc", "mlxcx_flow_params_match_t", 0),
    ("illumos", "nic_vport_context", "mlxcx_nic_vport_ctx_t", 0),
    ("illumos", "hca_cap", "mlxcx_hca_cap_general_caps_t", 0),
    ("illumos", "ethernet_offload_cap", "mlxcx_hca_cap_eth_caps_t", 0),
    ("illumos", "flow_table_cap", "mlxcx_hca_cap_flow_caps_t", 0),
    ("illumos", "flow_table_prop_layout", "mlxcx_hca_cap_flow_cap_props_t", 0),
    ("illumos", "cqe", "mlxcx_completionq_ent_t", 0),
    ("illumos", "cqe_128", "mlxcx_completionq_ent128_t", 0),
    ("illumos", "cqe_error", "mlxcx_completionq_error_ent_t", 0),
    ("illumos", "eqe", "mlxcx_eventq_ent_t", 0),
    ("illumos", "eqe_completion", "mlxcx_evdata_completion_t", 0),
    ("illumos", "eqe_command", "mlxcx_evdata_cmd_completion_t", 0),
    ("illumos", "eqe_page_request", "mlxcx_evdata_page_request_t", 0),
    ("illumos", "eqe_port_state", "mlxcx_evdata_port_state_t", 0),
    ("illumos", "eqe_port_module", "mlxcx_evdata_port_mod_t", 0),
    ("illumos", "eqe_qp_srq", "mlxcx_evdata_queue_t", 0),
    ("illumos", "cq_doorbell_record", "mlxcx_completionq_doorbell_t", 0),
    ("illumos", "qp_doorbell_record", "mlxcx_workq_doorbell_t", 0),
    ("illumos", "ctrl_segment", "mlxcx_wqe_control_seg_t", 0),
    ("illumos", "eth_segment", "mlxcx_wqe_eth_seg_t", 0),
    ("illumos", "data_segment", "mlxcx_wqe_data_seg_t", 0),
    ("illumos", "command_queue_entry", "mlxcx_cmd_ent_t", 0),
    ("illumos", "command_mailbox", "mlxcx_cmd_mailbox_t", 0),
    ("illumos", "alloc_transport_domain_in", "mlxcx_cmd_alloc_tdom_in_t", 0),
    ("illumos", "alloc_transport_domain_out", "mlxcx_cmd_alloc_tdom_out_t", 0),
    ("illumos", "dealloc_transport_domain_in", "mlxcx_cmd_dealloc_tdom_in_t", 0),
    ("illumos", "dealloc_transport_domain_out", "mlxcx_cmd_dealloc_tdom_out_t", 0),
    ("illumos", "query_special_contexts_in", "mlxcx_cmd_query_special_ctxs_in_t", 0),
    ("illumos", "query_special_contexts_out", "mlxcx_cmd_query_special_ctxs_out_t", 0),
    ("illumos", "query_nic_vport_context_in", "mlxcx_cmd_query_nic_vport_ctx_in_t", 0),
    ("illumos", "query_nic_vport_context_out", "mlxcx_cmd_query_nic_vport_ctx_out_t", 0),
    ("illumos", "modify_nic_vport_context_in", "mlxcx_cmd_modify_nic_vport_ctx_in_t", 0),
    ("illumos", "modify_nic_vport_context_out", "mlxcx_cmd_modify_nic_vport_ctx_out_t", 0),
    ("illumos", "eth_802_3_cntrs_grp_data_layout", "mlxcx_ppcnt_ieee_802_3_t", 0),
    ("illumos", "eth_2863_cntrs_grp_data_layout", "mlxcx_ppcnt_rfc_2863_t", 0),
    ("illumos", "phys_layer_statistical_cntrs", "mlxcx_ppcnt_phy_stats_t", 0),
    ("snabb", "hca_cap", "query_hca_cap_out", -0x10),
    ("ipxe", "cqe_error", "golan_err_cqe", 0),
    ("ipxe", "eqe_completion", "golan_eqe_comp", 0),
    ("ipxe", "eqe_qp_srq", "golan_eqe_qp_srq", 0),
    ("ipxe", "eqe_cq_error", "golan_eqe_cq_err", 0),
    ("ipxe", "eqe_port_state", "golan_eqe_port_state", 0),
    ("ipxe", "eqe_page_request", "golan_eqe_page_req", 0),
    ("ipxe", "eqe_command", "golan_eqe_cmd", 0),
    ("ipxe", "eqe_stall_vl", "golan_eqe_stall_vl", 0),
    ("ipxe", "eqe_congestion", "golan_eqe_congestion", 0),
    ("ipxe", "eqe_gpio", "golan_eqe_gpio", 0),
    ("ipxe", "ctrl_segment", "golan_wqe_ctrl_seg", 0),
    ("ipxe", "mkey_context", "golan_mkey_seg", 0),
    ("ipxe", "address_path", "golan_qp_path", 0),
    ("ipxe", "command_queue_entry", "golan_cmd_layout", 0),
    ("ipxe", "initial_segment", "golan_hca_init_seg", 0),
    ("ipxe", "query_pages_in", "golan_query_pages_inbox", 0),
    ("ipxe", "query_pages_out", "golan_query_pages_outbox", 0),
    ("ipxe", "manage_pages_in", "golan_manage_pages_inbox", 0),
    ("ipxe", "manage_pages_out", "golan_manage_pages_outbox", 0),
    ("ipxe", "hca_vport_context", "golan_query_hca_vport_context_data", 0),
    ("ipxe", "dealloc_uar_in", "golan_free_uar_mbox_in", 0),
    ("ipxe", "dealloc_uar_out", "golan_free_uar_mbox_out", 0),
    ("dpdk", "ctrl_segment", "mlx5_wqe_cseg", 0),
    ("dpdk", "eth_segment", "mlx5_wqe_eseg", 0),
    ("dpdk", "data_segment", "mlx5_wqe_dseg", 0),
    ("dpdk", "raddr_segment", "mlx5_wqe_rseg", 0),
    ("dpdk", "umr_ctrl_segment", "mlx5_wqe_umr_cseg", 0),
    ("dpdk", "cqe", "mlx5_cqe", 0),
    ("dpdk", "cqe_error", "mlx5_error_cqe", 0),
    ("freebsd", "dct_context", "mlx5_ifc_dctc_bits", 0),
    ("freebsd", "qp_context", "mlx5_ifc_qpc_bits", 0),
    ("linux", "datagram_segment", "mlx5_av", 0),
    ("rdma-core", "datagram_segment", "mlx5_wqe_av", 0),
    ("libdpcp", "hca_cap", "mlx5_ifc_cmd_hca_cap_bits", 0),
];
