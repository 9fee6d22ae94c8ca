//! Makes a profile of the model from a report, so that the model has the capabilities of the
//! reported card.
//!
//! A report knows one link layer, and one or both sides of a card. What it does not know comes from
//! the built-in profile that is closest to it (`closest`). `section` writes fields of the PRM into
//! the sections of a profile; `vhca` keeps the functions of a card apart.

mod closest;
mod section;
#[cfg(test)]
mod tests;
mod vhca;

use std::fmt::Write as _;

use toml::{Table, Value};
use verbless_model::Profile;
use verbless_prm::CommandInfo;
use verbless_prm::reflect::View;

use super::document::{DeviceFacts, FactLink, FactSide, Page, Report};
use super::fields::of_view;
use super::text::{plain, plain_lines};
use crate::{Stop, profiles};
pub(super) use closest::facts_of;
use section::{Layers, device_page, dpu_page, put, section};

/// Fields of the NIC vport context that belong to the card: its driver sets the others.
const NIC_VPORT: [&str; 4] = ["min_wqe_inline_mode", "sd_group", "sd_group_size", "mtu"];
/// Fields of the HCA vport context that belong to the card. GUIDs, LIDs and states are the model's.
const HCA_VPORT: [&str; 16] = [
    "sm_virt_aware",
    "has_smi",
    "has_raw",
    "grh_required",
    "min_wqe_inline_mode",
    "num_port_plane",
    "vport_state_policy",
    "cap_mask1",
    "cap_mask1_field_select",
    "cap_mask2",
    "cap_mask2_field_select",
    "ooo_sl_mask",
    "init_type_reply",
    "lmc",
    "subnet_timeout",
    "sm_sl",
];

impl Report {
    /// A profile of the model in TOML that is like the first device of the report, and like the
    /// other side of its card if the report has that.
    ///
    /// # Errors
    /// The report lacks what a profile needs; says what.
    pub fn profile(&self) -> Result<String, Stop> {
        let card = Card::of(self)?;
        let base = closest::closest(&card)?;
        card.over(base)
    }
}

#[cfg(test)]
impl Report {
    /// The profile of this report, as changes of the built-in profile `base`.
    pub(super) fn profile_over(&self, base: &str) -> Result<String, Stop> {
        Card::of(self)?.over(base)
    }
}

/// The sides of a card that a report knows.
struct Card<'a> {
    host: Option<&'a DeviceFacts>,
    dpu: Option<&'a DeviceFacts>,
    link: &'static str,
}

impl<'a> Card<'a> {
    fn of(report: &'a Report) -> Result<Self, Stop> {
        let first = report.devices.first().ok_or_else(|| Stop::fail("the report has no device"))?;
        if let Some(why) = &first.incomplete {
            return Err(Stop::fail(format!("the report is incomplete: {}", plain(why))));
        }
        let port = first.ports.first();
        let port = port.ok_or_else(|| Stop::fail("the report's first device has no port"))?;
        let link = match port.link_layer {
            FactLink::Infiniband => "infiniband",
            FactLink::Ethernet => "ethernet",
            FactLink::Unspecified => {
                return Err(Stop::fail("the report does not know the port's link layer"));
            }
        };
        if !first.pages.iter().any(|page| page.number == 0) {
            return Err(Stop::fail("the report has no general capability page (page 0)"));
        }
        let of = |side| {
            let mut all = report.devices.iter().filter(|it| it.incomplete.is_none());
            all.find(|it| it.side == side && it.pci.device_id == first.pci.device_id)
        };
        Ok(Self { host: of(FactSide::Host), dpu: of(FactSide::Dpu), link })
    }

    /// The device that the report knows best.
    fn known(&self) -> Result<&'a DeviceFacts, Stop> {
        self.host.or(self.dpu).ok_or_else(|| Stop::fail("the report has no device"))
    }

    /// The profile, with what the report does not know from the built-in profile `base`.
    fn over(&self, base: &str) -> Result<String, Stop> {
        let known = self.known()?;
        let mut table = profiles::whole(base)?;
        let mut notes = Vec::new();
        let below = closest::facts_of(base, self.link)?;
        let host = match self.host {
            Some(host) => {
                self.identity(&mut table, host)?;
                self.pages(&mut table, host, &mut notes);
                host
            }
            None => {
                let host = below.first();
                host.ok_or_else(|| Stop::fail(format!("profile {base} has no device")))?
            }
        };
        self.port(&mut table, known);
        self.contexts(&mut table, known);
        if let Some(dpu) = self.dpu {
            table.remove("dpu");
            section(&mut table, &["dpu", "caps"]);
            for page in &dpu.pages {
                let of_host = host.pages.iter().find(|it| it.number == page.number);
                dpu_page(&mut table, page, of_host, &mut notes);
            }
            for page in &host.pages {
                if !dpu.pages.iter().any(|it| it.number == page.number) {
                    notes.push(format!("The DPU has no page {}, but here it has.", page.title()));
                }
            }
        }
        vhca::separate(&mut table, self.dpu.is_some() && self.host.is_none());
        let text = self.header(base, &notes)? + &toml::to_string(&table)?;
        Profile::from_toml(&text).map_err(|error| {
            let error = plain_lines(&error.to_string());
            Stop::fail(format!("the report makes no sound profile: {error}"))
        })?;
        Ok(text)
    }

    /// The comment at the beginning.
    fn header(&self, base: &str, notes: &[String]) -> Result<String, Stop> {
        let known = self.known()?;
        let mut text = String::new();
        let quoted = |text: &str| text.escape_debug().to_string();
        let _ = writeln!(
            text,
            "# A device of PSID {} and firmware {}, by `hwtest profile` from a report.",
            quoted(&known.psid),
            quoted(&known.firmware)
        );
        let _ = writeln!(
            text,
            "# What a report does not have is that of the built-in profile {base}: keys, first \
             numbers, registers,\n# pages for the kernel, the other link layer, the topology{}.",
            match (self.host, self.dpu) {
                (Some(_), Some(_)) => "",
                (None, _) => ", and the host's side",
                (_, None) => ", and the DPU's side if there is one",
            }
        );
        for note in notes {
            let _ = writeln!(text, "# {note}");
        }
        text.push('\n');
        Ok(text)
    }

    /// The numbers that identify the kind of device.
    fn identity(&self, table: &mut Table, host: &DeviceFacts) -> Result<(), Stop> {
        let firmware: Option<Vec<u16>> =
            host.firmware.split('.').map(|part| part.parse().ok()).collect();
        let firmware = firmware.filter(|parts| parts.len() == 3).ok_or_else(|| {
            Stop::fail(format!(
                "the report's firmware version {:?} is not three numbers, such as 22.40.1000",
                host.firmware
            ))
        })?;
        table.insert("link".into(), self.link.into());
        let device = section(table, &["device"]);
        // The PSID remains the model's: the driver knows by it that this is no hardware.
        device.insert("vendor_id".into(), i64::from(host.pci.vendor_id).into());
        device.insert("device_id".into(), i64::from(host.pci.device_id).into());
        let firmware: Vec<_> = firmware.into_iter().map(i64::from).map(Value::from).collect();
        device.insert("firmware".into(), Value::Array(firmware));
        let mut set = |name: &str, value: Option<u64>| {
            if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
                device.insert(name.into(), value.into());
            }
        };
        let answer = |command, path| answer(host, command, path);
        set("ieee_vendor_id", answer("QUERY_ADAPTER", "query_adapter_struct.ieee_vendor_id"));
        set("issi", answer("QUERY_ISSI", "supported_issi_dw0"));
        Ok(())
    }

    fn pages(&self, table: &mut Table, host: &DeviceFacts, notes: &mut Vec<String>) {
        let names = host.pages.iter().map(Page::title).collect::<Vec<_>>();
        for path in [&["caps"][..], &["max"], &[self.link, "caps"], &[self.link, "max"]] {
            section(table, path).retain(|name, _| names.iter().any(|known| known == name));
        }
        for page in &host.pages {
            device_page(&mut Layers { table, link: self.link }, page, notes);
        }
        let has_dpa = answer_of_page(host, "apu") != Some(0);
        if !has_dpa {
            table.remove("dpa");
        }
    }

    fn port(&self, table: &mut Table, known: &DeviceFacts) {
        let Some(port) = known.ports.first() else { return };
        let rate = answer(known, "QUERY_VPORT_STATE", "max_tx_speed").filter(|&rate| rate != 0);
        let section = section(table, &[self.link, "port"]);
        let mut set = |name: &str, value: Option<u32>| {
            if let Some(value) = value {
                section.insert(name.into(), i64::from(value).into());
            }
        };
        set("max_mtu", port.max_mtu);
        set("active_mtu", port.active_mtu);
        set("active_width", Some(port.active_width.into()));
        set("active_speed", Some(port.active_speed));
        set("rate_mbps", rate.and_then(|rate| u32::try_from(rate * 100).ok()));
    }

    /// The vport contexts and the bond.
    fn contexts(&self, table: &mut Table, known: &DeviceFacts) {
        let mut write = |path: &[&str], command: &str, part: &str, names: Option<&[&str]>| {
            let Some(query) = known.queries.iter().find(|query| query.command == command) else {
                return;
            };
            let Some(info) = CommandInfo::of_input(&query.input.padded(0x10)) else { return };
            if query.error.is_some() || info.name != command {
                return;
            }
            let bytes = query.output.padded(info.output.bytes);
            for leaf in of_view(&View::new(info.output, &bytes)) {
                let Some(name) = leaf.path.strip_prefix(part) else { continue };
                if names.is_none_or(|names| names.contains(&name)) {
                    put(section(table, path), &leaf, name, &leaf.value(&bytes));
                }
            }
        };
        write(&["nic_vport"], "QUERY_NIC_VPORT_CONTEXT", "nic_vport_context.", Some(&NIC_VPORT));
        let of_link = [self.link, "hca_vport"];
        write(&of_link, "QUERY_HCA_VPORT_CONTEXT", "hca_vport_context.", Some(&HCA_VPORT));
        write(&[self.link, "lag"], "QUERY_LAG", "ctx.", None);
    }
}

/// A number in the device's answer to a command.
fn answer(facts: &DeviceFacts, command: &str, path: &str) -> Option<u64> {
    let query = facts.queries.iter().find(|query| query.command == command)?;
    let input = query.input.padded(0x10);
    let info = CommandInfo::of_input(&input).filter(|info| info.name == command)?;
    let bytes = query.output.padded(info.output.bytes);
    (query.error.is_none()).then(|| info.view_output(&input, &bytes).get(path))?
}

/// A number in the general page.
fn answer_of_page(facts: &DeviceFacts, field: &str) -> Option<u64> {
    let page = facts.pages.iter().find(|page| page.number == 0)?;
    let info = super::fields::layout(0)?;
    View::new(info, &page.current.padded(info.bytes)).get(field)
}
