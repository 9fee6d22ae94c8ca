//! Event queues; only the kernel creates them.

use verbless_prm::{CreateEqIn, CreateEqOut, EqState, EventType, QueryEqIn, QueryEqOut};

use super::call::{Call, Outcome};
use super::umem::{self, BufferSpec};
use crate::hca::objects::{Eq, EventRing, Objects};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// Bytes of an EQE.
pub(super) const EQE: u64 = 64;

/// Mask of the CQ and EQ indexes that software writes: 24 bits.
pub(super) const INDEX_MASK: u32 = 0xff_ffff;

/// Fields of the context that CREATE_EQ accepts, or that the device writes.
const KNOWN: [&str; 10] = [
    "status",
    "oi",
    "st",
    "page_offset",
    "log_eq_size",
    "uar_page",
    "intr",
    "log_page_size",
    "consumer_counter",
    "producer_counter",
];

/// CREATE_EQ.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateEqIn,
    output: &mut CreateEqOut,
) -> Outcome {
    let context = input.eq_context_entry();
    let hca = call.hca();
    let general = hca.caps.general();
    call.check_count(hca.objects.eqs.len(), general.log_max_eq())?;
    if general.max_num_eqs() != 0 && hca.objects.eqs.len() >= general.max_num_eqs().into() {
        return Err(Refusal::TooMany);
    }
    if context.log_eq_size() > general.log_max_eq_sz() {
        return Err(Refusal::EqSize);
    }
    call.check_known_fields(context, &KNOWN)?;
    if u32::from(context.intr()) >= hca.profile.device().vectors {
        return Err(Refusal::NoSuchVector);
    }
    call.find(kind::Uar, context.uar_page())?;
    let bitmask: [u64; 4] = std::array::from_fn(|word| input.event_bitmask(word));
    let known = |kind: u32| EventType(kind as u8).name().is_some();
    let requested = |kind: u32| bitmask[kind as usize / 64] >> (kind % 64) & 1 == 1;
    let mapped = |kind: u32| {
        hca.objects.eqs.values().any(|eq| eq.bitmask[kind as usize / 64] >> (kind % 64) & 1 == 1)
    };
    if (0..256).any(|kind| requested(kind) && (!known(kind) || mapped(kind))) {
        return Err(Refusal::EqEvents);
    }
    let spec = BufferSpec {
        umem: None,
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        page_offset_bits: umem::CONTEXT_OFFSET_BITS,
    };
    let memory = call.buffer(&spec, EQE << context.log_eq_size(), EQE, true)?;
    let ring = EventRing {
        memory,
        log_size: context.log_eq_size().into(),
        overrun_ignore: context.oi(),
        counter_mask: INDEX_MASK,
        producer: 0,
        consumer: 0,
        armed: false,
    };
    let eq = Eq {
        ring,
        vector: context.intr().into(),
        bitmask,
        uar_page: context.uar_page(),
        context: *context,
    };
    output.set_eq_number(call.make(kind::Eq, eq)? as u8);
    Ok(())
}

/// QUERY_EQ.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryEqIn,
    output: &mut QueryEqOut,
) -> Outcome {
    let eq = call.find(kind::Eq, input.eq_number().into())?;
    let context = output.eq_context_entry_mut();
    *context = eq.context;
    context.set_st(if eq.ring.armed { EqState::ARMED } else { EqState::FIRED });
    context.set_consumer_counter(eq.ring.consumer & INDEX_MASK);
    context.set_producer_counter(eq.ring.producer & INDEX_MASK);
    output.set_event_bitmask(eq.bitmask[0]);
    Ok(())
}

impl Objects {
    /// Whether an EQ subscribes to events of type `kind`.
    pub(crate) fn takes_event(&self, kind: u8) -> bool {
        self.eqs.values().any(|eq| eq.takes(kind))
    }
}
