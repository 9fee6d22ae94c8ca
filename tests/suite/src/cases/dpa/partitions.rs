//! Execution units that the functions of a card share, and partitions of them.

use std::cell::Cell;
use std::sync::Arc;

use verbless_command::{
    Affinity, Device, DpaCall, DpaCallState, DpaEntry, DpaEuPartition, DpaEuPartitionAttr, Error,
};
use verbless_devx::{Backend, ErrorKind};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

use super::rig::{Dpa, Rig};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "dpa_partitions",
    "Execution units that a host and its DPU share, and their partitions.",
    needs [Need::Model, Need::Sides, cap!(apu)]:
    functions_of_one_card_share_eus,
    eu_goes_to_longest_waiter_across_functions,
    partition_eus_serve_only_its_functions,
    partition_group_is_made_by_user_or_manager,
    partition_creation_requires_manager_function,
    partition_with_live_process_rejects_changes,
    function_without_partition_rejects_process,
);

/// A process on the host and one on its DPU, which manages the EUs.
fn sides(lab: &Lab) -> Result<(Dpa, Dpa), Stop> {
    let process_on = |device: Device| {
        let pd = device.alloc_pd()?;
        Dpa::of(Rig::of(device, pd)?, 0)
    };
    let (host, dpu) = lab.owner_and_user()?;
    Ok((process_on(host)?, process_on(dpu)?))
}

/// Destroys the partition on drop, unless `destroy` succeeded: its id may have been reused.
struct ScopedPartition(DpaEuPartition, Cell<bool>);

impl ScopedPartition {
    fn destroy(&self) -> Result<(), Error> {
        let destroyed = self.0.destroy();
        self.1.set(destroyed.is_ok());
        destroyed
    }

    fn of(manager: &Device, units: &[u16], functions: &[u16], groups: u16) -> Result<Self, Stop> {
        let (units, functions) = (units.to_vec(), functions.to_vec());
        let attr = DpaEuPartitionAttr { units, functions, max_groups: groups };
        Ok(Self(manager.create_dpa_partition(&attr)?, Cell::new(false)))
    }
}

impl Drop for ScopedPartition {
    fn drop(&mut self) {
        if !self.1.get() {
            let _ = self.0.destroy();
        }
    }
}

/// Begins a call on an EU.
fn begin_on(dpa: &Dpa, unit: u16, name: &str) -> Result<DpaCall, Stop> {
    let entry = DpaEntry { affinity: Affinity::Strict(unit), ..dpa.entry(name) };
    Ok(dpa.device().begin_dpa_call(&dpa.process, &entry, [20, 3, 0, 0, 0, 0, 0, 0])?)
}

fn refused<T>(what: &str, outcome: Result<T, impl Into<Stop>>) -> Result<(), Stop> {
    ensure!(outcome.is_err(), "{what} was not refused");
    Ok(())
}

fn functions_of_one_card_share_eus(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = sides(lab)?;
    for (first, second) in [(&host, &dpu), (&dpu, &host)] {
        let spins = begin_on(first, 90, "spin")?;
        let waits = begin_on(second, 90, "add")?;
        ensure_eq!(second.call("add", [1, 2, 0])?, 3, "a call on another EU");
        ensure_eq!(
            waits.state()?,
            DpaCallState::Running,
            "a call on an EU that the other side's call occupies"
        );
        spins.destroy()?;
        ensure_eq!(
            second.wait(&waits)?,
            23,
            "a call on an EU that the other side's call has freed"
        );
    }
    // The end of a process frees its EU, whatever ended the process.
    let watched = Dpa::of(host.rig.clone(), 5_000_000)?;
    let spins = begin_on(&watched, 91, "spin")?;
    let waits = begin_on(&dpu, 91, "add")?;
    ensure_eq!(dpu.wait(&waits)?, 23, "a call once the watchdog has stopped the other side's");
    ensure!(!watched.process.query()?.status.runs(), "the watchdog");
    drop(spins);
    Ok(())
}

fn eu_goes_to_longest_waiter_across_functions(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = sides(lab)?;
    let spins = begin_on(&host, 92, "spin")?;
    let of_dpu = begin_on(&dpu, 92, "spin")?;
    let of_host = begin_on(&host, 92, "add")?;
    spins.destroy()?;
    ensure_eq!(host.call("add", [1, 2, 0])?, 3, "a call on another EU");
    ensure_eq!(
        of_host.state()?,
        DpaCallState::Running,
        "the host's call, while the DPU's earlier call has the EU"
    );
    of_dpu.destroy()?;
    ensure_eq!(host.wait(&of_host)?, 23, "the host's call, after the DPU's");
    Ok(())
}

fn partition_eus_serve_only_its_functions(lab: &Lab) -> Result<(), Stop> {
    const UNITS: [u16; 3] = [100, 101, 102];
    let (host, dpu) = lab.owner_and_user()?;
    let caps = dpu.dpa_caps()?;
    ensure!(caps.max_partitions > 0 && caps.max_functions_per_partition > 0, "{caps:?}");
    let partition = ScopedPartition::of(&dpu, &UNITS, &[host.vhca_id()], 0)?;
    let attr = DpaEuPartitionAttr {
        units: UNITS.to_vec(),
        functions: vec![host.vhca_id()],
        max_groups: 0,
    };
    ensure_eq!(partition.0.query()?, attr, "the partition");
    ensure_eq!(
        host.dpa_partition(partition.0.id()).query()?,
        attr,
        "the partition, queried by its function"
    );
    let (host, dpu) = sides(lab)?;
    refused("a call on an EU of the partition", begin_on(&dpu, 100, "add"))?;
    refused("a call on an EU of no partition", begin_on(&host, 99, "add"))?;
    // Three spinning calls take every EU.
    let spins = (0..3).map(|_| host.begin("spin", [0; 3])).collect::<Result<Vec<_>, _>>()?;
    let fourth = host.begin("add", [20, 3, 0])?;
    ensure_eq!(dpu.call("add", [1, 2, 0])?, 3, "a call of the other side");
    ensure_eq!(fourth.state()?, DpaCallState::Running, "a fourth call on three EUs");
    partition.0.set_units(&[100, 101, 102, 103])?;
    ensure_eq!(host.wait(&fourth)?, 23, "the fourth call, once the partition has four EUs");
    drop(spins);
    refused("to take the partition away from a process", partition.destroy())?;
    drop((host, fourth));
    partition.destroy()?;
    refused("a destroyed partition", partition.0.query())?;
    let dpu_again = begin_on(&dpu, 100, "add")?;
    ensure_eq!(dpu.wait(&dpu_again)?, 23, "an EU of the default partition again");
    Ok(())
}

fn partition_group_is_made_by_user_or_manager(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = lab.owner_and_user()?;
    let partition = ScopedPartition::of(&dpu, &[110, 111, 112], &[host.vhca_id()], 1)?;
    refused("a group of EUs of no partition", host.create_dpa_group("far", &[113]))?;
    refused("a group of the partition's EUs", dpu.create_dpa_group("far", &[112]))?;
    let group = partition.0.create_group("pair", &[110, 111])?;
    refused("a second group of one", host.create_dpa_group("single", &[112]))?;
    partition.0.set_max_groups(2)?;
    refused("an overlapping group", host.create_dpa_group("again", &[111, 112]))?;
    let user_group = host.create_dpa_group("single", &[112])?;
    refused("a maximum below the number of groups", partition.0.set_max_groups(1))?;
    refused("to take a group's EU away", partition.0.set_units(&[110, 111]))?;
    ensure_eq!(group.units()?, [110, 111], "the EUs of the first group");
    let (host, dpu) = sides(lab)?;
    let begin = |dpa: &Dpa, group: u16, name| {
        let entry = DpaEntry { affinity: Affinity::Group(group), ..dpa.entry(name) };
        dpa.device().begin_dpa_call(&dpa.process, &entry, [20, 3, 0, 0, 0, 0, 0, 0])
    };
    refused("a group of another partition", begin(&dpu, group.id(), "add"))?;
    for group in [&group, &user_group] {
        ensure_eq!(host.wait(&begin(&host, group.id(), "add")?)?, 23, "a call in a group");
    }
    drop(host);
    group.destroy()?;
    user_group
        .destroy()
        .map_err(|error| Stop::fail(format!("a group without a thread: {error}")))?;
    Ok(partition.destroy()?)
}

fn partition_creation_requires_manager_function(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = lab.owner_and_user()?;
    let both = [host.vhca_id(), dpu.vhca_id()];
    let error = ScopedPartition::of(&host, &[120], &both[..1], 0).err();
    ensure!(error.is_some(), "the host created a partition");
    let partition = ScopedPartition::of(&dpu, &[120], &both[1..], 0)?;
    let as_user = host.dpa_partition(partition.0.id());
    refused("to query another function's partition", as_user.query())?;
    refused("to change another function's partition", as_user.set_units(&[121]))?;
    refused("to destroy another function's partition", as_user.destroy())?;
    let attr = |units: &[u16], functions: &[u16]| DpaEuPartitionAttr {
        units: units.to_vec(),
        functions: functions.to_vec(),
        max_groups: 0,
    };
    for (what, attr) in [
        ("a partition without EUs", attr(&[], &both[..1])),
        ("an EU of another partition", attr(&[120, 121], &both[..1])),
        ("an EU that does not exist", attr(&[1023], &both[..1])),
        ("a function of another partition", attr(&[121], &both)),
        ("a function that does not exist", attr(&[121], &[0x7fff])),
    ] {
        let error = dpu.create_dpa_partition(&attr).err();
        let error = error.ok_or_else(|| Stop::fail(format!("{what} was not refused")))?;
        ensure_eq!(error.kind(), ErrorKind::Command, "{what}: {error}");
    }
    Ok(())
}

fn partition_with_live_process_rejects_changes(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = sides(lab)?;
    let (host_id, dpu_id) = (host.device().vhca_id(), dpu.device().vhca_id());
    let manager = dpu.device();
    refused(
        "a partition for a function with processes",
        ScopedPartition::of(manager, &[130], &[host_id], 0),
    )?;
    drop(host);
    let partition = ScopedPartition::of(manager, &[130], &[host_id], 0)?;
    let (host, _) = sides(lab)?;
    refused("other functions", partition.0.set_functions(&[dpu_id]))?;
    let bound = begin_on(&host, 130, "spin")?;
    refused("to take an EU away that a call is bound to", partition.0.set_units(&[131]))?;
    partition.0.set_units(&[130, 131])?;
    // A call without a binding continues on another EU.
    drop(bound);
    let call = host.begin("add", [20, 3, 0])?;
    partition.0.set_units(&[131])?;
    ensure_eq!(host.wait(&call)?, 23, "a call whose EU was taken away");
    ensure_eq!(host.call("add", [1, 2, 0])?, 3, "the next call");
    Ok(())
}

fn function_without_partition_rejects_process(_: &Lab) -> Result<(), Stop> {
    // A card of its own, with VFs: a VF is in no partition unless one names it.
    let model = Model::builder().device_with_topology(Profile::load("bluefield3")?).build();
    let backend = Arc::new(InProcess::of(&model));
    let devices = backend.enumerate()?;
    let open = |wanted: &dyn Fn(usize) -> bool| -> Result<Device, Stop> {
        let at = (0..devices.len()).find(|&at| wanted(at));
        let at = at.ok_or_else(|| Stop::fail("no such function"))?;
        Ok(Device::open(&*backend, &devices[at])?)
    };
    // Its functions in order: two PFs of the host, then VFs.
    let vf = open(&|at| at == 2)?;
    let manager = open(&|at| model.side(at) == Side::Dpu)?;
    let pd = vf.alloc_pd()?;
    let rig = Rig::of(vf.clone(), pd)?;
    let error = Dpa::of(rig.clone(), 0).err();
    let Stop(why) = error.ok_or_else(|| Stop::fail("a process of a VF in no partition"))?;
    ensure!(why.contains("BAD_PARAM"), "{why}");
    let partition = ScopedPartition::of(&manager, &[3, 4], &[vf.vhca_id()], 0)?;
    ensure_eq!(Dpa::of(rig, 0)?.call("add", [1, 2, 0])?, 3, "a call of the VF in its partition");
    Ok(partition.destroy()?)
}
