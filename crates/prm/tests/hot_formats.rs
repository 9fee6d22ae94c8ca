//! The hand-written hot formats against their descriptions in prm/: the same bits mean the same fields.
//!
//! A field copies bits, so two readers agree on all inputs if they agree on every input with a single bit set. Each
//! table below names every field of the description and how the hot format reads it; a field that is missing from its
//! table fails the test, so that neither side grows alone.

use proptest::prelude::*;
use verbless_prm as prm;
use verbless_prm::hot::*;
use verbless_prm::reflect::{Kind, StructInfo, View};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a field holds, as either side tells it.
#[derive(Debug, PartialEq)]
enum Held {
    Number(u64),
    Bytes(Vec<u8>),
}

macro_rules! held_number {
    ($($ty:ty)*) => { $(impl From<$ty> for Held {
        fn from(value: $ty) -> Self {
            Held::Number(value.into())
        }
    })* };
}
held_number!(bool u8 u16 u32 u64);

impl<const N: usize> From<[u8; N]> for Held {
    fn from(value: [u8; N]) -> Self {
        Held::Bytes(value.to_vec())
    }
}

/// A field of the description, and how the hot format reads it; `None` where it leaves these bits alone.
type Reading<H> = (&'static str, Option<fn(&H) -> Held>);

/// Holds `H` against `info`, bit by bit and field by field.
fn agree<H: FromBytes + IntoBytes + Immutable>(info: &'static StructInfo, readings: &[Reading<H>]) {
    let size = size_of::<H>();
    assert_eq!(size, info.bytes, "size of {}", info.name);
    let described: Vec<&str> = info.fields.iter().map(|field| field.name).collect();
    let read: Vec<&str> = readings.iter().map(|(name, _)| *name).collect();
    assert_eq!(described, read, "fields of {}", info.name);
    for bit in 0..size * 8 {
        let mut bytes = vec![0; size];
        bytes[bit / 8] = 0x80 >> (bit % 8);
        let hot = H::read_from_bytes(&bytes).unwrap();
        for (field, (name, reading)) in info.fields.iter().zip(readings) {
            let Some(reading) = reading else { continue };
            let expected = match field.kind {
                Kind::Number | Kind::Enum(_) => Held::Number(field.value(&bytes, 0).unwrap()),
                Kind::Bytes | Kind::Struct(_) => {
                    Held::Bytes(field.slice(&bytes, 0).unwrap().to_vec())
                }
            };
            assert_eq!(reading(&hot), expected, "{}.{name} with bit {bit} set", info.name);
        }
    }
}

/// `agree!(HotType is PrmType { field: |hot| reading, … ; others, the hot format leaves alone })`, in memory order.
macro_rules! agree {
    ($hot:ty, $view:ty, { $($name:ident $(: $reading:expr)?),* $(,)? }) => {
        agree::<$hot>(<$view>::INFO, &[$((stringify!($name), agree!(@ $hot $(, $reading)?))),*])
    };
    (@ $hot:ty, $reading:expr) => { Some(|hot: &$hot| { let read: fn(&$hot) -> _ = $reading; read(hot).into() }) };
    (@ $hot:ty) => { None };
}

/// The bytes of a hot format, as it lies in memory.
fn stored(hot: impl IntoBytes + Immutable) -> Vec<u8> {
    hot.as_bytes().to_vec()
}

/// Bits `hi` to `lo` of `word`.
fn cut(word: impl Into<u64>, hi: u32, lo: u32) -> u64 {
    (word.into() >> lo) & (u64::MAX >> (63 - (hi - lo)))
}

#[test]
fn send_segments_agree_with_their_description() {
    agree!(CtrlSegment, prm::WqeCtrlSegment, {
        opmod: |h| h.control().opmod(),
        wqe_index: |h| h.control().wqe_index(),
        opcode: |h| h.control().opcode(),
        qpn: |h| h.control().qpn(),
        ds: |h| h.control().ds(),
        signature: |h| h.flags().signature(),
        dci_stream_channel_id: |h| h.flags().dci_stream_channel(),
        fm: |h| h.flags().fm(),
        ce: |h| h.flags().ce(),
        se: |h| h.flags().se(),
        imm: |h| h.flags().imm(),
    });
    agree!(RaddrSegment, prm::WqeRaddrSegment, {
        raddr: |h| h.address.get(),
        rkey: |h| h.rkey.get(),
    });
    agree!(AtomicSegment, prm::WqeAtomicSegment, {
        swap_add: |h| h.swap_add.get(),
        compare: |h| h.compare.get(),
    });
    agree!(MaskedAtomicSegment, prm::WqeMaskedAtomicSegment, {
        swap_add: |h| h.swap_add.get(),
        compare: |h| h.compare.get(),
        swap_add_mask: |h| h.swap_add_mask.get(),
        compare_mask: |h| h.compare_mask.get(),
    });
    agree!(DatagramSegment, prm::WqeDatagramSegment, {
        q_key: |h| cut(h.key, 63, 32),
        dc_access_key: |h| h.key.get(),
        ext: |h| cut(h.dqp_dct, 31, 31),
        dqp_dct: |h| cut(h.dqp_dct, 23, 0),
        stat_rate: |h| cut(h.stat_rate_sl, 7, 4),
        sl: |h| cut(h.stat_rate_sl, 3, 0),
        fl: |h| cut(h.fl_mlid, 7, 7),
        mlid: |h| cut(h.fl_mlid, 6, 0),
        rlid: |h| h.rlid.get(),
        udp_sport: |h| h.rlid.get(),
        rmac: |h| h.rmac,
        tclass: |h| h.tclass,
        hop_limit: |h| h.hop_limit,
        grh: |h| cut(h.grh_gid_fl, 30, 30),
        src_addr_index: |h| cut(h.grh_gid_fl, 27, 20),
        flow_label: |h| cut(h.grh_gid_fl, 19, 0),
        rgid: |h| h.rgid,
    });
    agree!(EthernetSegment, prm::WqeEthSegment, {
        swp_outer_l4_offset,
        swp_outer_l3_offset,
        swp_inner_l4_offset,
        swp_inner_l3_offset,
        l4_cs: |h| cut(h.cs_flags, 7, 7),
        l3_cs: |h| cut(h.cs_flags, 6, 6),
        l4_inner_cs: |h| cut(h.cs_flags, 5, 5),
        l3_inner_cs: |h| cut(h.cs_flags, 4, 4),
        swp_outer_l4_udp: |h| cut(h.swp_flags, 5, 5),
        swp_outer_l3_ipv6: |h| cut(h.swp_flags, 4, 4),
        swp_inner_l4_udp: |h| cut(h.swp_flags, 1, 1),
        swp_inner_l3_ipv6: |h| cut(h.swp_flags, 0, 0),
        mss: |h| h.mss.get(),
        flow_table_metadata: |h| h.flow_table_metadata.get(),
        insert_vlan: |h| cut(h.inline_header_size, 15, 15),
        inline_hdr_sz: |h| h.inline_header_size.get(),
        insert_svlan: |h| cut(h.inline_header_size, 0, 0),
        inline_hdr_start: |h| u16::from_be_bytes(h.inline_header_start),
        vlan_tci: |h| u16::from_be_bytes(h.inline_header_start),
    });
    agree!(MmoSegment, prm::WqeMmoSegment, {
        mmo_control_31_0: |h| h.control.get(),
        lkey: |h| h.lkey.get(),
        addr: |h| h.address.get(),
    });
    agree!(WaitSegment, prm::WqeWaitCqSegment, {
        max_index: |h| h.max_index.get(),
        cqn: |h| cut(h.cqn, 23, 0),
    });
    agree!(SetPsvSegment, prm::WqeSetPsvSegment, {
        psv_index: |h| h.psv_index.get(),
        syndrome: |h| h.syndrome.get(),
        status,
        transient_sig: |h| cut(h.transient_signature, 63, 32),
        transient_signature: |h| h.transient_signature.get(),
        ref_tag: |h| cut(h.transient_signature, 31, 0),
    });
}

#[test]
fn data_and_receive_segments_agree_with_their_description() {
    agree!(DataSegment, prm::WqeDataSegment, {
        byte_count: |h| cut(h.byte_count, 30, 0),
        lkey: |h| h.lkey.get(),
        addr: |h| h.address.get(),
    });
    agree!(InlineHeader, prm::WqeInlineHeader, {
        inline: |h| h.is_inline(),
        byte_count: |h| cut(h.length(), 9, 0),
    });
    agree!(SrqNextSegment, prm::WqeSrqNextSegment, {
        next_wqe_index: |h| h.next_wqe_index.get(),
        signature: |h| h.signature,
    });
}

#[test]
fn umr_segments_agree_with_their_description() {
    agree!(UmrCtrlSegment, prm::WqeUmrCtrlSegment, {
        inline: |h| cut(h.flags, 7, 7),
        check: |h| cut(h.flags, 6, 5),
        translation_offset_en: |h| cut(h.flags, 4, 4),
        check_qpn: |h| cut(h.flags, 3, 3),
        xlt_octowords: |h| h.klm_octowords.get(),
        xlt_offset: |h| h.translation_offset.get(),
        bsf_octowords: |h| h.translation_offset.get(),
        mkey_mask: |h| h.mkey_mask.get(),
        xlt_offset_47_16,
    });
    agree!(UmrMkeySegment, prm::MkeyContext, {
        free: |h| cut(h.free, 6, 6),
        access_mode_4_2,
        alter_pd_to_vhca_id,
        crossed_side_mkey,
        relaxed_ordering_write,
        small_fence_on_rdma_read_response,
        umr_en: |h| cut(h.access_flags, 7, 7),
        a: |h| cut(h.access_flags, 6, 6),
        rw: |h| cut(h.access_flags, 5, 5),
        rr: |h| cut(h.access_flags, 4, 4),
        lw: |h| cut(h.access_flags, 3, 3),
        lr: |h| cut(h.access_flags, 2, 2),
        access_mode_1_0: |h| cut(h.access_flags, 1, 0),
        ma_translation_mode,
        qpn: |h| cut(h.qpn_mkey, 31, 8),
        mkey_7_0: |h| cut(h.qpn_mkey, 7, 0),
        length64: |h| cut(h.flags_pd, 31, 31),
        bsf_en: |h| cut(h.flags_pd, 30, 30),
        sync_umr: |h| cut(h.flags_pd, 29, 29),
        expected_sigerr_count: |h| cut(h.flags_pd, 26, 26),
        en_rinval: |h| cut(h.flags_pd, 24, 24),
        pd: |h| cut(h.flags_pd, 23, 0),
        start_addr: |h| h.start_address.get(),
        len: |h| h.length.get(),
        bsf_octword_size: |h| h.bsf_octowords.get(),
        crossing_target_vhca_id,
        translations_octword_size: |h| h.translations_octowords.get(),
        crossing_target_mkey: |h| h.translations_octowords.get(),
        order_read_after_write,
        relaxed_ordering_read,
        log_page_size: |h| cut(h.log_page_size, 5, 0),
        crypto_en,
        pcie_tph_en,
        pcie_tph_ph,
        pcie_tph_steering_tag_index,
    });
}

#[test]
fn cqes_agree_with_their_description() {
    agree!(Cqe, prm::Cqe, {
        tls_offload,
        tunneled,
        wqe_id: |h| h.wqe_id.get(),
        lro_tcppsh,
        lro_min_ttl,
        lro_tcp_win,
        lro_ack_seq_num,
        rx_hash_result,
        rx_hash_l4,
        rx_hash_ip,
        ml_path: |h| cut(h.ml_path, 6, 0),
        check_sum,
        slid: |h| h.slid.get(),
        g: |h| cut(h.flags_rqpn, 29, 28),
        sl: |h| cut(h.flags_rqpn, 27, 24),
        roce_l3_type: |h| cut(h.flags_rqpn, 25, 24),
        rqpn: |h| cut(h.flags_rqpn, 23, 0),
        l4_ok: |h| cut(h.hds_ip_ext, 2, 2),
        l3_ok: |h| cut(h.hds_ip_ext, 1, 1),
        l2_ok: |h| cut(h.hds_ip_ext, 0, 0),
        l4_hdr_type: |h| cut(h.l4_hdr_type_etc, 6, 4),
        l3_hdr_type: |h| cut(h.l4_hdr_type_etc, 3, 2),
        has_vlan: |h| cut(h.l4_hdr_type_etc, 0, 0),
        vlan_info: |h| h.vlan_info.get(),
        lro_num_seg: |h| cut(h.srqn_uidx, 31, 24),
        srqn_uidx: |h| cut(h.srqn_uidx, 23, 0),
        imm_inval_pkey: |h| h.imm_inval_pkey.get(),
        app: |h| h.app,
        app_op: |h| h.app_op,
        app_info: |h| h.app_info.get(),
        byte_cnt: |h| h.byte_cnt.get(),
        timestamp: |h| h.timestamp.get(),
        sop: |h| h.opcode_qpn().wqe_opcode(),
        qpn: |h| h.opcode_qpn().qpn(),
        wqe_counter: |h| h.wqe_counter.get(),
        signature: |h| h.signature,
        opcode: |h| h.op_own().opcode(),
        format: |h| h.op_own().format(),
        se: |h| h.op_own().se(),
        owner: |h| h.op_own().owner(),
    });
    agree!(ErrCqe, prm::CqeError, {
        srqn_uidx: |h| cut(h.srqn_uidx, 23, 0),
        byte_cnt,
        hw_error_syndrome,
        hw_syndrome_type,
        vendor_err_synd: |h| h.vendor_err_synd,
        syndrome: |h| h.syndrome,
        s_wqe_opcode: |h| h.opcode_qpn().wqe_opcode(),
        qpn: |h| h.opcode_qpn().qpn(),
        wqe_counter: |h| h.wqe_counter.get(),
        signature: |h| h.signature,
        opcode: |h| h.op_own().opcode(),
        format: |h| h.op_own().format(),
        se: |h| h.op_own().se(),
        owner: |h| h.op_own().owner(),
    });
    agree!(MiniCqe, prm::MiniCqe, {
        checksum: |h| cut(h.info, 31, 16),
        wqe_counter: |h| h.wqe_counter(),
        rx_hash_result: |h| h.info.get(),
        s_wqe_opcode: |h| h.wqe_opcode(),
        stride_index: |h| cut(h.info, 15, 0),
        byte_cnt: |h| h.byte_cnt.get(),
    });
}

#[test]
fn eqes_agree_with_their_description() {
    agree!(Eqe, prm::Eqe, {
        event_type: |h| h.event_type,
        event_sub_type: |h| h.sub_type,
        event_data: |h| h.data,
        signature: |h| h.signature,
        owner: |h| cut(h.owner, 0, 0),
    });
    agree!(EventCompletion, prm::EqeCompletion, { cqn: |h| cut(h.cqn, 23, 0) });
    agree!(EventQueue, prm::EqeQpSrq, {
        type: |h| h.queue_type,
        qpn_rqn_sqn: |h| cut(h.number, 23, 0),
    });
    agree!(EventCqError, prm::EqeCqError, {
        cqn: |h| cut(h.cqn, 23, 0),
        syndrome: |h| h.syndrome,
    });
    agree!(EventPort, prm::EqePortState, { port_num: |h| cut(h.port, 7, 4) });
}

#[test]
fn doorbells_agree_with_their_description() {
    agree!(CqRecord, prm::CqDoorbellRecord, {
        consumer_index: |h| cut(h.consumer, 23, 0),
        arm_sn: |h| CqArm::from_bits(h.arm.get()).sequence(),
        arm_solicited_only: |h| CqArm::from_bits(h.arm.get()).solicited(),
        arm_consumer_index: |h| CqArm::from_bits(h.arm.get()).consumer(),
    });
    agree!(QueueRecord, prm::QpDoorbellRecord, {
        receive_counter: |h| cut(h.receive, 15, 0),
        send_counter: |h| cut(h.send, 15, 0),
    });
    agree!(CqDoorbell, prm::CqArmDoorbell, {
        arm_sn: |h| CqArm::from_bits(cut(h.word, 63, 32) as u32).sequence(),
        arm_solicited_only: |h| CqArm::from_bits(cut(h.word, 63, 32) as u32).solicited(),
        arm_consumer_index: |h| CqArm::from_bits(cut(h.word, 63, 32) as u32).consumer(),
        cqn: |h| cut(h.word, 23, 0),
    });
    let at = |name| prm::UarPage::INFO.field(name).unwrap().offset as usize / 8;
    assert_eq!(uar::PAGE, prm::UarPage::BYTES);
    assert_eq!(uar::CQ, at("cq_arm"));
    assert_eq!(uar::EQ_ARM, at("eq_arm"));
    assert_eq!(uar::EQ, at("eq_update"));
    assert_eq!(uar::BLUEFLAME, at("blueflame_0"));
    assert_eq!(uar::BLUEFLAME + 2 * uar::BLUEFLAME_BUFFER, at("blueflame_1"));
}

#[test]
fn a_doorbell_is_the_first_word_of_a_wqe() {
    let head = prm::WqeCtrlSegment::INFO.fields;
    for (field, of_wqe) in prm::SendDoorbell::INFO.fields.iter().zip(head) {
        assert_eq!(field, of_wqe);
    }
}

proptest! {
    #[test]
    fn what_the_hot_constructors_write_the_views_write_too(
        opmod: u8, wqe_index: u16, op: u8, qpn in 0..1u32 << 24, ds in 0..64u8,
        signature: u8, channel: u16, fm in 0..8u8, ce in 0..4u8, se: bool, imm: u32, address: u64, compare: u64,
    ) {
        let control = CtrlWord::new()
            .with_opmod(opmod)
            .with_wqe_index(wqe_index)
            .with_opcode(op)
            .with_qpn(qpn)
            .with_ds(ds);
        let flags = CtrlFlags::new()
            .with_signature(signature)
            .with_dci_stream_channel(channel)
            .with_fm(fm)
            .with_ce(ce)
            .with_se(se)
            .with_imm(imm);
        let mut view = prm::WqeCtrlSegment::zeroed();
        view.set_opmod(opmod).set_wqe_index(wqe_index).set_opcode(prm::WqeOpcode(op)).set_qpn(qpn).set_ds(ds);
        view.set_signature(signature).set_dci_stream_channel_id(channel).set_fm(prm::WqeFence(fm));
        view.set_ce(prm::WqeCompletion(ce)).set_se(se).set_imm(imm);
        prop_assert_eq!(stored(CtrlSegment::new(control, flags)), view.as_bytes());

        let mut view = prm::WqeRaddrSegment::zeroed();
        view.set_raddr(address).set_rkey(imm);
        prop_assert_eq!(stored(RaddrSegment::new(address, imm)), view.as_bytes());

        let mut view = prm::WqeAtomicSegment::zeroed();
        view.set_swap_add(address).set_compare(compare);
        prop_assert_eq!(stored(AtomicSegment::new(address, compare)), view.as_bytes());

        let mut view = prm::WqeDataSegment::zeroed();
        view.set_byte_count(qpn).set_lkey(imm).set_addr(address);
        prop_assert_eq!(stored(DataSegment::new(qpn, imm, address)), view.as_bytes());

        let length = wqe_index & 0x3ff;
        let mut view = prm::WqeInlineHeader::zeroed();
        view.set_inline(true).set_byte_count(length);
        prop_assert_eq!(stored(InlineHeader::new(length.into())), view.as_bytes());

        let arm = CqArm::new().with_sequence(ce).with_solicited(se).with_consumer(qpn);
        let mut view = prm::CqArmDoorbell::zeroed();
        view.set_arm_sn(ce).set_arm_solicited_only(se).set_arm_consumer_index(qpn).set_cqn(imm & 0xff_ffff);
        prop_assert_eq!(stored(CqDoorbell::new(arm, imm & 0xff_ffff)), view.as_bytes());
    }

    #[test]
    fn any_cqe_prints_without_panic(bytes: [u8; 32], rest: [u8; 32]) {
        let whole = [bytes, rest].concat();
        for info in [prm::Cqe::INFO, prm::CqeError::INFO, prm::MiniCqeArray::INFO, prm::CqeSignatureError::INFO] {
            let text = format!("{:?}", View::new(info, &whole));
            prop_assert!(text.starts_with(info.name));
        }
    }
}
