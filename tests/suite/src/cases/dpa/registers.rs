//! The public registers of a DPA. These cases work on hardware, too, by each register path that the
//! device and its kernel offer.

use verbless_command::{Device, DpaCaps, DpaEuPartitionAttr};
use verbless_devx::{ErrorKind, FwctlScope};
use verbless_prm::{
    AccessRegisterIn, AccessRegisterOut, AccessRegisterUserIn, AccessRegisterUserOut, NicCapExtReg,
    RegisterId,
};

use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "dpa_registers",
    "Registers of the DPA, by ACCESS_REGISTER_USER or /dev/fwctl: limits and partitions.",
    needs [cap!(apu), Need::Registers]:
    dpa_caps_are_readable,
    register_reads_agree_over_devx_and_fwctl [Need::BothRegisterWays],
    partition_query_succeeds_or_is_rejected,
    partition_is_made_modified_and_destroyed [Need::Destructive, Need::DpaPartitions],
);

fn caps(device: &Device) -> Result<DpaCaps, Stop> {
    let caps = device.dpa_caps()?;
    ensure!((1..=1024).contains(&caps.units), "execution units: {caps:?}");
    Ok(caps)
}

fn dpa_caps_are_readable(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let caps = caps(&device)?;
    ensure!(caps.max_units_per_group <= caps.units, "EUs of a group: {caps:?}");
    ensure_eq!(device.dpa_caps()?, caps, "the numbers, read again");
    Ok(())
}

fn register_reads_agree_over_devx_and_fwctl(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let control = device.fwctl()?.ok_or_else(|| Stop::fail("no control file"))?;
    let mut asked = NicCapExtReg::default();
    // The capabilities of the DPA.
    asked.set_cap_group(1);
    let mut by_user = AccessRegisterUserIn::new();
    by_user.set_register_id(RegisterId::NIC_CAP_EXT).set_op_mod(AccessRegisterUserIn::READ);
    let mut by_control = AccessRegisterIn::new();
    by_control.set_register_id(RegisterId::NIC_CAP_EXT).set_op_mod(AccessRegisterIn::READ);
    let mut values = vec![0; AccessRegisterUserOut::BYTES + NicCapExtReg::BYTES];
    device.devx_other(&[&by_user.as_bytes()[..], asked.as_bytes()].concat(), &mut values)?;
    let mut by_fwctl = vec![0xa5; AccessRegisterOut::BYTES + NicCapExtReg::BYTES];
    let input = [&by_control.as_bytes()[..], asked.as_bytes()].concat();
    control.rpc(FwctlScope::DebugReadOnly, &input, &mut by_fwctl)?;
    let [values, by_fwctl] = [
        values.split_off(AccessRegisterUserOut::BYTES),
        by_fwctl.split_off(AccessRegisterOut::BYTES),
    ];
    ensure!(values != asked.as_bytes(), "ACCESS_REGISTER_USER returned the request unchanged");
    ensure_eq!(by_fwctl, values, "NIC_CAP_EXT by fwctl, and by ACCESS_REGISTER_USER");
    Ok(())
}

fn partition_query_succeeds_or_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let caps = caps(&device)?;
    for id in [0, u16::MAX] {
        match device.dpa_partition(id).query() {
            Ok(attr) => {
                ensure!(id == 0, "a partition {id} of {caps:?}: {attr:?}");
                let max = attr.units.iter().max().copied().unwrap_or(0);
                ensure!(max < caps.units, "EU {max} in a partition, of {caps:?}");
            }
            // A function can read the partitions that it is in or manages. On the model a PF is in
            // the default partition.
            Err(error) => {
                ensure!(id != 0 || !device.adapter().is_model(), "the default partition: {error}");
                ensure_eq!(error.kind(), ErrorKind::Command, "partition {id}: {error}");
            }
        }
    }
    Ok(())
}

fn partition_is_made_modified_and_destroyed(lab: &Lab) -> Result<(), Stop> {
    let (first, second) = lab.owner_and_user()?;
    let mut refusals = Vec::new();
    for device in [first, second] {
        let caps = caps(&device)?;
        ensure!(caps.units > 1, "only one EU: {caps:?}");
        let of = |unit| DpaEuPartitionAttr {
            units: vec![unit],
            functions: vec![device.vhca_id()],
            max_groups: 0,
        };
        let partition = match device.create_dpa_partition(&of(caps.units - 1)) {
            Ok(partition) => partition,
            // Only the function that manages the card's EUs can make partitions.
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::Command, "a partition: {error}");
                refusals.push(error.to_string());
                continue;
            }
        };
        let looked = partition.query();
        let changed = partition.set_units(&[caps.units - 2]).and_then(|()| partition.query());
        // Either way, the card is unchanged.
        partition.destroy()?;
        ensure_eq!(looked?, of(caps.units - 1), "the partition");
        ensure_eq!(changed?, of(caps.units - 2), "the partition with another EU");
        ensure!(partition.query().is_err(), "a destroyed partition is read");
        return Ok(());
    }
    Err(Stop::fail(format!("none of two functions may: {refusals:?}")))
}
