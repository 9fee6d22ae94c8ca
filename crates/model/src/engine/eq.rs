//! The ring of an EQ: EQEs, the consumer index, arming.

use verbless_prm::{Eqe, EventType};

use crate::hca::objects::EventRing;
use crate::memory::HostMemory;

/// Bytes of an EQE.
const EQE: u64 = 64;

/// Stores the consumer index of an EQ doorbell. An arm with EQEs outstanding does not arm the EQ;
/// it returns true, and the caller raises the interrupt.
pub(super) fn update(ring: &mut EventRing, consumer: u32, arm: bool) -> bool {
    ring.consumer = consumer & ring.counter_mask;
    let more = ring.producer & ring.counter_mask != ring.consumer;
    if arm {
        ring.armed = !more;
    }
    arm && more
}

/// Writes an EQE and disarms the EQ; true if it was armed.
pub(super) fn write(
    eqn: u32,
    eq: &mut EventRing,
    memory: &dyn HostMemory,
    kind: u8,
    sub_type: u8,
    data: [u8; 28],
) -> bool {
    let size = 1_u32.checked_shl(eq.log_size).unwrap_or(0);
    if eq.producer.wrapping_sub(eq.consumer) & eq.counter_mask >= size && !eq.overrun_ignore {
        tracing::warn!(eqn, kind, "an event queue is full: the event is lost");
        return false;
    }
    let at = u64::from(eq.producer & (size - 1)) * EQE;
    let mut eqe = Eqe::zeroed();
    eqe.set_event_type(EventType(kind)).set_event_sub_type(sub_type).set_event_data(&data);
    eqe.set_owner(eq.producer >> eq.log_size & 1 != 0);
    if let Err(fault) = eq.memory.write_entry(memory, at, eqe.as_bytes()) {
        tracing::warn!(eqn, kind, %fault, "an event queue cannot be written: the event is lost");
        return false;
    }
    eq.producer = eq.producer.wrapping_add(1);
    std::mem::take(&mut eq.armed)
}
