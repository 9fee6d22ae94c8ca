//! The interface for programs and front ends: the model's steps and clock, and a device from
//! outside.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbless_model::memory::{GuestMemory, HostMemory, Interrupts};
use verbless_model::{Link, Model, Profile, QueueKind, Side};
use verbless_prm::{
    AllocPdIn, AllocUarIn, CommandInput, CommandStatus, CreateEqIn, CreateMkeyIn, CreateUctxIn,
    EnableHcaIn, InitHcaIn, ManagePagesIn, MkeyAccessMode, MkeyContext, QueryIssiIn, QueryMkeyIn,
    QueryPagesIn, Structure, TeardownHcaIn,
};
use verbless_wire::{EtherType, Mac, Malformed};

fn model(link: Link) -> Model {
    let profile = Profile::load("connectx6dx").unwrap().with_link(link);
    Model::builder().device(profile).stepped().build()
}

/// Executes a command on the first device; returns its status.
fn send<I: CommandInput>(model: &Model) -> u8 {
    let mut input = I::default().as_bytes().to_vec();
    input[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
    let mut output = vec![0; 0x100];
    model.device(0).execute(&input, &mut output);
    output[0]
}

#[test]
fn stepped_model_clock_moves_only_by_advance() {
    let model = model(Link::Infiniband);
    assert!(!model.step());
    model.run_until_idle();
    let device = model.device(0);
    let before = (device.now(), device.timer());
    assert_eq!((device.now(), device.timer()), before);
    model.advance(Duration::from_millis(7));
    assert_eq!(device.now() - before.0, 7_000_000);
    assert!(device.timer() > before.1);
}

#[test]
fn auto_advance_ends_without_running_timer() {
    let profile = Profile::load("connectx6dx").unwrap();
    let model = Model::builder().device(profile).stepped().auto_advance().build();
    assert!(!model.step(), "no timer runs");
    model.run_until_idle();
}

#[test]
fn fail_queue_returns_false_for_missing_queue() {
    let model = model(Link::Infiniband);
    for kind in [QueueKind::Qp, QueueKind::Cq] {
        assert!(!model.fail_queue(0, kind, 0x77), "{kind:?}");
    }
}

#[test]
fn reset_revives_a_device_and_disable_does_not() {
    let model = model(Link::Infiniband);
    let device = model.device(0);
    assert_eq!(send::<InitHcaIn>(&model), CommandStatus::BAD_SYS_STATE.0);
    assert_eq!(send::<EnableHcaIn>(&model), 0);
    device.disable();
    assert_ne!(send::<TeardownHcaIn>(&model), 0, "the function is not up");
    assert_eq!(send::<EnableHcaIn>(&model), 0, "the function was disabled");
    device.reset();
    assert_eq!(send::<EnableHcaIn>(&model), 0, "the function was reset");
    model.kill(0);
    assert!(!device.is_alive());
    device.disable();
    assert!(!device.is_alive(), "the device stays dead");
    device.reset();
    assert!(device.is_alive());
    model.remove(0);
    device.reset();
    assert!(!device.is_alive() && device.is_removed(), "the device was removed");
    assert_ne!(send::<QueryIssiIn>(&model), 0);
    assert_ne!(send::<CreateUctxIn>(&model), 0);
}

#[test]
fn driver_is_notified_of_reset() {
    #[derive(Default)]
    struct Driver(AtomicU32);
    impl Interrupts for Driver {
        fn raise(&self, _: u32) {}
        fn fatal(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let model = model(Link::Infiniband);
    let (device, driver) = (model.device(0), Arc::new(Driver::default()));
    device.set_interrupts(Some(driver.clone()));
    let resets = || (driver.0.load(Ordering::Relaxed), device.resets());
    device.disable();
    assert_eq!(resets(), (0, 0));
    device.reset();
    assert_eq!(resets(), (1, 1));
    model.kill(0);
    assert_eq!(resets(), (2, 1));
    device.reset();
    assert_eq!(resets(), (3, 2));
}

#[test]
fn device_reports_its_table_sizes() {
    let infiniband = model(Link::Infiniband).device(0);
    let ethernet = model(Link::Ethernet).device(0);
    let caps = infiniband.capabilities();
    assert_eq!(infiniband.gid_table_length(), 8 << caps.gid_table_size().0);
    assert_eq!(infiniband.pkey_table_length(), 128 << caps.pkey_table_size().0);
    assert_eq!(ethernet.gid_table_length() as usize, ethernet.roce_addresses().len());
    assert!(infiniband.uars().pages() > 1);
    assert!(!infiniband.takes_event(9), "there is no event queue");
}

#[test]
fn capture_begins_with_pcapng_section_header() {
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let model = model(Link::Ethernet);
    let sink = Sink::default();
    let capture = model.capture(sink.clone()).unwrap();
    assert!(format!("{capture:?}").contains("Watch"));
    assert_eq!(sink.0.lock().unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section of pcapng");
}

#[test]
fn devices_have_their_sides_and_names() {
    let card = || Profile::load("bluefield3").unwrap();
    let model = Model::builder().device_with_sides(card()).device(card()).identity(7).build();
    assert_eq!(model.devices(), 3);
    assert_eq!([0, 1].map(|device| model.side(device)), [Side::Host, Side::Dpu]);
    let other = Model::builder().device(card()).identity(8).build();
    assert_ne!(model.device(0).node_guid(), other.device(0).node_guid());
    assert_ne!(model.device(0).node_guid(), model.device(2).node_guid());
    let held = model.pause();
    drop(held);
    assert_eq!(model.all_devices().len(), 3);
}

#[test]
fn addresses_and_malformed_packets_have_messages() {
    assert_eq!(Mac([2, 0, 0xab, 0, 0, 0x1f]).to_string(), "02:00:ab:00:00:1f");
    assert_eq!(EtherType::default(), EtherType(0));
    for (malformed, expected) in [
        (Malformed::Options, "the IPv4 header has options"),
        (Malformed::Fragment, "the IPv4 packet is a fragment"),
        (Malformed::HeaderChecksum, "the checksum of the IPv4 header is wrong"),
        (Malformed::UdpChecksum, "the checksum of the UDP datagram is wrong"),
    ] {
        assert_eq!(malformed.to_string(), expected);
    }
    let fault = verbless_model::memory::Fault { address: 0x1000, length: 8 };
    assert_eq!(fault.to_string(), "no memory at 0x1000, 8 bytes");
    let missing = Profile::load("/there/is/no/such.toml").unwrap_err();
    assert!(std::error::Error::source(&missing).is_some(), "{missing}");
}

/// Executes a command with a list after it on the first device; it must succeed.
fn execute_ok<I: CommandInput>(
    model: &Model,
    op_mod: u16,
    list: &[u8],
    edit: impl FnOnce(&mut I),
) -> I::Output {
    let mut input = I::default();
    edit(&mut input);
    let mut bytes = [input.as_bytes(), list].concat();
    bytes[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
    bytes[6..8].copy_from_slice(&op_mod.to_be_bytes());
    let mut output = vec![0; 0x400];
    model.device(0).execute(&bytes, &mut output);
    let name = <I as CommandInput>::INFO.name;
    assert_eq!(output[0], 0, "{name}: {:02x?}", &output[..8]);
    <I::Output as Structure>::read(&output).expect("whole")
}

/// Brings the first device up, as a driver does.
fn bring_up(model: &Model) {
    execute_ok::<EnableHcaIn>(model, 0, &[], |_| {});
    let mut given = 0_u64;
    for kind in [QueryPagesIn::BOOT_PAGES, QueryPagesIn::INIT_PAGES] {
        let count = execute_ok::<QueryPagesIn>(model, kind, &[], |_| {}).num_pages();
        let pages = (1..=u64::from(count)).flat_map(|page| ((given + page) << 12).to_be_bytes());
        let list: Vec<u8> = pages.collect();
        given += u64::from(count);
        let give = ManagePagesIn::ALLOCATION_SUCCESS;
        execute_ok::<ManagePagesIn>(model, give, &list, |it| _ = it.set_input_num_entries(count));
    }
    execute_ok::<InitHcaIn>(model, 0, &[], |_| {});
}

#[test]
fn event_reaches_subscribed_eq_armed_by_trapped_store() {
    const PORT_STATE_CHANGE: u8 = 9;
    #[derive(Default)]
    struct Vectors(Mutex<Vec<u32>>);
    impl Interrupts for Vectors {
        fn raise(&self, vector: u32) {
            self.0.lock().unwrap().push(vector);
        }
    }
    let model = model(Link::Ethernet);
    bring_up(&model);
    let (device, vectors) = (model.device(0), Arc::new(Vectors::default()));
    device.set_interrupts(Some(vectors.clone()));
    let uar = execute_ok::<AllocUarIn>(&model, 0, &[], |_| {}).uar();
    let room = vec![0_u8; 2 << 12];
    let ring = (room.as_ptr() as usize).next_multiple_of(1 << 12);
    let made = execute_ok::<CreateEqIn>(&model, 0, &(ring as u64).to_be_bytes(), |input| {
        input.eq_context_entry_mut().set_log_eq_size(4).set_uar_page(uar).set_intr(3);
        input.set_event_bitmask(0, 1 << PORT_STATE_CHANGE);
    });
    assert!(device.takes_event(PORT_STATE_CHANGE) && !device.takes_event(PORT_STATE_CHANGE - 1));
    device.report_event(PORT_STATE_CHANGE - 1, [1; 28]);
    device.report_event(PORT_STATE_CHANGE, [7; 28]);
    let mut entry = [0; 64];
    device.memory().read(ring as u64, &mut entry).unwrap();
    assert_eq!((entry[1], &entry[0x20..0x3c]), (PORT_STATE_CHANGE, &[7; 28][..]));
    assert!(vectors.0.lock().unwrap().is_empty(), "the EQ is not armed");
    let arm = u32::from(made.eq_number()) << 24;
    device.trapped_write(u64::from(uar) << 12 | 0x40, &arm.to_be_bytes());
    assert_eq!(*vectors.0.lock().unwrap(), [3]);
}

/// An unlinked file of `count` pages; each page holds its number.
fn pages(name: &str, count: u8) -> std::fs::File {
    let name = format!("verbless-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::File::options();
    let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (0..count).for_each(|page| file.write_all(&[page; 0x1000]).unwrap());
    file
}

#[test]
fn devices_do_dma_in_their_own_memories() {
    let card = || Profile::load("bluefield3").unwrap();
    let file = pages("memories", 5);
    let [all, first, second, host, dpu] = [0, 1, 2, 3, 4].map(|page| {
        let memory = GuestMemory::default();
        memory.map(0x1000, 0x1000, &file, page << 12, true).unwrap();
        Arc::new(memory) as Arc<dyn HostMemory>
    });
    let builder = Model::builder().device(card()).device_in(card(), [first, second]);
    let builder = builder.device_with_sides_in(card(), [host, dpu]).memory(all);
    let model = builder.stepped().build();
    let found = model.all_devices().into_iter().map(|device| {
        let mut byte = [0xff];
        device.memory().read(0x1000, &mut byte).unwrap();
        byte[0]
    });
    assert_eq!(found.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!([3, 4].map(|device| model.side(device)), [Side::Host, Side::Dpu]);
    let numbers: Vec<_> = model.all_devices().iter().map(|it| it.node_guid()).collect();
    assert!((1..5).all(|device| !numbers[..device].contains(&numbers[device])));
}

#[test]
fn unmap_takes_whole_ranges_of_guest_memory() {
    let file = pages("guest", 4);
    let guest = Arc::new(GuestMemory::default());
    for (address, length) in [(0x1_0000, 0x2000), (0x1_2000, 0x1000), (0x2_0000, 0x1000)] {
        guest.map(address, length, &file, 0, true).unwrap();
    }
    let there =
        || [0x1_0000, 0x1_2000, 0x2_0000].map(|address| guest.read(address, &mut [0; 8]).is_ok());
    let profile = Profile::load("connectx6dx").unwrap();
    let model = Model::builder().device(profile).memory(guest.clone()).stepped().build();
    let device = model.device(0);
    device.set_bus_master(&guest, false);
    assert_eq!(there(), [false; 3]);
    device.set_bus_master(&guest, true);
    assert_eq!(there(), [true; 3]);
    for part in [(0x1_0000, 0x1fff), (0x1_0001, 0x1fff), (0x1_3000, u64::MAX), (0, 0x1_1000)] {
        device.unmap(&guest, part.0, part.1.min(0xd000));
        assert_eq!(there(), [true; 3], "{part:#x?} holds no whole range");
    }
    device.unmap(&guest, 0x1_0000, 0x2000);
    assert_eq!(there(), [false, true, true]);
    device.unmap(&guest, 0x1_1000, u64::MAX);
    assert_eq!(there(), [false; 3]);
}

#[test]
fn reconfigure_key_needs_umr_en() {
    let model = model(Link::Ethernet);
    bring_up(&model);
    let [pd, other] = [(); 2].map(|()| execute_ok::<AllocPdIn>(&model, 0, &[], |_| {}).pd());
    let key = |umr: bool| {
        let made = execute_ok::<CreateMkeyIn>(&model, 0, &[], |input| {
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(MkeyAccessMode::PA.0).set_pd(pd).set_qpn(0xff_ffff);
            context.set_length64(true).set_lr(true).set_umr_en(umr);
        });
        made.mkey_index()
    };
    let (open, fixed) = (key(true), key(false));
    let mut change = MkeyContext::zeroed();
    change.set_pd(other).set_lr(true).set_lw(true);
    let device = model.device(0);
    assert!(device.reconfigure_key(open, &change));
    assert!(!device.reconfigure_key(fixed, &change) && !device.reconfigure_key(0xff_ff00, &change));
    for (key, expected) in [(open, (other, true)), (fixed, (pd, false))] {
        let output = execute_ok::<QueryMkeyIn>(&model, 0, &[], |it| _ = it.set_mkey_index(key));
        let context = output.memory_key_mkey_entry();
        assert_eq!((context.pd(), context.lw()), expected);
    }
}
