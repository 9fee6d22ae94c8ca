//! Requests equal those of the real libmlx5 in a guest, and the real kernel's answers parse.
//!
//! `cargo xtask capture` records them; `tests/capture/src/requests.rs` has the calls. Here our
//! driver makes the same calls on a device that compares each request with the recorded one, byte
//! for byte except pointers, and returns the recorded answer.
#![allow(unsafe_code, reason = "registers memory, which the scripted device never touches")]
#![cfg(all(target_endian = "little", target_pointer_width = "64"))]

use std::sync::Arc;

use crate::support::replay::Replay;
use verbless_devx::abi::core::access;
use verbless_devx::{Context, DeviceInfo, LinkLayer, PageSizes, UarKind};

const RECORDINGS: [(&str, &str); 3] = [
    ("6.1", include_str!("../data/linux-6.1-requests.txt")),
    ("6.12", include_str!("../data/linux-6.12-requests.txt")),
    ("7.2", include_str!("../data/linux-7.2-requests.txt")),
];

/// Calls of libmlx5, and those of their requests that we send too, in our order.
const OURS: &[(&str, &str)] = &[
    ("mlx5dv_open_device", "GET_CONTEXT"),
    ("ibv_query_port", "QUERY_PORT"),
    ("ibv_query_gid_table", "QUERY_GID_TABLE"),
    ("ibv_query_gid_ex", "QUERY_GID_ENTRY"),
    ("ibv_alloc_pd", "INVOKE_WRITE"),
    ("mlx5dv_devx_general_cmd QUERY_HCA_CAP", "DEVX_OTHER"),
    ("mlx5dv_devx_query_eqn", "DEVX_QUERY_EQN"),
    ("mlx5dv_devx_alloc_uar BF", "UAR_OBJ_ALLOC"),
    // libmlx5 allocates its page without write combining when it opens the device, and returns that
    // page to every caller.
    ("mlx5dv_open_device", "UAR_OBJ_ALLOC"),
    ("mlx5dv_devx_umem_reg", "DEVX_UMEM_REG"),
    ("mlx5dv_devx_umem_reg_ex", "DEVX_UMEM_REG"),
    ("mlx5dv_devx_obj_create ALLOC_PD", "DEVX_OBJ_CREATE"),
    ("mlx5dv_devx_obj_create CREATE_CQ", "DEVX_OBJ_CREATE"),
    ("mlx5dv_devx_obj_create CREATE_QP", "DEVX_OBJ_CREATE"),
    ("mlx5dv_devx_obj_create CREATE_MKEY", "DEVX_OBJ_CREATE"),
    ("mlx5dv_devx_obj_query QUERY_QP", "DEVX_OBJ_QUERY"),
    ("mlx5dv_devx_obj_modify RST2INIT_QP", "DEVX_OBJ_MODIFY"),
    ("mlx5dv_devx_create_cmd_comp", "DEVX_ASYNC_CMD_FD_ALLOC"),
    ("mlx5dv_devx_obj_query_async QUERY_QP", "DEVX_OBJ_ASYNC_QUERY"),
    ("mlx5dv_devx_create_event_channel", "DEVX_ASYNC_EVENT_FD_ALLOC"),
    ("mlx5dv_devx_create_event_channel omitting data", "DEVX_ASYNC_EVENT_FD_ALLOC"),
    ("mlx5dv_devx_subscribe_devx_event of a CQ", "DEVX_SUBSCRIBE_EVENT"),
    ("mlx5dv_devx_subscribe_devx_event of a QP", "DEVX_SUBSCRIBE_EVENT"),
    ("mlx5dv_devx_subscribe_devx_event of a port", "DEVX_SUBSCRIBE_EVENT"),
    ("mlx5dv_devx_obj_destroy MKEY", "DEVX_OBJ_DESTROY"),
    ("mlx5dv_devx_obj_destroy QP", "DEVX_OBJ_DESTROY"),
    ("mlx5dv_devx_obj_destroy CQ", "DEVX_OBJ_DESTROY"),
    ("mlx5dv_devx_obj_destroy PD", "DEVX_OBJ_DESTROY"),
    ("mlx5dv_devx_umem_dereg", "DEVX_UMEM_DEREG"),
    ("mlx5dv_devx_umem_dereg of the ring", "DEVX_UMEM_DEREG"),
    ("ibv_dealloc_pd", "PD_DESTROY"),
    // libmlx5 gives pages back when it closes the device.
    ("the rest", "UAR_OBJ_DESTROY"),
    ("the rest", "UAR_OBJ_DESTROY"),
];

/// Requests of libmlx5 that we do not make, and the reason.
const NOT_OURS: &[(&str, &str, &str)] = &[
    (
        "mlx5dv_open_device",
        "DEVX_OTHER",
        "QUERY_HCA_CAP for libmlx5 itself: our command layer sends its own",
    ),
    ("mlx5dv_open_device", "DEVX_OTHER", "a second page of the same"),
    (
        "mlx5dv_open_device",
        "INVOKE_WRITE",
        "QUERY_DEVICE: the capability pages have the same values",
    ),
    ("mlx5dv_open_device", "QUERY_PORT", "our caller queries the port for its link layer"),
    ("mlx5dv_open_device", "ASYNC_EVENT_ALLOC", "we make the file on demand"),
];

/// A recording as blocks, one a request.
struct Recorded<'a> {
    blocks: Vec<&'a str>,
}

impl<'a> Recorded<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            blocks: text.split("\n\n").map(str::trim).filter(|it| it.starts_with('[')).collect(),
        }
    }

    /// Takes the first remaining block of a request.
    fn take(&mut self, title: &str, method: &str) -> &'a str {
        let first = format!("[{method}] {title}");
        let at = self.blocks.iter().position(|block| block.lines().next() == Some(&*first));
        self.blocks.remove(at.unwrap_or_else(|| panic!("{first} was not recorded")))
    }
}

/// The recorded blocks of our requests.
struct Script {
    blocks: Vec<&'static str>,
}

impl Script {
    fn block(&self, title: &str) -> &'static str {
        let found = self.blocks.iter().find(|block| block.lines().next().unwrap().ends_with(title));
        found.unwrap_or_else(|| panic!("{title} is not in the script"))
    }

    /// The recorded input mailbox.
    fn mailbox(&self, title: &str) -> Vec<u8> {
        let line = self.block(title).lines().find(|line| line.contains(" = ")).unwrap();
        let digits = line.split(" = ").nth(1).unwrap();
        (0..digits.len()).step_by(2).map(|at| digits[at..at + 2].parse_hex() as u8).collect()
    }

    /// The number in a recorded input.
    fn number(&self, title: &str, attribute: &str) -> u64 {
        let lines = || self.block(title).lines().map(str::trim);
        let line = lines().find(|line| line.starts_with(attribute)).unwrap();
        let data = line.split_whitespace().nth(1).unwrap();
        data.parse_hex().swap_bytes()
    }
}

trait Hex {
    fn parse_hex(&self) -> u64;
}

impl Hex for str {
    fn parse_hex(&self) -> u64 {
        u64::from_str_radix(self, 16).unwrap()
    }
}

#[test]
fn requests_match_libmlx5_recordings_of_kernels() {
    for (kernel, text) in RECORDINGS {
        let mut recorded = Recorded::new(text);
        let blocks = OURS.iter().map(|(title, method)| recorded.take(title, method)).collect();
        let script = Script { blocks };
        let device = Arc::new(Replay::new(&script.blocks.join("\n\n")));
        calls(&device, &script);
        assert_eq!(device.left(), Vec::<String>::new(), "{kernel}");
        assert_eq!(device.after(), Vec::<String>::new(), "{kernel}");

        for (title, method, _why) in NOT_OURS {
            recorded.take(title, method);
        }
        assert_eq!(recorded.blocks, Vec::<&str>::new(), "{kernel}: do it too, or say why not");
    }
}

/// The calls of `requests.rs` on our driver.
fn calls(device: &Arc<Replay>, script: &Script) {
    let context = Context::from_device(device.clone(), DeviceInfo::default()).unwrap();
    let attributes = context.attributes();
    assert_eq!(attributes.driver.num_ports, 1);
    assert!(attributes.completion_vectors >= 1);
    // The table's room is the port's `gid_tbl_len`.
    let table = context.gid_table().unwrap();
    assert_eq!((table.len(), table[0].port, table[0].index), (1, 1, 0));
    let entry = context.gid_entry(1, 0).unwrap();
    assert_eq!(entry, table[0]);
    let verbs_pd = context.alloc_pd().unwrap();
    assert_ne!(verbs_pd.pdn(), 0);

    let mut out = [0; 16];
    let mut page = vec![0; 16 + 4096];
    context.devx_other(&script.mailbox("QUERY_HCA_CAP"), &mut page).unwrap();
    assert_ne!(page[16..], [0; 4096]);
    assert_ne!(context.query_eqn(0).unwrap(), 0);
    let blue_flame = context.uar_alloc(UarKind::BlueFlame).unwrap();
    let non_cached = context.uar_alloc(UarKind::NonCached).unwrap();
    assert_ne!(blue_flame.page_id(), non_cached.page_id());

    let range = |title| {
        let number = |attribute| script.number(title, attribute);
        (number("0110080001000000"), number("0210080001000000"))
    };
    let (address, length) = range("mlx5dv_devx_umem_reg");
    // SAFETY: the scripted device does not touch the range.
    let ring =
        unsafe { context.umem_reg(address, length, access::LOCAL_WRITE, PageSizes::Any) }.unwrap();
    let (address, length) = range("mlx5dv_devx_umem_reg_ex");
    let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    // SAFETY: as above.
    let umem = unsafe { context.umem_reg(address, length, all, PageSizes::Bitmap(4096)) }.unwrap();
    assert_ne!(ring.id(), umem.id());

    let pd = context.obj_create(&script.mailbox("ALLOC_PD"), &mut out).unwrap();
    let cq = context.obj_create(&script.mailbox("CREATE_CQ"), &mut out).unwrap();
    let qp = context.obj_create(&script.mailbox("CREATE_QP"), &mut out).unwrap();
    let mkey = context.obj_create(&script.mailbox("CREATE_MKEY"), &mut out).unwrap();
    let query = script.mailbox("mlx5dv_devx_obj_query QUERY_QP");
    let mut context_of_qp = [0; 272];
    qp.query(&query, &mut context_of_qp).unwrap();
    assert_ne!(context_of_qp[16..], [0; 256]);
    qp.modify(&script.mailbox("RST2INIT_QP"), &mut out).unwrap();

    let answers = context.command_channel().unwrap();
    answers.query(&qp, &query, 272, 0x1122_3344_5566_7788).unwrap();
    let events = context.event_channel(false).unwrap();
    let completions = context.event_channel(true).unwrap();
    completions.subscribe(Some(&cq), &[0], 0x00c0_0c1e).unwrap();
    events.subscribe(Some(&qp), &[0x13], 0x00c0_0c1f).unwrap();
    events.subscribe(None, &[9], 5).unwrap();

    for object in [mkey, qp, cq, pd] {
        object.destroy().unwrap();
    }
    umem.destroy().unwrap();
    ring.destroy().unwrap();
    verbs_pd.destroy().unwrap();
    blue_flame.destroy().unwrap();
    non_cached.destroy().unwrap();
    assert_eq!(context.leaked(), 0);
}

#[test]
fn query_port_parses_recorded_kernel_reply() {
    for (kernel, text) in RECORDINGS {
        let mut recorded = Recorded::new(text);
        let open = recorded.take("mlx5dv_open_device", "GET_CONTEXT");
        let port = recorded.take("ibv_query_port", "QUERY_PORT");
        let device = Arc::new(Replay::new(&[open, port].join("\n\n")));
        let context = Context::from_device(device, DeviceInfo::default()).unwrap();
        let port = context.query_port(1).unwrap();
        assert!(port.is_active(), "{kernel}");
        assert_eq!((port.link_layer(), port.active_mtu()), (LinkLayer::InfiniBand, Some(4096)));
        assert_ne!(port.raw.lid, 0, "{kernel}");
    }
}
