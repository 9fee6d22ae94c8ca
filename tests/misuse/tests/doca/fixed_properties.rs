//! Fixed properties cannot be changed after creation.

use verbless_doca::dma::Dma;
use verbless_doca::{Buf, Dev, Extensions, Inventory};

fn main() {}

pub fn moves_a_buffer(buffer: &mut Buf) {
    buffer.head() = 0;
    buffer.len() = 64;
}

pub fn renames_a_started_inventory(inventory: Inventory) {
    inventory.extensions(Extensions::LINKED_LIST);
}

pub fn adds_a_device_to_a_started_context(dma: &mut Dma, dev: &Dev) {
    dma.add_dev(dev);
}
