//! Event queues of the DPA, the devices that it emulates, and their doorbells. As with processes,
//! the commands are the model's own (`prm/dpa`).

use verbless_prm::{
    CreateGeneralObjectIn, CreateGeneralObjectOut, DpaEmulatedDevice, DpaEmulatedDoorbell, DpaEq,
    ModifyGeneralObjectIn, ModifyGeneralObjectOut, QueryGeneralObjectIn, QueryGeneralObjectOut,
};

use super::call::{Call, Outcome};
use super::domain::check_uar;
use super::eq::EQE;
use super::umem::{self, BufferSpec};
use crate::hca::effect::Effect;
use crate::hca::objects::{self, EventRing};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// Mask of EQ indexes that programs write: 26 bits.
const INDEX_MASK: u32 = 0x3ff_ffff;
/// Maximum number of vectors of an emulated device; its context holds their counts.
const MAX_VECTORS: u16 = 64;

/// CREATE_GENERAL_OBJECT of an event queue.
pub(in crate::hca) fn create_eq(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    call.dpa()?;
    let mut context: DpaEq = call.context(input)?;
    if context.log_eq_size() > call.hca().caps.general().log_max_eq_sz() {
        return Err(Refusal::EqSize);
    }
    check_uar(call, context.uar_page())?;
    match context.device_valid() {
        true => {
            let device = call.find(kind::EmulatedDevice, context.device_id())?;
            if context.vector() >= device.context.vectors() {
                return Err(Refusal::EmulatedDeviceParts);
            }
        }
        false
            if (context.device_id(), context.vector(), context.always_armed()) != (0, 0, false) =>
        {
            return Err(Refusal::Reserved);
        }
        false => {}
    }
    let spec = BufferSpec {
        umem: Some((context.umem_id(), context.umem_offset())),
        log_page_size: 0,
        page_offset: 0,
        page_offset_bits: umem::CONTEXT_OFFSET_BITS,
    };
    let memory = call.buffer(&spec, EQE << context.log_eq_size(), EQE, true)?;
    let ring = EventRing {
        memory,
        log_size: context.log_eq_size().into(),
        overrun_ignore: context.overrun(),
        counter_mask: INDEX_MASK,
        producer: 0,
        consumer: 0,
        armed: false,
    };
    context.set_armed(false).set_producer(0).set_consumer(0);
    let eq = objects::DpaEq { uid: call.uid, ring, context };
    output.set_obj_id(call.make(kind::DpaEq, eq)?);
    Ok(())
}

/// QUERY_GENERAL_OBJECT of an event queue.
pub(in crate::hca) fn query_eq(
    call: &mut Call<'_>,
    input: &QueryGeneralObjectIn,
    output: &mut QueryGeneralObjectOut,
) -> Outcome {
    let eq = call.find(kind::DpaEq, input.obj_id())?;
    let mut context = eq.context;
    context
        .set_armed(eq.ring.armed)
        .set_consumer(eq.ring.consumer & INDEX_MASK)
        .set_producer(eq.ring.producer & INDEX_MASK);
    output.set_obj_id(input.obj_id());
    call.write_context(&context)
}

/// CREATE_GENERAL_OBJECT of an emulated device.
pub(in crate::hca) fn create_device(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    call.dpa()?;
    let given: DpaEmulatedDevice = call.context(input)?;
    if given.queues() == 0 || given.vectors() > MAX_VECTORS {
        return Err(Refusal::EmulatedDeviceSize);
    }
    let mut context = DpaEmulatedDevice::default();
    context.set_queues(given.queues()).set_vectors(given.vectors());
    let device = objects::EmulatedDevice { uid: call.uid, context };
    output.set_obj_id(call.make(kind::EmulatedDevice, device)?);
    Ok(())
}

/// MODIFY_GENERAL_OBJECT of an emulated device: its host rings a doorbell, whether or not a program
/// listens.
pub(in crate::hca) fn ring_device(
    call: &mut Call<'_>,
    input: &ModifyGeneralObjectIn,
    _: &mut ModifyGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let device = call.find(kind::EmulatedDevice, number)?.context;
    let given: DpaEmulatedDevice = call.body()?;
    let (queue, value) = (given.doorbell_queue(), given.doorbell());
    let mut only = DpaEmulatedDevice::default();
    only.set_doorbell_queue(queue).set_doorbell(value);
    if given.as_bytes() != only.as_bytes() {
        return Err(Refusal::Unsupported);
    }
    if queue >= device.queues() {
        return Err(Refusal::EmulatedDeviceParts);
    }
    let Some(doorbell) = doorbell_of(call, number, queue) else { return Ok(()) };
    call.change(kind::EmulatedDoorbell, doorbell, |doorbell| {
        let context = &mut doorbell.context;
        let rings = context.rings().wrapping_add(1);
        context.set_value(value).set_rings(rings).set_pending(true);
    })?;
    call.hca_mut().effects.push(Effect::EmulatedDoorbell(doorbell));
    Ok(())
}

/// The object attached to the doorbell of a queue.
fn doorbell_of(call: &Call<'_>, device: u32, queue: u16) -> Option<u32> {
    let mut all = call.hca().objects.emulated_doorbells.iter();
    let found = all.find(|(_, it)| (it.context.device_id(), it.context.queue()) == (device, queue));
    found.map(|(&number, _)| number)
}

/// CREATE_GENERAL_OBJECT of a doorbell of an emulated device.
pub(in crate::hca) fn create_doorbell(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    call.dpa()?;
    let given: DpaEmulatedDoorbell = call.context(input)?;
    let device = call.find(kind::EmulatedDevice, given.device_id())?.context;
    call.find(kind::Cq, given.cqn())?;
    if given.queue() >= device.queues() {
        return Err(Refusal::EmulatedDeviceParts);
    }
    if doorbell_of(call, given.device_id(), given.queue()).is_some() {
        return Err(Refusal::EmulatedDoorbellTaken);
    }
    let mut context = DpaEmulatedDoorbell::default();
    context.set_device_id(given.device_id()).set_queue(given.queue()).set_cqn(given.cqn());
    let doorbell = objects::EmulatedDoorbell { uid: call.uid, context };
    output.set_obj_id(call.make(kind::EmulatedDoorbell, doorbell)?);
    Ok(())
}
