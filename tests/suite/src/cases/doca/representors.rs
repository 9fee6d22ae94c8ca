//! Representors of a host's functions at its DPU.

use verbless_doca::{Dev, DevInfoRep, ErrorKind, PciFuncType};

use super::rig::{open, refusal};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "doca_rep",
    "Representors: the switch of a DPU, and the functions behind it.":
    dev_without_switch_lists_no_representors,
    representor_list_outlives_its_dev[Need::Representors],
    host_vuid_names_exactly_one_representor
        [Need::Representors, Need::Sides, cap!(hca_cap_2.query_vuid)],
);

/// A device that lists representors.
fn manager(lab: &Lab) -> Result<Dev, Stop> {
    for info in [lab.info(), lab.other_info()] {
        if !lab.backend().representors(info)?.is_empty() {
            return open(lab, info);
        }
    }
    Err(Stop::fail("no device has representors"))
}

fn dev_without_switch_lists_no_representors(lab: &Lab) -> Result<(), Stop> {
    let mut asked = 0;
    for info in [lab.info(), lab.other_info()] {
        let dev = open(lab, info)?;
        if info.embedded_cpu && dev.info().function_type() == PciFuncType::Pf {
            continue;
        }
        ensure!(lab.backend().representors(info)?.is_empty(), "{dev:?} has some");
        ensure_eq!(refusal(DevInfoRep::list(&dev))?, ErrorKind::NotSupported, "kind");
        asked += 1;
    }
    ensure!(asked > 0 || lab.info().embedded_cpu, "no device was asked");
    Ok(())
}

fn representor_list_outlives_its_dev(lab: &Lab) -> Result<(), Stop> {
    let dev = manager(lab)?;
    let reps = DevInfoRep::list(&dev)?;
    drop(dev);
    for rep in &reps {
        let name = rep.interface_name();
        ensure!(!name.is_empty(), "a representor has no name");
        ensure!(rep.open()?.info() == rep, "{name} opens as another one");
    }
    for (at, rep) in reps.iter().enumerate() {
        ensure!(!reps[..at].contains(rep), "{} is listed twice", rep.interface_name());
    }
    Ok(())
}

fn host_vuid_names_exactly_one_representor(lab: &Lab) -> Result<(), Stop> {
    let reps = DevInfoRep::list(&manager(lab)?)?;
    let host = open(lab, lab.info())?;
    let vuid = host.info().vuid()?;
    let of_host = reps.iter().filter(|rep| rep.vuid().is_ok_and(|it| it == vuid));
    let of_host: Vec<_> = of_host.collect();
    ensure_eq!(of_host.len(), 1, "representors with the VUID of the host's function");
    ensure_eq!(of_host[0].function_type(), host.info().function_type(), "sort of function");
    Ok(())
}
