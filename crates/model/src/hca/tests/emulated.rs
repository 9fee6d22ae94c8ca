//! Event queues of the DPA, emulated devices, and the doorbells of those.

use verbless_prm::{
    DpaEmulatedDevice, DpaEmulatedDoorbell, DpaEq, GeneralObjectType, ModifyGeneralObjectIn,
    QueryGeneralObjectIn, Structure,
};

use super::rig::{Rig, User};
use crate::hca::Refusal;
use crate::profile::Link;

const EQ: GeneralObjectType = GeneralObjectType::DPA_EQ;
const DEVICE: GeneralObjectType = GeneralObjectType::DPA_EMULATED_DEVICE;
const DOORBELL: GeneralObjectType = GeneralObjectType::DPA_EMULATED_DOORBELL;

fn device(rig: &mut Rig, user: User, queues: u16, vectors: u16) -> Result<u32, Refusal> {
    let mut context = DpaEmulatedDevice::default();
    context.set_queues(queues).set_vectors(vectors);
    rig.general(user.uid, DEVICE, &context)
}

#[test]
fn emulated_device_has_at_most_64_vectors() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let size = Err(Refusal::EmulatedDeviceSize);
    assert_eq!(device(&mut rig, user, 0, 1), size);
    assert_eq!(device(&mut rig, user, 1, 65), size);
    assert!(device(&mut rig, user, 1, 64).is_ok());
    assert!(device(&mut rig, user, u16::MAX, 0).is_ok());
}

#[test]
fn eq_needs_an_existing_vector_of_its_device() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let number = device(&mut rig, user, 1, 2).unwrap();
    let mut make = |edit: &dyn Fn(&mut DpaEq)| {
        let mut context = DpaEq::default();
        context.set_umem_id(user.umem).set_uar_page(user.uar);
        edit(&mut context);
        rig.general(user.uid, EQ, &context).map(drop)
    };
    let of = |device, vector| {
        move |it: &mut DpaEq| {
            it.set_device_valid(true).set_device_id(device).set_vector(vector);
        }
    };
    assert_eq!(make(&of(number, 1)), Ok(()));
    assert_eq!(make(&of(number, 2)), Err(Refusal::EmulatedDeviceParts));
    assert!(make(&of(number + 1, 0)).is_err());
    assert_eq!(make(&|_| {}), Ok(()));
    let edits: [fn(&mut DpaEq); 3] = [
        |it| _ = it.set_device_id(1),
        |it| _ = it.set_vector(1),
        |it| _ = it.set_always_armed(true),
    ];
    for edit in edits {
        assert_eq!(make(&edit), Err(Refusal::Reserved));
    }
}

#[test]
fn eq_size_is_limited_by_capability() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    rig.locked.functions[0].hca.caps.general_mut().set_log_max_eq_sz(3);
    for (log, expected) in [(3, Ok(())), (4, Err(Refusal::EqSize)), (2, Ok(()))] {
        let mut context = DpaEq::default();
        context.set_umem_id(user.umem).set_uar_page(user.uar).set_log_eq_size(log);
        assert_eq!(rig.general(user.uid, EQ, &context).map(drop), expected, "{log}");
    }
}

#[test]
fn doorbell_is_unique_per_queue_and_counts_rings() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let number = device(&mut rig, user, 3, 0).unwrap();
    let make = |rig: &mut Rig, queue| {
        let mut context = DpaEmulatedDoorbell::default();
        context.set_device_id(number).set_queue(queue).set_cqn(user.cq);
        rig.general(user.uid, DOORBELL, &context)
    };
    let [first, last] = [0, 2].map(|queue| make(&mut rig, queue).unwrap());
    assert_eq!(make(&mut rig, 3), Err(Refusal::EmulatedDeviceParts));
    assert_eq!(make(&mut rig, 2), Err(Refusal::EmulatedDoorbellTaken));
    let ring = |rig: &mut Rig, edit: &dyn Fn(&mut DpaEmulatedDevice)| {
        let mut given = DpaEmulatedDevice::default();
        edit(&mut given);
        let rung =
            rig.call::<ModifyGeneralObjectIn>(user.uid, DEVICE.0, given.as_bytes(), 0, |it| {
                it.set_obj_id(number);
            });
        rung.map(drop)
    };
    let state = |rig: &mut Rig, doorbell| {
        let room = DpaEmulatedDoorbell::BYTES;
        let (_, shown) = rig
            .call::<QueryGeneralObjectIn>(user.uid, DOORBELL.0, &[], room, |it| {
                it.set_obj_id(doorbell);
            })
            .unwrap();
        let shown = DpaEmulatedDoorbell::read(&shown).unwrap();
        (shown.value(), shown.rings(), shown.pending())
    };
    let of = |queue, value| {
        move |it: &mut DpaEmulatedDevice| {
            it.set_doorbell_queue(queue).set_doorbell(value);
        }
    };
    assert_eq!(ring(&mut rig, &of(2, 7)), Ok(()));
    assert_eq!(ring(&mut rig, &of(2, 9)), Ok(()));
    assert_eq!(ring(&mut rig, &of(1, 5)), Ok(()), "no program uses the doorbell");
    assert_eq!(ring(&mut rig, &of(3, 5)), Err(Refusal::EmulatedDeviceParts));
    assert_eq!(ring(&mut rig, &|it| _ = it.set_queues(1)), Err(Refusal::Unsupported));
    let (value, rings, _) = state(&mut rig, last);
    assert_eq!((value, rings), (9, 2));
    assert_eq!(state(&mut rig, first), (0, 0, false));
}
