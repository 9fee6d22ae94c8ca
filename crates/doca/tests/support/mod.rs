//! Devices of the model in this process.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod held;
pub(crate) mod rdma;

use std::sync::Arc;

use verbless_devx::Backend;
use verbless_doca::{AccessFlags, Dev, DevInfo, Inventory, Memory, Mmap};
use verbless_model::{Link, Model, Profile, Side};
use verbless_model_kernel::InProcess;

/// Suffix of a profile's name for Ethernet ports.
const ON_ETHERNET: &str = " on Ethernet";

/// A profile, by its name.
pub(crate) fn profile(name: &str) -> Profile {
    match name.strip_suffix(ON_ETHERNET) {
        Some(name) => Profile::load(name).unwrap().with_link(Link::Ethernet),
        None => Profile::load(name).unwrap(),
    }
}

/// Two devices of one profile, connected to each other.
pub(crate) fn backend(name: &str) -> Arc<dyn Backend> {
    disturbable(name).1
}

/// Two devices of one profile, connected to each other, and their model for fault injection.
pub(crate) fn disturbable(name: &str) -> (Model, Arc<dyn Backend>) {
    let card = profile(name);
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend = Arc::new(InProcess::of(&model));
    (model, backend)
}

/// A device of a model of one BlueField, and the model for fault injection.
pub(crate) fn disturbed() -> (Model, Dev) {
    let model = Model::builder().device(Profile::load("bluefield3").unwrap()).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    (model, dev)
}

/// A device of a stepped model of one BlueField.
pub(crate) fn stepped() -> (Model, Dev) {
    let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    (model, dev)
}

/// The host's device and the DPU's of one card.
pub(crate) fn sides() -> (Dev, Dev) {
    let card = Profile::load("bluefield3").unwrap();
    let model = Model::builder().device_with_sides(card).build();
    let [host, dpu] = [Side::Host, Side::Dpu].map(|side| {
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model).on_side(side));
        DevInfo::list_of(&backend).unwrap()[0].open().unwrap()
    });
    (host, dpu)
}

/// The first device of a fresh model.
pub(crate) fn dev() -> Dev {
    DevInfo::list_of(&backend("bluefield3")).unwrap()[0].open().unwrap()
}

/// A map of fresh memory.
pub(crate) fn map(dev: &Dev, length: usize, access: AccessFlags) -> Mmap {
    let memory = Memory::allocate(length).unwrap();
    Mmap::builder().memrange(memory).permissions(access).add_dev(dev).start().unwrap()
}

/// A map with LOCAL_READ_WRITE, and an inventory.
pub(crate) fn plain(dev: &Dev, length: usize, buffers: usize) -> (Mmap, Inventory) {
    let inventory = Inventory::builder(buffers).extensions(verbless_doca::Extensions::LINKED_LIST);
    (map(dev, length, AccessFlags::LOCAL_READ_WRITE), inventory.start().unwrap())
}
