//! A stopped map makes no buffers.

use verbless_doca::{Buf, Inventory, Mmap};

fn main() {}

pub fn makes_a_buffer_after_the_stop(map: Mmap, inventory: &Inventory) -> Buf {
    let _builder = map.stop().unwrap();
    inventory.buf_by_addr(&map, 0x1000, 64).unwrap()
}
