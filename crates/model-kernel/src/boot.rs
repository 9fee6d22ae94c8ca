//! Brings a function up and takes it down, step by step as `mlx5_core` does.
//!
//! The order is ENABLE_HCA, the software interface, boot pages, init pages, INIT_HCA. While the
//! function runs, the device requests pages and returns pages. On an Ethernet port the GID table is
//! then filled, as `mlx5_ib` does when a network device gets its addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::{
    DisableHcaIn, EnableHcaIn, HcaCap, HcaCapPage, InitHcaIn, ManagePagesIn, ManagePagesOut,
    QueryIssiIn, QueryPagesIn, RoceL3Type, RoceVersion, SetHcaCapIn, SetIssiIn, SetRoceAddressIn,
    TeardownHcaIn,
};

use super::cmd::{FunctionAccess, cmd_exec, command};
use super::kernel::capabilities;
use super::network::is_ipv4;
use super::page::PAGE;
use super::pages::SystemPage;

/// The newest software interface that the kernel speaks.
const ISSI: u16 = 1;

/// A page of memory for the device. The kernel never reads it.
#[repr(align(4096))]
struct Page {
    _bytes: [u8; PAGE as usize],
}

/// A function that is up. Dropping it takes the function down.
pub(super) struct Booted {
    function: Arc<dyn FunctionAccess>,
    /// The pages given to the device, by address.
    pages: BTreeMap<u64, Box<Page>>,
    /// Whether INIT_HCA succeeded.
    up: bool,
}

impl Booted {
    pub(super) fn new(function: Arc<dyn FunctionAccess>, page: SystemPage) -> Result<Self, Errno> {
        let embedded = function.registers().embedded_cpu;
        command(&*function, EnableHcaIn::new().set_embedded_cpu_function(embedded))?;
        let mut booted = Self { function, pages: BTreeMap::new(), up: false };
        let function = booted.function.clone();
        let issi = command(&*function, &QueryIssiIn::new())?;
        if issi.supported_issi_dw0() >> ISSI & 1 == 1 {
            command(&*function, SetIssiIn::new().set_current_issi(ISSI))?;
        }
        for step in [QueryPagesIn::BOOT_PAGES, QueryPagesIn::INIT_PAGES] {
            let query = command(
                &*booted.function,
                QueryPagesIn::new().set_op_mod(step).set_embedded_cpu_function(embedded),
            )?;
            booted.give_pages(query.num_pages())?;
            if step == QueryPagesIn::BOOT_PAGES && page.uars() > 1 {
                set_uar_page(&*booted.function, page)?;
            }
        }
        command(&*function, &InitHcaIn::new())?;
        booted.up = true;
        Ok(booted)
    }

    /// Answers a page request event: gives `count` pages, or takes back up to `-count` pages if it
    /// is negative.
    pub(super) fn page_request(&mut self, count: i32) {
        let done = if count < 0 {
            self.take_pages(count.unsigned_abs())
        } else {
            self.give_pages(count.unsigned_abs())
        };
        if let Err(error) = done {
            tracing::warn!(count, %error, "a page request of the device failed");
        }
    }

    fn give_pages(&mut self, count: u32) -> Result<(), Errno> {
        if count == 0 {
            return Ok(());
        }
        let new: BTreeMap<u64, Box<Page>> = (0..count)
            .map(|_| Box::new(Page { _bytes: [0; PAGE as usize] }))
            .map(|page| (&raw const *page as u64, page))
            .collect();
        let mut input = ManagePagesIn::new();
        input.set_embedded_cpu_function(self.function.registers().embedded_cpu);
        input.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(count);
        let mut whole = input.as_bytes().to_vec();
        whole.extend(new.keys().flat_map(|page| page.to_be_bytes()));
        cmd_exec(&*self.function, &whole, &mut [0; ManagePagesOut::BYTES])?;
        self.pages.extend(new);
        Ok(())
    }

    fn take_pages(&mut self, count: u32) -> Result<(), Errno> {
        let mut input = ManagePagesIn::new();
        input.set_embedded_cpu_function(self.function.registers().embedded_cpu);
        input.set_op_mod(ManagePagesIn::HCA_RETURN_PAGES).set_input_num_entries(count);
        let mut output = vec![0; ManagePagesOut::BYTES + 8 * count as usize];
        cmd_exec(&*self.function, input.as_bytes(), &mut output)?;
        let (answer, list) = output.split_at(ManagePagesOut::BYTES);
        let answer = ManagePagesOut::from_prefix(answer).ok_or(Errno::EIO)?;
        for page in list.chunks_exact(8).take(answer.output_num_entries() as usize) {
            let page = u64::from_be_bytes(page.try_into().unwrap_or_default());
            self.pages.remove(&page);
        }
        Ok(())
    }

    /// Enters the GIDs of a network device with this MAC and these addresses, each for both
    /// versions of RoCE.
    pub(super) fn set_gids(&self, mac: [u8; 6], gids: &[[u8; 16]]) -> Result<(), Errno> {
        // The L3 type matters in RoCE version 2 only.
        let entries = gids.iter().flat_map(|gid| {
            let routed = if is_ipv4(gid) { RoceL3Type::IPV4 } else { RoceL3Type::IPV6 };
            [(gid, RoceVersion::V1, RoceL3Type::IPV4), (gid, RoceVersion::V2, routed)]
        });
        for (index, (gid, version, layer)) in (0..).zip(entries) {
            let mut input = SetRoceAddressIn::new();
            input.set_roce_address_index(index);
            let address = input.roce_address_mut();
            address.set_source_l3_address(gid);
            address.set_source_mac_47_32(u16::from_be_bytes([mac[0], mac[1]]));
            address.set_source_mac_31_0(u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]));
            address.set_roce_version(version).set_roce_l3_type(layer);
            command(&*self.function, &input)?;
        }
        Ok(())
    }
}

/// Groups UARs of 4 KiB into the kernel's larger pages (`handle_hca_cap`).
fn set_uar_page(function: &dyn FunctionAccess, page: SystemPage) -> Result<(), Errno> {
    let mut page_bytes = capabilities(function, HcaCapPage::GENERAL.0)?;
    let general = HcaCap::from_prefix_mut(&mut page_bytes).ok_or(Errno::EIO)?;
    general.set_uar_4k(true).set_log_uar_page_sz(page.log_uars().into());
    let whole = page_bytes.first_chunk().ok_or(Errno::EIO)?;
    command(function, SetHcaCapIn::new().set_capability(whole)).map(drop)
}

impl Drop for Booted {
    fn drop(&mut self) {
        let function = &*self.function;
        let embedded = function.registers().embedded_cpu;
        let down =
            if self.up { command(function, &TeardownHcaIn::new()).map(drop) } else { Ok(()) };
        let down = down.and_then(|()| {
            command(function, DisableHcaIn::new().set_embedded_cpu_function(embedded)).map(drop)
        });
        if down.is_err() {
            // The device may still use its pages.
            std::mem::forget(std::mem::take(&mut self.pages));
        }
    }
}
