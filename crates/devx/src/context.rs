//! An open device with a user context, from which every other object is made.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zerocopy::IntoBytes;

use crate::abi::attr::{get_context, query_context, uhw};
use crate::abi::method;
use crate::abi::mlx5::{self, AllocContextRequest, AllocContextResponse};
use crate::error::{Error, ErrorKind, Result};
use crate::info::DeviceInfo;
use crate::recognition::ModelRecognition;
use crate::sys::{Backend, Errno, OpenDevice, OpenFwctl, Request, hides_refusals};

/// A user context with DevX on an open device. It is cheap to clone; every object made from it
/// holds a clone, and the last one closes the device.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    /// Field order: the device closes before `held` is dropped.
    device: Arc<dyn OpenDevice>,
    /// The function's control file, once it has been opened.
    control: OnceLock<Arc<dyn OpenFwctl>>,
    info: DeviceInfo,
    attributes: ContextAttributes,
    leaked: AtomicU64,
    lost: AtomicU64,
    /// The kernel refused the page-size bitmap of UMEM_REG.
    no_page_sizes: AtomicBool,
    /// The kernel refused page sizes below its own in UMEM_REG.
    no_small_pages: AtomicBool,
    /// The kernel refused relaxed ordering in the access flags of UMEM_REG.
    no_relaxed_umem: AtomicBool,
    /// The result of [`Context::hides_refusals`], once it is known.
    hides_refusals: OnceLock<bool>,
    recognition: ModelRecognition,
    held: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Another owner of the device keeps its file open. The held memory must then stay, and no
        // code can drop it later, so it leaks.
        if Arc::get_mut(&mut self.device).is_none() {
            let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(held));
        }
    }
}

impl Context {
    /// Opens `device` of `backend` and creates a context with DevX and dynamic UARs.
    ///
    /// # Errors
    /// The errors of [`Backend::open`]; [`ErrorKind::NoDevx`] when only a context without DevX can
    /// be created.
    pub fn open(backend: &dyn Backend, device: &DeviceInfo) -> Result<Self> {
        Self::from_device(backend.open(device)?, device.clone())
    }

    /// Creates a context on an open device file.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ErrorKind::InvalidResponse`] when the kernel's answer is
    /// inconsistent.
    pub fn from_device(device: Arc<dyn OpenDevice>, info: DeviceInfo) -> Result<Self> {
        Self::recognising(device, info, ModelRecognition::default())
    }

    pub(crate) fn recognising(
        device: Arc<dyn OpenDevice>,
        info: DeviceInfo,
        recognition: ModelRecognition,
    ) -> Result<Self> {
        let attributes = allocate(&*device, mlx5::CONTEXT_DEVX).map_err(|error| {
            let maybe_devx = matches!(error.errno(), Some(Errno::EINVAL | Errno::EOPNOTSUPP));
            if maybe_devx && allocate(&*device, 0).is_ok() {
                return Error::new(
                    ErrorKind::NoDevx,
                    format!("opening {} with DevX", info.name),
                    "it opens without DevX, so its firmware has user contexts disabled (capability \
                     log_max_uctx is 0) or the kernel was built without \
                     CONFIG_INFINIBAND_USER_ACCESS; update the firmware, and on a virtual function \
                     ask the host",
                )
                .with_errno(error.errno().unwrap_or(Errno::EOPNOTSUPP));
            }
            error
        })?;
        Ok(Self::of(device, info, attributes, recognition))
    }

    /// Imports the context that another library has made on an open device.
    pub(crate) fn import(device: Arc<dyn OpenDevice>, info: DeviceInfo) -> Result<Self> {
        let attributes = query(&*device)?;
        Ok(Self::of(device, info, attributes, ModelRecognition::default()))
    }

    fn of(
        device: Arc<dyn OpenDevice>,
        info: DeviceInfo,
        attributes: ContextAttributes,
        recognition: ModelRecognition,
    ) -> Self {
        Self(Arc::new(Inner {
            device,
            control: OnceLock::new(),
            info,
            attributes,
            leaked: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            no_page_sizes: AtomicBool::new(false),
            no_small_pages: AtomicBool::new(false),
            no_relaxed_umem: AtomicBool::new(false),
            hides_refusals: OnceLock::new(),
            recognition,
            held: Mutex::default(),
        }))
    }

    /// The device's properties from enumeration.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The kernel's answer to GET_CONTEXT.
    #[must_use]
    pub fn attributes(&self) -> &ContextAttributes {
        &self.0.attributes
    }

    /// Bytes of a page of the kernel that has the device: 4, 16 or 64 KiB. A UAR's mapping is one
    /// such page, and pinned memory is counted in them.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.0.device.page_size()
    }

    /// Number of objects that could not be destroyed. Each keeps the context open until the process
    /// ends.
    #[must_use]
    pub fn leaked(&self) -> u64 {
        self.0.leaked.load(Ordering::Relaxed)
    }

    /// Number of objects whose destruction failed because the device was removed. Linux lets most
    /// destroys on a removed device succeed; one fails (EIO) only if the driver reports that its
    /// command failed. Linux frees such an object when the device's file closes: when the last
    /// clone of the context and the last object are dropped. Until then the object's memory is
    /// held.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Whether the kernel chooses a UMEM's pages by the memory's address, because it has no
    /// page-size bitmap (before Linux 5.13). The first registration finds out; `false` until then.
    ///
    /// Without the bitmap, [`PageSizes`](crate::PageSizes) have no effect: the limit of a UMEM's
    /// pages is [`Umem::page_limit`](crate::Umem::page_limit), which follows the address.
    #[must_use]
    pub fn pages_follow_address(&self) -> bool {
        self.0.no_page_sizes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_pages_follow_address(&self) {
        self.0.no_page_sizes.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel registers no memory in pages smaller than its own, as Linux before 6.7
    /// does with pages of 16 or 64 KiB (commit 4fbc3a52cd4d, also in stable updates). The first
    /// registration with [`PageSizes`](crate::PageSizes) below
    /// [`page_size`](Self::page_size) finds out; `false` until then. Such memory then gets the
    /// kernel's page size, as [`Umem::page_limit`](crate::Umem::page_limit) says.
    #[must_use]
    pub fn umems_lack_small_pages(&self) -> bool {
        self.0.no_small_pages.load(Ordering::Relaxed)
    }

    pub(crate) fn set_umems_lack_small_pages(&self) {
        self.0.no_small_pages.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel passes UMEM_REG's access flags on without relaxed ordering, because it
    /// refused that flag (Linux 5.10). The first registration with the flag finds out; `false`
    /// until then. Keys keep their relaxed ordering: only the kernel's DMA mapping lacks it.
    #[must_use]
    pub fn umems_lack_relaxed_ordering(&self) -> bool {
        self.0.no_relaxed_umem.load(Ordering::Relaxed)
    }

    pub(crate) fn set_umems_lack_relaxed_ordering(&self) {
        self.0.no_relaxed_umem.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel hides why the device refuses a command: it returns an errno without the
    /// outbox, so errors of the kind [`ErrorKind::Command`] have neither status nor syndrome
    /// (mlx5_core before Linux 5.18). The first call sends a command that the device refuses.
    #[must_use]
    pub fn hides_refusals(&self) -> bool {
        let known = &self.0.hides_refusals;
        if known.get().is_none()
            && let Some(found) = hides_refusals(self.device())
        {
            // Another thread may have set it meanwhile, to the same value.
            let _ = known.set(found);
        }
        known.get().copied().unwrap_or(false)
    }

    /// Keeps `memory` alive until the device's file is closed, because a removed device may still
    /// access it. `memory` must not keep the context itself alive: then neither would ever be
    /// dropped.
    pub fn hold_until_closed(&self, memory: Box<dyn Any + Send + Sync>) {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }

    /// Counts an object that could not be destroyed: as lost if the device was removed, otherwise
    /// as leaked.
    pub(crate) fn count_undestroyed(&self, what: &str, number: u32, error: &Error) {
        if error.kind() == ErrorKind::DeviceGone {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.count_leak(what, number, error);
        }
    }

    /// Counts a leak of an upper layer, such as memory whose UMEM cannot be deregistered.
    pub fn count_leak(&self, what: &str, number: u32, error: &Error) {
        self.0.leaked.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "tracing")]
        tracing::warn!(device = %self.0.info.name, what, number, %error, "leaked");
        #[cfg(not(feature = "tracing"))]
        let _ = (what, number, error);
    }

    pub(crate) fn recognition(&self) -> &ModelRecognition {
        &self.0.recognition
    }

    pub(crate) fn device(&self) -> &dyn OpenDevice {
        &*self.0.device
    }

    /// The control file, if there is one.
    pub(crate) fn fwctl_file(&self) -> Result<Option<&dyn OpenFwctl>> {
        if self.0.control.get().is_none()
            && let Some(file) = self.0.device.open_fwctl()?
        {
            // Another thread may have set one meanwhile.
            let _ = self.0.control.set(file);
        }
        Ok(self.0.control.get().map(|file| &**file))
    }

    /// True if both are clones of one context.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.0.info.name)
            .field("leaked", &self.leaked())
            .finish_non_exhaustive()
    }
}

/// The answer to GET_CONTEXT. The fields of `driver` that the kernel did not write are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextAttributes {
    /// Completion vectors: the argument of [`Context::query_eqn`] is below this.
    pub completion_vectors: u32,
    /// `enum ib_uverbs_core_support`.
    pub core_support: u64,
    /// The driver's part: limits, CQE version, UAR geometry.
    pub driver: AllocContextResponse,
}

/// Minimum bytes of a driver answer: up to `response_length` itself.
const MIN_RESPONSE_BYTES: usize = 44;

impl ContextAttributes {
    /// Checks an answer and zeroes the bytes beyond its `response_length`.
    fn parse(
        completion_vectors: u32,
        core_support: u64,
        mut driver: AllocContextResponse,
    ) -> Result<Self> {
        let bytes = driver.as_mut_bytes();
        let written = u32::from_ne_bytes(bytes[40..44].try_into().unwrap_or_default()) as usize;
        if !(MIN_RESPONSE_BYTES..=bytes.len()).contains(&written) {
            let what =
                format_args!("driver response of {written} bytes, for a buffer of {}", bytes.len());
            return Err(Error::answer(method::GET_CONTEXT, what));
        }
        bytes[written..].fill(0);
        if driver.bf_reg_size != 0
            && !(driver.bf_reg_size.is_power_of_two() && driver.bf_reg_size <= 1024)
        {
            let what = format_args!("BlueFlame register of {} bytes", driver.bf_reg_size);
            return Err(Error::answer(method::GET_CONTEXT, what));
        }
        Ok(Self { completion_vectors, core_support, driver })
    }

    fn has(&self, mask: u32) -> bool {
        self.driver.comp_mask & mask != 0
    }

    /// The null mkey: reads return zeros and writes are discarded. `None` if the device has none.
    #[must_use]
    pub fn null_mkey(&self) -> Option<u32> {
        (self.has(mlx5::RESP_MASK_DUMP_FILL_MKEY) && self.driver.response_length >= 72)
            .then_some(self.driver.dump_fill_mkey)
    }

    /// Bytes of one BlueFlame buffer, half of a register; 0 if the machine has no write combining.
    #[must_use]
    pub const fn blue_flame_bytes(&self) -> u32 {
        self.driver.bf_reg_size / 2
    }

    /// Whether CREATE_AH answers with the destination MAC.
    #[must_use]
    pub const fn resolves_mac(&self) -> bool {
        self.driver.cmds_supp_uhw & mlx5::SUPP_UHW_CREATE_AH != 0
    }

    /// Offset of the free-running clock in the page that
    /// [`CORE_CLOCK`](crate::abi::mlx5::mmap_command::CORE_CLOCK) maps, if it can be mapped.
    #[must_use]
    pub fn core_clock_offset(&self) -> Option<u64> {
        self.has(mlx5::RESP_MASK_CORE_CLOCK_OFFSET).then_some(self.driver.hca_core_clock_offset)
    }

    /// Whether the kernel leaves the variant byte of new mkeys to the user.
    #[must_use]
    pub fn supports_mkey_variant(&self) -> bool {
        self.has(mlx5::RESP_MASK_MKEY_UPDATE_TAG)
    }

    /// Whether CQE timestamps may be real time.
    #[must_use]
    pub fn real_time_timestamps(&self) -> bool {
        self.has(mlx5::RESP_MASK_REAL_TIME_TS)
    }
}

/// Sends GET_CONTEXT. The kernel requires a count of static BlueFlame registers; with dynamic UARs
/// it allocates none.
fn allocate(device: &dyn OpenDevice, flags: u32) -> Result<ContextAttributes> {
    let ask = AllocContextRequest {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        flags,
        max_cqe_version: 1,
        lib_caps: mlx5::LIB_CAP_4K_UAR | mlx5::LIB_CAP_DYN_UAR,
        ..Default::default()
    };
    let (mut vectors, mut core_support) = (0u32, 0u64);
    let mut driver = AllocContextResponse::default();
    let answer = Request::new(method::GET_CONTEXT)
        .output_of(get_context::NUM_COMP_VECTORS, &mut vectors)
        .output_of(get_context::CORE_SUPPORT, &mut core_support)
        .input(uhw::IN, ask.as_bytes())
        .output_of(uhw::OUT, &mut driver)
        .send(device)?;
    answer.filled(&[get_context::NUM_COMP_VECTORS, get_context::CORE_SUPPORT, uhw::OUT])?;
    ContextAttributes::parse(vectors, core_support, driver)
}

/// Queries the attributes of an existing context.
fn query(device: &dyn OpenDevice) -> Result<ContextAttributes> {
    let (mut vectors, mut core_support) = (0u32, 0u64);
    let mut driver = AllocContextResponse::default();
    let answer = Request::new(method::QUERY_CONTEXT)
        .output_of(query_context::NUM_COMP_VECTORS, &mut vectors)
        .output_of(query_context::CORE_SUPPORT, &mut core_support)
        .output_of(query_context::RESP, &mut driver)
        .send(device)?;
    answer.filled(&[
        query_context::NUM_COMP_VECTORS,
        query_context::CORE_SUPPORT,
        query_context::RESP,
    ])?;
    ContextAttributes::parse(vectors, core_support, driver)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::abi::Header;
    use crate::abi::request::VALID_OUTPUT;
    use crate::sys::testing::fill;

    fn response(length: u32) -> AllocContextResponse {
        AllocContextResponse {
            bf_reg_size: 512,
            response_length: length,
            comp_mask: u32::MAX,
            dump_fill_mkey: 0x300,
            ..Default::default()
        }
    }

    /// A device with a context; it answers QUERY_CONTEXT only.
    struct Opened;

    #[allow(
        unsafe_code,
        reason = "the trait's method is unsafe to call; only `fill` dereferences a pointer"
    )]
    // SAFETY: it writes to outputs as `fill` does, and opens and maps nothing.
    unsafe impl OpenDevice for Opened {
        unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
            let (header, attributes) = Header::split(request).unwrap();
            assert_eq!(header.method(), method::QUERY_CONTEXT);
            for attribute in attributes {
                match attribute.attr_id {
                    query_context::NUM_COMP_VECTORS => fill(attribute, &7u32.to_ne_bytes()),
                    query_context::CORE_SUPPORT => fill(attribute, &5u64.to_ne_bytes()),
                    _ => fill(attribute, response(72).as_bytes()),
                }
                attribute.flags |= VALID_OUTPUT;
            }
            Ok(())
        }

        fn page_size(&self) -> usize {
            crate::page_size()
        }

        fn mmap(&self, _: u64, _: usize, _: crate::Protection) -> Result<crate::Mapping, Errno> {
            Err(Errno::EINVAL)
        }
    }

    #[test]
    fn imported_context_has_kernel_attributes() {
        let context = Context::import(Arc::new(Opened), DeviceInfo::default()).unwrap();
        let attributes = context.attributes();
        assert_eq!((attributes.completion_vectors, attributes.core_support), (7, 5));
        assert_eq!(attributes.driver, response(72));
    }

    #[test]
    fn null_mkey_requires_long_response() {
        assert_eq!(ContextAttributes::parse(1, 0, response(72)).unwrap().null_mkey(), Some(0x300));
        let older = ContextAttributes::parse(1, 0, response(64)).unwrap();
        assert_eq!((older.null_mkey(), older.driver.dump_fill_mkey), (None, 0));
    }

    #[test]
    fn attribute_requires_its_comp_mask_bit() {
        let offers = |comp_mask| {
            let driver = AllocContextResponse { comp_mask, ..response(72) };
            let it = ContextAttributes::parse(1, 0, driver).unwrap();
            let clock = it.core_clock_offset().is_some();
            [it.null_mkey().is_some(), clock, it.supports_mkey_variant(), it.real_time_timestamps()]
        };
        let bits = [
            mlx5::RESP_MASK_DUMP_FILL_MKEY,
            mlx5::RESP_MASK_CORE_CLOCK_OFFSET,
            mlx5::RESP_MASK_MKEY_UPDATE_TAG,
            mlx5::RESP_MASK_REAL_TIME_TS,
        ];
        assert_eq!((offers(0), offers(u32::MAX)), ([false; 4], [true; 4]));
        for (at, bit) in bits.into_iter().enumerate() {
            let only: [bool; 4] = std::array::from_fn(|other| other == at);
            assert_eq!(offers(bit), only, "mask {bit:#x}");
            assert_eq!(offers(!bit), only.map(|it| !it), "mask {:#x}", !bit);
        }
    }

    #[test]
    fn resolves_mac_requires_create_ah_uhw() {
        for (cmds_supp_uhw, resolves) in
            [(0, false), (mlx5::SUPP_UHW_CREATE_AH, true), (!mlx5::SUPP_UHW_CREATE_AH, false)]
        {
            let driver = AllocContextResponse { cmds_supp_uhw, ..response(72) };
            let attributes = ContextAttributes::parse(1, 0, driver).unwrap();
            assert_eq!(attributes.resolves_mac(), resolves, "{cmds_supp_uhw:#x}");
            assert_eq!(attributes.blue_flame_bytes(), 256);
        }
    }

    #[test]
    fn response_with_bad_length_or_blueflame_size_is_rejected() {
        let lengths = [0, 43, 73, u32::MAX].map(response);
        let sizes = [3, 768, 2048, 1 << 31, u32::MAX];
        let sizes = sizes.map(|bytes| AllocContextResponse { bf_reg_size: bytes, ..response(72) });
        for driver in lengths.into_iter().chain(sizes) {
            let what = (driver.response_length, driver.bf_reg_size);
            let error = ContextAttributes::parse(1, 0, driver).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidResponse, "{what:?}");
        }
    }

    proptest! {
        #[test]
        fn random_response_is_parsed_or_rejected(
            bytes in proptest::array::uniform32(any::<u8>()),
            tail in proptest::array::uniform32(any::<u8>()),
            last: u64,
            length in 0u32..100,
        ) {
            let mut whole = [0; 72];
            whole[..32].copy_from_slice(&bytes);
            whole[32..64].copy_from_slice(&tail);
            whole[64..].copy_from_slice(&last.to_ne_bytes());
            whole[40..44].copy_from_slice(&length.to_ne_bytes());
            let driver = zerocopy::transmute!(whole);
            if let Ok(attributes) = ContextAttributes::parse(1, 0, driver) {
                prop_assert!(attributes.blue_flame_bytes() <= 512);
                let _ = (attributes.null_mkey(), attributes.core_clock_offset());
            }
        }
    }
}
