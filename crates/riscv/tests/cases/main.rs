//! Tests of the core, in one program: linking one program for each file takes longer than the
//! tests.

#[path = "../support/mod.rs"]
mod support;

mod elf;
mod encodings;
#[cfg(feature = "gdb")]
mod gdb;
mod integer;
mod memory;
mod random;
mod running;
mod values;
