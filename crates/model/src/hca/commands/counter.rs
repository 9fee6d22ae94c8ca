//! Q counters: what happened to the queues that name one.

use verbless_prm::{
    AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, DeallocQCounterOut, QueryQCounterIn,
    QueryQCounterOut,
};

use super::call::{Call, Outcome};
use crate::hca::objects::{QCounter, SHARED_UID, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::state::Hca;

impl Call<'_> {
    /// Refuses the command unless the counter exists and is the sender's; 0 is the one that all
    /// share.
    pub(super) fn check_counter(&self, number: u8) -> Outcome {
        if number == 0 {
            return Ok(());
        }
        self.counter_owner(number).map(|_| ())
    }

    fn counter_owner(&self, number: u8) -> Result<Uid, Refusal> {
        let counter = self.hca().objects.counters.get(&number).ok_or(Refusal::NoSuchCounter)?;
        if self.owns(counter.uid) { Ok(counter.uid) } else { Err(Refusal::NoSuchCounter) }
    }
}

/// ALLOC_Q_COUNTER.
pub(super) fn alloc(
    call: &mut Call<'_>,
    _: &AllocQCounterIn,
    output: &mut AllocQCounterOut,
) -> Outcome {
    let most = usize::from(call.hca().caps.general().max_qp_cnt());
    if call.hca().objects.counters.len() >= most {
        return Err(Refusal::TooMany);
    }
    let uid = call.uid;
    let hca = call.hca_mut();
    let number = hca.numbers.counter.take().ok_or(Refusal::NoNumber)? as u8;
    hca.objects.counters.insert(number, QCounter { uid, values: QueryQCounterOut::zeroed() });
    output.set_counter_set_id(number);
    Ok(())
}

/// DEALLOC_Q_COUNTER.
pub(super) fn dealloc(
    call: &mut Call<'_>,
    input: &DeallocQCounterIn,
    _: &mut DeallocQCounterOut,
) -> Outcome {
    let number = input.counter_set_id();
    if call.counter_owner(number)? == SHARED_UID && call.uid != 0 {
        return Err(Refusal::NoSuchCounter);
    }
    if call.hca().objects.qps.values().any(|qp| qp.context.counter_set_id() == number) {
        return Err(Refusal::CounterInUse);
    }
    remove(call.hca_mut(), number);
    Ok(())
}

/// Removes a Q counter.
pub(super) fn remove(hca: &mut Hca, number: u8) {
    if hca.objects.counters.remove(&number).is_some() {
        hca.numbers.counter.give(number.into());
    }
}

/// QUERY_Q_COUNTER.
pub(super) fn query(
    call: &mut Call<'_>,
    input: &QueryQCounterIn,
    output: &mut QueryQCounterOut,
) -> Outcome {
    if input.other_vport() || input.aggregate() {
        return Err(Refusal::Unsupported);
    }
    let number = input.counter_set_id();
    call.counter_owner(number)?;
    let clear = input.clear();
    if let Some(counter) = call.hca_mut().objects.counters.get_mut(&number) {
        *output = counter.values;
        if clear {
            counter.values = QueryQCounterOut::zeroed();
        }
    }
    Ok(())
}
