//! `Send` and `Sync` of the public types, checked by the compiler, and equal to the table in the
//! crate's documentation.

use verbless_queue::*;

/// `Type::OF` is ambiguous, and does not compile, if the type is `Sync`.
mod not_sync {
    pub(super) trait Probe<A> {
        const OF: () = ();
    }
    impl<T: ?Sized> Probe<()> for T {}
    pub(super) struct IfSync;
    impl<T: ?Sized + Sync> Probe<IfSync> for T {}
}

const fn send<T: Send>() {}
const fn sync<T: Sync>() {}

macro_rules! check {
    ($type:ty: Send, Sync) => {{
        const { send::<$type>() };
        const { sync::<$type>() };
        "yes | yes"
    }};
    ($type:ty: Send, not Sync) => {{
        const { send::<$type>() };
        const { <$type as not_sync::Probe<_>>::OF };
        "yes | no"
    }};
}

/// Rows of the table up to the reason, each true if it compiles.
macro_rules! rows {
    ($($type:ident: $($what:ident)+ $(, $($more:ident)+)?;)*) => {
        vec![$(format!(
            "| [`{}`] | {} | ",
            stringify!($type),
            check!($type: $($what)+ $(, $($more)+)?)
        )),*]
    };
}

#[test]
fn send_sync_table_matches_compiler() {
    let expected = rows![
    Domain: Send, Sync;
    Region: Send, Sync;
    WordRegion: Send, Sync;
    Memory: Send, Sync;
    RemoteRegion: Send, Sync;
    IndirectKey: Send, Sync;
    UmrKey: Send, Sync;
    AddressHandle: Send, Sync;
    CqEvents: Send, Sync;
    Cq: Send, not Sync;
    Qp: Send, not Sync;
    CollapsedCq: Send, not Sync;
    CollapsedCompletionQueue: Send, not Sync;
    CqTarget: Send, not Sync;
    QpControl: Send, Sync;
    QpQueues: Send, not Sync;
    SendHalf: Send, not Sync;
    ReceiveHalf: Send, not Sync;
    Srq: Send, not Sync;
    Sq: Send, not Sync;
    Rq: Send, not Sync;
    FlowRule: Send, Sync;
    QueuePair: Send, not Sync;
    SendQueue: Send, not Sync;
    ReceiveQueue: Send, not Sync;
    SharedReceiveQueue: Send, not Sync;
    CompletionQueue: Send, not Sync;
    SrqReturns: Send, Sync;
    RawRq: Send, not Sync;
    ReceivedFrame: Send, Sync;
    EthCqe: Send, Sync;
    CqCleaner: Send, not Sync;
    Cqe: Send, Sync;
    Completion: Send, Sync;
    Error: Send, Sync;
    DeviceError: Send, Sync;
    ];
    let library = include_str!("../src/lib.rs");
    let table: Vec<_> = library.lines().filter(|line| line.starts_with("//! | [`")).collect();
    assert_eq!(table.len(), expected.len(), "rows");
    for (row, expected) in table.iter().zip(&expected) {
        assert!(row["//! ".len()..].starts_with(expected), "{row}: {expected}");
    }
}
