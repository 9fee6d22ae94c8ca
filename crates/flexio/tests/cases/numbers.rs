//! Each enumeration value has FlexIO's number.
//!
//! Source: the host header of FlexIO SDK 25.1 (`benchmark/flexio/include/libflexio/flexio.h` in
//! axio-project/axio-bf3-express at 6f41efe, BSD-3-Clause) for all but the values of
//! `flexio_dtrace_*`, and the reference of DOCA 3.2.0, chapter "Enumerations", for all but the
//! levels of messages. Values in both agree.

use std::collections::BTreeSet;

use verbless_command::Mtu;
use verbless_flexio::error::Status;
use verbless_flexio::log::LogLevel;
use verbless_flexio::stream::{MsgSyncMode, MsgTransport};
use verbless_flexio::tracer::{OutputMode, TracerTransport};
use verbless_flexio::{
    CmdqState, CqPeriodMode, HwModel, Level, MemoryKind, QpState, QpTransport, WqEndPadMode,
    WqTsFormat, WqType,
};
use verbless_prm::{DpaAffinity, MiniCqeFormat};

/// A value's name, our number, and FlexIO's.
#[rustfmt::skip]
const NUMBERS: &[(&str, u32, u32)] = &[
    ("FLEXIO_STATUS_SUCCESS", Status::Success as u32, 0),
    ("FLEXIO_STATUS_FAILED", Status::Failed as u32, 1),
    ("FLEXIO_STATUS_TIMEOUT", Status::Timeout as u32, 2),
    ("FLEXIO_STATUS_FATAL_ERR", Status::FatalError as u32, 3),

    ("FLEXIO_QPC_ST_RC", QpTransport::Rc as u32, 0x0),
    ("FLEXIO_QPC_ST_UC", QpTransport::Uc as u32, 0x1),
    ("FLEXIO_QPC_ST_UD", QpTransport::Ud as u32, 0x2),
    ("FLEXIO_QPC_ST_XRC", QpTransport::Xrc as u32, 0x3),
    ("FLEXIO_QPC_ST_IBL2", QpTransport::IbL2 as u32, 0x4),
    ("FLEXIO_QPC_ST_DCI", QpTransport::Dci as u32, 0x5),
    ("FLEXIO_QPC_ST_QP0", QpTransport::Qp0 as u32, 0x7),
    ("FLEXIO_QPC_ST_QP1", QpTransport::Qp1 as u32, 0x8),
    ("FLEXIO_QPC_ST_RAW_DATAGRAM", QpTransport::RawDatagram as u32, 0x9),
    ("FLEXIO_QPC_ST_REG_UMR", QpTransport::RegUmr as u32, 0xc),
    ("FLEXIO_QPC_ST_DC_CNAK", QpTransport::DcCnak as u32, 0x10),

    ("FLEXIO_QP_STATE_RST", QpState::Rst.number() as u32, 0x0),
    ("FLEXIO_QP_STATE_INIT", QpState::Init.number() as u32, 0x1),
    ("FLEXIO_QP_STATE_RTR", QpState::Rtr.number() as u32, 0x2),
    ("FLEXIO_QP_STATE_RTS", QpState::Rts.number() as u32, 0x3),
    ("FLEXIO_QP_STATE_ERR", QpState::Err.number() as u32, 0x6),

    ("FLEXIO_QP_QPC_MTU_BYTES_256", Mtu::B256 as u32, 0x1),
    ("FLEXIO_QP_QPC_MTU_BYTES_512", Mtu::B512 as u32, 0x2),
    ("FLEXIO_QP_QPC_MTU_BYTES_1K", Mtu::B1024 as u32, 0x3),
    ("FLEXIO_QP_QPC_MTU_BYTES_2K", Mtu::B2048 as u32, 0x4),
    ("FLEXIO_QP_QPC_MTU_BYTES_4K", Mtu::B4096 as u32, 0x5),

    ("FLEXIO_CQ_PERIOD_MODE_EVENT", CqPeriodMode::Event as u32, 0x0),
    ("FLEXIO_CQ_PERIOD_MODE_CQE", CqPeriodMode::Cqe as u32, 0x1),

    ("FLEXIO_MEMTYPE_DPA", MemoryKind::Dpa as u32, 0),
    ("FLEXIO_MEMTYPE_HOST", MemoryKind::Host as u32, 1),

    ("FLEXIO_WQ_TYPE_LINKED_LIST", WqType::LinkedList as u32, 0x0),
    ("FLEXIO_WQ_TYPE_CYCLIC", WqType::Cyclic as u32, 0x1),
    ("FLEXIO_WQ_END_PAD_NONE", WqEndPadMode::None as u32, 0x0),
    ("FLEXIO_WQ_END_PAD_ALIGN", WqEndPadMode::Align as u32, 0x1),
    ("FLEXIO_WQC_TS_FORMAT_FREE_RUNNING_TS", WqTsFormat::FreeRunning as u32, 0x0),
    ("FLEXIO_WQC_TS_FORMAT_DEFAULT_TS", WqTsFormat::Default as u32, 0x1),
    ("FLEXIO_WQC_TS_FORMAT_REAL_TIME_TS", WqTsFormat::RealTime as u32, 0x2),

    // The device's values for `Affinity`.
    ("FLEXIO_AFFINITY_NONE", DpaAffinity::NONE.0 as u32, 0),
    ("FLEXIO_AFFINITY_STRICT", DpaAffinity::STRICT.0 as u32, 1),
    ("FLEXIO_AFFINITY_GROUP", DpaAffinity::GROUP.0 as u32, 2),

    ("FLEXIO_CMDQ_STATE_PENDING", CmdqState::Pending as u32, 0),
    ("FLEXIO_CMDQ_STATE_RUNNING", CmdqState::Running as u32, 1),

    ("FLEXIO_MSG_DEV_SYNC_MODE_SYNC", MsgSyncMode::Sync as u32, 0),
    ("FLEXIO_MSG_DEV_SYNC_MODE_ASYNC", MsgSyncMode::Async as u32, 1),
    ("FLEXIO_MSG_DEV_SYNC_MODE_BATCH", MsgSyncMode::Batch as u32, 2),
    ("FLEXIO_MSG_DEV_SYNC_MODE_TRACER", MsgSyncMode::Tracer as u32, 3),
    ("FLEXIO_LOG_DEV_SYNC_MODE_SYNC", MsgSyncMode::Sync as u32, 0),
    ("FLEXIO_LOG_DEV_SYNC_MODE_ASYNC", MsgSyncMode::Async as u32, 1),
    ("FLEXIO_LOG_DEV_SYNC_MODE_BATCH", MsgSyncMode::Batch as u32, 2),
    ("FLEXIO_LOG_DEV_SYNC_MODE_TRACER", MsgSyncMode::Tracer as u32, 3),

    ("FLEXIO_MSG_TRANSPORT_QP_RC", MsgTransport::Rc as u32, 0),
    ("FLEXIO_MSG_TRANSPORT_WINDOW", MsgTransport::Window as u32, 1),
    ("FLEXIO_MSG_TRANSPORT_QP_UC", MsgTransport::Uc as u32, 2),
    ("FLEXIO_MSG_TRANSPORT_QP_UD", MsgTransport::Ud as u32, 3),
    ("FLEXIO_TRACER_TRANSPORT_QP", MsgTransport::Rc as u32, 0),
    ("FLEXIO_TRACER_TRANSPORT_WINDOW", MsgTransport::Window as u32, 1),

    ("FLEXIO_MSG_DEV_NO_PRINT", Level::None as u32, 0),
    ("FLEXIO_MSG_DEV_ALWAYS_PRINT", Level::Always as u32, 1),
    ("FLEXIO_MSG_DEV_INFO", Level::Info as u32, 4),
    ("FLEXIO_MSG_DEV_DEBUG", Level::Debug as u32, 5),

    ("FLEXIO_DTRACE_OUTPUT_MODE_BIN", OutputMode::Bin as u32, 0),
    ("FLEXIO_DTRACE_OUTPUT_MODE_CSV", OutputMode::Csv as u32, 1),
    ("FLEXIO_DTRACE_OUTPUT_MODE_CB", OutputMode::Callback as u32, 2),
    ("FLEXIO_DTRACE_TRANSPORT_TYPE_QP_UC", TracerTransport::Uc as u32, 0),
    ("FLEXIO_DTRACE_TRANSPORT_TYPE_WINDOW", TracerTransport::Window as u32, 1),
    ("FLEXIO_DTRACE_TRANSPORT_TYPE_DBUF", TracerTransport::Dbuf as u32, 2),
    ("FLEXIO_DTRACE_TRANSPORT_TYPE_UMEM", TracerTransport::Umem as u32, 3),

    ("FLEXIO_HW_MODEL_DEF", HwModel::Default as u32, 0),
    ("FLEXIO_HW_MODEL_CX7", HwModel::Cx7 as u32, 1),
    ("FLEXIO_HW_MODEL_BF3", HwModel::Bf3 as u32, 2),
    ("FLEXIO_HW_MODEL_CX8", HwModel::Cx8 as u32, 3),
    ("FLEXIO_HW_MODEL_CX9", HwModel::Cx9 as u32, 4),
    ("FLEXIO_HW_MODEL_NA", HwModel::NotAvailable as u32, 0xffff),

    ("FLEXIO_LOG_LVL_ERR", LogLevel::Error as u32, 0),
    ("FLEXIO_LOG_LVL_WARN", LogLevel::Warn as u32, 1),
    ("FLEXIO_LOG_LVL_INFO", LogLevel::Info as u32, 2),
    ("FLEXIO_LOG_LVL_DBG", LogLevel::Debug as u32, 3),
];

/// A value's name, our number, and FlexIO's, for values that only the header has.
#[rustfmt::skip]
const OF_THE_HEADER: &[(&str, u32, u32)] = &[
    ("FLEXIO_MSG_DEV_ERROR", Level::Error as u32, 2),
    ("FLEXIO_MSG_DEV_WARN", Level::Warn as u32, 3),
    ("FLEXIO_CQE_FORMAT_RESP_BYTECOUNT_HASH", MiniCqeFormat::RX_HASH.0 as u32, 0x0),
    ("FLEXIO_CQE_FORMAT_RESP_BYTECOUNT_CKSUM", MiniCqeFormat::CHECKSUM.0 as u32, 0x1),
];

/// Names of 3.2.0 without an enumeration value here: macros, and values that became optional
/// fields.
const WITHOUT: &[&str] = &[
    // Macros.
    "FLEXIO_CURRENT_VERSION",
    "FLEXIO_EXPERIMENTAL",
    "FLEXIO_MAX_EQ_TO_MSIX_MAP_PAIRS",
    "FLEXIO_MAX_NAME_LEN",
    "FLEXIO_STABLE",
    "FLEXIO_VER",
    // `DpaCqConfig::compression` is `Some` or `None`.
    "FLEXIO_CQE_COMP_ENABLE",
    "FLEXIO_CQE_COMP_NONE",
    // The fields of `RemoteAccess`.
    "FLEXIO_QP_WR_ATOMIC_CMP_AND_SWAP",
    "FLEXIO_QP_WR_RDMA_READ",
    "FLEXIO_QP_WR_RDMA_WRITE",
];

#[test]
fn constants_match_headers_and_reference() {
    for (name, ours, theirs) in NUMBERS.iter().chain(OF_THE_HEADER) {
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn every_documented_constant_has_number() {
    const NAMES: &str = include_str!("../../../../docs/mapping/flexio.names");
    let named: BTreeSet<_> = NAMES.lines().filter(|name| name.starts_with("FLEXIO_")).collect();
    let here = NUMBERS.iter().map(|(name, ..)| *name).chain(WITHOUT.iter().copied());
    assert_eq!(here.collect::<BTreeSet<_>>(), named);
}
