//! Reads and writes memory of the host through a window: the device side of the example `window`.

#![no_std]
#![no_main]

use verbless_flexio_dev::calls;
use verbless_flexio_dev::{ThreadContext, Window, WindowEntity, program, rpc};

program!();

/// The window of this number, configured for `mkey`.
fn window(id: u16, mkey: u32) -> Window<'static> {
    calls::window_config(WindowEntity::Primary, id, mkey).expect("the number is of a window");
    ThreadContext::current().window(WindowEntity::Primary).expect("the window was just configured")
}

/// The sum of `words` 64-bit words at `host`.
#[rpc]
fn sum(id: u16, mkey: u32, host: u64, words: u64) -> u64 {
    let window = window(id, mkey);
    let word = |at: u64| window.read_u64(host + at * 8).expect("an aligned address");
    (0..words).map(word).fold(0, u64::wrapping_add)
}

/// Doubles each of `words` 64-bit words at `host`, in place.
#[rpc]
fn double(id: u16, mkey: u32, host: u64, words: u64) {
    let window = window(id, mkey);
    for at in (0..words).map(|word| host + word * 8) {
        let word = window.read_u64(at).expect("an aligned address");
        window.write_u64(at, word.wrapping_mul(2)).expect("an aligned address");
    }
}

/// Copies up to 256 bytes from `from` to `to` in reverse order, through a buffer on the stack.
#[rpc]
fn reverse(id: u16, mkey: u32, from: u64, to: u64, bytes: usize) {
    let window = window(id, mkey);
    let mut buffer = [0; 256];
    let buffer = &mut buffer[..bytes];
    window.copy_from_host(buffer, from).expect("an address of the host");
    buffer.reverse();
    window.copy_to_host(to, buffer).expect("an address of the host");
}
