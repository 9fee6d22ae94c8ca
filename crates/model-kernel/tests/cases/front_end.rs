//! The whole stack: verbless-devx on a model in the same process; closing it leaves no object.
#![allow(unsafe_code)] // registering memory is a promise that the caller makes

use std::time::Duration;

use verbless_devx::abi::core::{AhAttributes, event_type};
use verbless_devx::{AsyncEvent, Backend, Context, ErrorKind, LinkLayer, PageSizes, UarKind};
use verbless_model::{Link, Model, ObjectCounts, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{
    CreateCqIn, CreateCqOut, ModifyCqIn, ModifyCqOut, QueryAdapterIn, QueryAdapterOut, QueryCqIn,
    QueryCqOut,
};

fn model(link: Link) -> Model {
    let profile = Profile::load("connectx6dx").expect("the profile is built in").with_link(link);
    Model::builder().device(profile.clone()).device(profile).stepped().build()
}

fn open(model: &Model, device: usize) -> Context {
    let backend = InProcess::of(model);
    let devices = backend.enumerate().expect("the model has devices");
    Context::open(&backend, &devices[device]).expect("the device opens")
}

#[test]
fn destroyed_objects_of_every_kind_leave_no_counts() {
    for link in [Link::Infiniband, Link::Ethernet] {
        let model = model(link);
        let context = open(&model, 0);
        let pd = context.alloc_pd().expect("a PD");
        assert_ne!(pd.pdn(), 0);
        let uar = context.uar_alloc(UarKind::BlueFlame).expect("a UAR page");
        assert_eq!(uar.mapping().len(), 4096);

        let mut memory = vec![0u64; 3 * 512];
        let address = (memory.as_mut_ptr() as u64).next_multiple_of(4096);
        // SAFETY: the range lies in `memory`, which outlives the registration; no code uses it
        // meanwhile.
        let umem = unsafe { context.umem_reg(address, 8192, 1, PageSizes::Bitmap(4096)) }
            .expect("the page is mapped");

        let mut create = CreateCqIn::new();
        create.set_cq_umem_id(umem.id());
        let cq_context = create.cq_context_mut();
        cq_context.set_log_cq_size(5).set_uar_page(uar.page_id());
        cq_context.set_c_eqn_or_apu_element(context.query_eqn(0).expect("a queue"));
        cq_context.set_dbr_umem_id(umem.id()).set_dbr_addr(4096);
        let mut output = CreateCqOut::default();
        let cq = context.obj_create(create.as_bytes(), output.as_bytes_mut()).expect("a CQ");

        let mut query = QueryCqIn::new();
        query.set_cqn(output.cqn());
        let mut state = QueryCqOut::default();
        cq.query(query.as_bytes(), state.as_bytes_mut()).expect("the context");
        assert_eq!(state.cq_context().log_cq_size(), 5);
        query.set_cqn(output.cqn() + 1);
        let refused = cq.query(query.as_bytes(), state.as_bytes_mut()).expect_err("not its own");
        assert_eq!(refused.errno(), Some(nix::errno::Errno::EINVAL));

        let channel = context.event_channel(true).expect("a channel");
        channel.subscribe(Some(&cq), &[0, 4], 0xc00c1e).expect("a subscription");
        assert!(!channel.wait(Some(Duration::ZERO)).expect("the channel can be waited for"));

        let busy = umem.destroy().expect_err("a CQ lies in it");
        let umem = busy.object;
        drop(channel);
        cq.destroy().expect("the object has no users");
        umem.destroy().expect("the object has no users");
        uar.destroy().expect("the object has no users");
        pd.destroy().expect("the object has no users");
        assert_ne!(model.counts(0), ObjectCounts::default(), "the context is still open");
        drop(context);
        assert_eq!(model.counts(0), ObjectCounts::default());
    }
}

#[test]
fn resized_cq_releases_old_umem() {
    let model = model(Link::Infiniband);
    let context = open(&model, 0);
    let uar = context.uar_alloc(UarKind::BlueFlame).expect("a UAR page");
    let mut memory = vec![0u64; 4 * 512];
    let address = (memory.as_mut_ptr() as u64).next_multiple_of(4096);
    let [record, old, new] = [0, 1, 2].map(|page| {
        // SAFETY: the range lies in `memory`, which outlives the registration; no code uses it
        // meanwhile.
        unsafe { context.umem_reg(address + page * 4096, 4096, 1, PageSizes::Bitmap(4096)) }
            .expect("the page is mapped")
    });
    let mut create = CreateCqIn::new();
    create.set_cq_umem_id(old.id());
    let cq_context = create.cq_context_mut();
    cq_context.set_log_cq_size(5).set_uar_page(uar.page_id());
    cq_context.set_c_eqn_or_apu_element(context.query_eqn(0).expect("a queue"));
    cq_context.set_dbr_umem_id(record.id()).set_dbr_addr(0);
    let mut output = CreateCqOut::default();
    let cq = context.obj_create(create.as_bytes(), output.as_bytes_mut()).expect("a CQ");

    let mut resize = ModifyCqIn::new();
    resize.set_op_mod(ModifyCqIn::RESIZE).set_cqn(output.cqn()).set_modify_field_select(7);
    resize.set_cq_umem_id(new.id());
    resize.cq_context_mut().set_log_cq_size(7);
    let too_large = cq.modify(resize.as_bytes(), ModifyCqOut::default().as_bytes_mut());
    assert!(too_large.is_err(), "128 entries are two pages");
    resize.cq_context_mut().set_log_cq_size(6);
    cq.modify(resize.as_bytes(), ModifyCqOut::default().as_bytes_mut()).expect("the new size fits");

    let mut query = QueryCqIn::new();
    query.set_cqn(output.cqn());
    let mut state = QueryCqOut::default();
    cq.query(query.as_bytes(), state.as_bytes_mut()).expect("the context");
    assert_eq!((state.cq_context().log_cq_size(), state.cq_context().producer_counter()), (6, 1));
    old.destroy().expect("the CQ left it");
    let new = new.destroy().expect_err("the CQ lies in it").object;
    let record = record.destroy().expect_err("the CQ has its doorbell record in the umem").object;
    cq.destroy().expect("the object has no users");
    new.destroy().expect("the object has no users");
    record.destroy().expect("the object has no users");
    drop((uar, context));
    let page = (address as usize - memory.as_ptr() as usize) / 8;
    let op_own = memory[page + 512 + 7].to_ne_bytes()[7];
    assert_eq!(op_own, 0x50, "the old buffer ends with a CQE of opcode RESIZE_CQ");
    assert_eq!(model.counts(0), ObjectCounts::default());
}

#[test]
fn device_pages_follow_object_count() {
    let model = model(Link::Infiniband);
    let context = open(&model, 0);
    let at_first = model.pages(0);
    let pds: Vec<_> = (0..1000).map(|_| context.alloc_pd().expect("a PD")).collect();
    let at_most = model.pages(0);
    // Pages of the first batch had room for some of the objects.
    assert!(at_most + 32 >= at_first + 1000 / 8, "{at_first} pages, then {at_most}");
    drop(pds);
    assert!(model.pages(0) <= at_first + 32, "{} of {at_most} pages are left", model.pages(0));
    drop(context);
    assert_eq!(model.pages(0), 0);
}

#[test]
fn leaked_objects_are_released_with_context() {
    let model = model(Link::Ethernet);
    let context = open(&model, 0);
    let leaked = (
        context.alloc_pd().expect("a PD"),
        context.uar_alloc(UarKind::NonCached).expect("a UAR page"),
        context.event_channel(false).expect("a channel"),
        context.async_event_alloc().expect("a channel"),
    );
    drop((leaked, context));
    assert_eq!(model.counts(0), ObjectCounts::default());
}

#[test]
fn port_state_change_reaches_event_channels() {
    let model = model(Link::Ethernet);
    let context = open(&model, 0);
    let channel = context.event_channel(false).expect("a channel");
    channel.subscribe(None, &[9], 77).expect("a subscription");
    let verbs = context.async_event_alloc().expect("a channel");
    assert!(context.query_port(1).expect("the port").is_active());
    model.set_port(0, 1, false);
    model.run_until_idle();
    assert!(!context.query_port(1).expect("the port").is_active());
    let event = channel.read().expect("the channel is open").expect("an event came");
    assert_eq!((event.cookie, event.eqe.map(|eqe| eqe[1])), (77, Some(9)));
    let event = verbs.read().expect("the event file is open").expect("an event came");
    assert_eq!(event, AsyncEvent::Port { port: 1, event: event_type::PORT_ERR });
    assert_eq!(channel.read().expect("the channel is open"), None);
    for up in [true, false, true] {
        model.set_port(0, 1, up);
        model.run_until_idle();
        assert_eq!(
            channel.read().expect("the channel is open").map(|event| event.cookie),
            Some(77)
        );
    }
    assert_eq!(channel.read().expect("the channel is open"), None);
}

#[test]
fn create_ah_resolves_roce_destination_mac() {
    let model = model(Link::Ethernet);
    let (here, there) = (open(&model, 0), open(&model, 1));
    let gids = there.gid_table().expect("the table");
    assert_eq!(gids.len(), 2, "one address, for both versions of RoCE");
    assert_eq!(here.gid_table().expect("the table").len(), 2);
    assert_ne!(gids[0].gid, here.gid_table().expect("the table")[0].gid);
    assert_eq!(there.gid_entry(1, 1).expect("the entry").gid, gids[1].gid);
    let pd = here.alloc_pd().expect("a PD");
    let mut path = AhAttributes { is_global: 1, port_num: 1, ..Default::default() };
    path.grh.dgid = gids[1].gid.0;
    path.grh.sgid_index = 1;
    let ah = here.create_ah(&pd, &path).expect("the neighbour is known");
    let mac = ah.destination_mac().expect("the port is RoCE");
    assert_eq!(mac[..3], [0x02, 0x56, 0x4c]);
    path.grh.dgid[15] ^= 0xff;
    let error = here.create_ah(&pd, &path).map(drop).expect_err("no neighbour has that address");
    assert_eq!(error.errno(), Some(nix::errno::Errno::ETIMEDOUT));
}

#[test]
fn devices_are_described_before_they_are_opened() {
    for (link, layer, gids) in
        [(Link::Infiniband, LinkLayer::InfiniBand, 1), (Link::Ethernet, LinkLayer::Ethernet, 2)]
    {
        let model = model(link);
        let devices = InProcess::of(&model).enumerate().expect("the model has devices");
        assert_eq!((&*devices[0].name, &*devices[1].name), ("mlx5_0", "mlx5_1"));
        assert_ne!(devices[0].node_guid, devices[1].node_guid);
        let port = &devices[0].ports[0];
        assert_eq!((port.link_layer, port.gids.len()), (layer, gids));
        let context = open(&model, 0);
        let table: Vec<_> = context.gid_table().expect("the table").iter().map(|g| g.gid).collect();
        assert_eq!(table, port.gids.iter().map(|entry| entry.gid).collect::<Vec<_>>());
    }
    let mut stranger =
        InProcess::of(&model(Link::Ethernet)).enumerate().expect("devices")[0].clone();
    stranger.name = "mlx5_7".into();
    let error =
        InProcess::of(&model(Link::Ethernet)).open(&stranger).map(drop).expect_err("no such");
    assert_eq!(error.kind(), ErrorKind::NoDevice);
}

#[test]
fn adapter_psid_is_board_id() {
    let model = model(Link::Ethernet);
    let context = open(&model, 0);
    let mut output = QueryAdapterOut::default();
    context
        .devx_other(QueryAdapterIn::new().as_bytes(), output.as_bytes_mut())
        .expect("DevX passes it");
    let board = context.info().board_id.as_bytes();
    let psid = output.query_adapter_struct().vsd_contd_psid();
    assert_eq!(psid[..board.len()], *board);
}

#[test]
fn removed_device_ends_channels_and_is_closed() {
    let model = model(Link::Ethernet);
    let context = open(&model, 0);
    let pd = context.alloc_pd().expect("a PD");
    let channel = context.event_channel(false).expect("a channel");
    let verbs = context.async_event_alloc().expect("a channel");
    model.kill(0);
    assert_eq!(channel.read().expect("the channel stays open"), None);
    assert_eq!(verbs.read().expect("the event file is readable"), Some(AsyncEvent::DeviceFatal));
    assert!(context.alloc_pd().is_err());
    model.remove(0);
    let gone = channel.read().expect_err("the stream has ended");
    assert_eq!(gone.kind(), ErrorKind::DeviceGone);
    assert!(pd.destroy().is_ok(), "a lost object counts as destroyed");
}

#[test]
fn reset_ends_channels_and_loses_objects_of_earlier_contexts() {
    for dies_first in [false, true] {
        let model = model(Link::Ethernet);
        let earlier = open(&model, 0);
        let pd = earlier.alloc_pd().expect("a PD");
        let channel = earlier.event_channel(false).expect("a channel");
        let verbs = earlier.async_event_alloc().expect("a channel");
        if dies_first {
            model.kill(0);
        }
        model.device(0).reset();
        let gone = channel.read().expect_err("the stream has ended");
        assert_eq!(gone.kind(), ErrorKind::DeviceGone);
        assert_eq!(
            verbs.read().expect("the event file is readable"),
            Some(AsyncEvent::DeviceFatal)
        );
        assert!(earlier.alloc_pd().is_err());
        // Objects of a context from after the reset have the same numbers, and survive.
        let later = open(&model, 0);
        let kept = later.alloc_pd().expect("a PD");
        assert_eq!(kept.pdn(), pd.pdn());
        let events = later.event_channel(false).expect("a channel");
        events.subscribe(None, &[9], 5).expect("the subscription is passed");
        let before = model.counts(0);
        assert!(pd.destroy().is_ok(), "a lost object counts as destroyed");
        drop((channel, verbs, earlier));
        assert_eq!(model.counts(0), before);
        model.set_port(0, 1, false);
        assert_eq!(events.read().expect("an event").map(|event| event.cookie), Some(5));
        kept.destroy().expect("the later context's PD survived");
    }
}

#[test]
fn open_of_dead_device_is_eagain() {
    let model = model(Link::Ethernet);
    let backend = InProcess::of(&model);
    let devices = backend.enumerate().expect("the model has devices");
    let open = || Context::open(&backend, &devices[0]).map(drop);
    let errno =
        |opened: Result<(), verbless_devx::Error>| opened.expect_err("the device is dead").errno();
    let context = Context::open(&backend, &devices[0]).expect("the device opens");
    model.kill(0);
    assert_eq!(errno(open()), Some(nix::errno::Errno::EAGAIN), "another program has it open");
    drop(context);
    assert_eq!(errno(open()), Some(nix::errno::Errno::EAGAIN));
    model.device(0).reset();
    open().expect("the device was reset");
    model.remove(0);
    let error = open().expect_err("the device was removed");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceGone, Some(nix::errno::Errno::EIO))
    );
}

#[test]
fn open_fails_if_required_command_fails() {
    let model = model(Link::Ethernet);
    let backend = InProcess::of(&model);
    let device = backend.enumerate().expect("devices")[0].clone();
    for opcode in [0x104, 0x108, 0x102, 0x100, 0x802, 0x301, 0xa04, 0x761] {
        model.fail_command(0, verbless_prm::Opcode(opcode), 1, verbless_prm::CommandStatus(0x8), 0);
        let error = backend.open(&device).map(drop).expect_err("refused");
        assert_eq!(error.errno(), Some(nix::errno::Errno::ENOMEM), "{opcode:#x}");
        assert_eq!(model.counts(0), ObjectCounts::default(), "{opcode:#x}");
    }
    backend.open(&device).map(drop).expect("and then it works");
}

#[test]
fn opening_and_closing_from_many_threads_leaves_no_objects() {
    let model = model(Link::Ethernet);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    drop(open(&model, 0).alloc_pd().expect("a PD"));
                }
            });
        }
    });
    assert_eq!(model.counts(0), ObjectCounts::default());
}
