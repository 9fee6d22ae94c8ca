//! Inconsistent answers are refused: nothing is read out of bounds, owned twice or lost silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::fake::{Fake, MAPPED_HALF, context, info};
use proptest::prelude::*;
use verbless_devx::abi::attr::{
    devx_async_event_fd_alloc, devx_obj_create, query_gid_table, query_port, uar_obj_alloc, uhw,
};
use verbless_devx::abi::core::{AhAttributes, access};
use verbless_devx::abi::{Method, method};
use verbless_devx::{Context, Errno, Error, ErrorKind, PageSizes, UarKind};

/// Every call that has an output, by the method that it ends with.
fn calls(context: &Context) -> Vec<(Method, Option<Error>)> {
    #[allow(unsafe_code, reason = "the fake device does not touch memory")]
    // SAFETY: the fake device does not touch the range.
    let umem = unsafe { context.umem_reg(4096, 4096, access::LOCAL_WRITE, PageSizes::Any) };
    vec![
        (method::QUERY_PORT, context.query_port(1).err()),
        (method::QUERY_GID_TABLE, context.gid_table().err()),
        (method::QUERY_GID_ENTRY, context.gid_entry(1, 0).err()),
        (method::INVOKE_WRITE, context.alloc_pd().err()),
        (method::DEVX_OTHER, context.devx_other(&[0; 16], &mut [0; 16]).err()),
        (method::DEVX_OBJ_CREATE, context.obj_create(&[0; 16], &mut [0; 16]).err()),
        (method::DEVX_QUERY_EQN, context.query_eqn(0).err()),
        (method::DEVX_UMEM_REG, umem.err()),
        (method::UAR_OBJ_ALLOC, context.uar_alloc(UarKind::NonCached).err()),
    ]
}

#[test]
fn success_with_unfilled_output_is_rejected() {
    let methods: Vec<_> =
        calls(&context(|_, _| None)).into_iter().map(|(method, _)| method).collect();
    for silent in methods {
        let context = context(move |method, _| (method == silent).then_some(Ok(())));
        let (_, error) = calls(&context).into_iter().find(|(method, _)| *method == silent).unwrap();
        assert_eq!(
            error.expect("an error").kind(),
            ErrorKind::InvalidResponse,
            "{}",
            silent.name()
        );
    }
    let device = Fake::new(|method, _| (method == method::GET_CONTEXT).then_some(Ok(())));
    assert_eq!(
        Context::from_device(device, info()).unwrap_err().kind(),
        ErrorKind::InvalidResponse
    );
}

#[test]
fn handle_above_32_bits_is_rejected_and_leaks() {
    let context = context(|method, call| {
        (method == method::DEVX_OBJ_CREATE).then(|| {
            call.set(devx_obj_create::HANDLE, 1 << 32);
            call.fill(devx_obj_create::CMD_OUT, &[0; 16]);
            Ok(())
        })
    });
    let error = context.obj_create(&[0; 16], &mut [0; 16]).unwrap_err();
    assert_eq!((error.kind(), context.leaked()), (ErrorKind::InvalidResponse, 1));
}

#[test]
fn object_with_failed_output_is_destroyed() {
    let destroyed = Arc::new(AtomicU32::new(0));
    let count = destroyed.clone();
    let context = context(move |method, call| match method {
        method::DEVX_OBJ_CREATE => {
            call.set(devx_obj_create::HANDLE, 7);
            call.fill(devx_obj_create::CMD_OUT, &[5; 16]);
            Some(Ok(()))
        }
        method::DEVX_OBJ_DESTROY => {
            count.fetch_add(1, Ordering::Relaxed);
            None
        }
        _ => None,
    });
    let error = context.obj_create(&[0; 16], &mut [0; 16]).unwrap_err();
    assert_eq!((error.kind(), error.status()), (ErrorKind::Command, Some(5)));
    assert_eq!(destroyed.load(Ordering::Relaxed), 1);
}

#[test]
fn invalid_event_fd_is_rejected() {
    for number in [u64::MAX, 1 << 31, 1 << 40, 1_000_000] {
        let context = context(move |method, call| {
            (method == method::DEVX_ASYNC_EVENT_FD_ALLOC).then(|| {
                call.set(devx_async_event_fd_alloc::HANDLE, number);
                Ok(())
            })
        });
        assert_eq!(
            context.event_channel(true).unwrap_err().kind(),
            ErrorKind::InvalidResponse,
            "{number:#x}"
        );
    }
}

#[test]
fn gid_table_count_and_length_are_bounded() {
    for count in [2u64, u64::MAX] {
        let context = context(move |method, call| {
            (method == method::QUERY_GID_TABLE).then(|| {
                call.fill(query_gid_table::RESP_ENTRIES, &[]);
                call.fill(query_gid_table::RESP_NUM_ENTRIES, &count.to_ne_bytes());
                Ok(())
            })
        });
        assert_eq!(context.gid_table().unwrap_err().kind(), ErrorKind::InvalidResponse, "{count}");
    }
    let context = context(|method, call| {
        (method == method::QUERY_PORT).then(|| {
            call.fill(query_port::RESP, &[0xff; 48]);
            Ok(())
        })
    });
    assert_eq!(context.gid_table().unwrap(), []);
}

#[test]
fn uar_of_wrong_size_or_offset_is_rejected() {
    for (offset, length) in [
        (0u64, 0u32),
        (0, 4095),
        (0, 8192),
        (0, u32::MAX),
        (1, 4096),
        (u64::MAX, 4096),
        (MAPPED_HALF, 4096),
    ] {
        let context = context(move |method, call| {
            (method == method::UAR_OBJ_ALLOC).then(|| {
                call.fill(uar_obj_alloc::MMAP_OFFSET, &offset.to_ne_bytes());
                call.fill(uar_obj_alloc::MMAP_LENGTH, &length.to_ne_bytes());
                call.fill(uar_obj_alloc::PAGE_ID, &[0; 4]);
                Ok(())
            })
        });
        let error = context.uar_alloc(UarKind::NonCached).unwrap_err();
        assert_eq!(
            (error.kind(), context.leaked()),
            (ErrorKind::InvalidResponse, 0),
            "{offset:#x} {length:#x}"
        );
    }
}

#[test]
fn ah_has_mac_only_if_driver_wrote_it() {
    for (length, expected) in [
        (0u32, Ok(None)),
        (9, Ok(None)),
        (10, Ok(Some([1; 6]))),
        (17, Err(ErrorKind::InvalidResponse)),
    ] {
        let context = context(move |method, call| {
            if method == method::INVOKE_WRITE && call.data(2) == 5 {
                #[allow(unsafe_code, reason = "reads the request that the attribute points to")]
                // SAFETY: the input has 56 bytes.
                let response = unsafe { (call.data(0) as *const u64).read() };
                assert_eq!(response, call.data(1), "the request names its response buffer");
                call.fill(1, &[0; 4]);
                let mut driver = [1; 16];
                driver[..4].copy_from_slice(&length.to_ne_bytes());
                call.write(uhw::OUT, &driver);
                return Some(Ok(()));
            }
            None
        });
        let pd = context.alloc_pd().unwrap();
        let ah = context.create_ah(&pd, &AhAttributes::default());
        assert_eq!(
            ah.map(|ah| ah.destination_mac()).map_err(|error| error.kind()),
            expected,
            "{length}"
        );
    }
}

#[test]
fn records_of_wrong_length_are_rejected() {
    let device = Fake::new(|_, _| None);
    let context = Context::from_device(device.clone(), info()).unwrap();
    let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::InvalidResponse, "{error}");

    let channel = context.event_channel(true).unwrap();
    nix::unistd::write(device.end(), &[0; 7]).unwrap();
    refused(channel.read().unwrap_err());
    let channel = context.event_channel(false).unwrap();
    nix::unistd::write(device.end(), &[0; 8]).unwrap();
    refused(channel.read().unwrap_err());
    let channel = context.async_event_alloc().unwrap();
    nix::unistd::write(device.end(), &[0; 15]).unwrap();
    refused(channel.read().unwrap_err());
    let channel = context.command_channel().unwrap();
    nix::unistd::write(device.end(), &[0; 7]).unwrap();
    refused(channel.read().unwrap_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_record_is_event_or_error(
        bytes in proptest::collection::vec(any::<u8>(), 1..100),
        omit: bool,
    ) {
        let device = Fake::new(|_, _| None);
        let context = Context::from_device(device.clone(), info()).unwrap();
        let events = context.event_channel(omit).unwrap();
        nix::unistd::write(device.end(), &bytes).unwrap();
        if let Ok(event) = events.read() {
            let cookie = u64::from_ne_bytes(*bytes.first_chunk().unwrap());
            prop_assert_eq!(event.map(|event| event.cookie), Some(cookie));
        }
        let asynchronous = context.async_event_alloc().unwrap();
        nix::unistd::write(device.end(), &bytes).unwrap();
        let _ = asynchronous.read();
        let commands = context.command_channel().unwrap();
        nix::unistd::write(device.end(), &bytes).unwrap();
        if let Ok(Some(answer)) = commands.read() {
            let _ = answer.check(&bytes);
        }
    }

    #[test]
    fn random_failed_output_prints(
        input in proptest::collection::vec(any::<u8>(), 0..32),
        output in proptest::collection::vec(any::<u8>(), 0..32),
    ) {
        let answer = output.clone();
        let context = context(move |method, call| (method == method::DEVX_OBJ_CREATE).then(|| {
            call.fill(devx_obj_create::CMD_OUT, &answer);
            Err(Errno::EREMOTEIO)
        }));
        let mut room = vec![0; output.len()];
        let error = context.obj_create(&input, &mut room).unwrap_err();
        prop_assert_eq!(error.status(), output.first().copied());
        prop_assert!(!error.to_string().is_empty());
    }
}
