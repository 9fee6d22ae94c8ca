//! The parts of a context, and each word of the response that describes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{HcaCap, Opcode, PortType, TimestampFormatCap};

use super::super::clock::ClockPage;
use super::support::{Device, Fixture, Request};

fn word(response: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*response[at..].first_chunk().expect("four bytes"))
}

/// The response for a context of a device with these capabilities; its Ethernet page begins with
/// `inline`, its RoCE page with `roce`.
fn response(change: impl Fn(&mut HcaCap), inline: u8, roce: u8) -> [u8; 72] {
    let mut device = Device::with(Device::new().caps, false);
    change(&mut device.caps);
    let mut page = [0; 0x50];
    page[0x12] = inline << 4;
    device.answer(Opcode::QUERY_HCA_CAP, 1 << 1 | 1, &page);
    let mut page = [0; 0x50];
    page[0x13] = roce;
    device.answer(Opcode::QUERY_HCA_CAP, 4 << 1 | 1, &page);
    device.answer(Opcode::QUERY_SPECIAL_CONTEXTS, 0, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    let fixture = Fixture::without_context(Arc::new(device));
    fixture.get_context(1).expect("a context")
}

#[test]
fn alloc_ucontext_reports_device_sizes() {
    let reply = response(
        |caps| {
            caps.set_log_max_qp(18).set_log_bf_reg_size(9).set_max_wqe_sz_sq(0x240);
            caps.set_max_wqe_sz_rq(0x180).set_log_max_qp_sz(15).set_log_max_srq_sz(14);
            caps.set_num_ports(2).set_uar_4k(true).set_num_of_uars_per_page(3);
        },
        0,
        0,
    );
    let words: Vec<u32> = (0..10).map(|at| word(&reply, 4 * at)).collect();
    let (send, receive) = (0x240, 0x180 << 16);
    assert_eq!(
        words,
        [1 << 18, 1 << 9, 0, 64, send | receive, 1 << 15, 1 << 15, 1 << 14, 2, 1 << 5]
    );
    assert_eq!((word(&reply, 40), word(&reply, 56), word(&reply, 60)), (72, 12, 3));
    let reply = response(|caps| _ = caps.set_num_of_uars_per_page(3), 0, 0);
    assert_eq!(word(&reply, 60), 1, "the device has no UAR pages of 4 KiB");
    let reply = response(|caps| _ = caps.set_log_bf_reg_size(9).set_bf(false), 0, 0);
    assert_eq!(word(&reply, 4), 0, "bytes of a BlueFlame register");
}

#[test]
fn alloc_ucontext_reports_0_for_sizes_beyond_its_words() {
    let reply = response(|caps| _ = caps.set_log_max_qp_sz(255).set_log_max_srq_sz(32), 0, 0);
    assert_eq!([20, 24, 28].map(|at| word(&reply, at)), [0; 3]);
}

#[test]
fn get_context_of_dead_device_is_eagain() {
    let fixture = Fixture::without_context(Arc::new(Device::with(Device::new().caps, false)));
    fixture.device.alive.store(false, Ordering::Relaxed);
    for flags in [0, 1, 0x80] {
        assert_eq!(fixture.get_context(flags).map(drop), Err(Errno::EAGAIN), "flags {flags:#x}");
    }
    fixture.device.removed.store(true, Ordering::Relaxed);
    assert_eq!(fixture.get_context(1).map(drop), Err(Errno::EIO));
    // An open file keeps its context.
    let fixture = Fixture::new();
    fixture.device.alive.store(false, Ordering::Relaxed);
    assert_eq!(fixture.get_context(1).map(drop), Err(Errno::EINVAL));
}

#[test]
fn alloc_ucontext_reports_feature_bits() {
    let offered = |change: fn(&mut HcaCap)| word(&response(change, 0, 0), 36) & !(1 << 5);
    assert_eq!(offered(|_| ()), 0);
    assert_eq!(offered(|caps| _ = caps.set_dump_fill_mkey(true)), 1 << 1);
    assert_eq!(offered(|caps| _ = caps.set_ece_support(true)), 1 << 2);
    assert_eq!(offered(|caps| _ = caps.set_drain_sigerr(true)), 1 << 3);
    assert_eq!(word(&response(|caps| _ = caps.set_dump_fill_mkey(true), 0, 0), 68), 0x1234);
    assert_eq!(word(&response(|_| (), 0, 0), 68), 0);
}

#[test]
fn real_time_needs_every_queue_type_to_support_it() {
    for (sq, rq, qp) in (0..27).map(|it| (it / 9, it / 3 % 3, it % 3)) {
        let reply = response(
            |caps| {
                caps.set_roce(true).set_sq_ts_format(TimestampFormatCap(sq));
                caps.set_rq_ts_format(TimestampFormatCap(rq));
            },
            0,
            qp,
        );
        let all = [sq, rq, qp].iter().all(|&format| format != 0);
        assert_eq!(word(&reply, 36) >> 4 & 1 == 1, all, "SQ {sq}, RQ {rq}, QP {qp}");
    }
}

#[test]
fn min_inline_mode_is_reported_on_ethernet() {
    for (port, mode, least) in
        [(PortType::INFINIBAND, 0, 0), (PortType::ETHERNET, 0, 2), (PortType::ETHERNET, 2, 1)]
    {
        let reply = response(|caps| _ = caps.set_port_type(port), mode, 0);
        assert_eq!(reply[46], least, "{port:?}, mode {mode}");
    }
}

/// Opens a context with `count` registers, `low_latency` of them low-latency; returns how many it
/// got.
fn registers(count: u32, low_latency: u32, v2: bool) -> Result<u32, Errno> {
    let fixture = Fixture::without_context(Device::new());
    let mut request = [0; 16];
    request[..4].copy_from_slice(&count.to_ne_bytes());
    request[4..8].copy_from_slice(&low_latency.to_ne_bytes());
    let mut response = [0; 72];
    let request = if v2 { &request[..] } else { &request[..8] };
    let got = Request::new(0, 3)
        .input(0x1000, request)
        .output(0x1001, &mut response)
        .send(&fixture.file)
        .map(|()| word(&response, 8));
    let pages = got.map_or(0, |registers| registers as usize / 2);
    assert_eq!(fixture.device.count(Opcode::ALLOC_UAR.0), 1 + pages, "one is the kernel's");
    assert_eq!(fixture.close(), 0);
    got
}

#[test]
fn registers_come_by_pages_of_two_up_to_512() {
    for (count, low_latency, expected) in [
        (0, 0, Err(Errno::EINVAL)),
        (1, 1, Ok(2)),
        (1, 2, Err(Errno::EINVAL)),
        (2, 0, Ok(2)),
        (3, 3, Ok(4)),
        (4, 4, Err(Errno::EINVAL)),
        (511, 0, Ok(512)),
        (512, 0, Ok(512)),
        (513, 0, Err(Errno::ENOMEM)),
        (u32::MAX, 0, Err(Errno::EINVAL)),
    ] {
        for v2 in [false, true] {
            assert_eq!(registers(count, low_latency, v2), expected, "{count}, {low_latency}");
        }
    }
}

#[test]
fn query_context_repeats_alloc_response() {
    let fixture = Fixture::without_context(Device::new());
    let query = |room: usize| {
        let (mut reply, mut vectors, mut core) = (vec![0xff; room], [0; 4], [0; 8]);
        Request::new(0, 4)
            .output(0, &mut vectors)
            .output(1, &mut core)
            .output(0x1000, &mut reply)
            .send(&fixture.file)
            .map(|()| (reply, u32::from_ne_bytes(vectors), u64::from_ne_bytes(core)))
    };
    assert_eq!(query(72), Err(Errno::EINVAL), "the file has no context yet");
    let made = fixture.get_context(1).expect("a context");
    assert_eq!(query(72), Ok((made.to_vec(), 2, 1)));
    let (longer, ..) = query(80).expect("the context");
    assert_eq!((&longer[..72], &longer[72..]), (&made[..], &[0; 8][..]));
    assert_eq!(query(71), Err(Errno::EINVAL));
}

#[test]
fn clock_page_is_refreshed_while_mapped() {
    let mut device = Device::with(Device::new().caps, false);
    device.caps.set_device_frequency_khz(156_250);
    let fixture = Fixture::without_context(Arc::new(device));
    let kernel = &fixture.file.kernel;
    assert!(!kernel.clock.refresh(kernel) && !kernel.clock.has_updater(), "no client has one");
    let page = Arc::new(ClockPage::alone(Default::default()).expect("a page"));
    let cycles = || {
        let mut bytes = [0; 8];
        nix::sys::uio::pread(page.file(), &mut bytes, 16).expect("the page");
        u64::from_ne_bytes(bytes)
    };
    kernel.clock.add_page(kernel, &page).expect("the device has a clock");
    assert!(kernel.clock.has_updater());
    assert_eq!(cycles(), 7_000);
    fixture.device.cycles.store(7_001, Ordering::Relaxed);
    assert!(kernel.clock.refresh(kernel) && kernel.clock.has_updater());
    assert!(kernel.clock.has_time());
    assert_eq!(cycles(), 7_001);
    drop(page);
    assert!(!kernel.clock.refresh(kernel) && !kernel.clock.has_updater());
    assert!(!kernel.clock.has_time(), "wraps of the counter would be lost");
}
