//! Bringing a function up and taking it down, step by step as `mlx5_core` does.
//!
//! ENABLE_HCA, the software interface, pages that the device asks for before anything, pages that it asks for to run,
//! INIT_HCA. On an Ethernet port the GID table is then filled, as `mlx5_ib` does when a network device has its address.

use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::{
    CommandInput, DisableHcaIn, EnableHcaIn, InitHcaIn, ManagePagesIn, QueryIssiIn, QueryPagesIn,
    RoceL3Type, RoceVersion, SetIssiIn, SetRoceAddressIn, TeardownHcaIn,
};
use zerocopy::IntoBytes;

use super::client::PAGE;
use super::kernel::{Function, exec};

/// The newest software interface that the kernel speaks.
const ISSI: u16 = 1;

/// A function that is up. Dropping it takes the function down.
pub(super) struct Booted {
    function: Arc<dyn Function>,
    /// Memory for the pages that the device was given. Nobody here reads it.
    pages: Vec<Vec<u8>>,
    /// How far it came.
    up: bool,
}

/// Executes a command of the kernel's own.
pub(super) fn command<I: CommandInput>(
    function: &dyn Function,
    input: &I,
) -> Result<I::Output, Errno> {
    let mut output = I::Output::default();
    exec(function, input.as_bytes(), output.as_mut_bytes())?;
    Ok(output)
}

impl Booted {
    pub(super) fn new(function: Arc<dyn Function>) -> Result<Self, Errno> {
        command(&*function, &EnableHcaIn::new())?;
        let mut booted = Self { function, pages: Vec::new(), up: false };
        let function = booted.function.clone();
        let issi = command(&*function, &QueryIssiIn::new())?;
        if issi.supported_issi_dw0() >> ISSI & 1 == 1 {
            command(&*function, SetIssiIn::new().set_current_issi(ISSI))?;
        }
        booted.give_pages(QueryPagesIn::BOOT_PAGES)?;
        booted.give_pages(QueryPagesIn::INIT_PAGES)?;
        command(&*function, &InitHcaIn::new())?;
        booted.up = true;
        Ok(booted)
    }

    /// Gives the device as many pages as it asks for.
    fn give_pages(&mut self, op_mod: u16) -> Result<(), Errno> {
        let asked = command(&*self.function, QueryPagesIn::new().set_op_mod(op_mod))?;
        let count = asked.num_pages();
        if count == 0 {
            return Ok(());
        }
        let mut input = ManagePagesIn::new();
        input.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(count);
        let memory = vec![0; (u64::from(count) + 1) as usize * PAGE as usize];
        let first = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let mut whole = input.as_bytes().to_vec();
        whole.extend((0..u64::from(count)).flat_map(|page| (first + page * PAGE).to_be_bytes()));
        self.pages.push(memory);
        exec(&*self.function, &whole, &mut [0; 16])
    }

    /// Enters the GIDs that a network device with this MAC has by itself: its link-local address, for both versions of
    /// RoCE.
    pub(super) fn set_gids(&self, mac: [u8; 6], gid: [u8; 16]) -> Result<(), Errno> {
        let versions = [(RoceVersion::V1, RoceL3Type::IPV4), (RoceVersion::V2, RoceL3Type::IPV6)];
        for (index, (version, layer)) in (0..).zip(versions) {
            let mut input = SetRoceAddressIn::new();
            input.set_roce_address_index(index);
            let address = input.roce_address_mut();
            address.set_source_l3_address(&gid);
            address.set_source_mac_47_32(u16::from_be_bytes([mac[0], mac[1]]));
            address.set_source_mac_31_0(u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]));
            address.set_roce_version(version).set_roce_l3_type(layer);
            command(&*self.function, &input)?;
        }
        Ok(())
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        let function = &*self.function;
        let down =
            if self.up { command(function, &TeardownHcaIn::new()).map(drop) } else { Ok(()) };
        let down = down.and_then(|()| command(function, &DisableHcaIn::new()).map(drop));
        if down.is_err() {
            // The device may still use its pages.
            std::mem::forget(std::mem::take(&mut self.pages));
        }
    }
}
