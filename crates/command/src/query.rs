//! Read-only queries of the device.

use verbless_devx::{Context, Error, Gid, MODEL_PSID};
use verbless_prm as prm;

use crate::caps::Caps;
use crate::device::Device;
use crate::execute;

/// Identity of the device, from QUERY_ADAPTER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Parameter-set identification: board and configuration; the kernel shows it as `board_id`.
    pub psid: String,
    /// IEEE vendor id, 24 bits.
    pub vendor_id: u32,
}

impl Adapter {
    /// QUERY_ADAPTER.
    pub(crate) fn read(context: &Context) -> Result<Self, Error> {
        let mut output = prm::QueryAdapterOut::zeroed();
        execute::execute(context, &prm::QueryAdapterIn::new(), &mut output)?;
        let block = output.query_adapter_struct();
        Ok(Self { psid: printable(&block.vsd_contd_psid()[..]), vendor_id: block.ieee_vendor_id() })
    }

    /// Whether this is the model.
    pub fn is_model(&self) -> bool {
        self.psid == MODEL_PSID
    }
}

fn printable(bytes: &[u8]) -> String {
    bytes.iter().filter(|byte| byte.is_ascii_graphic()).map(|&byte| char::from(byte)).collect()
}

/// Number of ports of a bond (LAG) that QPs and TISs may choose from; 1 if the ports are not
/// bonded, or if the device spreads packets by its own hash.
pub(crate) fn lag_ports(context: &Context, caps: &Caps) -> u8 {
    let general = &caps.general;
    if !general.lag_tx_port_affinity() || general.num_lag_ports() < 2 {
        return 1;
    }
    let mut output = prm::QueryLagOut::zeroed();
    // A device that does not respond has no usable bond.
    let result = execute::execute(context, &prm::QueryLagIn::new(), &mut output);
    let bond = output.ctx();
    match result {
        Ok(()) if bond.lag_state() != 0 && bond.port_select_mode() == QUEUE_AFFINITY => {
            general.num_lag_ports()
        }
        _ => 1,
    }
}

const QUEUE_AFFINITY: prm::LagPortSelectMode = prm::LagPortSelectMode::QUEUE_AFFINITY;

/// State of a virtual port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VportState {
    /// Administrative state: 0 down, 1 up, 2 follows the link.
    pub admin: u8,
    /// Actual state: 0 down, 1 up.
    pub state: u8,
    /// Rate limit in units of 100 Mb/s; 0 is none.
    pub max_tx_speed: u16,
}

/// An entry of a port's RoCE address table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceAddress {
    /// The GID.
    pub gid: Gid,
    /// The source MAC of packets with this address.
    pub mac: [u8; 6],
    /// VLAN, if any.
    pub vlan: Option<u16>,
    /// RoCE version, as the PRM numbers it.
    pub version: u8,
    /// Layer 3: 0 IPv4, 1 IPv6.
    pub l3_type: u8,
}

impl Device {
    /// NOP: a command without effect.
    pub fn nop(&self) -> Result<(), Error> {
        execute::execute(self, &prm::NopIn::new(), &mut prm::NopOut::zeroed())
    }

    /// QUERY_ISSI: the interface step in use and the steps that the device supports, as a bit mask.
    pub fn query_issi(&self) -> Result<(u16, Vec<u8>), Error> {
        let mut output = prm::QueryIssiOut::zeroed();
        execute::execute(self, &prm::QueryIssiIn::new(), &mut output)?;
        Ok((output.current_issi(), output.supported_issi_dw0().to_be_bytes().to_vec()))
    }

    /// QUERY_VPORT_STATE of our own port.
    pub fn query_vport_state(&self) -> Result<VportState, Error> {
        let mut output = prm::QueryVportStateOut::zeroed();
        execute::execute(self, &prm::QueryVportStateIn::new(), &mut output)?;
        Ok(VportState {
            admin: output.admin_state().0,
            state: output.state().0,
            max_tx_speed: output.max_tx_speed(),
        })
    }

    /// QUERY_NIC_VPORT_CONTEXT of our own port: MAC, MTU, filters of an Ethernet function.
    pub fn query_nic_vport_context(&self) -> Result<prm::NicVportContext, Error> {
        let mut output = prm::QueryNicVportContextOut::zeroed();
        execute::execute(self, &prm::QueryNicVportContextIn::new(), &mut output)?;
        Ok(*output.nic_vport_context())
    }

    /// Whether RC queue pairs may use force loopback ([`Path::Loopback`](crate::Path::Loopback)).
    /// The capability depends on whether the vport context of the port has RoCE enabled (rdma-core
    /// `providers/mlx5/dr_send.c`, `dr_send_allow_fl`, and `dr_devx.c`, `dr_devx_query_device`).
    pub fn forces_loopback(&self) -> Result<bool, Error> {
        let caps = self.caps();
        let Some(roce) = &caps.roce else { return Ok(caps.general.fl_rc_qp_when_roce_disabled()) };
        let enabled = self.query_nic_vport_context()?.roce_en();
        Ok(allows_force_loopback(&caps.general, roce, enabled))
    }

    /// QUERY_HCA_VPORT_CONTEXT of our own vport at `port`: LID, GUIDs, states of an InfiniBand
    /// function.
    pub fn query_hca_vport_context(&self, port: u8) -> Result<Box<prm::HcaVportContext>, Error> {
        let mut input = prm::QueryHcaVportContextIn::new();
        crate::error::fits("QUERY_HCA_VPORT_CONTEXT", "the port", port.into(), 4)?;
        input.set_port_num(port);
        let mut output = Box::new(prm::QueryHcaVportContextOut::zeroed());
        execute::execute(self, &input, &mut *output)?;
        Ok(Box::new(*output.hca_vport_context()))
    }

    /// QUERY_ROCE_ADDRESS: entry `index` of the port's RoCE address table.
    pub fn query_roce_address(&self, port: u8, index: u16) -> Result<RoceAddress, Error> {
        crate::error::fits("QUERY_ROCE_ADDRESS", "the port", port.into(), 4)?;
        let mut input = prm::QueryRoceAddressIn::new();
        input.set_roce_address_index(index).set_vhca_port_num(port);
        let mut output = prm::QueryRoceAddressOut::zeroed();
        execute::execute(self, &input, &mut output)?;
        let entry = output.roce_address();
        let mut mac = [0; 6];
        mac[..2].copy_from_slice(&entry.source_mac_47_32().to_be_bytes());
        mac[2..].copy_from_slice(&entry.source_mac_31_0().to_be_bytes());
        Ok(RoceAddress {
            gid: Gid(*entry.source_l3_address()),
            mac,
            vlan: entry.vlan_valid().then(|| entry.vlan_id()),
            version: entry.roce_version().0,
            l3_type: entry.roce_l3_type().0,
        })
    }

    /// QUERY_VUID: the identifier of our own function, unique among all functions of all devices.
    pub fn query_vuid(&self) -> Result<String, Error> {
        self.query_vuid_of(self.caps().general.vhca_id())
    }

    /// QUERY_VUID of another function, which this one manages ([`Device::query_host_vhca_id`]).
    ///
    /// # Errors
    /// The device refuses, for example for a function that this one does not manage.
    pub fn query_vuid_of(&self, vhca_id: u16) -> Result<String, Error> {
        let mut output = vec![0; prm::QueryVuidOut::BYTES + VUID_BYTES];
        let mut input = prm::QueryVuidIn::new();
        input.set_vhca_id(vhca_id);
        self.devx_other(input.as_bytes(), &mut output)?;
        Ok(printable(&output[prm::QueryVuidOut::BYTES..]))
    }

    /// QUERY_ESW_FUNCTIONS: the host's PF behind the embedded switch that this function, a PF of a
    /// DPU, manages. `None` if the host's PF does not exist or is disabled: its PCI address may
    /// then be unset.
    ///
    /// # Errors
    /// The device refuses: this function manages no embedded switch.
    pub fn query_host_pf(&self) -> Result<Option<HostPf>, Error> {
        let mut output = prm::QueryEswFunctionsOut::zeroed();
        execute::execute(self, &prm::QueryEswFunctionsIn::new(), &mut output)?;
        let host = output.host_params_context();
        let enabled = !host.host_pf_not_exist() && !host.host_pf_disabled();
        Ok(enabled.then(|| HostPf {
            bus: host.host_pci_bus(),
            device: host.host_pci_device(),
            function: host.host_pci_function(),
            vfs: host.host_num_of_vfs(),
        }))
    }

    /// QUERY_HCA_CAP of a host function behind the embedded switch that this one manages: its
    /// vhca_id. `function_id` 0 is the host's PF, and its VFs count from 1 (Linux
    /// `mlx5_esw_query_vport_vhca_id`).
    ///
    /// # Errors
    /// The device refuses: the function does not exist, or this one does not manage it.
    pub fn query_host_vhca_id(&self, function_id: u16) -> Result<u16, Error> {
        let mut input = prm::QueryHcaCapIn::new();
        // Linux queries only the maximum of other functions (`mlx5_vport_get_other_func_cap`).
        input.set_op_mod(prm::HcaCapPage::GENERAL.0 << 1);
        input.set_other_function(true).set_function_id(function_id);
        let mut output = Box::new(prm::QueryHcaCapOut::zeroed());
        execute::execute(self, &input, &mut *output)?;
        let page = prm::HcaCap::from_prefix(output.capability());
        let what = "the page is shorter than its description";
        Ok(page.ok_or_else(|| crate::error::wrong_answer("QUERY_HCA_CAP", what))?.vhca_id())
    }
}

/// Whether a function with a RoCE page allows force loopback; `enabled`: its vport context enables
/// RoCE.
fn allows_force_loopback(general: &prm::HcaCap, roce: &prm::RoceCap, enabled: bool) -> bool {
    match enabled {
        true => roce.fl_rc_qp_when_roce_enabled(),
        false => general.fl_rc_qp_when_roce_disabled() || roce.fl_rc_qp_when_roce_disabled(),
    }
}

/// The host's PF behind an embedded switch: its PCI address in the host, and its enabled VFs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPf {
    /// PCI bus.
    pub bus: u16,
    /// PCI device.
    pub device: u16,
    /// PCI function.
    pub function: u16,
    /// VFs that the host has enabled.
    pub vfs: u16,
}

/// Bytes of a VUID in the output of QUERY_VUID.
const VUID_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// The RoCE page does not say whether RoCE is enabled; the vport context does.
    #[test]
    fn force_loopback_follows_caps_of_vport_roce_state() {
        let allows = |general_off, roce_off, roce_on, enabled| {
            let (mut general, mut roce) = (prm::HcaCap::zeroed(), prm::RoceCap::zeroed());
            general.set_fl_rc_qp_when_roce_disabled(general_off);
            roce.set_fl_rc_qp_when_roce_disabled(roce_off);
            roce.set_fl_rc_qp_when_roce_enabled(roce_on);
            allows_force_loopback(&general, &roce, enabled)
        };
        for bits in 0..8 {
            let [general_off, roce_off, roce_on] = [1, 2, 4].map(|bit| bits & bit != 0);
            let of = |enabled| allows(general_off, roce_off, roce_on, enabled);
            assert_eq!(of(true), roce_on, "{bits:#b}");
            assert_eq!(of(false), general_off || roce_off, "{bits:#b}");
        }
    }
}
