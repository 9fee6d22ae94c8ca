//! Finding and opening devices, and their properties.

use verbless_command::{CapMode, CapPage, Device};
use verbless_devx::abi::core::{AhAttributes, GlobalRoute};
use verbless_devx::{Context, DeviceInfo, Errno, ErrorKind, GidType, LinkLayer, UarKind};
use verbless_prm::{HcaCap, PortType};

use crate::case::cases;
use crate::need::{ETHERNET, cap};
use crate::{Choice, Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "open",
    "Finding and opening devices, and their properties.":
    opened_device_reports_psid_and_vendor,
    unknown_device_is_rejected_by_name,
    lab_rejects_unknown_device,
    contexts_of_one_device_are_independent,
    device_opens_100_times,
    first_port_is_active,
    unknown_port_is_rejected,
    link_layer_agrees_across_queries,
    gid_table_matches_enumerated_gids,
    unused_gid_is_enodata_and_missing_is_einval [Need::FreeGid],
    capabilities_are_plausible,
    current_caps_do_not_exceed_maximum,
    announced_capability_pages_are_readable,
    current_issi_is_among_supported,
    port_address_agrees_across_queries,
    vuid_is_not_empty [cap!(hca_cap_2.query_vuid)],
    completion_vector_past_last_is_rejected,
    pd_and_uar_numbers_are_unique,
    new_context_has_no_bfregs,
    new_channels_have_no_events,
    blueflame_uar_is_allocated [Need::BlueFlame],
    address_handle_resolves_destination_mac [ETHERNET, Need::Gid(GidType::RoceV2)],
    address_handle_with_unknown_gid_is_rejected
        [ETHERNET, Need::Gid(GidType::RoceV2)],
);

fn opened_device_reports_psid_and_vendor(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    ensure_eq!(device.adapter().psid, lab.info().board_id, "PSID and board id");
    ensure!(device.adapter().vendor_id != 0, "the adapter names no vendor");
    Ok(())
}

fn unknown_device_is_rejected_by_name(lab: &Lab) -> Result<(), Stop> {
    let nowhere =
        DeviceInfo { name: "mlx5_999".into(), node: "uverbs999".into(), ..lab.info().clone() };
    match Device::open(lab.backend(), &nowhere) {
        Ok(_) => Err(Stop::fail("a device that does not exist was opened")),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::NoDevice, format!("the kind of {error}"));
            ensure!(error.to_string().contains("mlx5_999"), "{error} does not name it");
            Ok(())
        }
    }
}

fn lab_rejects_unknown_device(_: &Lab) -> Result<(), Stop> {
    let choice = Choice { device: "mlx5_999".into(), ..Choice::default() };
    match Lab::open(&choice) {
        Ok(_) => Err(Stop::fail("a lab with a missing device was opened")),
        // Without a device, the error must say so.
        Err(Stop(why)) => {
            ensure!(why.contains("mlx5") || why.contains("RDMA"), "{why:?} does not help the user");
            Ok(())
        }
    }
}

fn contexts_of_one_device_are_independent(lab: &Lab) -> Result<(), Stop> {
    let first = lab.device()?;
    let second = lab.device()?;
    drop(first);
    Ok(second.nop()?)
}

fn device_opens_100_times(lab: &Lab) -> Result<(), Stop> {
    let open: Vec<Device> = (0..100).map(|_| lab.device()).collect::<Result<_, _>>()?;
    open.iter().try_for_each(|device| Ok(device.nop()?))
}

fn first_port_is_active(lab: &Lab) -> Result<(), Stop> {
    let port = lab.device()?.query_port(1)?;
    ensure!(port.is_active(), "port 1 is in state {}", port.raw.state);
    ensure!(port.active_mtu().is_some(), "unknown MTU code {}", port.raw.active_mtu);
    Ok(())
}

fn unknown_port_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    for port in [0, device.caps().ports + 1, 255] {
        match device.query_port(port) {
            Ok(_) => {
                return Err(Stop::fail(format!("port {port} was queried, which does not exist")));
            }
            Err(error) => ensure_eq!(error.errno(), Some(Errno::EINVAL), format!("port {port}")),
        }
    }
    Ok(())
}

fn link_layer_agrees_across_queries(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let enumerated = lab.info().ports.first().map(|port| port.link_layer);
    let link = device.query_port(1)?.link_layer();
    ensure_eq!(enumerated, Some(link), "enumerated and queried");
    let of_caps = match device.caps().port_type {
        PortType::INFINIBAND => LinkLayer::InfiniBand,
        PortType::ETHERNET => LinkLayer::Ethernet,
        _ => LinkLayer::Unspecified,
    };
    ensure_eq!(of_caps, link, "capabilities and port");
    Ok(())
}

fn gid_table_matches_enumerated_gids(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let table = device.gid_table()?;
    let mut expected = 0;
    for port in &lab.info().ports {
        for gid in &port.gids {
            expected += 1;
            let entry = device.gid_entry(port.number.into(), gid.index)?;
            ensure_eq!((entry.gid, entry.kind), (gid.gid, gid.kind), format!("GID {}", gid.index));
            ensure!(table.contains(&entry), "the table lacks {entry:?}");
        }
    }
    ensure_eq!(table.len(), expected, "GIDs in the table");
    ensure!(expected > 0, "the device has no GID: is its network interface up?");
    Ok(())
}

fn unused_gid_is_enodata_and_missing_is_einval(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let entries = device.query_port(1)?.raw.gid_tbl_len;
    let used: Vec<u32> = device.gid_table()?.iter().map(|entry| entry.index).collect();
    let errno = |index| device.gid_entry(1, index).err().and_then(|error| error.errno());
    ensure_eq!(errno(entries), Some(Errno::EINVAL), "the entry past the last");
    let free = (0..entries).rev().find(|index| !used.contains(index));
    let free = free.ok_or_else(|| Stop::fail("every entry of the GID table is in use"))?;
    ensure_eq!(errno(free), Some(Errno::ENODATA), format!("entry {free}"));
    Ok(())
}

fn capabilities_are_plausible(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let caps = device.caps();
    ensure!(caps.general.rc(), "no reliable connections");
    ensure!(caps.ports >= 1, "{} ports", caps.ports);
    ensure!((6..=16).contains(&caps.log_max_qp_wqebbs), "rings of 2^{}", caps.log_max_qp_wqebbs);
    ensure!((10..=24).contains(&caps.log_max_cqes), "CQs of 2^{} CQEs", caps.log_max_cqes);
    ensure!((8..=24).contains(&caps.log_max_qps), "2^{} QPs", caps.log_max_qps);
    ensure!((8..=24).contains(&caps.log_max_mkeys), "2^{} keys", caps.log_max_mkeys);
    ensure!((24..=31).contains(&caps.log_max_message), "messages of 2^{}", caps.log_max_message);
    ensure!(caps.max_send_sges() >= 4, "{} SGEs of a send", caps.max_send_sges());
    ensure!(caps.max_receive_sges() >= 4, "{} SGEs of a receive", caps.max_receive_sges());
    ensure!(caps.max_inline() >= 64, "{} bytes inline", caps.max_inline());
    ensure!(caps.max_reads_out >= 1 && caps.max_reads_in >= 1, "no READs");
    Ok(())
}

fn current_caps_do_not_exceed_maximum(lab: &Lab) -> Result<(), Stop> {
    type Field = fn(&HcaCap) -> u8;
    const FIELDS: [(&str, Field); 8] = [
        ("log_max_qp", HcaCap::log_max_qp),
        ("log_max_qp_sz", HcaCap::log_max_qp_sz),
        ("log_max_cq", HcaCap::log_max_cq),
        ("log_max_cq_sz", HcaCap::log_max_cq_sz),
        ("log_max_mkey", HcaCap::log_max_mkey),
        ("log_max_msg", HcaCap::log_max_msg),
        ("log_max_ra_req_qp", HcaCap::log_max_ra_req_qp),
        ("log_max_ra_res_qp", HcaCap::log_max_ra_res_qp),
    ];
    let device = lab.device()?;
    let page = device.query_hca_cap(CapPage::GENERAL, CapMode::Maximum)?;
    let max = HcaCap::from_prefix(&page[..]).ok_or_else(|| Stop::fail("a short page"))?;
    for (name, field) in FIELDS {
        let (now, max) = (field(&device.caps().general), field(max));
        ensure!(now <= max, "{name} is {now}, but its maximum is {max}");
    }
    Ok(())
}

fn announced_capability_pages_are_readable(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let general = &device.caps().general;
    let pages = [
        (true, CapPage::GENERAL),
        (general.hca_cap_2(), CapPage::GENERAL_2),
        (general.atomic(), CapPage::ATOMIC),
        (general.roce(), CapPage::ROCE),
        (general.eth_net_offloads(), CapPage::ETHERNET_OFFLOADS),
        (general.nic_flow_table(), CapPage::FLOW_TABLE),
        (general.device_memory(), CapPage::DEVICE_MEMORY),
        (general.event_cap(), CapPage::EVENT),
    ];
    for page in pages.into_iter().filter_map(|(announced, page)| announced.then_some(page)) {
        for mode in [CapMode::Current, CapMode::Maximum] {
            device
                .query_hca_cap(page, mode)
                .map_err(|error| Stop::fail(format!("{page:?}, {mode:?}: {error}")))?;
        }
    }
    Ok(())
}

fn current_issi_is_among_supported(lab: &Lab) -> Result<(), Stop> {
    let (current, supported) = lab.device()?.query_issi()?;
    let supported = supported.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
    ensure!(supported >> current & 1 == 1, "step {current} in use, {supported:#b} supported");
    Ok(())
}

fn port_address_agrees_across_queries(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let port = device.query_port(1)?;
    if port.link_layer() == LinkLayer::InfiniBand {
        let context = device.query_hca_vport_context(1)?;
        ensure!(context.lid() == port.raw.lid, "the LIDs of the vport and of the port differ");
        return Ok(());
    }
    for gid in device.gid_table()? {
        let entry = device.query_roce_address(gid.port as u8, gid.index as u16)?;
        ensure_eq!(entry.gid, gid.gid, format!("RoCE address {}", gid.index));
        ensure!(entry.mac != [0; 6], "RoCE address {} has no MAC", gid.index);
    }
    Ok(())
}

fn vuid_is_not_empty(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    ensure!(!device.query_vuid()?.is_empty(), "an empty VUID");
    Ok(())
}

fn completion_vector_past_last_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let vectors = device.attributes().completion_vectors;
    ensure!(vectors >= 1, "no completion vector");
    for vector in 0..vectors {
        device.query_eqn(vector)?;
    }
    ensure!(device.query_eqn(vectors).is_err(), "vector {vectors} of {vectors} has an EQ");
    Ok(())
}

fn pd_and_uar_numbers_are_unique(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let (one, two) = (device.alloc_pd()?, device.alloc_pd()?);
    ensure!(one.pdn() != two.pdn(), "two PDs are both {:#x}", one.pdn());
    let (one, two) = (device.uar_alloc(UarKind::NonCached)?, device.uar_alloc(UarKind::NonCached)?);
    ensure!(one.page_id() != two.page_id(), "two UAR pages are both {:#x}", one.page_id());
    Ok(())
}

/// The driver requests each page on its own, which saves unused ones.
fn new_context_has_no_bfregs(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    ensure_eq!(device.attributes().driver.tot_bfregs, 0, "BlueFlame registers");
    Ok(())
}

fn new_channels_have_no_events(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    for omit_data in [true, false] {
        let event = device.event_channel(omit_data)?.read()?;
        ensure!(event.is_none(), "an event channel has {event:?}");
    }
    let event = device.command_channel()?.read()?;
    ensure!(event.is_none(), "a command channel has {event:?}");
    let event = device.async_event_alloc()?.read()?;
    ensure!(event.is_none(), "a channel of asynchronous events has {event:?}");
    Ok(())
}

/// A kernel gives such pages once a test with NOPs has shown that the device takes whole copies.
fn blueflame_uar_is_allocated(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let page = device.uar_alloc(UarKind::BlueFlame)?;
    ensure_eq!(page.kind(), UarKind::BlueFlame, "the kind of the page");
    Ok(())
}

/// A path from our RoCE v2 GID to itself.
fn to_ourselves(device: &Context) -> Result<AhAttributes, Stop> {
    let table = device.gid_table()?;
    let ours = table.iter().find(|entry| entry.port == 1 && entry.kind == GidType::RoceV2);
    let ours = ours.ok_or_else(|| Stop::fail("port 1 has no RoCE v2 GID"))?;
    let sgid_index = u8::try_from(ours.index)?;
    let grh = GlobalRoute { dgid: ours.gid.0, sgid_index, hop_limit: 64, ..Default::default() };
    Ok(AhAttributes { grh, is_global: 1, port_num: 1, ..Default::default() })
}

fn address_handle_resolves_destination_mac(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let path = to_ourselves(&device)?;
    let mac = device.create_ah(&device.alloc_pd()?, &path)?.destination_mac();
    let own = device.query_roce_address(1, path.grh.sgid_index.into())?.mac;
    ensure_eq!(mac, Some(own), "the MAC of our own GID");
    Ok(())
}

fn address_handle_with_unknown_gid_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let mut path = to_ourselves(&device)?;
    path.grh.sgid_index = 255;
    let refused = device.create_ah(&device.alloc_pd()?, &path).err();
    ensure_eq!(refused.and_then(|error| error.errno()), Some(Errno::EINVAL), "GID 255");
    Ok(())
}
