//! Errors say what was tried, what the device or the kernel answered, and what to check next.

use crate::support::fake::{Fake, context, info};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use verbless_devx::abi::attr::{devx_obj_create, devx_other, uhw};
use verbless_devx::abi::core::access;
use verbless_devx::abi::method;
use verbless_devx::abi::mlx5::CONTEXT_DEVX;
use verbless_devx::{Context, Errno, ErrorKind, PageSizes, UarKind};
use verbless_prm::CommandStatus;

#[test]
fn failed_command_names_command_status_and_syndrome() {
    let context = context(|method, call| {
        (method == method::DEVX_OBJ_CREATE).then(|| {
            call.fill(
                devx_obj_create::CMD_OUT,
                &[0x3, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0, 0],
            );
            Err(Errno::EREMOTEIO)
        })
    });
    let mut create_qp = [0; 272];
    create_qp[0] = 0x05;
    let error = context.obj_create(&create_qp, &mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Command);
    assert_eq!(
        (error.status(), error.syndrome(), error.errno()),
        (Some(3), Some(0x1234_5678), Some(Errno::EREMOTEIO))
    );
    // A main that returns it prints this.
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(format!("{error:#?}").contains("status: Some("));
    assert_eq!(error.command().unwrap().name(), Some("CREATE_QP"));
    let text = error.to_string();
    for part in [
        "CREATE_QP (0x500) by DEVX_OBJ_CREATE",
        "status 0x3 (BAD_PARAM)",
        "syndrome 0x12345678",
        "; ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!error.hint().is_empty());
}

#[test]
fn reported_cause_of_syndrome_is_named() {
    for (syndrome, text) in [
        (0x00d6_1c0b_u32, "syndrome 0xd61c0b (SQ_CLOCK_FORMAT by public reports)"),
        (0x00d6_1c0c, "syndrome 0xd61c0c"),
    ] {
        let context = context(move |method, call| {
            (method == method::DEVX_OBJ_CREATE).then(|| {
                let mut output = [0; 16];
                output[0] = CommandStatus::BAD_PARAM.0;
                output[4..8].copy_from_slice(&syndrome.to_be_bytes());
                call.fill(devx_obj_create::CMD_OUT, &output);
                Err(Errno::EREMOTEIO)
            })
        });
        let mut create_sq = [0; 272];
        create_sq[0] = 0x09;
        create_sq[1] = 0x04;
        let error = context.obj_create(&create_sq, &mut [0; 16]).unwrap_err();
        assert_eq!(error.syndrome(), Some(syndrome));
        assert!(error.to_string().contains(&format!("(BAD_PARAM), {text}: EREMOTEIO")), "{error}");
    }
}

#[test]
fn unknown_command_and_status_still_print() {
    let context = context(|method, call| {
        (method == method::DEVX_OBJ_CREATE).then(|| {
            call.fill(devx_obj_create::CMD_OUT, &[0xee; 16]);
            Err(Errno::EREMOTEIO)
        })
    });
    let text = context.obj_create(&[0xff; 16], &mut [0; 16]).unwrap_err().to_string();
    assert!(
        text.contains("command (0xffff op_mod 0xffff)") && text.contains("0xee (unknown status)"),
        "{text}"
    );
}

#[test]
fn all_statuses_except_bad_pkt_have_hints() {
    let hint = |status| {
        let context = context(move |method, call| {
            (method == method::DEVX_OBJ_CREATE).then(|| {
                call.fill(devx_obj_create::CMD_OUT, &[status, 0, 0, 0, 0, 0, 0, 0]);
                Err(Errno::EREMOTEIO)
            })
        });
        // An opcode without a description.
        context.obj_create(&[0xff; 16], &mut [0; 16]).unwrap_err().hint().to_owned()
    };
    let unknown = hint(0xee);
    for status in (0..=u8::MAX).map(CommandStatus) {
        let own = status.name().is_some() && status != CommandStatus::BAD_PKT;
        assert_eq!(hint(status.0) != unknown, own, "{status:?}");
    }
}

#[test]
fn stale_output_bytes_are_not_read_as_status() {
    let context =
        context(|method, _| (method == method::DEVX_OBJ_MODIFY).then_some(Err(Errno::EREMOTEIO)));
    let object = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let error = object.modify(&[0; 16], &mut [0x5; 16]).unwrap_err();
    assert_eq!((error.status(), error.syndrome()), (Some(0), Some(0)));
}

#[test]
fn umem_enomem_is_memory_limit() {
    let context =
        context(|method, _| (method == method::DEVX_UMEM_REG).then_some(Err(Errno::ENOMEM)));
    let memory = vec![0u8; 4096];
    #[allow(unsafe_code, reason = "the fake device refuses")]
    // SAFETY: nothing is registered.
    let error = unsafe {
        context.umem_reg(memory.as_ptr() as u64, 4096, access::LOCAL_WRITE, PageSizes::Any)
    }
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MemoryLimit);
    assert!(error.hint().contains("ulimit -l"), "{error}");
}

#[test]
fn missing_devx_differs_from_failed_open() {
    // The kernel creates contexts, but none with DevX.
    let device = Fake::new(|method, call| {
        let refused = method == method::GET_CONTEXT && {
            #[allow(unsafe_code, reason = "reads the request that the attribute points to")]
            // SAFETY: the input has 32 bytes.
            let flags = unsafe { (call.data(uhw::IN) as *const u32).add(2).read() };
            flags & CONTEXT_DEVX != 0
        };
        refused.then_some(Err(Errno::EINVAL))
    });
    let error = Context::from_device(device, info()).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoDevx, Some(Errno::EINVAL)));
    assert!(
        error.to_string().contains("mlx5_0 with DevX") && error.hint().contains("firmware"),
        "{error}"
    );

    // The kernel creates no context.
    let device =
        Fake::new(|method, _| (method == method::GET_CONTEXT).then_some(Err(Errno::EINVAL)));
    assert_eq!(Context::from_device(device, info()).unwrap_err().kind(), ErrorKind::Refused);

    // The kernel creates DevX contexts, but lacks the DevX methods.
    let context =
        context(|method, _| (method == method::DEVX_OTHER).then_some(Err(Errno::EPROTONOSUPPORT)));
    assert_eq!(context.devx_other(&[0; 16], &mut [0; 16]).unwrap_err().kind(), ErrorKind::NoDevx);
}

#[test]
fn uar_errno_maps_to_kind_and_hint() {
    for (refused, errno, kind, advice) in [
        (method::UAR_OBJ_ALLOC, Errno::EOPNOTSUPP, ErrorKind::Refused, "non-cached"),
        (method::UAR_OBJ_ALLOC, Errno::EIO, ErrorKind::Refused, "answers other commands"),
        (method::UAR_OBJ_ALLOC, Errno::ENOLINK, ErrorKind::DeviceGone, "open it again"),
        (method::UAR_OBJ_ALLOC, Errno::EPERM, ErrorKind::Permission, "privilege"),
        (method::UAR_OBJ_ALLOC, Errno::EPROTONOSUPPORT, ErrorKind::Refused, "Linux 5.10"),
    ] {
        let context = context(move |method, _| (method == refused).then_some(Err(errno)));
        let error = context.uar_alloc(UarKind::BlueFlame).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (kind, Some(errno)));
        assert!(error.hint().contains(advice), "{error}");
    }
}

#[test]
fn eio_without_command_replies_is_device_gone() {
    let context = context(|method, _| {
        let methods = [method::UAR_OBJ_ALLOC, method::DEVX_OTHER];
        methods.contains(&method).then_some(Err(Errno::EIO))
    });
    let error = context.uar_alloc(UarKind::BlueFlame).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
}

/// A context on a kernel that returns `errno` for a refused creation, and EINVAL for the probe of
/// [`Context::hides_refusals`] with EINVAL.
fn on_kernel_that_hides(errno: Errno) -> Context {
    context(move |method, call| match method {
        method::DEVX_OBJ_CREATE => Some(Err(errno)),
        method::DEVX_OTHER => {
            #[allow(unsafe_code, reason = "reads the request that the attribute points to")]
            // SAFETY: every command has 16 bytes.
            let input = unsafe { (call.data(devx_other::CMD_IN) as *const [u8; 16]).read() };
            (input[..2] == [0x01, 0x00]).then_some(Err(Errno::EINVAL))
        }
        _ => None,
    })
}

#[test]
fn refusal_that_kernel_hides_is_command_without_status() {
    for (errno, statuses) in [
        (Errno::EINVAL, "BAD_PARAM"),
        (Errno::EIO, "INTERNAL_ERR"),
        (Errno::EBUSY, "RES_BUSY"),
        (Errno::ENOMEM, "LIM"),
        (Errno::EAGAIN, "NO_RES"),
    ] {
        let context = on_kernel_that_hides(errno);
        let mut create_qp = [0; 272];
        create_qp[0] = 0x05;
        let error = context.obj_create(&create_qp, &mut [0; 16]).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Command, Some(errno)), "{error}");
        assert_eq!((error.status(), error.syndrome()), (None, None));
        assert!(context.hides_refusals());
        let text = error.to_string();
        for part in ["CREATE_QP (0x500) by DEVX_OBJ_CREATE", statuses, "before Linux 5.18", "dmesg"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let missing = on_kernel_that_hides(Errno::EFAULT).obj_create(&[0; 16], &mut [0; 16]);
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Refused, "no refusal ends with EFAULT");
}

#[test]
fn errno_on_kernel_with_outboxes_is_kernel_refusal() {
    let context = context(|method, _| match method {
        method::DEVX_OBJ_CREATE => Some(Err(Errno::EINVAL)),
        method::DEVX_OTHER => Some(Err(Errno::EREMOTEIO)),
        _ => None,
    });
    let error = context.obj_create(&[0; 16], &mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(!context.hides_refusals());
}

#[test]
fn lost_device_on_kernel_that_hides_is_device_gone() {
    let context = context(|method, _| {
        let methods = [method::DEVX_OBJ_CREATE, method::DEVX_OTHER];
        methods.contains(&method).then_some(Err(Errno::EIO))
    });
    let error = context.obj_create(&[0; 16], &mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
}

/// Access flags and page sizes of UMEM_REG, in the order of the calls.
type Registrations = Arc<Mutex<Vec<(u64, u64)>>>;

/// A kernel with pages of 64 KiB that refuses smaller ones in UMEMs, and perhaps relaxed ordering.
fn without_small_pages(refuses_relaxed: bool) -> (Context, Registrations) {
    use verbless_devx::abi::attr::devx_umem_reg::{ACCESS, PGSZ_BITMAP};
    let sent = Registrations::default();
    let seen = sent.clone();
    let fake = Fake::with_pages(1 << 16, move |method, call| {
        (method == method::DEVX_UMEM_REG).then_some(())?;
        let (flags, sizes) = (call.data(ACCESS), call.data(PGSZ_BITMAP));
        seen.lock().unwrap().push((flags, sizes));
        let relaxed = flags & u64::from(access::RELAXED_ORDERING) != 0 && refuses_relaxed;
        let small = sizes & (1_u64 << 16).wrapping_neg() == 0;
        (relaxed || small).then_some(Err(Errno::EINVAL))
    });
    (Context::from_device(fake, info()).unwrap(), sent)
}

#[test]
fn umem_reg_does_without_pages_below_the_kernels() {
    let memory = vec![0u8; 4096];
    for refuses_relaxed in [false, true] {
        let (context, sent) = without_small_pages(refuses_relaxed);
        assert_eq!(context.page_size(), 1 << 16);
        let relaxed = access::LOCAL_WRITE | access::RELAXED_ORDERING;
        let register = |flags, pages| {
            #[allow(unsafe_code, reason = "the fake device registers nothing")]
            // SAFETY: nothing is registered.
            let umem = unsafe { context.umem_reg(memory.as_ptr() as u64, 4096, flags, pages) };
            (umem.map(|umem| umem.page_limit()), std::mem::take(&mut *sent.lock().unwrap()))
        };
        let (limit, sent) = register(relaxed, PageSizes::Bitmap(0x1000));
        assert_eq!(limit.unwrap(), 1 << 16);
        assert_eq!(sent.len(), if refuses_relaxed { 4 } else { 3 });
        assert!(context.umems_lack_small_pages());
        assert_eq!(context.umems_lack_relaxed_ordering(), refuses_relaxed);
        let (limit, sent) = register(access::LOCAL_WRITE, PageSizes::Bitmap(0x1000));
        assert_eq!(limit.unwrap(), 1 << 16);
        assert_eq!(
            sent,
            [(access::LOCAL_WRITE.into(), 1 << 16)],
            "the context knows by now that small pages are refused"
        );
        let (limit, sent) = register(access::LOCAL_WRITE, PageSizes::Bitmap(0x1_1000));
        assert_eq!((limit.unwrap(), sent.len()), (1 << 16, 1), "a size that the kernel has");
    }
}

#[test]
fn uar_must_be_one_page_of_the_kernel() {
    use verbless_devx::abi::attr::uar_obj_alloc::{MMAP_LENGTH, MMAP_OFFSET, PAGE_ID};
    for (length, offset) in [(0x1000_u32, 0x10_0000_u64), (1 << 16, 0x10_1000)] {
        let fake = Fake::with_pages(1 << 16, move |method, call| {
            (method == method::UAR_OBJ_ALLOC).then_some(())?;
            call.fill(MMAP_LENGTH, &length.to_ne_bytes());
            call.fill(MMAP_OFFSET, &offset.to_ne_bytes());
            call.fill(PAGE_ID, &16_u32.to_ne_bytes());
            Some(Ok(()))
        });
        let context = Context::from_device(fake, info()).unwrap();
        let error = context.uar_alloc(UarKind::NonCached).unwrap_err();
        assert!(error.to_string().contains("pages of 0x10000"), "{error}");
    }
}

#[test]
fn umem_reg_does_without_what_linux_5_10_lacks() {
    use verbless_devx::abi::attr::devx_umem_reg::{ACCESS, DMABUF_FD, PGSZ_BITMAP};
    let context = context(|method, call| {
        (method == method::DEVX_UMEM_REG).then_some(())?;
        if call.has(PGSZ_BITMAP) || call.has(DMABUF_FD) {
            return Some(Err(Errno::EPROTONOSUPPORT));
        }
        let relaxed = call.data(ACCESS) & u64::from(access::RELAXED_ORDERING) != 0;
        relaxed.then_some(Err(Errno::EINVAL))
    });
    let memory = vec![0u8; 4096];
    let register = || {
        let flags = access::LOCAL_WRITE | access::RELAXED_ORDERING;
        #[allow(unsafe_code, reason = "the fake device registers nothing")]
        // SAFETY: nothing is registered.
        unsafe {
            context.umem_reg(memory.as_ptr() as u64, 4096, flags, PageSizes::Bitmap(0x1000))
        }
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    let dmabuf = || {
        let (flags, pages) = (access::LOCAL_WRITE, PageSizes::Bitmap(0x1000));
        context.umem_reg_dmabuf(file.as_fd(), 0, 4096, flags, pages).unwrap_err()
    };
    assert_eq!(dmabuf().kind(), ErrorKind::NotSupported);
    assert!(!context.pages_follow_address(), "nothing was registered without the bitmap");
    register().unwrap();
    assert!(context.pages_follow_address() && context.umems_lack_relaxed_ordering());
    register().unwrap();
    let error = dmabuf();
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    assert!(error.hint().contains("Linux 6.1"), "{error}");
}
