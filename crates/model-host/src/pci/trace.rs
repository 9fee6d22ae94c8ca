//! Replays the bring-up of a real ConnectX-4: sends its driver's commands to a model of the same
//! shape, and compares the model's answers with the device's. A table explains each difference and
//! its effect on Linux's mlx5_core.

use std::collections::BTreeSet;
use std::io::Read;

use verbless_prm::dump::{Dumped, parse_log};
use verbless_prm::reflect::View;
use verbless_prm::{CommandInfo, ManagePagesIn, bits};

use super::rig::{Driver, ram};
use verbless_model::Profile;

const TRACE: &[u8] = include_bytes!("../../../../prm/evidence/connectx4-bringup-trace.txt.gz");
const PROFILE: &str = include_str!("trace/connectx4.toml");

/// Known differences between the answers: command, start of the field's path, and why the
/// difference is right.
const EXPLAINED: &[(&str, &str, &str)] = &[
    ("QUERY_HCA_CAP", "capability.csum_cap", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.vlan_cap", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.lro_", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.max_lso_cap", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.multi_pkt_send_wqe", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.rss_ind_tbl_cap", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.self_lb_", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.tunnel_stateless_", NO_OFFLOADS),
    ("QUERY_HCA_CAP", "capability.flow_table_properties_", NO_OFFLOADS),
    (
        "QUERY_HCA_CAP",
        "capability.atomic_operations",
        "Masked atomics are not modelled. mlx5_ib offers the two plain ones on both. Its QPs have \
         the InfiniBand atomic mode here, and that of the largest size on the device.",
    ),
    (
        "QUERY_HCA_CAP",
        "capability.atomic_size_qp",
        "The model has 8-byte atomics, which mlx5_ib looks for; the device also has other sizes, \
         for masked atomics.",
    ),
    (
        "QUERY_HCA_CAP",
        "capability.atomic_size_dc",
        "The dynamically connected service is not modelled; mlx5_ib reads this only where there is \
         one.",
    ),
    (
        "QUERY_HCA_CAP",
        "capability.l3_type",
        "The device also has the bit of GRH. mlx5_ib looks for IPv4 and IPv6, and finds them in \
         both.",
    ),
    (
        "QUERY_HCA_CAP",
        "capability.roce_version",
        "The device also has RoCE 1.5, which Linux ignores. Both have versions 1 and 2.",
    ),
    (
        "QUERY_HCA_CAP",
        "capability.rts2rts_primary_eth_prio",
        "In the model no RTS2RTS_QP changes the priority of a path. Linux's header does not name \
         the bit.",
    ),
    (
        "QUERY_ADAPTER",
        "query_adapter_struct.vsd_contd_psid",
        "The model has a PSID of its own. mlx5_core only shows it.",
    ),
];
/// Reason for the fields of Ethernet offloads, and for the properties of flow tables.
const NO_OFFLOADS: &str = "The profile offers no Ethernet offloads: the model has raw Ethernet \
                           queues, but no checksums, segmentation or RSS. Without them mlx5_core \
                           makes no network interface (mlx5_eth_supported), and continues with \
                           RDMA.";

/// The commands of the trace.
fn trace() -> Vec<Dumped> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(TRACE).read_to_string(&mut text).unwrap();
    parse_log(&text).unwrap()
}

/// The whole inbox of a command. The kernel dumped only the start of some: the rest is zeros or, in
/// MANAGE_PAGES, addresses of pages that it has not given yet.
fn inbox(dumped: &Dumped, command: &CommandInfo) -> Vec<u8> {
    let mut input = dumped.input.clone();
    if command.name == "MANAGE_PAGES" {
        let mut page = 0x1_0000_0000_u64 * dumped.input_length as u64;
        input.truncate(ManagePagesIn::BYTES + (input.len() - ManagePagesIn::BYTES) / 8 * 8);
        while input.len() < dumped.input_length {
            page += 4096;
            input.extend_from_slice(&page.to_be_bytes());
        }
    }
    input.resize(dumped.input_length, 0);
    input
}

/// Paths of the fields in which an answer differs from the device's; a gap between fields counts as
/// one field.
fn differences(command: &CommandInfo, input: &[u8], theirs: &[u8], ours: &[u8]) -> Vec<String> {
    let mut different = Vec::new();
    let view = |output| -> View<'_> { command.view_output(input, output) };
    let (theirs, ours) = (view(theirs), view(ours));
    let differ = |start: usize, width: usize| {
        (start..start + width)
            .any(|bit| bits::flag(theirs.bytes, bit) != bits::flag(ours.bytes, bit))
    };
    theirs.leaves(&mut |path, leaf| {
        if differ(leaf.bit, leaf.width) {
            different.push(path.to_string());
        }
    });
    theirs.gaps(&mut |start, width| {
        if differ(start, width) {
            different.push(format!("bits of no field at byte {:#x}", start / 8));
        }
    });
    different
}

#[test]
fn bring_up_trace_matches_device_but_for_exceptions() {
    let mut driver = Driver::of(Profile::from_toml(PROFILE).unwrap());
    // Memory of the event queues of the trace's driver.
    for (start, bytes) in [(0x7_a000_0000, 256 << 20), (0x1ec0_0000, 1 << 20)] {
        driver.memory.map(start, bytes, &ram(bytes), 0, true).unwrap();
    }
    let mut unexplained = Vec::new();
    let mut used = BTreeSet::new();
    let trace = trace();
    assert_eq!(trace.len(), 42);
    for dumped in &trace {
        let command = CommandInfo::of_input(&dumped.input).unwrap();
        let input = inbox(dumped, command);
        let theirs = dumped.output.as_deref().unwrap();
        let ours = driver.send(&input, dumped.output_length).unwrap();
        assert_eq!(ours.len(), dumped.output_length, "{}", command.name);
        for field in differences(command, &input, theirs, &ours[..theirs.len()]) {
            let why = EXPLAINED
                .iter()
                .position(|(name, start, _)| *name == command.name && field.starts_with(start));
            match why {
                Some(index) => drop(used.insert(index)),
                None => unexplained.push(format!("{} {field}", command.name)),
            }
        }
    }
    assert_eq!(unexplained, Vec::<String>::new());
    let stale: Vec<_> = (0..EXPLAINED.len()).filter(|index| !used.contains(index)).collect();
    assert_eq!(stale, Vec::<usize>::new(), "explained fields that do not differ");
    let counts = driver.model.counts(0);
    assert_eq!((counts.eqs, counts.uars), (15, 4));
    let general = driver.function.device.capabilities();
    assert_eq!(general.log_max_qp(), 0x11, "as the driver set it");
    let issi = driver.send(&[0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 112).unwrap();
    assert_eq!(issi[0], 0);
    assert_eq!(issi[8..12], [0, 0, 0, 1], "the ISSI in force");
    // Only a device that is up has protection domains.
    let pd = driver.send(&[0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 16).unwrap();
    assert_eq!(pd[0], 0);
}
