//! The table of refusals: name, number, status and text.
//!
//! The numbers are the low half of the syndromes, and unique.

use verbless_prm::CommandStatus;

/// The high half of every syndrome of the model.
const MARK: u32 = 0x564c_0000;

macro_rules! refusals {
    ($($name:ident = $number:literal, $status:ident, $text:literal;)*) => {
        /// Why a command is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Refusal {
            $(#[doc = $text] $name,)*
        }

        impl Refusal {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The status that the outbox shows.
            pub const fn status(self) -> CommandStatus {
                match self { $(Self::$name => CommandStatus::$status,)* }
            }

            /// The syndrome that the outbox shows.
            pub const fn syndrome(self) -> u32 {
                MARK | match self { $(Self::$name => $number,)* }
            }

            /// The reason in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The reason of a syndrome of the model; `None` for any other syndrome.
            pub fn of_syndrome(syndrome: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|refusal| refusal.syndrome() == syndrome)
            }
        }
    };
}

refusals! {
    InputTooShort = 0x01, BAD_INP_LEN, "The inbox is shorter than the command.";
    OutputTooShort = 0x02, BAD_OUTP_LEN, "The outbox is shorter than the answer.";
    ListTooShort = 0x03, BAD_INP_LEN, "The inbox is shorter than the list that it announces.";
    UnknownOpcode = 0x04, BAD_OP, "No such command.";
    NotModelled = 0x05, BAD_OP, "The model does not implement this command.";
    UnknownOpMod = 0x06, BAD_OP, "The command has no such op_mod.";
    Reserved = 0x07, BAD_PARAM, "A reserved field is not 0.";
    Unsupported = 0x08, BAD_PARAM, "A field requests a feature that the capabilities do not offer.";
    KernelOnlyField = 0x0a, BAD_PARAM,
        "A field requests a feature that only uid 0 (the kernel) may use.";
    DeviceFatal = 0x09, INTERNAL_ERR, "The device is in a fatal error state.";

    NotEnabled = 0x10, BAD_SYS_STATE, "The function is not enabled: ENABLE_HCA comes first.";
    NotInitialised = 0x11, BAD_SYS_STATE, "The function is not initialised: INIT_HCA comes first.";
    AlreadyEnabled = 0x12, BAD_SYS_STATE, "The function is enabled already.";
    AlreadyInitialised = 0x13, BAD_SYS_STATE, "The function is initialised already.";
    PagesLacking = 0x14, BAD_SYS_STATE, "The function needs more pages: send MANAGE_PAGES first.";
    PageOnCard = 0x1e, BAD_PARAM, "A page address is in the card's memory, not in the host's.";
    NoSwitchManager = 0xf1, BAD_PARAM, "The function manages no embedded switch.";
    NoSuchFunction = 0x15, BAD_PARAM, "There is no such function, or this one does not manage it.";
    PageMisaligned = 0x16, BAD_PARAM, "A page address is not aligned to its size.";
    PageTwice = 0x17, BAD_PARAM, "The function has the page already.";
    CapabilityExceeded = 0x18, BAD_PARAM, "A capability is set above its maximum.";
    NoSuchPage = 0x19, BAD_PARAM, "The device has no such capability page.";
    NoSuchIssi = 0x1a, BAD_PARAM, "The interface version is not supported.";
    TooManyPages = 0x1d, BAD_PARAM, "The function has far more pages than it requested.";
    BadProfile = 0x1b, BAD_PARAM, "The teardown profile is unknown.";
    ObjectsExist = 0x1c, BAD_RES_STATE, "Objects still exist: destroy them first.";

    KernelOnly = 0x20, BAD_OP, "Only uid 0 may send this command.";
    ToolsOnly = 0x26, BAD_OP,
        "Only uid 0 may send this command, and user contexts with TOOLS_RESOURCES of uctx_cap.";
    TooMany = 0x23, LIM, "As many objects of this kind exist as the capability allows.";
    NoNumber = 0x24, NO_RES, "All numbers for objects of this kind are in use.";
    OverBudget = 0x25, NO_RES,
        "The function's objects and translation tables take as much memory as the model allows.";

    BufferMisaligned = 0x45, BAD_PARAM, "A queue buffer is not aligned to its entries.";
    BufferOffset = 0x47, BAD_PARAM,
        "A queue buffer does not begin at a multiple of a 64th of its UMEM's page, or begins at a \
         larger offset than page_offset can express.";
    RecordMisaligned = 0x46, BAD_PARAM, "A doorbell record is not aligned to 8 bytes.";

    TransportService = 0x82, BAD_PARAM,
        "The model does not implement this transport service, or this uid may not use it.";

    TimestampFormat = 0x96, BAD_PARAM,
        "ts_format requests a clock that this device does not offer for such queues.";

    WqShape = 0xb5, BAD_PARAM,
        "The work queue is not cyclic, or its stride is not that of its queue type.";
    WqSize = 0xb6, LIM, "The work queue is larger than log_max_wq_sz.";

    DpaConfigInUse = 0xc5, BAD_RES_STATE,
        "Threads or calls still begin with the outbox or window: destroy them first.";
    NoSuchDpaGroup = 0xf0, BAD_RES,
        "No such group of execution units, or this uid may not change or destroy it.";
    DpaFull = 0xca, NO_RES,
        "The DPA has no memory left, or the process has no free stack, outbox or window.";
    DpaUnit = 0xcc, BAD_PARAM, "There is no such execution unit or group of them.";
    DpaConfig = 0xcd, BAD_PARAM, "The process has no such outbox or window.";
    DpaAbsent = 0xce, BAD_PARAM, "The device has no DPA.";
    DpaUnitsInUse = 0xd0, BAD_RES_STATE,
        "Threads, calls or groups use the execution units, or a function whose partition would \
         change has processes: destroy those first.";
    DpaPartitionless = 0xd9, BAD_PARAM,
        "The function is in no partition of execution units: the function that manages them must \
         make one that names its vhca_id (register NIC_DPA_EU_PARTITION).";
    DpaPartition = 0xda, BAD_PARAM,
        "There is no such partition, execution unit or function on the card, or the partition \
         would have no units.";
    DpaUnitTaken = 0xdb, BAD_PARAM,
        "An execution unit or function is in another partition: take it out of that first.";
    DpaNotManager = 0xdc, BAD_OP,
        "Only the function that manages the card's execution units may do that: a PF of the DPU \
         side, or without one PF 0.";
    DpaModifySelect = 0xde, BAD_PARAM, "modify_field_select selects an unknown field.";
    DpaNumberAmbiguous = 0xf2, BAD_PARAM,
        "The function has a thread of this number, and so has a process that the CQ's UAR page is \
         extended to: name a page that is extended to none.";
    DpaTooManyGroups = 0xdd, NO_RES,
        "The DPA has as many groups of execution units, or partitions, as it supports.";
    DpaEntry = 0xcf, BAD_PARAM, "The address of the handler or function is 0 or odd.";

    WrongLink = 0xa0, BAD_PARAM, "The command is not for the link layer of the ports.";
    GidIndex = 0xa1, BAD_PARAM, "The index is outside the GID table.";
    PkeyIndex = 0xa2, BAD_PARAM, "The index is outside the P_Key table.";
    RoceAddress = 0xa3, BAD_PARAM, "The RoCE version or address kind is not supported.";
    NoSuchPort = 0xa6, BAD_PARAM, "There is no such port.";
    NoSuchRegister = 0xa4, BAD_PARAM, "The device has no such register.";
    VportField = 0xa8, BAD_PARAM, "A selected field of the vport cannot be changed.";
    MadPacket = 0xa7, BAD_PKT, "The datagram is malformed, or no agent of the device serves it.";
    RegisterReadOnly = 0xa5, BAD_OP, "The register cannot be written.";

    // Queue pairs.
    NoSuchQp = 0x80, BAD_RES, "No such QP for this uid.";
    QpState = 0x81, BAD_QP_STATE, "The transition does not start from the state that the QP is in.";
    QpInlineCqe = 0x83, BAD_PARAM,
        "cs_req or cs_res asks for 64 bytes in CQEs of 64: the CQ needs CQEs of 128.";
    QpSize = 0x84, LIM, "A work queue is larger than log_max_qp_sz.";
    QpStride = 0x85, BAD_PARAM,
        "The receive stride is larger than max_wqe_sz_rq, or too short for a WQE.";
    QpOptional = 0x87, BAD_PARAM,
        "opt_param_mask selects a field that the transition does not accept.";
    QpMigration = 0x88, BAD_PARAM, "pm_state is not MIGRATED, and path migration is not supported.";
    QpMtu = 0x89, BAD_PARAM, "The MTU is invalid, or above the port's active MTU.";
    QpMessage = 0x8a, BAD_PARAM, "log_msg_max is above the capability.";
    QpReads = 0x8b, BAD_PARAM, "More outstanding READs and atomics than the capability allows.";
    QpAtomicMode = 0x8c, BAD_PARAM, "The atomic mode is not supported.";
    QpNumber = 0x8d, BAD_PARAM, "A QP's number cannot be chosen.";
    PathPort = 0x8e, IX, "The path names a port that the device does not have.";
    PathPkey = 0x8f, IX, "pkey_index is outside the P_Key table, or its entry is empty.";
    PathGid = 0x90, IX, "src_addr_index is outside the GID table, or its entry is empty.";
    PathLid = 0x91, BAD_PARAM, "The path needs a unicast destination LID.";
    PathMac = 0x92, BAD_PARAM, "The path needs a unicast destination MAC.";
    PathUdpPort = 0x93, BAD_PARAM, "The UDP source port is outside the RoCE range.";
    PathLoopback = 0x9d, BAD_PARAM,
        "fl is set: the device forces no loopback for this QP type in its RoCE state.";
    QpLagPort = 0x97, BAD_PARAM, "lag_tx_port_affinity names a port that is not in a bond.";
    Group = 0x94, BAD_PARAM, "The GID is not a multicast GID, or the QP is not a UD QP.";
    NotInGroup = 0x95, BAD_RES, "The QP is not in the multicast group.";

    // Send queues without a QP.
    NoSuchSq = 0xb0, BAD_RES, "No such SQ for this uid.";
    SqState = 0xb1, BAD_RES_STATE,
        "The SQ is not in sq_state, or cannot change from there to the new state.";
    SqBegin = 0xb2, BAD_PARAM, "An SQ must be created in state RST.";
    SqField = 0xb3, BAD_PARAM, "A selected field cannot be modified.";
    RawTransmit = 0xef, BAD_PARAM,
        "The user context may not send raw frames (RAW_TX of uctx_cap): CAP_NET_RAW is needed.";

    // Flow tables.
    NoSuchFlowTable = 0xe0, BAD_RES, "No such flow table for this uid.";
    FlowTableInUse = 0xe1, BAD_RES_STATE,
        "The flow table has groups, or another table leads to it.";
    FlowTableSize = 0xe2, LIM, "The flow table is larger than log_max_ft_size.";
    FlowTableLevel = 0xe3, BAD_PARAM,
        "The level is above max_ft_level, or a table leads to one that is not of a higher level.";
    NoSuchFlowGroup = 0xe4, BAD_RES, "The flow table has no such group.";
    FlowGroupInUse = 0xe5, BAD_RES_STATE, "Entries are still in the flow group: delete them first.";
    FlowGroupRange = 0xe6, BAD_PARAM,
        "The flow group's range is not in its table, or overlaps that of another group.";
    FlowCriteria = 0xe7, BAD_PARAM,
        "The criteria hold a field that cannot be matched (ft_field_support).";
    NoSuchFlowEntry = 0xe8, BAD_RES, "The flow table has no entry at the index.";
    FlowEntryExists = 0xe9, BAD_RES_STATE, "The flow table has an entry at the index.";
    FlowIndex = 0xea, BAD_PARAM, "The index is not in the flow group of the entry.";
    FlowAction = 0xeb, BAD_PARAM,
        "An entry either drops, allows or forwards, and only one that forwards has destinations.";
    FlowDestinations = 0xec, LIM, "The entry has more destinations than log_max_destination.";

    // Transport interfaces for receiving.
    NoSuchTir = 0xbe, BAD_RES, "No such TIR for this uid.";
    TirInUse = 0xbf, BAD_RES_STATE, "Flow table entries still lead to the TIR: delete them first.";

    // Receive queues of Ethernet frames.
    NoSuchRq = 0xb9, BAD_RES, "No such RQ for this uid.";
    RqInUse = 0xba, BAD_RES_STATE, "TIRs still lead to the RQ: destroy them first.";
    RqState = 0xbb, BAD_RES_STATE,
        "The RQ is not in rq_state, or cannot change from there to the new state.";
    RqBegin = 0xbc, BAD_PARAM, "An RQ must be created in state RST.";
    RqField = 0xbd, BAD_PARAM, "A selected field cannot be modified.";

    // Transport interfaces for sending.
    NoSuchTis = 0xb4, BAD_RES, "No such TIS for this uid.";
    TisInUse = 0xb7, BAD_RES_STATE, "SQs still send through the TIS: destroy them first.";
    TisLagPort = 0x9e, BAD_PARAM,
        "lag_tx_port_affinity names a port that is not in a bond, or strict_lag_tx_port_affinity \
         is set where there are no such ports.";

    // Receive queues that QPs share.
    NoSuchSrq = 0x86, BAD_RES, "No such SRQ, XRC SRQ or RMP for this uid.";
    SrqInUse = 0x9a, BAD_RES_STATE, "QPs still use the receive queue: destroy them first.";
    SrqState = 0x9b, BAD_RES_STATE,
        "The queue is not in the given state, or cannot change to the new one.";
    SrqLimit = 0x9c, BAD_PARAM, "The limit is above the size of the queue.";

    // XRC domains.
    NoSuchXrcd = 0x98, BAD_RES, "No such XRC domain for this uid.";
    XrcdInUse = 0x99, BAD_RES_STATE, "Queues still use the XRC domain: destroy them first.";

    // Completion queues.
    NoSuchCq = 0x60, BAD_RES, "No such CQ for this uid.";
    CqInUse = 0x61, BAD_RES_STATE, "Work queues still use the CQ: destroy them first.";
    CqSize = 0x62, BAD_PARAM, "log_cq_size is above log_max_cq_sz, or 0 without cc.";
    CqeSize = 0x63, BAD_PARAM, "The CQE size is not supported.";
    CqField = 0x64, BAD_PARAM, "A selected field cannot be modified.";
    CqOutstanding = 0x65, BAD_SIZE_OUTS_CQES,
        "The pending CQEs, with the one that ends the resize, do not fit in the old or in the new \
         buffer: poll the CQ first.";
    CqState = 0x66, BAD_RES_STATE,
        "The CQ is in an error state: it overran, or its buffer cannot be written.";

    // CQE-generating doorbells of emulated devices.
    NoSuchEmulatedDoorbell = 0xd7, BAD_RES, "No such doorbell of an emulated device for this uid.";
    EmulatedDoorbellTaken = 0xd8, BAD_RES_STATE,
        "Another object has the queue's doorbell: destroy it first.";

    // Event queues of the DPA.
    NoSuchDpaEq = 0xd1, BAD_RES, "No such event queue of the DPA for this uid.";
    DpaEqInUse = 0xd2, BAD_RES_STATE,
        "CQs still name the event queue of the DPA: destroy them first.";

    // PCI devices that programs of the DPA emulate.
    NoSuchEmulatedDevice = 0xd3, BAD_RES, "No such emulated device for this uid.";
    EmulatedDeviceInUse = 0xd4, BAD_RES_STATE,
        "Event queues or doorbells still use the emulated device: destroy them first.";
    EmulatedDeviceSize = 0xd5, BAD_PARAM,
        "An emulated device has at least one queue, and at most 64 vectors.";
    EmulatedDeviceParts = 0xd6, BAD_PARAM, "The emulated device has no such queue or vector.";

    // Calls of functions on the DPA.
    NoSuchDpaCall = 0xc7, BAD_RES, "No such call on the DPA for this uid.";

    // Threads of the DPA.
    NoSuchDpaThread = 0xc2, BAD_RES, "No such thread on the DPA for this uid.";
    DpaThreadInUse = 0xc3, BAD_RES_STATE, "CQs still start the thread: destroy them first.";

    // Pages of doorbells for the DPA.
    NoSuchDpaOutbox = 0xc4, BAD_RES, "No such outbox of the DPA for this uid.";

    // UAR pages whose queues the DPA of another function may ring for.
    NoSuchUarExtension = 0xed, BAD_RES, "No such UAR extension for this uid.";
    UarExtensionTo = 0xee, BAD_PARAM,
        "The process is of no function of the card that has this vhca_id and reaches this one.";

    // Windows of the DPA to memory.
    NoSuchDpaWindow = 0xc6, BAD_RES, "No such window of the DPA for this uid.";

    // Core dumps of processes of the DPA.
    NoSuchDpaCoreDump = 0xc8, BAD_RES, "No such core dump for this uid.";

    // Processes of the DPA.
    NoSuchDpaProcess = 0xc0, BAD_RES, "No such process on the DPA for this uid.";
    DpaProcessInUse = 0xc1, BAD_RES_STATE,
        "Threads, calls, outboxes, windows, mkeys or queues still use the process: destroy them \
         first.";
    DpaProgram = 0xc9, BAD_PARAM, "The file is not a program for the DPA.";
    DpaEnded = 0xcb, BAD_RES_STATE, "The process has ended: see its status.";
    DpaHasThreads = 0xdf, BAD_RES_STATE,
        "The process has had a thread: its error handler is set before the first one.";

    // Memory keys.
    NoSuchMkey = 0x50, BAD_RES, "No such mkey for this uid.";
    MkeyMode = 0x51, BAD_PARAM, "The access mode is not supported here.";
    MkeyLength = 0x52, BAD_PARAM, "The length is 0, or the range overflows.";
    MkeyPageSize = 0x53, BAD_PARAM, "The page or block size does not fit the key.";
    MkeyTranslations = 0x54, BAD_PARAM, "The translation entries do not cover the length.";
    MkeyOffset = 0x55, BAD_PARAM,
        "The start address has another offset within the UMEM's page than the memory has (on a \
         card syndrome 0x317175).";
    MkeyEntries = 0x56, LIM, "The entry list is longer than log_max_klm_list_size.";
    MkeyAtomic = 0x58, BAD_PARAM,
        "An indirect mkey for atomics is not aligned to the largest atomic, in its start or its \
         length.";
    MkeyLength64 = 0x57, BAD_PARAM, "An mkey with length64 has neither pages nor a UMEM.";

    // Aliases of memory keys of other functions.
    NoSuchAlias = 0x5a, BAD_RES, "No such alias for this uid.";
    NoOffer = 0x5b, BAD_RES,
        "There is no such object of a function that this one may reach, or the access key is \
         wrong.";
    NotToBeShared = 0x5c, BAD_PARAM, "Objects of this type cannot be shared.";

    // Registered user memory.
    NoSuchUmem = 0x40, BAD_RES, "No such UMEM for this uid.";
    UmemInUse = 0x41, BAD_RES_STATE, "Mkeys or queues still use the UMEM: destroy them first.";
    UmemPages = 0x42, BAD_PARAM, "The UMEM's pages, page size or offset are out of range.";
    UmemBounds = 0x43, BAD_PARAM, "The range is not within the UMEM.";
    UmemReadOnly = 0x44, BAD_PARAM,
        "The device must write there, but the UMEM's pages are read-only.";

    // Event queues.
    NoSuchEq = 0x70, BAD_RES, "No such EQ.";
    EqInUse = 0x71, BAD_RES_STATE, "CQs still use the EQ: destroy them first.";
    EqSize = 0x72, BAD_PARAM, "log_eq_size is above log_max_eq_sz.";
    EqEvents = 0x73, BAD_PARAM, "An event type is unknown, or mapped to another EQ already.";
    NoSuchVector = 0x74, BAD_RES, "No such interrupt vector.";

    // UAR pages of the kernel and of user contexts.
    NoSuchUar = 0x33, BAD_RES, "No such UAR page for this uid.";
    UarInUse = 0x34, BAD_RES_STATE, "Queues still use the UAR page: destroy them first.";

    // Transport domains.
    NoSuchTd = 0x32, BAD_RES, "No such transport domain for this uid.";
    TdInUse = 0xb8, BAD_RES_STATE,
        "TISs or TIRs still belong to the transport domain: destroy them first.";

    // Protection domains.
    NoSuchPd = 0x30, BAD_RES, "No such PD for this uid.";
    PdInUse = 0x31, BAD_RES_STATE, "Mkeys or QPs still use the PD: destroy them first.";

    // Q counters.
    NoSuchCounter = 0x35, BAD_RES, "No such Q counter for this uid.";
    CounterInUse = 0x36, BAD_RES_STATE, "QPs still use the Q counter: destroy them first.";

    // User contexts.
    NoSuchUid = 0x21, BAD_RES, "No such user context.";
    UctxCapability = 0x22, BAD_PARAM,
        "The user context asks for a capability that uctx_cap does not offer.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_maps_back_to_its_refusal() {
        for &refusal in Refusal::ALL {
            assert_eq!(Refusal::of_syndrome(refusal.syndrome()), Some(refusal));
            assert_ne!(refusal.status(), CommandStatus::OK);
        }
    }
}
