//! Names of commands and statuses, and the hint for each status and errno.

use std::borrow::Cow;

use nix::errno::Errno;
use verbless_prm::{CommandInfo, CommandStatus, FirmwareSyndrome, Opcode};

use super::ErrorKind;
use crate::abi::{Method, method};

/// Name of a command.
pub(super) fn command_name(opcode: u16) -> Option<&'static str> {
    Opcode(opcode).name()
}

/// Name of a command status.
pub(super) fn status_name(status: u8) -> &'static str {
    CommandStatus(status).name().unwrap_or("unknown status")
}

/// Name of the cause that public threads report for a syndrome, in some firmware.
pub(super) fn reported_cause(syndrome: u32) -> Option<&'static str> {
    FirmwareSyndrome(syndrome).name()
}

/// Hint for a command's status: from the command's own description if it has one, else from the
/// status.
pub(super) fn status(opcode: Option<u16>, status: u8) -> &'static str {
    let command = opcode.and_then(CommandInfo::by_opcode);
    let rule =
        command.and_then(|command| command.statuses.iter().find(|rule| rule.status == status));
    rule.map_or_else(|| of_any_command(CommandStatus(status)), |rule| rule.why)
}

fn of_any_command(status: CommandStatus) -> &'static str {
    match status {
        CommandStatus::OK => {
            "the device reports success but the kernel an error; see the kernel log"
        }
        CommandStatus::INTERNAL_ERR => {
            "the firmware failed internally; the kernel log may contain its health report"
        }
        CommandStatus::BAD_OP => {
            "this firmware does not know the command, or not for this function; compare its \
             capabilities"
        }
        CommandStatus::BAD_PARAM => {
            "a field of the input is out of range, or a reserved field is not zero"
        }
        CommandStatus::BAD_SYS_STATE => {
            "the state of the device does not allow this; it may be resetting"
        }
        CommandStatus::BAD_RES => {
            "an object named in the input does not exist, or is not this context's"
        }
        CommandStatus::RES_BUSY | CommandStatus::NOT_READY => "send the command again later",
        CommandStatus::LIM => "a limit of the device is reached; compare its capabilities",
        CommandStatus::BAD_RES_STATE => {
            "the state of the object does not allow this (a QP goes RST, INIT, RTR, RTS), or \
             another object uses it"
        }
        CommandStatus::IX => "an index in the input is outside its table",
        CommandStatus::NO_RES => {
            "the device is out of such resources; destroy some, or compare its capabilities"
        }
        CommandStatus::BAD_QP_STATE => {
            "the QP is not in the state that this transition starts from"
        }
        CommandStatus::BAD_SIZE_OUTS_CQES => {
            "the CQ holds more CQEs than the new size; poll it first"
        }
        CommandStatus::BAD_INP_LEN => "the input is shorter than the command's layout",
        CommandStatus::BAD_OUTP_LEN => "the output is shorter than the command's layout",
        _ => "ask the vendor's support for the meaning of the syndrome",
    }
}

/// The kind of an errno of a method.
pub(super) fn kind(method: Method, errno: Errno) -> ErrorKind {
    match errno {
        _ if is_memory_limit(method, errno, locked_limit()) => ErrorKind::MemoryLimit,
        Errno::EACCES | Errno::EPERM => ErrorKind::Permission,
        Errno::EIO | Errno::ENODEV | Errno::ENXIO | Errno::ENOLINK => ErrorKind::DeviceGone,
        Errno::EREMOTEIO => ErrorKind::Command,
        Errno::EPROTONOSUPPORT if is_devx(method) => ErrorKind::NoDevx,
        _ => ErrorKind::Refused,
    }
}

/// Whether the errno is about pinned memory: ENOMEM above the limit, EPERM if the limit is 0
/// (`can_do_mlock`).
fn is_memory_limit(method: Method, errno: Errno, limit: Option<u64>) -> bool {
    method == method::DEVX_UMEM_REG
        && (errno == Errno::ENOMEM || (errno == Errno::EPERM && limit == Some(0)))
}

/// The limit of locked memory, unless it is unknown.
fn locked_limit() -> Option<u64> {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(limit, _)| limit)
}

/// Whether the kernel offers the method only on devices with DevX.
fn is_devx(method: Method) -> bool {
    (method::DEVX_OTHER.object..=method::DEVX_ASYNC_EVENT_FD_ALLOC.object).contains(&method.object)
}

/// Hint for an errno of a method.
pub(super) fn refused(method: Method, errno: Errno) -> Cow<'static, str> {
    let limit = locked_limit();
    if is_memory_limit(method, errno, limit) {
        return memory_limit(limit).into();
    }
    let advice = match (method, errno) {
        (method::DEVX_UMEM_REG, Errno::EFAULT) => {
            "the range is not mapped, or not writable as its access asks"
        }
        (method::DEVX_UMEM_REG, Errno::EINVAL) => {
            "no page size of the bitmap fits the range, the access flags are not among \
             LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ and RELAXED_ORDERING (remote write needs local \
             write), or the context has no DevX"
        }
        (method::FLOW_CREATE, Errno::EPERM) => {
            "flow rules need the capability CAP_NET_RAW: run as root, or give it to the program \
             (setcap cap_net_raw+ep)"
        }
        (method::FLOW_CREATE, Errno::EINVAL) => {
            "the destination is no TIR, or the kernel has no flow table for such a matcher and \
             values"
        }
        (method::UAR_OBJ_ALLOC, Errno::EOPNOTSUPP) => {
            "this machine has no write combining for the device; allocate a non-cached UAR"
        }
        (method::DEVX_OTHER, Errno::EINVAL) => {
            "DevX does not pass this command as a general one, or its mailbox is too short"
        }
        (method::DEVX_OBJ_CREATE, Errno::EINVAL) => {
            "DevX does not pass this command as a creation, or its mailbox is too short, or its \
             addresses are not UMEMs"
        }
        (method::DEVX_OBJ_CREATE, Errno::ENOENT) => {
            "the CQ names no event queue of a completion vector (DEVX_QUERY_EQN has them); a \
             kernel before Linux 5.12 looks for one even for a CQ of the DPA, and makes none"
        }
        (
            method::DEVX_OBJ_MODIFY | method::DEVX_OBJ_QUERY | method::DEVX_OBJ_ASYNC_QUERY,
            Errno::EINVAL,
        ) => {
            "DevX does not pass this command for objects, or the id in its mailbox is not the \
             object's"
        }
        (method::DEVX_OBJ_ASYNC_QUERY, Errno::EAGAIN) => {
            "1 MiB of answers is queued in the channel; read some"
        }
        (method::DEVX_SUBSCRIBE_EVENT, Errno::EINVAL) => {
            "users may not subscribe to one of these event types for this object"
        }
        (method::DEVX_QUERY_EQN, _) => {
            "the vector must be below the context's number of completion vectors"
        }
        (method::QUERY_GID_ENTRY, Errno::ENODATA) => "this entry of the GID table is not in use",
        (method::QUERY_PORT | method::QUERY_GID_ENTRY, Errno::EINVAL) => {
            "the device has no such port or index"
        }
        (method::GET_CONTEXT, Errno::EAGAIN) => {
            "the device is not active yet, or has failed, or is resetting; try again"
        }
        (method, Errno::EPROTONOSUPPORT) if is_devx(method) => {
            "the firmware has user contexts disabled (capability log_max_uctx is 0), or mlx5_ib is \
             older than Linux 5.10's (docs/lab.md has what each release lacks); `modinfo -n \
             mlx5_ib` and `ofed_info -s` tell whose it is"
        }
        (_, Errno::EPROTONOSUPPORT | Errno::ENOTTY) => {
            "ib_uverbs and mlx5_ib do not know the method: they must be those of Linux 5.10 or \
             later, or both those of DOCA-OFED: see docs/lab.md, `modinfo -n mlx5_ib` and \
             `ofed_info -s`"
        }
        (_, Errno::EBUSY) => "another object still uses this one; destroy that first",
        (_, Errno::ENOENT) => "no such object in this context",
        (_, Errno::EIO | Errno::ENODEV | Errno::ENXIO | Errno::ENOLINK) => {
            "the device has failed, or was removed or reset; open it again"
        }
        (_, Errno::EACCES | Errno::EPERM) => "the process lacks a privilege, such as CAP_NET_RAW",
        (_, Errno::ENOMEM) => "the kernel is out of memory",
        (_, Errno::EMFILE | Errno::ENFILE) => {
            "the limit of open files is reached: close some, or raise it (`ulimit -n`)"
        }
        (_, Errno::EFAULT) => "a buffer of the request is not readable or writable",
        _ => "the kernel log may say more",
    };
    Cow::Borrowed(advice)
}

/// Whether a kernel that hides refusals returns this errno for one of them (`cmd_status_to_err` of
/// Linux 5.10's mlx5_core).
pub(super) fn may_hide(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::EIO | Errno::EBUSY | Errno::ENOMEM | Errno::EAGAIN)
}

/// Hint for a command that the device refused, on a kernel that hides the status: the statuses of
/// the errno, and how to make the kernel log the one.
pub(super) fn hidden(errno: Errno) -> String {
    let statuses = match errno {
        Errno::EBUSY => "RES_BUSY",
        Errno::ENOMEM => "LIM",
        Errno::EAGAIN => "NO_RES",
        Errno::EIO => "INTERNAL_ERR, BAD_SYS_STATE, BAD_INP_LEN, BAD_OUTP_LEN or an unknown one",
        _ => {
            "BAD_OP, BAD_PARAM, BAD_RES, BAD_RES_STATE, BAD_QP_STATE or IX, unless DevX itself \
             refused the command"
        }
    };
    format!(
        "this kernel's mlx5_core (before Linux 5.18) hides the status ({errno:?} means {statuses}) \
         and the syndrome; it logs both at debug level: as root `echo 'func mlx5_cmd_check +p' > \
         /proc/dynamic_debug/control`, repeat the command, and read dmesg"
    )
}

/// Hint on pinned memory, with the current limit.
fn memory_limit(limit: Option<u64>) -> String {
    let now = match limit {
        Some(libc::RLIM_INFINITY) => {
            "unlimited, so the machine itself is short of memory".to_owned()
        }
        Some(limit) => format!("{} KiB", limit / 1024),
        None => "unknown".to_owned(),
    };
    format!(
        "registered memory is pinned and counts as locked memory, whose limit is {now}; raise it \
         with `ulimit -l`, LimitMEMLOCK= or CAP_IPC_LOCK, or register less"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_pinning_at_limit_0_is_the_memory_limit() {
        let is_limit = |method, limit| is_memory_limit(method, Errno::EPERM, limit);
        assert!(is_limit(method::DEVX_UMEM_REG, Some(0)));
        assert!(!is_limit(method::DEVX_UMEM_REG, Some(8 << 20)));
        assert!(!is_limit(method::DEVX_UMEM_REG, None) && !is_limit(method::FLOW_CREATE, Some(0)));
        assert!(memory_limit(Some(0)).contains("whose limit is 0 KiB; raise it"));
    }

    #[test]
    fn hidden_refusal_hint_has_statuses_of_errno() {
        let hints = [
            (Errno::EINVAL, "BAD_PARAM"),
            (Errno::EIO, "BAD_OUTP_LEN"),
            (Errno::EBUSY, "EBUSY means RES_BUSY)"),
            (Errno::ENOMEM, "ENOMEM means LIM)"),
            (Errno::EAGAIN, "EAGAIN means NO_RES)"),
        ];
        for (errno, expected) in hints {
            assert!(may_hide(errno), "{errno}");
            let hint = hidden(errno);
            assert!(hint.contains(expected) && hint.contains("read dmesg"), "{hint}");
            // Lockdown, as Secure Boot has it, refuses debugfs.
            assert!(
                hint.contains("`echo 'func mlx5_cmd_check +p' > /proc/dynamic_debug/"),
                "{hint}"
            );
        }
        for errno in [Errno::EREMOTEIO, Errno::ENXIO, Errno::EPROTONOSUPPORT, Errno::EFAULT] {
            assert!(!may_hide(errno), "{errno}");
        }
    }

    /// Hints of one method, then hints of every method.
    #[test]
    fn refusal_hint_depends_on_method_and_errno() {
        let advice = [
            (method::DEVX_UMEM_REG, Errno::EFAULT, "not mapped, or not writable"),
            (method::DEVX_UMEM_REG, Errno::EINVAL, "no page size of the bitmap"),
            (method::FLOW_CREATE, Errno::EPERM, "CAP_NET_RAW: run as root"),
            (method::FLOW_CREATE, Errno::EINVAL, "the destination is no TIR"),
            (method::UAR_OBJ_ALLOC, Errno::EOPNOTSUPP, "no write combining"),
            (method::DEVX_OTHER, Errno::EINVAL, "as a general one"),
            (method::DEVX_OBJ_CREATE, Errno::EINVAL, "as a creation"),
            (method::DEVX_OBJ_CREATE, Errno::ENOENT, "CQ of the DPA"),
            (method::DEVX_OBJ_MODIFY, Errno::EINVAL, "the id in its mailbox"),
            (method::DEVX_OBJ_QUERY, Errno::EINVAL, "the id in its mailbox"),
            (method::DEVX_OBJ_ASYNC_QUERY, Errno::EINVAL, "the id in its mailbox"),
            (method::DEVX_OBJ_ASYNC_QUERY, Errno::EAGAIN, "1 MiB of answers"),
            (method::DEVX_SUBSCRIBE_EVENT, Errno::EINVAL, "may not subscribe"),
            (method::DEVX_QUERY_EQN, Errno::EINVAL, "the vector must be below"),
            (method::QUERY_GID_ENTRY, Errno::ENODATA, "entry of the GID table is not in use"),
            (method::QUERY_GID_ENTRY, Errno::EINVAL, "no such port or index"),
            (method::QUERY_PORT, Errno::EINVAL, "no such port or index"),
            (method::GET_CONTEXT, Errno::EAGAIN, "not active yet"),
            (method::DEVX_OBJ_CREATE, Errno::EPROTONOSUPPORT, "log_max_uctx is 0"),
            (method::QUERY_PORT, Errno::EPROTONOSUPPORT, "do not know the method"),
            (method::QUERY_PORT, Errno::ENOTTY, "do not know the method"),
            (method::QUERY_PORT, Errno::EBUSY, "another object still uses"),
            (method::QUERY_PORT, Errno::ENOENT, "no such object"),
            (method::QUERY_PORT, Errno::EIO, "removed or reset"),
            (method::QUERY_PORT, Errno::ENODEV, "removed or reset"),
            (method::QUERY_PORT, Errno::ENXIO, "removed or reset"),
            (method::QUERY_PORT, Errno::EACCES, "lacks a privilege"),
            (method::QUERY_PORT, Errno::EPERM, "lacks a privilege"),
            (method::QUERY_PORT, Errno::ENOMEM, "out of memory"),
            (method::QUERY_PORT, Errno::EMFILE, "limit of open files"),
            (method::QUERY_PORT, Errno::ENFILE, "limit of open files"),
            (method::QUERY_PORT, Errno::EFAULT, "a buffer of the request"),
            (method::QUERY_PORT, Errno::EDOM, "the kernel log may say more"),
        ];
        for (method, errno, expected) in advice {
            let message = refused(method, errno);
            assert!(message.contains(expected), "{errno}: {message}");
        }
        let limit = refused(method::DEVX_UMEM_REG, Errno::ENOMEM);
        assert!(!limit.contains("out of memory"), "{limit}");
        let kinds = [
            (method::DEVX_UMEM_REG, Errno::ENOMEM, ErrorKind::MemoryLimit),
            (method::QUERY_PORT, Errno::ENOMEM, ErrorKind::Refused),
            (method::QUERY_PORT, Errno::EACCES, ErrorKind::Permission),
            (method::QUERY_PORT, Errno::EPERM, ErrorKind::Permission),
            (method::QUERY_PORT, Errno::EIO, ErrorKind::DeviceGone),
            (method::QUERY_PORT, Errno::ENODEV, ErrorKind::DeviceGone),
            (method::QUERY_PORT, Errno::ENXIO, ErrorKind::DeviceGone),
            (method::DEVX_UMEM_REG, Errno::ENOLINK, ErrorKind::DeviceGone),
            (method::QUERY_PORT, Errno::EREMOTEIO, ErrorKind::Command),
            (method::DEVX_OTHER, Errno::EPROTONOSUPPORT, ErrorKind::NoDevx),
            (method::DEVX_ASYNC_EVENT_FD_ALLOC, Errno::EPROTONOSUPPORT, ErrorKind::NoDevx),
            (method::QUERY_PORT, Errno::EPROTONOSUPPORT, ErrorKind::Refused),
        ];
        for (method, errno, expected) in kinds {
            assert_eq!(kind(method, errno), expected, "{errno}");
        }
    }
}
