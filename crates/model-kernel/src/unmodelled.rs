//! Commands and methods that this kernel does not implement, with their purpose: the text of their
//! refusals.

use nix::errno::Errno;

use super::refused::refused;

/// Commands of the write interface without an implementation: number, name, purpose.
static COMMANDS: &[(u32, &str, &str)] = &[
    (6, "MODIFY_AH", "changing an address handle"),
    (7, "QUERY_AH", "querying an address handle"),
    (10, "REG_SMR", "shared memory regions"),
    (12, "QUERY_MR", "querying a memory region by the old command"),
    (15, "BIND_MW", "binding a memory window by a command: it is done by a work request"),
    (21, "POLL_CQ", "polling by a command: libmlx5 polls the CQ in memory"),
    (22, "PEEK_CQ", "counting the completions in a CQ"),
    (23, "REQ_NOTIFY_CQ", "arming by a command: libmlx5 writes the doorbell itself"),
    (28, "POST_SEND", "posting by a command: libmlx5 posts in memory"),
    (29, "POST_RECV", "posting by a command: libmlx5 posts in memory"),
    (36, "POST_SRQ_RECV", "posting by a command: libmlx5 posts in memory"),
    (37, "OPEN_XRCD", "the extended reliable connected service (XRC)"),
    (38, "CLOSE_XRCD", "the extended reliable connected service (XRC)"),
    (39, "CREATE_XSRQ", "receive queues of XRC or with tag matching"),
    (40, "OPEN_QP", "the extended reliable connected service (XRC)"),
    (50, "CREATE_FLOW", "flow steering"),
    (51, "DESTROY_FLOW", "flow steering"),
    (52, "CREATE_WQ", "work queues of raw packets"),
    (53, "MODIFY_WQ", "work queues of raw packets"),
    (54, "DESTROY_WQ", "work queues of raw packets"),
    (55, "CREATE_RWQ_IND_TBL", "receive side scaling"),
    (56, "DESTROY_RWQ_IND_TBL", "receive side scaling"),
];

/// Objects, or single methods, without an implementation: object, method, purpose.
static METHODS: &[(u16, Option<u16>, &str)] = &[
    (0, Some(1), "listing an open file's handles"),
    (0, Some(0x1000), "the mlx5-specific query of a port (mlx5dv_query_port)"),
    (7, Some(0), "regions of device memory"),
    (7, Some(2), "memory advice, which is for on-demand paging (ibv_advise_mr)"),
    (7, Some(4), "regions of a dmabuf"),
    (10, None, "the extended reliable connected service (XRC)"),
    (11, None, "receive side scaling"),
    (12, None, "work queues of raw packets"),
    (13, None, "flow steering"),
    (14, None, "device memory"),
    (15, None, "counters of flows"),
    (0x1006, None, "doorbells of emulated virtio queues (VAR)"),
    (0x1007, None, "packet pacing"),
    (0x1009, None, "flow steering"),
];

/// UVERBS_METHOD_REG_DMABUF_MR of memory regions.
const DMABUF: (u16, u16) = (7, 4);

/// The errno of a command of the write interface; its number includes the flag of an extended one.
pub(super) fn command(number: u32) -> Errno {
    let words = match COMMANDS.iter().find(|command| command.0 == number & 0xff) {
        Some((_, name, what)) => format!("{what} ({name}): not modelled"),
        None => format!("command {number:#x} does not exist in the uverbs ABI"),
    };
    refused(Errno::EOPNOTSUPP, words)
}

/// The errno of a method: that of a kernel that predates it, or of a driver without it.
pub(super) fn method(object: u16, method: u16) -> Errno {
    let about = |known: &&(u16, Option<u16>, &str)| {
        known.0 == object && known.1.is_none_or(|known| known == method)
    };
    let words = match METHODS.iter().find(about) {
        Some((_, _, what)) => format!("{what}: not modelled"),
        None => format!("object {object:#x} has no method {method:#x}"),
    };
    // A device without on-demand paging has this method, and its driver refuses the call
    // (`mlx5_ib_reg_user_mr_dmabuf`). The driver does not offer objects of device memory.
    let errno = match (object, method) {
        DMABUF => Errno::EOPNOTSUPP,
        _ => Errno::EPROTONOSUPPORT,
    };
    refused(errno, words)
}

#[cfg(test)]
mod tests {
    use super::super::abi;
    use super::super::refused;
    use super::super::write;
    use super::*;

    #[test]
    fn modelled_methods_are_not_listed_unmodelled() {
        for &(number, name, _) in COMMANDS {
            assert_eq!(write::name(number.into()), None, "{name}");
        }
        for known in abi::methods() {
            let listed = METHODS.iter().find(|refused| {
                refused.0 == known.object && refused.1.is_none_or(|method| method == known.id)
            });
            assert_eq!(listed, None, "{}", known.name);
        }
    }

    #[test]
    fn refusal_names_unmodelled_method() {
        let said = |errno, expected| (errno, refused::take().is_some_and(|it| it.1 == expected));
        let old = [
            (12, "querying a memory region by the old command (QUERY_MR): not modelled"),
            (0x8000_0032, "flow steering (CREATE_FLOW): not modelled"),
            (99, "command 0x63 does not exist in the uverbs ABI"),
        ];
        for (number, expected) in old {
            assert_eq!(said(command(number), expected), (Errno::EOPNOTSUPP, true), "{number:#x}");
        }
        let methods = [
            (0, 1, "listing an open file's handles: not modelled"),
            (0, 2, "object 0x0 has no method 0x2"),
            (7, 4, "regions of a dmabuf: not modelled"),
            (12, 5, "work queues of raw packets: not modelled"),
            (0x77, 4, "object 0x77 has no method 0x4"),
        ];
        for (object, id, expected) in methods {
            let (errno, logged) = said(method(object, id), expected);
            let expected = match (object, id) {
                (7, 4) => Errno::EOPNOTSUPP,
                _ => Errno::EPROTONOSUPPORT,
            };
            assert!(errno == expected && logged, "{object:#x}, {id:#x}");
        }
    }
}
