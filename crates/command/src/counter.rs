//! Q counters: they count events of the queues whose contexts name them.

use std::fmt;

use verbless_devx::Error;
use verbless_prm::{AllocQCounterIn, AllocQCounterOut, QueryQCounterIn, QueryQCounterOut};

use crate::device::Device;
use crate::execute;
use crate::owned::Owned;

/// A Q counter set. Queues that use it keep it alive.
pub struct QCounter {
    number: u8,
    owned: Owned<()>,
}

impl Device {
    /// ALLOC_Q_COUNTER.
    ///
    /// # Errors
    /// The device has no set left (capability `max_qp_cnt`).
    pub fn alloc_q_counter(&self) -> Result<QCounter, Error> {
        let mut output = AllocQCounterOut::zeroed();
        let object = self.create(&AllocQCounterIn::new(), &mut output)?;
        Ok(QCounter { number: output.counter_set_id(), owned: Owned::new(object, ()) })
    }
}

impl QCounter {
    /// The counter_set_id for queue contexts.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// QUERY_Q_COUNTER: the counts so far. `out_of_buffer` counts arrivals that found no posted
    /// receive: a message that an RC peer sends again after an RNR NAK counts at each try.
    ///
    /// # Errors
    /// The device refuses.
    pub fn query(&self) -> Result<Box<QueryQCounterOut>, Error> {
        let mut input = QueryQCounterIn::new();
        input.set_counter_set_id(self.number);
        let mut output = Box::new(QueryQCounterOut::zeroed());
        execute::query_object(self.owned.object(), &input, &mut *output)?;
        Ok(output)
    }

    /// DEALLOC_Q_COUNTER.
    ///
    /// # Errors
    /// A queue still uses the counter.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}

impl fmt::Debug for QCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QCounter({})", self.number)
    }
}
