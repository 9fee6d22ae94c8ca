//! A queue on another device obeys that device's limits, not those of the process's.

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_devx::UarKind;
use verbless_flexio::{App, Process, ProcessConfig, QueueMemory, Rmp, RmpConfig, Uar};
use verbless_queue::Memory;

use crate::support::file;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A card whose work queues have at most 2^`log` WQEs.
fn device(log: u8) -> Result<Device> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/profiles/bluefield3.toml");
    let text = std::fs::read_to_string(path)?;
    let (limit, own) = ("log_max_wq_sz = 15", format!("log_max_wq_sz = {log}"));
    assert!(text.contains(limit), "the limit has moved");
    let profile = Profile::from_toml(&text.replace(limit, &own))?;
    let backend = InProcess::of(&Model::builder().device(profile).build());
    Ok(Device::open(&backend, &backend.find("mlx5_0")?)?)
}

/// A pool of 2^6 WQEs on one device, for a process on another.
fn pool(own: u8, other: u8) -> Result<std::result::Result<Rmp, verbless_flexio::Error>> {
    let (own, other) = (device(own)?, device(other)?);
    let app = App::new("cross", &file())?;
    let process = Process::create(&own, &app, &ProcessConfig::default())?;
    let memory = Memory::allocate(8192)?.register(&other)?;
    let page = std::sync::Arc::new(other.uar_alloc(UarKind::NonCached)?);
    let mut config = RmpConfig::new(6);
    config.wq.ring = Some(QueueMemory::host(memory.clone(), 0));
    config.wq.record = Some(QueueMemory::host(memory, 4096));
    config.wq.pd = Some(other.alloc_pd()?);
    config.wq.uar = Some(Uar::of(&process, page));
    Ok(Rmp::create_cross_dev(&process, &other, &config))
}

#[test]
fn queue_depth_is_limited_by_own_device() -> Result {
    pool(5, 15)??.destroy()?;
    pool(5, 6)??.destroy()?;
    let error = pool(15, 5)?.unwrap_err().to_string();
    assert!(error.contains("depth 2^6: the device has 2^5 at most"), "{error}");
    Ok(())
}
