//! Device nodes below /dev.

/// A device node of the function with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// `/dev/infiniband/uverbsN`.
    Verbs(usize),
    /// `/dev/fwctl/fwctlN`.
    Fwctl(usize),
}

const VERBS: &str = "/dev/infiniband/uverbs";
const CONTROL: &str = "/dev/fwctl/fwctl";

impl Node {
    /// The path of the node.
    pub(super) fn path(self) -> String {
        match self {
            Self::Verbs(number) => format!("{VERBS}{number}"),
            Self::Fwctl(number) => format!("{CONTROL}{number}"),
        }
    }

    /// The file name of the node.
    pub(super) fn name(self) -> String {
        let path = self.path();
        path.rsplit_once('/').map_or(String::new(), |(_, name)| name.to_owned())
    }
}

/// The node with this path.
pub(super) fn of_path(path: &[u8]) -> Option<Node> {
    let clean = clean(path)?;
    let number = |prefix: &str| {
        let number = std::str::from_utf8(clean.strip_prefix(prefix.as_bytes())?).ok()?;
        let plain = !number.starts_with(['+', '0']) || number == "0";
        number.parse().ok().filter(|_| plain)
    };
    number(VERBS).map(Node::Verbs).or_else(|| number(CONTROL).map(Node::Fwctl))
}

/// Normalizes an absolute path: no empty parts, `.` or `..`.
pub(super) fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(b"/")?;
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in rest.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some([b"/", &parts.join(&b'/')[..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_path_finds_device_nodes_only() {
        assert_eq!(of_path(b"/dev/infiniband/uverbs0"), Some(Node::Verbs(0)));
        assert_eq!(of_path(b"/dev//infiniband/./uverbs12"), Some(Node::Verbs(12)));
        assert_eq!(of_path(b"/dev/fwctl/../fwctl/fwctl3"), Some(Node::Fwctl(3)));
        for node in [Node::Verbs(7), Node::Fwctl(0)] {
            assert_eq!(of_path(node.path().as_bytes()), Some(node));
        }
        assert_eq!(Node::Fwctl(2).name(), "fwctl2");
        for other in [
            "/dev/infiniband/uverbs",
            "/dev/infiniband/uverbs+1",
            "/dev/infiniband/uverbs01",
            "/dev/infiniband/rdma_cm",
            "/dev/fwctl/fwctl",
            "/dev/fwctl/uverbs0",
            "/dev/infiniband/fwctl0",
        ] {
            assert_eq!(of_path(other.as_bytes()), None, "{other}");
        }
    }
}
