//! Compares the structures of the data path with their descriptions: the same bits are the same
//! fields.
//!
//! A field copies bits, so two readers agree on all inputs if they agree on every input with a
//! single bit set.

use std::mem::offset_of;

use proptest::prelude::*;
use verbless_prm::Structure;
use verbless_prm::hot::*;
use verbless_prm::reflect::FieldInfo;

/// `agree!(Structure, member: Word(repr) { field, … })`: the word has these fields at the positions
/// of the description; `view`: fields of another word overlap it.
macro_rules! agree {
    ($structure:ty, $at:ident $(. $inner:ident)?: $word:ident($repr:ty) { $($field:ident),* }) => {
        let (at, size) = (offset_of!($structure, $at $(. $inner)?), size_of::<$repr>());
        let within = |field: &&FieldInfo| {
            (at * 8..(at + size) * 8).contains(&(field.offset as usize))
        };
        let described: Vec<&str> =
            <$structure>::INFO.fields.iter().filter(within).map(|field| field.name).collect();
        assert_eq!(described, [$(stringify!($field)),*], "{}", stringify!($word));
        agree!(view $structure, $at $(. $inner)?: $word($repr) { $($field),* });
    };
    (
        view $structure:ty, $at:ident $(. $inner:ident)?: $word:ident($repr:ty) {
            $($field:ident),*
        }
    ) => {
        let (at, size) = (offset_of!($structure, $at $(. $inner)?), size_of::<$repr>());
        for bit in 0..<$structure>::BYTES * 8 {
            let mut all = vec![0; <$structure>::BYTES];
            all[bit / 8] = 0x80 >> (bit % 8);
            let part = all[at..at + size].try_into().unwrap();
            let word = $word::from_raw(<$repr>::from_ne_bytes(part));
            $(
                let field = <$structure>::INFO.field(stringify!($field)).unwrap();
                assert_eq!(u64::from(word.$field()), field.value(&all, 0).unwrap(), "{bit}");
            )*
            assert_eq!(word, $word::from_bits(<$repr>::from_be_bytes(part)));
            assert_eq!(word.to_raw().to_ne_bytes(), part);
            assert_eq!(word, $word::from_bits(word.into_bits()));
        }
    };
}

#[test]
fn words_have_the_fields_of_their_places() {
    agree!(CtrlSegment, ctrl_word: CtrlWord(u64) { opmod, wqe_index, opcode, qpn, ds });
    agree!(CtrlSegment, ctrl_flags: CtrlFlags(u64) {
        signature, dci_stream_channel_id, fm, ce, se, imm
    });
    agree!(InlineHeader, inline_word: InlineWord(u32) { inline, byte_count });
    agree!(Cqe, cqe_head: CqeHead(u32) { tls_offload, outer_l3_ipv6, tunneled, wqe_id });
    agree!(Cqe, cqe_lro: CqeLro(u32) { lro_tcppsh, lro_min_ttl, lro_tcp_win });
    agree!(Cqe, cqe_path: CqePath(u32) { rx_hash_l4, rx_hash_ip, ml_path });
    agree!(Cqe, cqe_source_lid: CqeSourceLid(u32) { check_sum, slid });
    agree!(view Cqe, cqe_source_qp: CqeSourceQp(u32) { g, sl, rqpn });
    agree!(view Cqe, cqe_source_qp: CqeRoceSourceQp(u32) { g, roce_l3_type, rqpn });
    agree!(Cqe, cqe_frame: CqeFrame(u32) {
        l4_ok, l3_ok, l2_ok, ip_fragment, l4_hdr_type, l3_hdr_type, ip_options, has_vlan, vlan_info
    });
    agree!(Cqe, cqe_user_index: CqeUserIndex(u32) { lro_num_seg, srqn_uidx });
    agree!(Cqe, opcode_qpn: OpcodeQpn(u32) { wqe_opcode, qpn });
    agree!(Cqe, cqe_tail.op_own: OpOwn(u8) { opcode, format, se, owner });
    agree!(CqeError, cqe_syndromes: CqeSyndromes(u32) {
        hw_error_syndrome, hw_syndrome_type, vendor_err_synd, syndrome
    });
    agree!(CqeError, opcode_qpn: OpcodeQpn(u32) { wqe_opcode, qpn });
    agree!(CqeError, cqe_tail.op_own: OpOwn(u8) { opcode, format, se, owner });
    agree!(Eqe, eqe_head: EqeHead(u32) { event_type, event_sub_type });
    agree!(Eqe, eqe_owner: EqeOwner(u8) { owner });
    agree!(EqeCompletion, eqe_cqn: EqeCqn(u32) { cqn });
    agree!(CqDoorbellRecord, cq_record_consumer: CqRecordConsumer(u32) { consumer_index });
    agree!(CqDoorbellRecord, cq_record_arm: CqRecordArm(u32) {
        arm_sn, arm_solicited_only, arm_consumer_index
    });
    agree!(QpDoorbellRecord, qp_record_receive: QpRecordReceive(u32) { receive_counter });
    agree!(QpDoorbellRecord, qp_record_send: QpRecordSend(u32) { send_counter });
    agree!(SrqDoorbellRecord, srq_record: SrqRecord(u32) { counter });
    agree!(CqArmDoorbell, cq_arm: CqArm(u32) { arm_sn, arm_solicited_only, arm_consumer_index });
    agree!(DatagramSegment, datagram_dqp: DatagramDqp(u32) { ext, dqp_dct });
    agree!(DatagramSegment, datagram_path: DatagramPath(u16) { stat_rate, sl, fl, mlid });
    agree!(DatagramSegment, datagram_grh: DatagramGrh(u32) { grh, src_addr_index, flow_label });
    agree!(EthSegment, eth_checksums: EthChecksums(u8) {
        l4_cs, l3_cs, l4_inner_cs, l3_inner_cs
    });
    agree!(EthSegment, eth_swp_flags: EthSwpFlags(u8) {
        swp_outer_l4_udp, swp_outer_l3_ipv6, swp_inner_l4_udp, swp_inner_l3_ipv6
    });
    agree!(view EthSegment, eth_inline: EthInline(u32) { inline_hdr_sz, inline_hdr_start });
    agree!(view EthSegment, eth_inline: EthVlan(u32) { insert_vlan, insert_svlan, vlan_tci });
    agree!(view EthSegment, eth_inline: EthTrailer(u32) { insert_trailer, trailer_header });
    agree!(UmrCtrlSegment, umr_flags: UmrFlags(u8) {
        inline, check, translation_offset_en, check_qpn
    });
    agree!(WaitDataSegment, wait_operation: WaitOperation(u32) { invert, condition });
}

/// `at!(Structure { member, … })`: each member has the offset of its field in the description.
macro_rules! at {
    ($structure:ident { $($member:ident),* }) => {
        $(
            let field = $structure::INFO.field(stringify!($member)).unwrap();
            let offset = offset_of!($structure, $member);
            assert_eq!(offset, field.offset as usize / 32 * 4 + field.offset as usize % 32 / 8);
        )*
    };
}

#[test]
fn numbers_and_bytes_are_where_their_fields_are() {
    at!(Cqe { lro_ack_seq_num, rx_hash_result, imm_inval_pkey, app, app_op, app_info, byte_cnt });
    at!(Cqe { timestamp });
    at!(CqeError { byte_cnt });
    at!(Eqe { event_data, signature });
    at!(UarPage { cq_arm, eq_arm, eq_update, blueflame_0, blueflame_1, blueflame_2, blueflame_3 });
    at!(RaddrSegment { raddr, rkey });
    at!(AtomicSegment { swap_add, compare });
    at!(MaskedAtomicSegment { swap_add, compare, swap_add_mask, compare_mask });
    at!(DataSegment { lkey, addr });
    at!(DatagramSegment { dc_access_key, rlid, rmac, tclass, hop_limit, rgid });
    at!(EthSegment { swp_outer_l4_offset, swp_inner_l3_offset, mss, flow_table_metadata });
    at!(UmrCtrlSegment { xlt_octowords, xlt_offset, mkey_mask, xlt_offset_47_16 });
    at!(MmoSegment { mmo_control_31_0, lkey, addr });
    at!(WaitDataSegment { lkey, va, value, mask });
    at!(SrqNextSegment { next_wqe_index, signature });
    // These share their dword with reserved bits before them.
    assert_eq!(offset_of!(CqeError, srqn_uidx), 0x20);
    assert_eq!(offset_of!(CqArmDoorbell, cqn), 0x04);
    assert_eq!(offset_of!(DataSegment, byte_count), 0x00);
}

#[test]
fn structures_have_the_size_of_their_descriptions() {
    fn sound<S: Structure>() {
        assert_eq!((size_of::<S>(), align_of::<S>()), (S::INFO.bytes, 1), "{}", S::INFO.name);
        assert_eq!(S::default().as_bytes(), vec![0; S::BYTES]);
    }
    sound::<Cqe>();
    sound::<CqeError>();
    sound::<Eqe>();
    sound::<EqeCompletion>();
    sound::<CqDoorbellRecord>();
    sound::<QpDoorbellRecord>();
    sound::<SrqDoorbellRecord>();
    sound::<CqArmDoorbell>();
    sound::<UarPage>();
    sound::<CtrlSegment>();
    sound::<RaddrSegment>();
    sound::<AtomicSegment>();
    sound::<MaskedAtomicSegment>();
    sound::<DataSegment>();
    sound::<InlineHeader>();
    sound::<DatagramSegment>();
    sound::<EthSegment>();
    sound::<UmrCtrlSegment>();
    sound::<MmoSegment>();
    sound::<WaitDataSegment>();
    sound::<SrqNextSegment>();
}

#[test]
fn error_cqe_shares_queue_fields_with_cqe() {
    for name in ["srqn_uidx", "wqe_opcode", "qpn", "wqe_counter", "opcode", "format", "owner"] {
        let places = [Cqe::INFO, CqeError::INFO].map(|info| {
            let field = info.field(name).unwrap();
            (field.offset, field.width)
        });
        assert_eq!(places[0], places[1], "{name}");
    }
}

#[test]
fn ctrl_segment_matches_rdma_core_bytes() {
    let control =
        CtrlWord::new().with_wqe_index(4).with_opcode(opcode::WRITE).with_qpn(0x123).with_ds(3);
    let flags =
        CtrlFlags::new().with_fm(fence::FENCE_AND_INITIATOR_SMALL).with_ce(completion::ALWAYS);
    let segment = CtrlSegment::new(control, flags);
    assert_eq!(*segment.as_bytes(), [0, 0, 4, 8, 0, 1, 0x23, 3, 0, 0, 0, 0x88, 0, 0, 0, 0]);
    assert_eq!((segment.ctrl_word, segment.ctrl_flags), (control, flags));
}

#[test]
fn arm_doorbell_matches_rdma_core_bytes() {
    let doorbell = CqArmDoorbell::new(
        CqArm::new().with_arm_solicited_only(true).with_arm_consumer_index(0x3fedb),
        0x456,
    );
    assert_eq!(*doorbell.as_bytes(), [1, 3, 0xfe, 0xdb, 0, 0, 4, 0x56]);
}

#[test]
fn segments_are_built_from_word_fields() {
    let raddr = RaddrSegment::new(0x1122_3344_5566_7788, 0xaabb_ccdd);
    assert_eq!((raddr.raddr(), raddr.rkey()), (0x1122_3344_5566_7788, 0xaabb_ccdd));
    let data = DataSegment::new(DataSegment::MAX_BYTES, 7, 0x9000);
    assert_eq!((data.byte_count(), data.lkey(), data.addr()), (DataSegment::MAX_BYTES, 7, 0x9000));
    let atomic = AtomicSegment::new(1, 2);
    assert_eq!((atomic.swap_add(), atomic.compare()), (1, 2));
    let inline = InlineHeader::new(InlineWord::new().with_inline(true).with_byte_count(13));
    assert_eq!(*inline.as_bytes(), [0x80, 0, 0, 13]);
    assert_eq!((inline.inline(), inline.byte_count()), (true, 13));
}

proptest! {
    #[test]
    fn word_setters_change_their_field_only(
        (opmod, index, opcode) in any::<(u8, u16, u8)>(),
        (qpn, ds) in (0_u32..1 << 24, 0_u8..1 << 6),
        old in any::<u64>(),
    ) {
        let set = CtrlWord::from_bits(old)
            .with_opmod(opmod)
            .with_wqe_index(index)
            .with_opcode(opcode)
            .with_qpn(qpn)
            .with_ds(ds);
        let number = u64::from(opmod) << 56
            | u64::from(index) << 40
            | u64::from(opcode) << 32
            | u64::from(qpn) << 8
            | u64::from(ds);
        prop_assert_eq!(set.into_bits(), number | old & 0xc0);
        prop_assert_eq!((set.qpn(), set.ds()), (qpn, ds));
    }
}

#[test]
#[cfg(debug_assertions)]
fn word_setter_panics_in_debug_build() {
    let wide = [
        std::panic::catch_unwind(|| CtrlWord::new().with_ds(0x40).into_bits()),
        std::panic::catch_unwind(|| CtrlWord::new().with_qpn(1 << 24).into_bits()),
        std::panic::catch_unwind(|| InlineWord::new().with_byte_count(0x400).into_bits().into()),
    ];
    assert!(wide.iter().all(Result::is_err), "{wide:?}");
}

#[test]
#[cfg(not(debug_assertions))]
fn word_setter_truncates_in_release_build() {
    let word = CtrlWord::new().with_ds(0x47).with_qpn(0x1200_0034);
    assert_eq!((word.ds(), word.qpn(), word.opcode()), (7, 0x34, 0));
}
