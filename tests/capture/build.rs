//! Makes libraries that the program loads find the program's `ioctl` before the C library's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bin=capture=-Wl,--export-dynamic-symbol=ioctl");
}
