//! Failed deregistration: the memory is kept, and until when.
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
fn memory_is_freed_at_deregistration() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let (memory, there) = registered(&device);
    assert_eq!(there.strong_count(), 1);
    drop(memory);
    assert_eq!(there.strong_count(), 0);
}

#[test]
fn memory_of_removed_device_is_freed_at_drop() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let (memory, there) = registered(&device);
    model.remove(0);
    drop(memory);
    assert_eq!((there.strong_count(), device.lost()), (0, 0));
}

#[test]
fn memory_kept_by_removed_device_lives_until_close() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let (memory, there) = registered(&device);
    model.remove(0);
    let ioctl = Ioctl::named("DEVX_UMEM_DEREG").expect("a name of `ioctl::NAMES`");
    for nth in 1..=2 {
        model.fail_ioctl(0, ioctl, nth, 5);
    }
    drop(memory);
    assert_eq!((there.strong_count(), device.lost()), (1, 1), "it may still be pinned");
    drop(device);
    assert_eq!(there.strong_count(), 0);
}

#[test]
fn memory_never_deregistered_is_never_freed() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let (memory, there) = registered(&device);
    let ioctl = Ioctl::named("DEVX_UMEM_DEREG").expect("a name of `ioctl::NAMES`");
    // The first try and the second one.
    model.fail_ioctl(0, ioctl, 1, 16);
    model.fail_ioctl(0, ioctl, 2, 16);
    drop(memory);
    drop(device);
    assert_eq!(there.strong_count(), 1);
}

#[test]
fn memory_deregistered_at_retry_lives_until_close() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let (memory, there) = registered(&device);
    let ioctl = Ioctl::named("DEVX_UMEM_DEREG").expect("a name of `ioctl::NAMES`");
    model.fail_ioctl(0, ioctl, 1, 16);
    drop(memory);
    assert_eq!((there.strong_count(), device.leaked()), (1, 0));
    drop(device);
    assert_eq!(there.strong_count(), 0);
}
