//! The words of the data path against the views of the structures that they are in: the same bits
//! mean the same fields.
//!
//! A field copies bits, so two readers agree on all inputs if they agree on every input with a
//! single bit set.

use proptest::prelude::*;
use verbless_prm::hot::*;
use verbless_prm::reflect::FieldInfo;

/// `agree!(Structure, Word: bytes { field, … })`: reads each field of the word, and makes the word
/// of its fields again.
macro_rules! agree {
    ($structure:ty, $word:ident($repr:ty) { $($field:ident),* }) => {
        let (bytes, size) = (<$structure>::BYTES, size_of::<$repr>());
        let within = |field: &&FieldInfo| {
            let at = $word::AT * 8;
            (at..at + size * 8).contains(&(field.offset as usize))
        };
        let described: Vec<&str> =
            <$structure>::INFO.fields.iter().filter(within).map(|field| field.name).collect();
        assert_eq!(described, [$(stringify!($field)),*], "{}", stringify!($word));
        for bit in 0..bytes * 8 {
            let mut all = vec![0; bytes];
            all[bit / 8] = 0x80 >> (bit % 8);
            let part = all[$word::AT..$word::AT + size].try_into().unwrap();
            let word = $word::from_be_bytes(part);
            $(
                let field = <$structure>::INFO.field(stringify!($field)).unwrap();
                assert_eq!(u64::from(word.$field()), field.value(&all, 0).unwrap(), "{bit}");
            )*
            assert_eq!(word, $word::from_be(<$repr>::from_ne_bytes(part)));
            assert_eq!(word.to_be().to_ne_bytes(), part);
            assert_eq!(word, $word::from_bits(word.into_bits()));
        }
    };
}

#[test]
fn every_word_has_the_fields_of_its_place_in_its_structure() {
    agree!(CtrlSegment, CtrlWord(u64) { opmod, wqe_index, opcode, qpn, ds });
    agree!(CtrlSegment, CtrlFlags(u64) { signature, dci_stream_channel_id, fm, ce, se, imm });
    agree!(InlineHeader, InlineWord(u32) { inline, byte_count });
    agree!(Cqe, CqePath(u32) { rx_hash_l4, rx_hash_ip, ml_path });
    agree!(Cqe, CqeSourceLid(u32) { check_sum, slid });
    agree!(Cqe, CqeSourceQp(u32) { g, sl, roce_l3_type, rqpn });
    agree!(Cqe, CqeUserIndex(u32) { lro_num_seg, srqn_uidx });
    agree!(Cqe, OpcodeQpn(u32) { wqe_opcode, qpn });
    agree!(Cqe, CqeTail(u32) { wqe_counter, signature, opcode, format, se, owner });
    agree!(Cqe, OpOwn(u8) { opcode, format, se, owner });
    agree!(CqeError, CqeSyndromes(u32) {
        hw_error_syndrome, hw_syndrome_type, vendor_err_synd, syndrome
    });
    agree!(CqArmDoorbell, CqArm(u32) { arm_sn, arm_solicited_only, arm_consumer_index });
}

#[test]
fn an_error_cqe_has_queue_and_index_where_any_other_has_them() {
    for name in ["srqn_uidx", "wqe_opcode", "qpn", "wqe_counter", "opcode", "format", "owner"] {
        let places = [Cqe::INFO, CqeError::INFO].map(|info| {
            let field = info.field(name).unwrap();
            (field.offset, field.width)
        });
        assert_eq!(places[0], places[1], "{name}");
    }
}

#[test]
fn a_control_segment_has_the_bytes_that_rdma_core_writes_for_a_fenced_write() {
    let control = CtrlWord::pack(0, 4, opcode::WRITE, 0x123, 3);
    let flags =
        CtrlFlags::pack(0, 0, fence::FENCE_AND_INITIATOR_SMALL, completion::ALWAYS, false, 0);
    let segment = CtrlSegment::new(control, flags);
    assert_eq!(*segment.as_bytes(), [0, 0, 4, 8, 0, 1, 0x23, 3, 0, 0, 0, 0x88, 0, 0, 0, 0]);
    assert_eq!((segment.ctrl_word(), segment.ctrl_flags()), (control, flags));
}

#[test]
fn an_arm_doorbell_has_the_bytes_that_rdma_core_writes() {
    let doorbell = CqArmDoorbell::new(CqArm::pack(0, true, 0x3fedb), 0x456);
    assert_eq!(*doorbell.as_bytes(), [1, 3, 0xfe, 0xdb, 0, 0, 4, 0x56]);
}

#[test]
fn segments_are_made_of_their_words() {
    let raddr = RaddrSegment::new(0x1122_3344_5566_7788, 0xaabb_ccdd);
    assert_eq!((raddr.raddr(), raddr.rkey()), (0x1122_3344_5566_7788, 0xaabb_ccdd));
    let data = DataSegment::new(DataSegment::MAX_BYTES, 7, 0x9000);
    assert_eq!((data.byte_count(), data.lkey(), data.addr()), (DataSegment::MAX_BYTES, 7, 0x9000));
    let atomic = AtomicSegment::new(1, 2);
    assert_eq!((atomic.swap_add(), atomic.compare()), (1, 2));
    let inline = InlineHeader::new(InlineWord::pack(true, 13));
    assert_eq!(*inline.as_bytes(), [0x80, 0, 0, 13]);
    assert_eq!(inline.inline_word(), InlineWord::new().with_inline(true).with_byte_count(13));
}

proptest! {
    #[test]
    fn packing_equals_setting_one_by_one_and_cuts_off_what_is_too_much(
        (opmod, index, opcode, qpn, ds) in any::<(u8, u16, u8, u32, u8)>(),
        old in any::<u64>(),
    ) {
        let packed = CtrlWord::pack(opmod, index, opcode, qpn, ds);
        let reserved = !CtrlWord::pack(0xff, 0xffff, 0xff, u32::MAX, 0xff).into_bits();
        let set = CtrlWord::from_bits(old)
            .with_opmod(opmod)
            .with_wqe_index(index)
            .with_opcode(opcode)
            .with_qpn(qpn)
            .with_ds(ds);
        prop_assert_eq!(set.into_bits(), packed.into_bits() | old & reserved);
        prop_assert_eq!((packed.qpn(), packed.ds()), (qpn & 0xff_ffff, ds & 0x3f));
    }
}
