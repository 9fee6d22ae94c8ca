//! Flow rules: they steer received frames to TIRs.

use std::sync::Arc;

use verbless_devx::Error;
use verbless_prm::{FteMatchSetLyr24, MatchCriteriaEnable};

use crate::device::Device;
use crate::error::{invalid, limit, refused};
use crate::transport::TirObject;

/// Match and priority of a flow rule. A field that is `None` matches any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowAttr {
    /// Destination MAC address.
    pub destination: Option<[u8; 6]>,
    /// Source MAC address.
    pub source: Option<[u8; 6]>,
    /// EtherType, after VLAN tags.
    pub ethertype: Option<u16>,
    /// VLAN id of the first tag, a C-tag (0x8100); 12 bits.
    pub vlan: Option<u16>,
    /// Priority: rules with a lower value come first, 0 to [`FlowAttr::LAST_PRIORITY`].
    pub priority: u16,
    /// Flow tag in the completions of matching frames; 24 bits, and not 0xffffff. `None`: tag 0.
    pub tag: Option<u32>,
}

/// A flow rule: while it lives, matching frames go to a TIR, which it keeps alive.
#[derive(Debug)]
pub struct FlowRule {
    // Before the TIR, which the device keeps as long as rules refer to it.
    rule: verbless_devx::FlowRule,
    tir: Arc<TirObject>,
}

impl FlowAttr {
    /// The last priority that the kernel has (Linux `MLX5_IB_FLOW_LAST_PRIO`).
    pub const LAST_PRIORITY: u16 = 15;

    /// Matches frames to this address.
    pub fn to(destination: [u8; 6]) -> Self {
        Self { destination: Some(destination), ..Self::default() }
    }

    /// Matches only frames of this EtherType.
    #[must_use]
    pub fn ethertype(self, ethertype: u16) -> Self {
        Self { ethertype: Some(ethertype), ..self }
    }

    /// Sets the flow tag.
    #[must_use]
    pub fn tag(self, tag: u32) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Mask and values.
    fn headers(&self) -> [FteMatchSetLyr24; 2] {
        let [mut mask, mut value] = [FteMatchSetLyr24::zeroed(); 2];
        let address = |mac: [u8; 6]| {
            let [a, b, c, d, e, f] = mac;
            (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]))
        };
        if let Some((high, low)) = self.destination.map(address) {
            mask.set_dmac_47_16(u32::MAX).set_dmac_15_0(u16::MAX);
            value.set_dmac_47_16(high).set_dmac_15_0(low);
        }
        if let Some((high, low)) = self.source.map(address) {
            mask.set_smac_47_16(u32::MAX).set_smac_15_0(u16::MAX);
            value.set_smac_47_16(high).set_smac_15_0(low);
        }
        if let Some(ethertype) = self.ethertype {
            mask.set_ethertype(u16::MAX);
            value.set_ethertype(ethertype);
        }
        if let Some(vlan) = self.vlan {
            mask.set_cvlan_tag(true).set_first_vid(0xfff);
            value.set_cvlan_tag(true).set_first_vid(vlan);
        }
        [mask, value]
    }
}

impl Device {
    /// Lets the kernel steer frames to `tir` (FLOW_MATCHER_CREATE, CREATE_FLOW).
    ///
    /// # Errors
    /// `attr` matches on nothing, or has an invalid VLAN id, flow tag or priority; EPERM without
    /// CAP_NET_RAW; the kernel or the device refuses.
    pub fn create_flow_rule(
        &self,
        attr: &FlowAttr,
        tir: &Arc<TirObject>,
    ) -> Result<FlowRule, Error> {
        const WHAT: &str = "CREATE_FLOW";
        if attr.priority > FlowAttr::LAST_PRIORITY {
            return Err(limit(
                WHAT,
                "the priority",
                attr.priority.into(),
                FlowAttr::LAST_PRIORITY.into(),
            ));
        }
        if let Some(vlan) = attr.vlan.filter(|vlan| vlan >> 12 != 0) {
            return Err(refused(WHAT, format!("VLAN id {vlan:#x} has more than 12 bits")));
        }
        let [mask, value] = attr.headers();
        if mask.as_bytes().iter().all(|&byte| byte == 0) {
            let hint = "a rule without a field would take every frame of the port: give it an \
                        address, an EtherType or a VLAN";
            return Err(invalid(WHAT, hint));
        }
        if attr.tag.is_some_and(|tag| tag >= 0xff_ffff) {
            return Err(invalid(WHAT, "the flow tag must be below 0xffffff"));
        }
        let criteria = MatchCriteriaEnable::OUTER_HEADERS.0;
        let matcher = self.create_flow_matcher(mask.as_bytes(), criteria, attr.priority)?;
        let rule = Arc::new(matcher).create_rule(value.as_bytes(), tir.object(), attr.tag)?;
        Ok(FlowRule { rule, tir: tir.clone() })
    }
}

impl FlowRule {
    /// The TIR that matching frames go to.
    pub fn tir(&self) -> &Arc<TirObject> {
        &self.tir
    }

    /// Removes the rule, and returns whether that worked. A drop instead counts a failure in
    /// [`Context::leaked`](verbless_devx::Context::leaked).
    ///
    /// # Errors
    /// The kernel or the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        self.rule.destroy().map_err(Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_mask_and_match_named_fields_only() {
        let attr = FlowAttr {
            destination: Some([2, 0x11, 0x22, 0x33, 0x44, 0x55]),
            source: Some([2, 0x66, 0x77, 0x88, 0x99, 0xaa]),
            ethertype: Some(0x88b5),
            vlan: Some(0xabc),
            ..FlowAttr::default()
        };
        let [mask, value] = attr.headers();
        let mut expected = [0; 0x40];
        expected[..16].copy_from_slice(&[
            2, 0x66, 0x77, 0x88, 0x99, 0xaa, 0x88, 0xb5, 2, 0x11, 0x22, 0x33, 0x44, 0x55, 0x0a,
            0xbc,
        ]);
        expected[0x12] = 0x80;
        assert_eq!(value.as_bytes(), &expected[..]);
        expected[..14].fill(0xff);
        expected[14..16].copy_from_slice(&[0x0f, 0xff]);
        assert_eq!(mask.as_bytes(), &expected[..]);
        let [mask, value] = FlowAttr::to([0; 6]).headers();
        expected.fill(0);
        assert_eq!(value.as_bytes(), &expected[..]);
        expected[8..14].fill(0xff);
        assert_eq!(mask.as_bytes(), &expected[..], "an address of zeros is an address");
    }

    #[test]
    fn flow_attr_builder_sets_fields_in_any_order() {
        let to = [2, 0, 0, 0, 0, 1];
        let attr = FlowAttr::to(to).ethertype(0x88b5).tag(7);
        let expected = FlowAttr {
            destination: Some(to),
            ethertype: Some(0x88b5),
            tag: Some(7),
            ..FlowAttr::default()
        };
        assert_eq!(attr, expected);
        assert_eq!(FlowAttr::to(to).tag(7).ethertype(0x88b5), expected);
    }
}
