//! Lines about asynchronous events.

use super::scan::after;

/// Explains an asynchronous event in the words of `ibv_event_type_str` or UCX: `IB Async event on
/// mlx5_0: SRQ-attached QP 0xa18 was flushed`.
pub(super) fn explain(line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    if !lower.contains("async event") && !lower.contains("asynchronous event") {
        return None;
    }
    let (_, name, meaning) = EVENTS.iter().find(|(words, ..)| lower.contains(words))?;
    let mut lines = vec![format!("event {name}: {meaning}")];
    for (label, what) in [("dctn", "DCT"), ("qp", "queue"), ("cq", "CQ"), ("srq", "SRQ")] {
        if let Some(found) = after(line, &[label]) {
            lines.push(format!("{what} {:#x} ({})", found.value, found.value));
        }
    }
    Some(lines)
}

/// Words of an event in lower case, its name and meaning; longer words first.
const EVENTS: &[(&str, &str, &str)] = &[
    (
        "dct access error",
        "DCT_ACCESS_ERR",
        "a peer's request to this DCT was refused: key, range, right or operation is wrong; the \
         peer's completion has the error",
    ),
    (
        "was flushed",
        "QP_LAST_WQE_REACHED",
        "the QP is in error and takes no more receives from the SRQ; the cause is before it",
    ),
    (
        "last wqe reached",
        "QP_LAST_WQE_REACHED",
        "the QP is in error and takes no more receives from the SRQ; the cause is before it",
    ),
    (
        "local access violation work queue error",
        "QP_ACCESS_ERR",
        "the responder refused a peer's access: rkey, range or right is wrong; the peer's \
         completion has REM_ACCESS_ERR",
    ),
    (
        "invalid request local work queue error",
        "QP_REQ_ERR",
        "the responder refused a peer's request as invalid; the peer's completion has \
         REM_INV_REQ_ERR",
    ),
    ("local work queue catastrophic error", "QP_FATAL", "the QP failed without a completion"),
    ("srq catastrophic error", "SRQ_ERR", "the SRQ failed and takes no more receives"),
    ("srq limit reached", "SRQ_LIMIT_REACHED", "fewer receives are posted than the limit"),
    ("path migration request error", "PATH_MIG_ERR", "the alternate path failed"),
    (
        "local catastrophic",
        "DEVICE_FATAL",
        "the device failed; its health report is in the kernel log",
    ),
    ("cq error", "CQ_ERR", "the CQ overran or its buffer failed; it gets no more completions"),
    ("port error", "PORT_ERR", "the port's link is down"),
];
