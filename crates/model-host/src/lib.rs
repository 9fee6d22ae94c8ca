//! Modelled devices for programs that are not linked with the model: as PCI devices for QEMU
//! ([`pci`]), and for any program on this machine ([`run`]). The program `verbless-model` is made
//! of this.

#[doc(hidden)]
pub mod links;
pub mod log;
pub mod pci;
pub mod run;
#[cfg(test)]
mod said;
