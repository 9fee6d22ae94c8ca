//! A buffer that was linked into a chain belongs to the chain.

use verbless_doca::Buf;

fn main() {}

pub fn links_a_buffer_twice(mut first: Buf, mut second: Buf, third: Buf) {
    first.link(third).unwrap();
    second.link(third).unwrap();
}
