//! Capability pages, and the checks of commands against them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use verbless_prm::reflect::{Kind, View};
use verbless_prm::{
    AtomicCap, AtomicReqEndianness, EthernetOffloadCap, HcaCap, HcaCap2, HcaCapPage, RoceCap,
    TimestampFormat, TimestampFormatCap, bits,
};

use crate::hca::refusal::Refusal;
use crate::profile::{CapPage, Profile};

/// The capabilities of a function: the profile's pages with the changes of SET_HCA_CAP.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    pages: BTreeMap<u16, CapPage>,
}

static NO_GENERAL_2: HcaCap2 = HcaCap2::zeroed();
static NO_ATOMIC: AtomicCap = AtomicCap::zeroed();
static NO_ROCE: RoceCap = RoceCap::zeroed();
static NO_ETHERNET: EthernetOffloadCap = EthernetOffloadCap::zeroed();

impl Capabilities {
    /// The capabilities of function `function` of a device; the vhca_id differs per function.
    pub(crate) fn new(profile: &Profile, function: u16) -> Self {
        let mut pages = profile.pages().clone();
        if let Some(page) = pages.get_mut(&HcaCapPage::GENERAL.0) {
            for values in [&mut page.current, &mut page.max] {
                if let Some(general) = HcaCap::from_prefix_mut(values) {
                    general.set_vhca_id(general.vhca_id().wrapping_add(function));
                }
            }
            // A driver sets the page size of the UARs. In a profile that was read from a card in
            // use, it is that of the card's machine; a new function has 0.
            if let Some(general) = HcaCap::from_prefix_mut(&mut page.current)
                && general.log_uar_page_sz() != 0
            {
                general.set_log_uar_page_sz(0);
                general.set_num_of_uars_per_page(general.uar_4k().into());
            }
        }
        Self { pages }
    }

    fn current(&self, page: HcaCapPage) -> Option<&[u8]> {
        self.pages.get(&page.0).map(|page| &*page.current)
    }

    /// Page `number`, with its current and its maximum values.
    pub(crate) fn page(&self, number: u16) -> Result<&CapPage, Refusal> {
        self.pages.get(&number).ok_or(Refusal::NoSuchPage)
    }

    /// Sets page `number` to `new`, which must exceed the maximum in no field. A refusal names the
    /// offending field, if it is known.
    pub(crate) fn set(&mut self, number: u16, new: &[u8]) -> Result<(), (Refusal, Option<String>)> {
        if number == HcaCapPage::ATOMIC.0 {
            return self.set_atomic(new).map_err(|refusal| (refusal, None));
        }
        let page = self.pages.get_mut(&number).ok_or((Refusal::NoSuchPage, None))?;
        let mut new = new[..page.max.len()].to_vec();
        if number == HcaCapPage::GENERAL.0
            && let Some(general) = HcaCap::from_prefix_mut(&mut new)
        {
            // This field follows from others. A ConnectX-4 without uar_4k answered 0.
            general.set_num_of_uars_per_page(0);
        }
        let new = &*new;
        let mut exceeded = None;
        View::new(page.info, new).leaves(&mut |path, leaf| {
            if matches!(leaf.field.kind, Kind::Number | Kind::Enum(_))
                && bits::get(new, leaf.bit, leaf.width) > bits::get(&page.max, leaf.bit, leaf.width)
            {
                exceeded.get_or_insert_with(|| path.to_string());
            }
        });
        if exceeded.is_some() {
            return Err((Refusal::CapabilityExceeded, exceeded));
        }
        if number == HcaCapPage::GENERAL.0
            && HcaCap::from_prefix(new).is_some_and(|it| it.log_uar_page_sz() > 0 && !it.uar_4k())
        {
            let field = "log_uar_page_sz without uar_4k, which this model does not implement,";
            return Err((Refusal::CapabilityExceeded, Some(field.into())));
        }
        page.current.copy_from_slice(new);
        if let Some(general) = HcaCap::from_prefix_mut(&mut page.current)
            && number == HcaCapPage::GENERAL.0
        {
            let count = if general.uar_4k() { uars_per_page(general) } else { 0 };
            general.set_num_of_uars_per_page(count);
        }
        Ok(())
    }

    /// The number of UARs of 4 KiB in a system page, which ALLOC_UAR allocates together.
    pub(crate) fn uars_per_page(&self) -> u32 {
        uars_per_page(self.general())
    }

    /// The general page.
    pub(crate) fn general(&self) -> &HcaCap {
        let page = self.current(HcaCapPage::GENERAL).and_then(HcaCap::from_prefix);
        page.expect("a profile without the general page is refused")
    }

    /// The general page, mutable for a test.
    #[cfg(test)]
    pub(crate) fn general_mut(&mut self) -> &mut HcaCap {
        let page = self.pages.get_mut(&HcaCapPage::GENERAL.0);
        page.and_then(|page| HcaCap::from_prefix_mut(&mut page.current)).unwrap()
    }

    /// The second general page; all 0 if there is none.
    pub(crate) fn general_2(&self) -> &HcaCap2 {
        self.current(HcaCapPage::GENERAL_2).and_then(HcaCap2::from_prefix).unwrap_or(&NO_GENERAL_2)
    }

    /// The atomic page; all 0 if there is none.
    pub(crate) fn atomic(&self) -> &AtomicCap {
        self.current(HcaCapPage::ATOMIC).and_then(AtomicCap::from_prefix).unwrap_or(&NO_ATOMIC)
    }

    /// Bytes of the largest atomic operand on a QP, from the size bits.
    pub(crate) fn largest_atomic(&self) -> u64 {
        self.atomic().atomic_size_qp().checked_ilog2().map_or(1, |log| 1 << log)
    }

    /// log2 of the page sizes of mkeys, or of the entry sizes of KSMs, in bytes (Linux
    /// `get_max_log_entity_size_cap`, `get_min_log_entity_size_cap`).
    pub(crate) fn log_entity_sizes(&self, ksm: bool) -> RangeInclusive<u32> {
        let page = self.general_2();
        let (min, max) = match ksm {
            true if page.min_mkey_log_entity_size_fixed_buffer_valid() => (
                page.min_mkey_log_entity_size_fixed_buffer(),
                page.max_mkey_log_entity_size_fixed_buffer(),
            ),
            // Linux's mlx5e uses entries of 2^10 bytes by `fixed_buffer_size` alone (en_main.c,
            // MLX5E_MPWRQ_UMR_MODE_TRIPLE). No public source gives the minimum where no capability
            // states it.
            true => (10, page.max_mkey_log_entity_size_fixed_buffer()),
            false => (12, page.max_mkey_log_entity_size_mtt()),
        };
        min.into()..=if max == 0 { 31 } else { max.into() }
    }

    /// The RoCE page; all 0 if there is none.
    pub(crate) fn roce(&self) -> &RoceCap {
        self.current(HcaCapPage::ROCE).and_then(RoceCap::from_prefix).unwrap_or(&NO_ROCE)
    }

    /// The RoCE page, mutable for a test.
    #[cfg(test)]
    pub(crate) fn roce_mut(&mut self) -> &mut RoceCap {
        let page = self.pages.get_mut(&HcaCapPage::ROCE.0);
        page.and_then(|page| RoceCap::from_prefix_mut(&mut page.current)).unwrap()
    }

    /// The page of Ethernet offloads; all 0 if there is none.
    pub(crate) fn ethernet(&self) -> &EthernetOffloadCap {
        let page = self.current(HcaCapPage::ETHERNET_OFFLOADS);
        page.and_then(EthernetOffloadCap::from_prefix).unwrap_or(&NO_ETHERNET)
    }

    /// The page of Ethernet offloads, mutable for a test.
    #[cfg(test)]
    pub(crate) fn ethernet_mut(&mut self) -> &mut EthernetOffloadCap {
        let page = self.pages.get_mut(&HcaCapPage::ETHERNET_OFFLOADS.0);
        page.and_then(|page| EthernetOffloadCap::from_prefix_mut(&mut page.current)).unwrap()
    }

    /// The timestamp formats of a QP: the RoCE page states them on a device with RoCE; otherwise
    /// those of SQs apply.
    pub(crate) fn qp_timestamps(&self) -> TimestampFormatCap {
        match self.general().roce() {
            true => self.roce().qp_ts_format(),
            false => self.general().sq_ts_format(),
        }
    }

    /// Sets the byte order of the atomic page, its only settable field: Linux sends the page with
    /// all other fields 0.
    fn set_atomic(&mut self, new: &[u8]) -> Result<(), Refusal> {
        let page = self.pages.get_mut(&HcaCapPage::ATOMIC.0).ok_or(Refusal::NoSuchPage)?;
        let mode = AtomicCap::from_prefix(new).map(AtomicCap::atomic_req_8b_endianness_mode);
        let current = AtomicCap::from_prefix_mut(&mut page.current);
        let (Some(mode), Some(current)) = (mode, current) else { return Err(Refusal::NoSuchPage) };
        let host = current.supported_atomic_req_8b_endianness_mode_1();
        if mode != AtomicReqEndianness::BIG_ENDIAN && !(host && mode == AtomicReqEndianness::HOST) {
            return Err(Refusal::CapabilityExceeded);
        }
        current.set_atomic_req_8b_endianness_mode(mode);
        Ok(())
    }

    /// Entries in the GID table of an InfiniBand port.
    pub(crate) fn gids(&self) -> u32 {
        8 << self.general().gid_table_size().0.min(16)
    }

    /// Entries in the P_Key table of an InfiniBand port.
    pub(crate) fn pkeys(&self) -> u32 {
        128 << self.general().pkey_table_size().0.min(16)
    }
}

fn uars_per_page(general: &HcaCap) -> u32 {
    1 << general.log_uar_page_sz().min(31)
}

/// Refuses a timestamp clock that a kind of queue does not have. DEFAULT is always accepted: UCX
/// requests it on every device.
pub(crate) fn check_timestamps(
    format: TimestampFormat,
    offered: TimestampFormatCap,
) -> Result<(), Refusal> {
    use TimestampFormatCap as Cap;
    let has = match format {
        TimestampFormat::DEFAULT => true,
        TimestampFormat::FREE_RUNNING => offered != Cap::REAL_TIME,
        TimestampFormat::REAL_TIME => {
            matches!(offered, Cap::REAL_TIME | Cap::FREE_RUNNING_AND_REAL_TIME)
        }
        _ => false,
    };
    if has { Ok(()) } else { Err(Refusal::TimestampFormat) }
}
