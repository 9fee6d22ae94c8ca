//! Doorbell records: big-endian words in memory with a program's index in a queue, for the device.
//!
//! A store to a record is a release: the program's earlier accesses to the queue's entries precede
//! it.

use core::sync::atomic::{AtomicU32, Ordering};

use verbless_prm::hot::{CqRecordConsumer, QpRecordReceive, QpRecordSend};

/// Sets the consumer index of a CQ to `ci`, modulo 2^24; `record` is the first word of the CQ's
/// record (`flexio_dev_dbr_cq_set_ci`).
pub fn cq_set_ci(record: &AtomicU32, ci: u32) {
    record.store(
        CqRecordConsumer::new().with_consumer_index(ci & 0xff_ffff).to_raw(),
        Ordering::Release,
    );
}

/// Counts one more posted receive WQE; `record` is the first word of the queue's doorbell record,
/// which only the caller writes (`flexio_dev_dbr_rq_inc_pi`).
pub fn rq_inc_pi(record: &AtomicU32) {
    let counter = QpRecordReceive::from_raw(record.load(Ordering::Relaxed)).receive_counter();
    record.store(
        QpRecordReceive::new().with_receive_counter(counter.wrapping_add(1)).to_raw(),
        Ordering::Release,
    );
}

/// Sets the producer index to `pi`; `record` is the second word of the record of a QP or SQ
/// (`flexio_dev_dbr_sq_set_pi`).
pub fn sq_set_pi(record: &AtomicU32, pi: u16) {
    record.store(QpRecordSend::new().with_send_counter(pi).to_raw(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word's bytes in memory order.
    fn bytes(record: &AtomicU32) -> [u8; 4] {
        record.load(Ordering::Relaxed).to_ne_bytes()
    }

    #[test]
    fn records_are_big_endian_and_masked() {
        let record = AtomicU32::new(u32::MAX);
        cq_set_ci(&record, 0xff12_3456);
        assert_eq!(bytes(&record), [0, 0x12, 0x34, 0x56]);
        sq_set_pi(&record, 0x789a);
        assert_eq!(bytes(&record), [0, 0, 0x78, 0x9a]);
    }

    #[test]
    fn rq_producer_index_wraps_at_16_bits() {
        let record = AtomicU32::new(0xfffe_u32.to_be());
        rq_inc_pi(&record);
        assert_eq!(bytes(&record), [0, 0, 0xff, 0xff]);
        rq_inc_pi(&record);
        assert_eq!(bytes(&record), [0; 4]);
    }
}
