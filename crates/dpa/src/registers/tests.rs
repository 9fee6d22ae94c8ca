//! Loads and stores of a program to registers.

use std::sync::Arc;

use verbless_riscv::{AddressSpace, PAGE, Ram, Transfer};

use super::outbox::{
    BUFFER, BUSY, CC_DB, CC_DB_MSB, CQ_DB, EMU_CAP, EMU_CAP_TRIGGER, EQ_DB_NO_REARM, EQ_DB_REARM,
    ERROR, RXC_RD, RXT_DB, SW_RESERVE, SXD_DB, UCTL,
};
use super::{AccessResult, DeviceRequest, Doorbell, Outbox, Queues, Window, errno};
use crate::context::{OUTBOXES, WINDOW_CONFIGS, WINDOWS};
use crate::process::{Process, ProcessState};

const UAR_PAGE: u32 = 0x77;
const OUTBOX: u64 = OUTBOXES + 3 * PAGE;

/// A process with outbox 3 and window 5, and nothing else.
fn process() -> Process {
    Process {
        serial: 1,
        space: Arc::new(AddressSpace::new([]).unwrap()),
        contexts: Ram::new(PAGE),
        bytes: 0,
        watchdog: 1,
        outboxes: [(3, Outbox::new(UAR_PAGE))].into(),
        windows: [(5, Window { pd: 9, mkey: 0x1200 })].into(),
        slots: Vec::new(),
        state: ProcessState::default(),
        had_thread: false,
        error_handler: None,
        ending: None,
        stopped: Default::default(),
    }
}

/// The outcome of an access, in a comparable form.
#[derive(Debug, PartialEq)]
enum Outcome {
    Value(u64),
    Errno(u32),
    Request(DeviceRequest),
    Fault,
}

fn transfer(process: &mut Process, address: u64, size: u64, store: Option<u64>) -> Outcome {
    match process.transfer(&Transfer { address, size, store }) {
        AccessResult::Done(value) => Outcome::Value(value),
        AccessResult::Errno(errno) => Outcome::Errno(errno),
        AccessResult::Device(request) => Outcome::Request(request),
        AccessResult::NoRegister => Outcome::Fault,
    }
}

fn load(process: &mut Process, address: u64, size: u64) -> Outcome {
    transfer(process, address, size, None)
}

fn store(process: &mut Process, address: u64, size: u64, value: u64) -> Outcome {
    transfer(process, address, size, Some(value))
}

fn ring(doorbell: Doorbell) -> Outcome {
    ring_for(Queues::Page(UAR_PAGE), doorbell)
}

fn ring_for(queues: Queues, doorbell: Doorbell) -> Outcome {
    Outcome::Request(DeviceRequest::Ring { outbox: Some(3), queues, doorbell })
}

#[test]
fn window_address_resolves_to_its_mkey() {
    let mut process = process();
    let at = |window: u64, address: u64| WINDOWS | window << 48 | address;
    let reach = |mkey, address, size, store| {
        Outcome::Request(DeviceRequest::RemoteMemory {
            window: 5,
            pd: 9,
            mkey,
            address,
            size,
            store,
        })
    };
    let far = 0xffff_ffff_fff8;
    assert_eq!(load(&mut process, at(5, far), 8), reach(0x1200, far, 8, None));
    assert_eq!(store(&mut process, at(5, 0), 2, 0xab), reach(0x1200, 0, 2, Some(0xab)));
    for window in [0, 4, 6, 255] {
        assert_eq!(load(&mut process, at(window, far), 8), Outcome::Fault, "window {window}");
    }
}

#[test]
fn window_config_is_a_32_bit_mkey_register() {
    let mut process = process();
    let config = WINDOW_CONFIGS + 5 * 64;
    assert_eq!(load(&mut process, config, 4), Outcome::Value(0x1200));
    assert_eq!(store(&mut process, config, 4, 0x3400), Outcome::Value(0));
    assert_eq!(load(&mut process, config, 4), Outcome::Value(0x3400));
    let through = load(&mut process, WINDOWS | 5 << 48, 1);
    assert!(
        matches!(through, Outcome::Request(DeviceRequest::RemoteMemory { mkey: 0x3400, .. })),
        "{through:?}"
    );
    for (address, size) in [(config, 8), (config, 2), (config + 4, 4), (config + 64, 4)] {
        assert_eq!(load(&mut process, address, size), Outcome::Fault, "{size} at {address:#x}");
        assert_eq!(store(&mut process, address, size, 1), Outcome::Fault);
    }
    assert_eq!(process.windows[&5].mkey, 0x3400);
}

#[test]
fn doorbell_fields_decode_from_one_store() {
    const VALUE: u64 = 0xfedc_ba98_7654_3210;
    let doorbells = [
        (CQ_DB, Doorbell::ArmCq { cqn: 0x54_3210, consumer: 0xdc_ba98 }),
        (SXD_DB, Doorbell::Send { number: 0xdc_ba98, index: 0x3210 }),
        (RXT_DB, Doorbell::Trigger { cqn: 0x54_3210 }),
        (EQ_DB_REARM, Doorbell::UpdateEq { eqn: 0x54_3210, consumer: 0x2dc_ba98, arm: true }),
        (EQ_DB_NO_REARM, Doorbell::UpdateEq { eqn: 0x54_3210, consumer: 0x2dc_ba98, arm: false }),
        (EMU_CAP, Doorbell::Emulated { cqn: 0x54_3210, number: 0x2dc_ba98, arm: true }),
        (EMU_CAP_TRIGGER, Doorbell::Emulated { cqn: 0x54_3210, number: 0x2dc_ba98, arm: false }),
        (RXC_RD, Doorbell::ReadEmulated { number: 0x195_0c84 }),
        (CC_DB, Doorbell::Other(CC_DB)),
        (CC_DB_MSB, Doorbell::Other(CC_DB_MSB)),
    ];
    for (register, doorbell) in doorbells {
        let mut process = process();
        assert_eq!(store(&mut process, OUTBOX + register, 8, VALUE), ring(doorbell));
        assert_eq!(
            store(&mut process, OUTBOX + register, 4, VALUE),
            Outcome::Fault,
            "{register:#x}"
        );
        assert_eq!(load(&mut process, OUTBOX + register, 8), Outcome::Fault, "{register:#x}");
    }
}

#[test]
fn doorbell_on_busy_outbox_is_lost_and_sets_error() {
    let mut process = process();
    let (uctl, doorbell) = (OUTBOX + UCTL, OUTBOX + RXT_DB);
    let rung = || ring(Doorbell::Trigger { cqn: 1 });
    assert_eq!(load(&mut process, uctl, 8), Outcome::Value(0));
    assert_eq!(store(&mut process, doorbell, 8, 1), rung());
    assert_eq!(store(&mut process, doorbell, 8, 1), Outcome::Errno(errno::BUSY));
    assert_eq!(load(&mut process, uctl, 4), Outcome::Value(BUSY | ERROR));
    assert_eq!(
        load(&mut process, uctl, 4),
        Outcome::Value(ERROR),
        "the error stays until the next doorbell"
    );
    assert_eq!(store(&mut process, doorbell, 8, 1), rung());
    assert_eq!(load(&mut process, uctl, 8), Outcome::Value(BUSY));
    assert_eq!(load(&mut process, uctl, 8), Outcome::Value(0));
}

#[test]
fn outbox_has_software_word_and_read_buffer() {
    let mut process = process();
    let (software_word, buffer) = (OUTBOX + SW_RESERVE, OUTBOX + BUFFER);
    assert_eq!(store(&mut process, software_word, 8, 0x1234_5678_9abc_def0), Outcome::Value(0));
    assert_eq!(load(&mut process, software_word, 8), Outcome::Value(0x1234_5678_9abc_def0));
    assert_eq!(load(&mut process, software_word, 4), Outcome::Fault);
    process.outboxes.get_mut(&3).unwrap().set_buffer(0x99);
    assert_eq!(load(&mut process, buffer, 4), Outcome::Value(0x99));
    assert_eq!(load(&mut process, buffer, 8), Outcome::Value(0x99));
    assert_eq!(load(&mut process, buffer, 2), Outcome::Fault);
    assert_eq!(store(&mut process, buffer, 8, 1), Outcome::Fault);
    assert_eq!(store(&mut process, OUTBOX + UCTL, 8, 1), Outcome::Fault);
    for of_others in [OUTBOX - PAGE, OUTBOX + PAGE] {
        assert_eq!(load(&mut process, of_others + UCTL, 8), Outcome::Fault);
    }
}

#[test]
fn pending_request_needs_unchanged_outbox_and_window() {
    let mut process = process();
    let doorbell = Doorbell::Other(0);
    let ring_page = |uar_page| DeviceRequest::Ring {
        outbox: Some(3),
        queues: Queues::Page(uar_page),
        doorbell,
    };
    let reach = |window, pd| DeviceRequest::RemoteMemory {
        window,
        pd,
        mkey: 0,
        address: 0,
        size: 1,
        store: None,
    };
    assert!(process.has(&ring_page(UAR_PAGE)) && !process.has(&ring_page(UAR_PAGE + 1)));
    assert!(process.has(&reach(5, 9)) && !process.has(&reach(5, 8)) && !process.has(&reach(6, 9)));
    let extension = Queues::Extension { device_id: 7, process: 1 };
    process.outboxes.get_mut(&3).unwrap().extend(1, Some(7));
    assert!(!process.has(&ring_page(UAR_PAGE)), "the outbox rings for the extension");
    assert!(process.has(&DeviceRequest::Ring { outbox: Some(3), queues: extension, doorbell }));
    process.outboxes.clear();
    assert!(!process.has(&ring_page(UAR_PAGE)));
    assert!(
        process.has(&DeviceRequest::Ring { outbox: None, queues: extension, doorbell }),
        "by a call"
    );
}

#[test]
fn outbox_can_switch_to_extended_uar_and_back() {
    let mut process = process();
    let trigger = Doorbell::Trigger { cqn: 5 };
    let mut rings = |device_id| {
        process.outboxes.get_mut(&3).unwrap().extend(1, device_id);
        let outcome = store(&mut process, OUTBOX + RXT_DB, 8, 5);
        assert_eq!(load(&mut process, OUTBOX + UCTL, 8), Outcome::Value(BUSY));
        outcome
    };
    let extension = Queues::Extension { device_id: 0x1_0002, process: 1 };
    assert_eq!(rings(Some(0x1_0002)), ring_for(extension, trigger));
    assert_eq!(rings(None), ring(trigger));
}
