//! Prints the properties and capabilities of every mlx5 device; without one, those of the model.
//!
//! `cargo run --example devinfo [-- --device NAME] [--caps]`

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use verbless::devx::LinkLayer;
use verbless::{Device, DeviceInfo};

/// Prints the properties and capabilities of an mlx5 device.
#[derive(Parser)]
struct Options {
    /// `auto` (every mlx5 device, else the model), `model`, or a device's name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The model's profile.
    #[arg(long, default_value = "connectx6dx")]
    profile: String,
    /// Also print every nonzero field of the capability pages.
    #[arg(long)]
    caps: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let found = support::find(&options.device, &options.profile)?;
    let mut text = format!("{}\n", found.description);
    for (at, info) in found.devices.iter().enumerate() {
        text.push('\n');
        describe(&mut text, &found.device(at)?, info, options.caps)?;
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn describe(
    text: &mut String,
    device: &Device,
    info: &DeviceInfo,
    pages: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let sort = if device.adapter().is_model() { "model" } else { "hardware" };
    writeln!(text, "{} ({sort})", info.name)?;
    line(text, "board", info.board_id.clone());
    line(text, "firmware", info.firmware.clone());
    line(
        text,
        "PCI",
        format!(
            "{:04x}:{:04x} at {}",
            info.vendor_id,
            info.device_id,
            info.pci_address.as_deref().unwrap_or("no address")
        ),
    );
    line(text, "node GUID", format!("{:016x}", info.node_guid));
    line(text, "system image GUID", format!("{:016x}", info.system_image_guid));
    let caps = device.caps();
    line(text, "queue pairs", power(caps.log_max_qps));
    line(text, "send ring", format!("{} WQEBBs of 64 bytes", power(caps.log_max_qp_wqebbs)));
    line(
        text,
        "completion queues",
        format!("{} of {} entries", power(caps.log_max_cqs), power(caps.log_max_cqes)),
    );
    line(text, "memory keys", power(caps.log_max_mkeys));
    line(
        text,
        "scatter/gather entries",
        format!("{} per send, {} per receive", caps.max_send_sges(), caps.max_receive_sges()),
    );
    line(
        text,
        "READs and atomics",
        format!("{} out, {} in", caps.max_reads_out, caps.max_reads_in),
    );
    line(text, "message", format!("up to {} bytes", power(caps.log_max_message)));
    line(text, "atomics", if caps.atomics { "yes" } else { "no" }.into());
    line(
        text,
        "BlueFlame",
        match caps.blue_flame_register {
            Some(bytes) => format!("registers of {bytes} bytes"),
            None => "no".into(),
        },
    );
    line(text, "completion vectors", device.attributes().completion_vectors.to_string());
    for port in &info.ports {
        let now = device.query_port(port.number)?;
        let sort = match port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unknown link layer",
        };
        writeln!(text, "  port {} ({sort})", port.number)?;
        line(
            text,
            "  state",
            if now.is_active() {
                "active".into()
            } else {
                format!("not active ({})", now.raw.state)
            },
        );
        if port.link_layer == LinkLayer::InfiniBand {
            line(
                text,
                "  LID",
                format!("{:#x}, subnet manager at {:#x}", now.raw.lid, now.raw.sm_lid),
            );
        }
        line(
            text,
            "  MTU",
            now.active_mtu().map_or("unknown".into(), |bytes| format!("{bytes} bytes")),
        );
        for gid in &port.gids {
            let netdev = gid.netdev.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
            line(
                text,
                &format!("  GID {}", gid.index),
                format!("{} ({}{netdev})", gid.gid, gid.kind),
            );
        }
    }
    if pages {
        writeln!(text, "\n{:#?}", caps.general)?;
        if let Some(page) = &caps.general_2 {
            writeln!(text, "\n{page:#?}")?;
        }
    }
    Ok(())
}

fn power(log: u8) -> String {
    match 1u64.checked_shl(log.into()) {
        Some(number) => number.to_string(),
        None => format!("2^{log}"),
    }
}

fn line(text: &mut String, name: &str, value: String) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {name:<24} {value}");
}
