//! A map of DOCA 2.2 cannot be changed once it is started.

use verbless_doca::{AccessFlags, Dev, Memory, Mmap};

fn main() {}

pub fn changes_a_started_map(map: Mmap, dev: &Dev, memory: Memory) {
    map.add_dev(dev);
    map.memrange(memory);
    map.permissions(AccessFlags::LOCAL_READ_WRITE);
}
