//! How long memory is kept after a failed deregistration.
#![allow(unsafe_code, reason = "registers memory that its owner keeps")]

use std::sync::{Arc, Weak};

use verbless_command::{Device, UserMemory};
use verbless_devx::PageSizes;
use verbless_devx::abi::core::access;
use verbless_model::{Ioctl, Link};

use crate::support::connectx6dx;

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "it is the device's")] [u8; 4096]);

/// A registered page, and a weak reference that shows whether it still exists.
fn registered(device: &Device) -> (UserMemory, Weak<Page>) {
    let page = Arc::new(Page([0; 4096]));
    let address = (&raw const *page).expose_provenance() as u64;
    // SAFETY: the registration keeps the page, and the device only reads it.
    let umem = unsafe { device.umem_reg(address, 4096, access::REMOTE_READ, PageSizes::Any) };
    let there = Arc::downgrade(&page);
    (UserMemory::new(umem.expect("memory that is ours"), address, 4096, page), there)
}

#[test]
fn memory_lives_as_long_as_device_may_use_it() {
    // Given: whether the device is removed, the errno of failing deregistrations and their number.
    // Expected: owners of the page after the drop and after the close, lost and leaked
    // registrations.
    for (what, removed, errno, failures, owners, lost, leaked) in [
        ("deregistered", false, 0, 0, [0, 0], 0, 0),
        ("device removed", true, 0, 0, [0, 0], 0, 0),
        ("device removed, kept by the kernel", true, 5, 2, [1, 0], 1, 0),
        ("never deregistered", false, 16, 2, [1, 1], 0, 1),
        ("deregistered at retry", false, 16, 1, [1, 0], 0, 0),
    ] {
        let (model, device) = connectx6dx(Link::Ethernet);
        let (memory, there) = registered(&device);
        assert_eq!(there.strong_count(), 1, "{what}");
        if removed {
            model.remove(0);
        }
        let ioctl = Ioctl::named("DEVX_UMEM_DEREG").expect("a name of `ioctl::NAMES`");
        (1..=failures).for_each(|nth| model.fail_ioctl(0, ioctl, nth, errno));
        drop(memory);
        assert_eq!((there.strong_count(), device.lost()), (owners[0], lost), "{what}");
        assert_eq!(device.leaked(), leaked, "{what}");
        drop(device);
        assert_eq!(there.strong_count(), owners[1], "{what}: after the close");
    }
}
