//! The two sides of a DPU in one process: the devices that each sees, and traffic between them.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::{Backend, Context, ErrorKind};
use verbless_model::{Link, Model, ObjectCounts, Profile, Side};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::{Read, Write};
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

const SIDES: [Side; 2] = [Side::Host, Side::Dpu];

fn card(link: Link) -> Model {
    let profile = Profile::load("bluefield3").expect("the profile is built in").with_link(link);
    Model::builder().device_with_sides(profile).build()
}

/// The only device that a program on this side sees.
fn device(backend: &InProcess) -> Device {
    let devices = backend.enumerate().expect("a device");
    assert_eq!(devices.len(), 1);
    Device::open(backend, &devices[0]).expect("the device opens")
}

#[test]
fn side_enumerates_own_device_only() {
    let model = card(Link::Infiniband);
    assert_eq!(model.devices(), 2);
    assert_eq!([0, 1].map(|device| model.side(device)), SIDES);
    let [host, dpu] = SIDES.map(|side| InProcess::of(&model).on_side(side));
    let [on_host, on_dpu] = [&host, &dpu].map(|side| side.enumerate().expect("a device"));
    for devices in [&on_host, &on_dpu] {
        assert_eq!(devices.len(), 1);
        assert_eq!((&*devices[0].name, &*devices[0].node), ("mlx5_0", "uverbs0"));
    }
    let context = Context::open(&dpu, &on_dpu[0]).expect("the device opens");
    assert_eq!(model.counts(0), ObjectCounts::default(), "the host's is not touched");
    assert_ne!(model.counts(1), ObjectCounts::default());
    drop(context);
    let all = InProcess::of(&model).enumerate().expect("the devices of both sides");
    assert_eq!(all.iter().map(|info| &*info.name).collect::<Vec<_>>(), ["mlx5_0", "mlx5_1"]);
    let error = Context::open(&host, &all[1]).map(drop).expect_err("the other side's");
    assert_eq!(error.kind(), ErrorKind::NoDevice);
}

#[test]
fn both_functions_share_card_but_not_ids() {
    for link in [Link::Infiniband, Link::Ethernet] {
        let model = card(link);
        let backends = SIDES.map(|side| InProcess::of(&model).on_side(side));
        let [host, dpu] = backends
            .each_ref()
            .map(|side| side.enumerate().expect("the devices of a side").remove(0));
        assert_eq!(host.system_image_guid, dpu.system_image_guid);
        assert_eq!(
            (host.device_id, &host.board_id, &host.firmware),
            (dpu.device_id, &dpu.board_id, &dpu.firmware)
        );
        assert_ne!(host.node_guid, dpu.node_guid);
        assert_ne!(host.ports[0].gids[0].gid, dpu.ports[0].gids[0].gid);
        let [host, dpu] = backends.each_ref().map(device);
        assert_ne!(host.caps().general.vhca_id(), dpu.caps().general.vhca_id());
        let [host, dpu] = [host, dpu].map(|device| {
            let mut general = device.caps().general.clone();
            general.set_vhca_id(0);
            general
        });
        assert_eq!(host, dpu, "host and DPU have the same capabilities");
        assert!(!host.eswitch_manager() && !host.vport_group_manager());
    }
}

#[test]
fn write_and_read_cross_sides_of_card() {
    for link in [Link::Infiniband, Link::Ethernet] {
        let model = card(link);
        let [host, dpu] = SIDES.map(|side| {
            Domain::new(&device(&InProcess::of(&model).on_side(side))).expect("a domain")
        });
        for (here, there) in [(&host, &dpu), (&dpu, &host)] {
            let cqs = [here, there].map(|domain| domain.completion_queue(&CqConfig::new(64)));
            let [mut cq, far_cq] = cqs.map(|cq| cq.expect("a completion queue"));
            let config = QpConfig::new(16, 16);
            let mut qp = here.queue_pair(&config, &cq, &cq).expect("a queue pair");
            let mut far_qp = there.queue_pair(&config, &far_cq, &far_cq).expect("a queue pair");
            let options = ConnectOptions::default();
            let [address, far] = [
                here.address(&qp, &options).expect("an address"),
                there.address(&far_qp, &options).expect("an address"),
            ];
            here.connect(&mut qp, &far, &options).expect("the QP connects");
            there.connect(&mut far_qp, &address, &options).expect("the QP connects");
            let from = here.region(4096, KeyAccess::LOCAL).expect("memory");
            let to = there.region(4096, KeyAccess::ALL).expect("memory");
            from.write_at(0, b"across the card").expect("room");
            let remote = to.remote(0, 0).expect("a remote key");
            let back = from.sge(1024, 15).expect("room");
            qp.post(&Write::new(from.sge(0, 15).expect("room"), remote), 1).expect("room");
            qp.post(&Read::new(back, remote).signaled(), 2).expect("room");
            let end = Instant::now() + Duration::from_secs(10);
            let done = loop {
                if let Some(done) = qp.poll(&mut cq) {
                    break done.expect("a successful completion");
                }
                assert!(Instant::now() < end, "nothing completes");
            };
            assert_eq!(done.cookie, 2);
            for (region, at) in [(&to, 0), (&from, 1024)] {
                let mut arrived = [0; 15];
                region.read_at(at, &mut arrived).expect("room");
                assert_eq!(&arrived, b"across the card");
            }
        }
    }
}

#[test]
fn card_without_ecpf_has_host_side_only() {
    let profile = Profile::load("connectx6dx").expect("the profile is built in");
    let model = Model::builder().device_with_sides(profile).build();
    assert_eq!((model.devices(), model.side(0)), (1, Side::Host));
    let error =
        InProcess::of(&model).on_side(Side::Dpu).enumerate().expect_err("the card has no DPU side");
    assert_eq!(error.kind(), ErrorKind::NoDevice);
    assert!(error.to_string().contains("DPU side"), "{error}");
}
