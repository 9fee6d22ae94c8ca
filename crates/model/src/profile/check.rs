//! Checks rules that the types of a profile do not express.

use verbless_prm::HcaCapPage;

use super::error::ProfileError;
use super::file::{File, FunctionPlace, Role, Side};
use super::values::Layer;

impl File {
    /// The first mistake, if there is one.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let wrong = |section: &str, field: &str, why: &str| {
            Err(ProfileError::Value {
                section: section.into(),
                field: field.into(),
                why: why.into(),
            })
        };
        if self.device.board_id.len() > 16 {
            return wrong("device", "board_id", "has more than 16 characters");
        }
        if self.first.user_uar <= self.first.uar || self.device.uar_pages <= self.first.user_uar {
            return wrong("first", "user_uar", "leaves no page to the kernel or to user contexts");
        }
        if !self.device.uar_pages.is_power_of_two() {
            return wrong("device", "uar_pages", "is not a power of two, as the size of a BAR is");
        }
        if let Some(dpa) = &self.dpa {
            let all = u32::from(dpa.cores) * u32::from(dpa.units_per_core);
            if all > u16::MAX.into() || u32::from(dpa.reserved_units) >= all {
                return wrong("dpa", "reserved_units", "leaves no unit, or there are over 65535");
            }
            if dpa.first_object == 0 {
                return wrong("dpa", "first_object", "is 0, which names no object");
            }
        }
        if self.device.contexts_per_page == 0 {
            return wrong("device", "contexts_per_page", "is 0: a page holds at least one context");
        }
        if self.device.page_batch == 0 {
            return wrong("device", "page_batch", "is 0: no page would ever be requested");
        }
        if self.device.vectors == 0 {
            return wrong("device", "vectors", "is 0, but commands and events need one");
        }
        if self.first.uid == 0 {
            return wrong("first", "uid", "is 0, which is the kernel's");
        }
        for (link, port) in
            [("infiniband", &self.infiniband.port), ("ethernet", &self.ethernet.port)]
        {
            for (field, mtu) in [("max_mtu", port.max_mtu), ("active_mtu", port.active_mtu)] {
                if !mtu.is_power_of_two() || !(256..=4096).contains(&mtu) || mtu > port.max_mtu {
                    let why = format!("is {mtu}, not 256, 512, 1024, 2048 or 4096 within max_mtu");
                    return wrong(&format!("{link}.port"), field, &why);
                }
            }
        }
        if self.infiniband.hca_vport.over_zeros().lmc() != 0 {
            let why = "is not 0, but a port of the model has one LID";
            return wrong("infiniband.hca_vport", "lmc", why);
        }
        let general = HcaCapPage::GENERAL.0;
        let has = |caps: &Layer<_>, max: &Layer<_>| {
            [caps, max].iter().any(|layer| layer.0.contains_key(&general))
        };
        let by_link = [&self.infiniband, &self.ethernet].iter().all(|it| has(&it.caps, &it.max));
        if !(by_link || has(&self.caps, &self.max)) {
            return wrong("caps", "general", "is missing: every device has that page");
        }
        self.check_topology()
    }

    /// Checks that each function of the topology is valid and listed once.
    fn check_topology(&self) -> Result<(), ProfileError> {
        let mut seen: Vec<&FunctionPlace> = Vec::new();
        for place in &self.topology {
            let wrong = |why: &str| {
                Err(ProfileError::Value {
                    section: "profile".into(),
                    field: "topology".into(),
                    why: format!("has {place:?}, {why}"),
                })
            };
            if place.address.is_none() {
                return wrong("which has no address");
            }
            if (place.role == Role::Pf) != place.number.is_none() {
                return wrong("where a VF and an SF have a number, and a PF has none");
            }
            if place.side == Side::Dpu && self.dpu.is_none() {
                return wrong("but the profile has no section dpu");
            }
            let is_parent = |it: &&&FunctionPlace| {
                it.role == Role::Pf && (it.side, it.pf) == (place.side, place.pf)
            };
            if place.role != Role::Pf && !seen.iter().any(|it| is_parent(&it)) {
                return wrong("whose PF does not precede it");
            }
            if seen.contains(&place) {
                return wrong("which is listed twice");
            }
            seen.push(place);
        }
        Ok(())
    }
}
