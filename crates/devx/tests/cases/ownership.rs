//! Objects are destroyed once; an object that cannot be destroyed is returned or counted; the
//! context outlives them all.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::fake::{Fake, context, info};
use verbless_devx::abi::attr::devx_obj_create;
use verbless_devx::abi::core::event_type;
use verbless_devx::abi::method;
use verbless_devx::{AsyncEvent, Context, Errno, Error, ErrorKind, UarKind};

#[test]
fn failed_destroy_returns_object_for_retry() {
    let busy = Arc::new(AtomicBool::new(true));
    let is_busy = busy.clone();
    let context = context(move |method, _| {
        (method == method::DEVX_OBJ_DESTROY && is_busy.load(Ordering::Relaxed))
            .then_some(Err(Errno::EBUSY))
    });
    let object = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let failed = object.destroy().unwrap_err();
    assert_eq!(failed.error.errno(), Some(Errno::EBUSY));
    assert_eq!(context.leaked(), 0);
    busy.store(false, Ordering::Relaxed);
    failed.object.destroy().unwrap();
    assert_eq!(context.leaked(), 0);
}

#[test]
fn failed_drop_counts_leak_and_keeps_device_open() {
    let device =
        Fake::new(|method, _| (method == method::UAR_OBJ_DESTROY).then_some(Err(Errno::EBUSY)));
    let context = Context::from_device(device.clone(), info()).unwrap();
    let uar = context.uar_alloc(UarKind::NonCached).unwrap();
    drop(uar.destroy().unwrap_err());
    assert_eq!(context.leaked(), 1);
    drop(context);
    assert!(Arc::strong_count(&device) > 1, "the context that leaked holds the device");
}

#[test]
fn device_closes_with_last_object() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let object = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let channel = context.event_channel(true).unwrap();
    drop(context);
    assert_eq!(Arc::strong_count(&device), 2);
    drop(object);
    assert_eq!(Arc::strong_count(&device), 2);
    drop(channel);
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn pd_lives_until_last_clone() {
    let context = context(|_, _| None);
    let pd = context.alloc_pd().unwrap();
    let clone = pd.clone();
    let failed = pd.destroy().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Refused);
    drop(clone);
    failed.object.destroy().unwrap();
}

#[test]
fn events_are_read_in_order_until_device_gone() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let channel = context.event_channel(true).unwrap();
    let end = device.end();
    assert_eq!(channel.read().unwrap(), None);
    let start = Instant::now();
    assert!(!channel.wait(Some(Duration::from_millis(20))).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    for cookie in [1u64, u64::MAX] {
        nix::unistd::write(&end, &cookie.to_ne_bytes()).unwrap();
    }
    assert!(channel.wait(None).unwrap());
    assert_eq!(channel.read().unwrap().map(|event| (event.cookie, event.eqe)), Some((1, None)));
    assert_eq!(channel.read().unwrap().map(|event| event.cookie), Some(u64::MAX));
    assert_eq!(channel.read().unwrap(), None);
    drop(end);
    assert!(channel.wait(None).unwrap(), "wait returns at end of file");
    assert_eq!(channel.read().unwrap_err().kind(), ErrorKind::DeviceGone);
}

#[test]
fn event_with_data_carries_eqe() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let channel = context.event_channel(false).unwrap();
    let mut record = [0xa5; 72];
    record[..8].copy_from_slice(&5u64.to_ne_bytes());
    nix::unistd::write(device.end(), &record).unwrap();
    let event = channel.read().unwrap().unwrap();
    assert_eq!((event.cookie, event.eqe), (5, Some([0xa5; 64])));
}

#[test]
fn async_events_decode_by_type() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let channel = context.async_event_alloc().unwrap();
    let end = device.end();
    let next = |element: u64, event: u32| {
        let mut record = Vec::new();
        record.write_all(&element.to_ne_bytes()).unwrap();
        record.write_all(&u64::from(event).to_ne_bytes()).unwrap();
        nix::unistd::write(&end, &record).unwrap();
        channel.read().unwrap().unwrap()
    };
    assert_eq!(next(0, event_type::DEVICE_FATAL), AsyncEvent::DeviceFatal);
    // ib_event_type of Linux 7: it belongs to no port, and its element is 0.
    assert_eq!(next(0, 20), AsyncEvent::DeviceSpeedChange);
    let port = AsyncEvent::Port { port: 1, event: event_type::PORT_ERR };
    assert_eq!(next(1, event_type::PORT_ERR), port);
    assert_eq!(next(9, 99), AsyncEvent::Other { element: 9, event: 99 });
}

#[test]
fn async_query_replies_carry_wr_id() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let object = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let channel = context.command_channel().unwrap();
    let end = device.end();
    channel.query(&object, &[0; 16], 16, 7).unwrap();
    channel.query(&object, &[0; 16], 32, 8).unwrap();
    let mut record = 8u64.to_ne_bytes().to_vec();
    record.extend([2, 0, 0, 0, 0, 0, 0, 1]);
    record.extend([0; 24]);
    nix::unistd::write(&end, &record).unwrap();
    let answer = channel.read().unwrap().unwrap();
    assert_eq!((answer.wr_id, answer.output.len()), (8, 32));
    let error = answer.check(&[0x05, 0x0b, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!((error.status(), error.syndrome()), (Some(2), Some(1)));
    assert_eq!(channel.read().unwrap(), None);
}

#[test]
fn subscribe_takes_1_to_16_events() {
    let context = context(|_, _| None);
    let channel = context.event_channel(true).unwrap();
    for events in [&[][..], &[0; 17]] {
        assert_eq!(channel.subscribe(None, events, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            channel.subscribe_eventfd(None, events, channel.as_fd()).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    channel.subscribe(None, &[0; 16], 0).unwrap();
}

#[test]
fn debug_shows_handle_and_leaks() {
    let context = context(|method, call| {
        if method == method::DEVX_OBJ_CREATE {
            call.set(devx_obj_create::HANDLE, 7);
        }
        (method == method::DEVX_OBJ_DESTROY).then_some(Err(Errno::EBUSY))
    });
    assert_eq!(format!("{context:?}"), "Context { device: \"mlx5_0\", leaked: 0, .. }");
    let object = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    assert_eq!(object.handle(), 7);
    assert!(format!("{object:?}").contains(" 7"), "{object:?}");
    let failed = object.destroy().unwrap_err();
    assert_eq!(failed.to_string(), failed.error.to_string());
    assert_eq!(Error::from(failed).errno(), Some(Errno::EBUSY));
    assert_eq!(format!("{context:?}"), "Context { device: \"mlx5_0\", leaked: 1, .. }");
}
