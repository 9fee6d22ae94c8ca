//! Lets the program's `ioctl` be found by the libraries that it loads, before the C library's own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bin=capture=-Wl,--export-dynamic-symbol=ioctl");
}
