//! A device: what it is, its ports, its capability pages, its answers.

use maud::{Markup, html};
use verbless_devx::abi::core::port_state;
use verbless_prm::CommandInfo;

use super::{pages, rows};
use crate::report::docs::doc;
use crate::report::document::{DeviceFacts, FactFunction, FactLink, FactSide, Port, Query};
use crate::report::fields::of_view;
use crate::report::privacy;
use crate::report::text::plain;

/// The section of a device.
pub(super) fn device(index: usize, facts: &DeviceFacts) -> Markup {
    let side = match facts.side {
        FactSide::Host => "on the host",
        FactSide::Dpu => "on the DPU",
    };
    html! {
        section id={ "device-" (index) } {
            h2 { "Device " (plain(&facts.name)) ", " (side) }
            @if let Some(why) = &facts.incomplete {
                p.note { "It could not be asked: " (plain(why)) }
            }
            (rows(&about(facts)))
            @if !facts.ports.is_empty() { (ports(&facts.ports)) }
            @if let Some(identity) = &facts.identity {
                h3 { "Identifiers" }
                (rows(&[
                    ("Node GUID", identity.node_guid.clone()),
                    ("System image GUID", identity.system_image_guid.clone()),
                    ("Network devices", identity.netdevs.join(", ")),
                ]))
                ul.plain {
                    @for gid in &identity.gids {
                        li {
                            "Port " (gid.port) ", GID " (gid.index) ": "
                            code { (plain(&gid.gid)) } " (" (plain(&gid.kind)) ")"
                            @if let Some(netdev) = &gid.netdev { ", " (plain(netdev)) }
                        }
                    }
                }
            }
            @if !facts.pages.is_empty() {
                h3 { "Capabilities" }
                p.hint {
                    "By page of QUERY_HCA_CAP. A maximum is shown where it differs from the \
                     current value."
                }
                @for page in &facts.pages { (pages::page(page)) }
            }
            @if !facts.queries.is_empty() {
                h3 { "Other answers" }
                @for query in &facts.queries { (answer(query)) }
            }
        }
    }
}

fn about(facts: &DeviceFacts) -> Vec<(&'static str, String)> {
    let pci = &facts.pci;
    let mut rows = vec![
        ("Kind", if facts.model { "the software model" } else { "hardware" }.to_owned()),
        (
            "Function",
            match facts.function {
                FactFunction::Physical => "physical",
                FactFunction::Virtual => "virtual",
                FactFunction::Sub => "sub-function",
            }
            .to_owned(),
        ),
        ("PSID", facts.psid.clone()),
        ("Firmware", facts.firmware.clone()),
        ("PCI", format!("{:04x}:{:04x}", pci.vendor_id, pci.device_id)),
    ];
    rows.extend(pci.address.clone().map(|address| ("PCI address", address)));
    if let Some(link) = &pci.link {
        let mut text = format!("{} x{}", link.speed, link.width);
        let speed = link.max_speed.as_ref().unwrap_or(&link.speed);
        let width = link.max_width.as_ref().unwrap_or(&link.width);
        if (speed, width) != (&link.speed, &link.width) {
            text += &format!(" of at most {speed} x{width}");
        }
        rows.push(("PCI link", text));
    }
    if let Some(file) = &facts.file {
        let text = format!("{}, mode {}, {}:{}", file.path, file.mode, file.owner, file.group);
        rows.push(("Device file", text));
    }
    rows
}

fn ports(ports: &[Port]) -> Markup {
    let mtu = |mtu: Option<u32>| mtu.map_or("?".to_owned(), |mtu| mtu.to_string());
    html! {
        h3 { "Ports" }
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "Port" }
                        th scope="col" { "Link" }
                        th scope="col" { "State" }
                        th scope="col" { "Rate" }
                        th scope="col" { "MTU" }
                        th scope="col" { "GIDs" }
                    }
                }
                tbody {
                    @for port in ports {
                        tr {
                            td { (port.number) }
                            td {
                                (match port.link_layer {
                                    FactLink::Infiniband => "InfiniBand",
                                    FactLink::Ethernet => "Ethernet",
                                    FactLink::Unspecified => "unknown",
                                })
                                @if port.grh_required { ", needs a GRH" }
                            }
                            td { (state(port)) }
                            td { (rate(port)) }
                            td { (mtu(port.active_mtu)) " of " (mtu(port.max_mtu)) }
                            td {
                                (port.gid_kinds.len()) " of " (port.gid_table_len)
                                @if !port.gid_kinds.is_empty() {
                                    " (" (plain(&kinds(&port.gid_kinds))) ")"
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Each kind of GID once.
fn kinds(all: &[String]) -> String {
    let mut kinds: Vec<&str> = all.iter().map(String::as_str).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(", ")
}

fn state(port: &Port) -> String {
    let logical = match port.state {
        port_state::DOWN => "DOWN".into(),
        port_state::INIT => "INIT".into(),
        port_state::ARMED => "ARMED".into(),
        port_state::ACTIVE => "ACTIVE".into(),
        port_state::ACTIVE_DEFER => "ACTIVE_DEFER".into(),
        other => format!("state {other}"),
    };
    // The names of PortInfo:PortPhysicalState.
    let physical = match port.physical_state {
        1 => "sleep".into(),
        2 => "polling".into(),
        3 => "disabled".into(),
        4 => "training".into(),
        5 => "link up".into(),
        6 => "error recovery".into(),
        other => format!("physical state {other}"),
    };
    format!("{logical}, {physical}")
}

/// Width and speed by the names of InfiniBand.
fn rate(port: &Port) -> String {
    let width = match port.active_width {
        1 => "1X".into(),
        2 => "4X".into(),
        4 => "8X".into(),
        8 => "12X".into(),
        16 => "2X".into(),
        other => format!("width {other}"),
    };
    let speed = match port.active_speed {
        1 => "SDR".into(),
        2 => "DDR".into(),
        4 => "QDR".into(),
        8 => "FDR10".into(),
        16 => "FDR".into(),
        32 => "EDR".into(),
        64 => "HDR".into(),
        128 => "NDR".into(),
        256 => "XDR".into(),
        other => format!("speed {other}"),
    };
    format!("{width} {speed}")
}

/// What the device said to one command.
fn answer(query: &Query) -> Markup {
    let input = query.input.padded(0x10);
    let info = CommandInfo::of_input(&input);
    html! {
        details {
            summary { code { (plain(&query.command)) } }
            @if let Some(error) = &query.error {
                p.note { (plain(error)) }
            } @else if let Some(info) = info {
                @let bytes = query.output.padded(info.output.bytes);
                @let bytes = &bytes[..info.output.bytes];
                @let leaves = of_view(&info.view_output(&input, bytes));
                table.fields {
                    tbody {
                        @for leaf in &leaves {
                            @let value = leaf.value(bytes);
                            @if !value.is_zero() {
                                tr {
                                    th scope="row" { code { (leaf.path) } }
                                    td.value { (value) }
                                    td.doc { (doc(leaf)) }
                                }
                            }
                        }
                    }
                }
                @if leaves.iter().any(privacy::identifies) {
                    p.hint { "Fields that are 0 are not shown; identifiers are 0 if left out." }
                }
            } @else {
                pre { (query.output.to_string()) }
            }
        }
    }
}
