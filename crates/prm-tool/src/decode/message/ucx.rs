//! UCX status codes: name, `ucs_status_string`, and cause on mlx5.

use super::scan::after;

/// Explains the UCX status in a line; `None` if it has none.
pub(super) fn explain(line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    let status = by_name(line).or_else(|| {
        // Other programs print the same strings (most are strerror's), so the line must mention
        // UCX.
        let marks = ["ucx", "ucp", "uct", "ucs_", "nixl", "endpoint"];
        let is_ucx = marks.iter().any(|mark| lower.contains(mark));
        let fails = ["err", "fail", "fatal", "warn", "diag", "timeout", "status"];
        let is_failure = fails.iter().any(|word| lower.contains(word));
        (is_ucx && is_failure).then_some(())?;
        by_number(line, &lower).or_else(|| STATUSES.iter().find(|it| line.contains(it.text)))
    })?;
    let Status { number, name, text, meaning } = status;
    Some(vec![format!("UCX status {number}, UCS_ERR_{name} (\"{text}\"): {meaning}")])
}

/// A status by its name in C; only UCX has such names.
fn by_name(line: &str) -> Option<&'static Status> {
    let (_, rest) = line.split_once("UCS_ERR_")?;
    let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c == '_')).unwrap_or(rest.len());
    STATUSES.iter().find(|it| it.name == &rest[..end])
}

/// `(error code -80)`, `ucs_status -3`, as programs print it.
fn by_number(line: &str, lower: &str) -> Option<&'static Status> {
    let is_status = ["ucs_status", "ucx", "ucp_"].iter().any(|mark| lower.contains(mark));
    let found = after(line, &["error code", "ucs_status", "status"])?;
    let value = i64::try_from(found.value).ok()?;
    STATUSES.iter().find(|it| is_status && found.is_negative && it.number == -value)
}

/// A status of UCX (`ucs/type/status.h`), with its text (`ucs_status_string`).
struct Status {
    number: i64,
    name: &'static str,
    text: &'static str,
    meaning: &'static str,
}

const fn status(
    number: i64,
    name: &'static str,
    text: &'static str,
    meaning: &'static str,
) -> Status {
    Status { number, name, text, meaning }
}

/// The failures. `uct/ib/mlx5/ib_mlx5_log.c` maps error CQEs to them.
const STATUSES: &[Status] = &[
    status(
        -80,
        "ENDPOINT_TIMEOUT",
        "Endpoint timeout",
        "the peer does not answer (CQE syndrome 0x15, 0x16 or 0x22; for UD, no ACK within \
         UCX_UD_TIMEOUT). Check that the peer runs, and that MTU, GID and SL work on the path. \
         UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT bound the RC retries",
    ),
    status(
        -25,
        "CONNECTION_RESET",
        "Connection reset by remote peer",
        "the peer refused an access (CQE syndrome 0x13 or 0x14), or closed the connection: look \
         for an earlier error of the peer; if it ended, this is the consequence",
    ),
    status(
        -3,
        "IO_ERROR",
        "Input/output error",
        "a verbs or kernel call failed, or a CQE has an error of this side: the lines before it \
         name the call or the syndrome",
    ),
    status(
        -16,
        "CANCELED",
        "Request canceled",
        "the request was canceled, or flushed after an earlier error: look above for that error",
    ),
    status(
        -6,
        "UNREACHABLE",
        "Destination is unreachable",
        "no transport reaches the peer: compare UCX_TLS and UCX_NET_DEVICES of both sides, and the \
         ports' states, GIDs and link layers (ucx_info -d)",
    ),
    status(
        -24,
        "NOT_CONNECTED",
        "Endpoint is not connected",
        "the endpoint was closed, or never connected: look for an earlier error",
    ),
    status(
        -23,
        "REJECTED",
        "Operation rejected by remote peer",
        "the peer's listener refused the connection",
    ),
    status(
        -20,
        "TIMED_OUT",
        "Operation timed out",
        "an operation exceeded its time limit; it is not an endpoint timeout",
    ),
    status(
        -4,
        "NO_MEMORY",
        "Out of memory",
        "memory allocation or registration failed: raise ulimit -l (memlock) if it is too low",
    ),
    status(
        -14,
        "NO_DEVICE",
        "No such device",
        "UCX_NET_DEVICES names a device that does not exist: use `name:port`, for example mlx5_0:1 \
         (ibv_devices lists the names)",
    ),
    status(
        -5,
        "INVALID_PARAM",
        "Invalid parameter",
        "a value of the program or of a UCX_ variable is wrong",
    ),
    status(
        -22,
        "UNSUPPORTED",
        "Unsupported operation",
        "the transport or the device cannot do it; ucx_info -d lists what they can",
    ),
    status(
        -21,
        "EXCEEDS_LIMIT",
        "User-defined limit was reached",
        "a limit of a UCX_ variable was reached",
    ),
    status(
        -9,
        "MESSAGE_TRUNCATED",
        "Message truncated",
        "a message is longer than the buffer that the receiver posted",
    ),
    status(
        -2,
        "NO_RESOURCE",
        "No resources are available to initiate the operation",
        "the queue is full at the moment: not an error, UCX repeats the call",
    ),
    status(-15, "BUSY", "Device is busy", "a resource is in use: often another process holds it"),
    status(
        -13,
        "SOME_CONNECTS_FAILED",
        "Failed to connect some of the requested endpoints",
        "some peers could not be reached: look for the failure of each",
    ),
    status(
        -17,
        "SHMEM_SEGMENT",
        "Shared memory error",
        "shared memory within the host failed, not mlx5: look at /dev/shm and at limits",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_number_and_text_give_the_same_status() {
        for it in STATUSES {
            let first = |text: &str| explain(text).expect("a status").remove(0);
            let by_name = first(&format!("ucp_ep_create() -> UCS_ERR_{}", it.name));
            let by_text = first(&format!("ucp_worker.c:1 UCX  ERROR failed: {}", it.text));
            let by_number = first(&format!("UCX listener: error code {}", it.number));
            assert_eq!((&by_name, &by_name), (&by_text, &by_number));
        }
        for no in ["connection: Input/output error", "UCX  INFO  Device is busy", "UCS_ERR_XYZ"] {
            assert_eq!(explain(no), None, "{no}");
        }
    }
}
