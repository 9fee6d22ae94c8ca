//! Modelled devices for programs that do not link the model: as PCI devices for QEMU ([`pci`]), and
//! for any program on this machine ([`run`]). The program `verbless-model` is built on it.

#[cfg(test)]
mod captured_log;
#[doc(hidden)]
pub mod links;
pub mod log;
pub mod pci;
pub mod run;
