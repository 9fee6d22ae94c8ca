//! Tests of the core, in one program: to link one for each file takes longer than to run it.

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
