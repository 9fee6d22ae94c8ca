//! Q counters: they count events of the queues that name them.

use verbless_prm::{
    AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, DeallocQCounterOut, QueryQCounterIn,
    QueryQCounterOut,
};

use super::call::{Call, Outcome};
use crate::hca::objects::{QCounter, SHARED_UID};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

impl Call<'_> {
    /// Refuses the command unless the counter exists and is the sender's; 0 is the shared counter.
    pub(super) fn check_counter(&self, number: u8) -> Outcome {
        if number == 0 { Ok(()) } else { self.find(kind::Counter, number).map(|_| ()) }
    }
}

/// ALLOC_Q_COUNTER.
pub(in crate::hca) fn alloc(
    call: &mut Call<'_>,
    _: &AllocQCounterIn,
    output: &mut AllocQCounterOut,
) -> Outcome {
    let max = usize::from(call.hca().caps.general().max_qp_cnt());
    if call.hca().objects.counters.len() >= max {
        return Err(Refusal::TooMany);
    }
    let counter = QCounter { uid: call.uid, values: QueryQCounterOut::zeroed() };
    output.set_counter_set_id(call.make(kind::Counter, counter)?);
    Ok(())
}

/// DEALLOC_Q_COUNTER.
pub(in crate::hca) fn dealloc(
    call: &mut Call<'_>,
    input: &DeallocQCounterIn,
    _: &mut DeallocQCounterOut,
) -> Outcome {
    let number = input.counter_set_id();
    if call.find(kind::Counter, number)?.uid == SHARED_UID && call.uid != 0 {
        return Err(Refusal::NoSuchCounter);
    }
    call.destroy(kind::Counter, number)
}

/// QUERY_Q_COUNTER.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryQCounterIn,
    output: &mut QueryQCounterOut,
) -> Outcome {
    if input.other_vport() || input.aggregate() {
        return Err(Refusal::Unsupported);
    }
    let number = input.counter_set_id();
    let clear = input.clear();
    *output = call.find(kind::Counter, number)?.values;
    if clear {
        call.change(kind::Counter, number, |counter| counter.values = QueryQCounterOut::zeroed())?;
    }
    Ok(())
}
