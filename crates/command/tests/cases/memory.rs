//! How long memory is kept after a failed deregistration.
#![allow(unsafe_code, reason = "registers memory that its owner keeps")]

use std::sync::{Arc, Weak};

use verbless_command::{Device, UserMemory};
use verbless_devx::PageSizes;
use verbless_devx::abi::core::access;
use verbless_model::{Ioctl, Link};

use crate::support::connectx6dx;

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "only the device reads the bytes")] [u8; 4096]);

/// A registered page, and a weak reference that shows whether it still exists.
fn registered(device: &Device) -> (UserMemory, Weak<Page>) {
    let page = Arc::new(Page([0; 4096]));
    let address = (&raw const *page).expose_provenance() as u64;
    // SAFETY: the registration keeps the page, and the device only reads it.
    let umem = unsafe { device.umem_reg(address, 4096, access::REMOTE_READ, PageSizes::Any) };
    let weak_page = Arc::downgrade(&page);
    (UserMemory::new(umem.expect("memory that is ours"), address, 4096, page), weak_page)
}

/// What happens to a device and a registration, and what is expected afterwards.
#[derive(Clone, Copy, Default)]
struct Case {
    device_removed: bool,
    /// The errno of failing deregistrations.
    dereg_errno: i32,
    dereg_failures: u32,
    page_owners_after_drop: usize,
    page_owners_after_close: usize,
    lost: u64,
    leaked: u64,
}

#[test]
fn memory_lives_as_long_as_device_may_use_it() {
    let plain = Case::default();
    for (what, case) in [
        ("deregistered", plain),
        ("device removed", Case { device_removed: true, ..plain }),
        (
            "device removed, kept by the kernel",
            Case {
                device_removed: true,
                dereg_errno: 5,
                dereg_failures: 2,
                page_owners_after_drop: 1,
                lost: 1,
                ..plain
            },
        ),
        (
            "never deregistered",
            Case {
                dereg_errno: 16,
                dereg_failures: 2,
                page_owners_after_drop: 1,
                page_owners_after_close: 1,
                leaked: 1,
                ..plain
            },
        ),
        (
            "deregistered at retry",
            Case { dereg_errno: 16, dereg_failures: 1, page_owners_after_drop: 1, ..plain },
        ),
    ] {
        let (model, device) = connectx6dx(Link::Ethernet);
        let (memory, weak_page) = registered(&device);
        assert_eq!(weak_page.strong_count(), 1, "{what}");
        if case.device_removed {
            model.remove(0);
        }
        let ioctl = Ioctl::named("DEVX_UMEM_DEREG").expect("a name of `ioctl::NAMES`");
        let errno = case.dereg_errno;
        (1..=case.dereg_failures).for_each(|nth| model.fail_ioctl(0, ioctl, nth, errno));
        drop(memory);
        assert_eq!(weak_page.strong_count(), case.page_owners_after_drop, "{what}");
        assert_eq!((device.lost(), device.leaked()), (case.lost, case.leaked), "{what}");
        drop(device);
        assert_eq!(
            weak_page.strong_count(),
            case.page_owners_after_close,
            "{what}: after the close"
        );
    }
}
