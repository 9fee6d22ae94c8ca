//! What the program finds below /sys and /dev: a directory of files like the kernel's, which stands in for the real one.
//!
//! The tree is made once, in a directory of its own, and holds every place that belongs to RDMA devices: real ones are
//! out of sight. A path is opened beneath the tree's root as if that were `/`, so that neither `..` nor a link leads
//! out of it; its directories and links are real ones, so whatever a program does with a descriptor works by itself.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use verbless_devx::{DeviceInfo, GidType, LinkLayer};

use super::directory::Directory;

/// Where the modelled PCI functions are plugged: a domain that no machine has.
const PCI_ROOT: &str = "pcifb0b:00";
const PCI_DOMAIN: &str = "fb0b";
/// Everything below these belongs to the tree.
const PLACES: [&str; 4] = [
    "/sys/class/infiniband",
    "/dev/infiniband",
    "/sys/devices/pcifb0b",
    "/sys/bus/pci/devices/fb0b",
];
/// Major and first minor number of uverbs devices.
pub(super) const MAJOR: u32 = 231;
pub(super) const FIRST_MINOR: u32 = 192;

/// A device as the tree shows it.
pub(super) struct Shown {
    pub info: DeviceInfo,
    /// Entries of each port's GID table, and of its P_Key table.
    pub gids: u32,
    pub pkeys: u32,
}

/// The files; they go when this is dropped.
#[derive(Debug)]
pub(super) struct Tree {
    directory: Directory,
    /// A process may stand within what is ours, so that a path need not say so: it was given a descriptor, or the system has
    /// such places of its own.
    within: AtomicBool,
}

/// What the text of every path into the tree contains.
const MARKS: [&[u8]; 2] = [b"infiniband", b"fb0b"];

fn is_marked(path: &[u8]) -> bool {
    MARKS.iter().any(|mark| path.windows(mark.len()).any(|part| part == *mark))
}

/// Whether a path may lead into the tree: one that is absolute, as far as its text tells.
pub(super) fn is_ours(path: &[u8]) -> bool {
    if !is_marked(path) {
        return false;
    }
    let Some(clean) = clean(path) else { return false };
    PLACES.iter().any(|place| clean.starts_with(place.as_bytes()))
}

/// The number of the device that a path names.
pub(super) fn device(path: &[u8]) -> Option<usize> {
    let clean = clean(path)?;
    let number = std::str::from_utf8(clean.strip_prefix(b"/dev/infiniband/uverbs")?).ok()?;
    let plain = !number.starts_with(['+', '0']) || number == "0";
    number.parse().ok().filter(|_| plain)
}

/// An absolute path without empty parts, `.` and `..`.
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

impl Tree {
    /// Makes the tree for these devices.
    pub(super) fn new(devices: &[Shown]) -> io::Result<Self> {
        let within = PLACES.iter().any(|place| Path::new(place).exists()).into();
        Ok(Self { directory: Directory::filled(|path| Self::fill(path, devices))?, within })
    }

    /// Opens a path of the tree as the kernel would `/`'s.
    pub(super) fn open(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.directory, OsStr::from_bytes(path), how)
    }

    /// Removes the directory; descriptors that were given keep what they refer to.
    pub(super) fn remove(&self) {
        self.directory.remove();
    }

    /// A file of the tree is about to be given to a process.
    pub(super) fn given(&self) {
        self.within.store(true, Ordering::Relaxed);
    }

    /// Whether a relative path may lead into the tree, from wherever a process stands.
    pub(super) fn may_be_reached_by(&self, path: &[u8]) -> bool {
        self.within.load(Ordering::Relaxed) || is_marked(path)
    }

    /// What a real path within the directory is called by the program.
    pub(super) fn shown(&self, real: &Path) -> Option<PathBuf> {
        real.strip_prefix(self.directory.path()).ok().map(|rest| Path::new("/").join(rest))
    }

    /// Writes all files below `root`.
    fn fill(root: &Path, devices: &[Shown]) -> io::Result<()> {
        let file = |at: &str, text: &str| {
            let path = root.join(at);
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            fs::write(path, format!("{text}\n"))
        };
        let link = |at: &str, to: &str| {
            let path = root.join(at);
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            symlink(to, path)
        };
        for place in ["sys/class/infiniband", "sys/bus/pci/drivers/mlx5_core", "dev/infiniband"] {
            fs::create_dir_all(root.join(place))?;
        }
        file("sys/class/infiniband_verbs/abi_version", "6")?;
        for (number, device) in devices.iter().enumerate() {
            let info = &device.info;
            let (name, node) = (&info.name, &info.node);
            let slot = format!("{PCI_DOMAIN}:00:{:02x}.0", number + 1);
            let pci = format!("sys/devices/{PCI_ROOT}/{slot}");
            link(
                &format!("sys/bus/pci/devices/{slot}"),
                &format!("../../../devices/{PCI_ROOT}/{slot}"),
            )?;
            link(&format!("{pci}/driver"), "../../../bus/pci/drivers/mlx5_core")?;
            let (vendor, id) = (info.vendor_id, info.device_id);
            for (at, text) in [
                ("vendor", format!("{vendor:#06x}")),
                ("device", format!("{id:#06x}")),
                ("subsystem_vendor", format!("{vendor:#06x}")),
                ("subsystem_device", "0x0001".into()),
                ("class", "0x020700".into()),
                ("revision", "0x00".into()),
                ("numa_node", "-1".into()),
                (
                    "modalias",
                    format!("pci:v{vendor:08X}d{id:08X}sv{vendor:08X}sd00000001bc02sc07i00"),
                ),
            ] {
                file(&format!("{pci}/{at}"), &text)?;
            }
            let rdma = format!("{pci}/infiniband/{name}");
            for (at, text) in [
                ("node_type", "1: CA".into()),
                ("fw_ver", info.firmware.clone()),
                ("hw_rev", "0".into()),
                ("hca_type", format!("MT{id}")),
                ("board_id", info.board_id.clone()),
                ("node_desc", format!("verbless model {name}")),
                ("node_guid", words(info.node_guid.to_be_bytes())),
                ("sys_image_guid", words(info.system_image_guid.to_be_bytes())),
            ] {
                file(&format!("{rdma}/{at}"), &text)?;
            }
            link(&format!("{rdma}/device"), &format!("../../../{slot}"))?;
            link(
                &format!("sys/class/infiniband/{name}"),
                &format!("../../devices/{PCI_ROOT}/{slot}/infiniband/{name}"),
            )?;
            let verbs = format!("{pci}/infiniband_verbs/{node}");
            file(&format!("{verbs}/ibdev"), name)?;
            file(&format!("{verbs}/dev"), &format!("{MAJOR}:{}", FIRST_MINOR + number as u32))?;
            file(&format!("{verbs}/abi_version"), "1")?;
            link(&format!("{verbs}/device"), &format!("../../../{slot}"))?;
            link(
                &format!("sys/class/infiniband_verbs/{node}"),
                &format!("../../devices/{PCI_ROOT}/{slot}/infiniband_verbs/{node}"),
            )?;
            fs::write(root.join(format!("dev/infiniband/{node}")), "")?;
            for port in &info.ports {
                let at = format!("{rdma}/ports/{}", port.number);
                let (state, physical) = match port.state {
                    4 => ("4: ACTIVE", "5: LinkUp"),
                    _ => ("1: DOWN", "3: Disabled"),
                };
                file(&format!("{at}/state"), state)?;
                file(&format!("{at}/phys_state"), physical)?;
                let layer = match port.link_layer {
                    LinkLayer::Ethernet => "Ethernet",
                    _ => "InfiniBand",
                };
                file(&format!("{at}/link_layer"), layer)?;
                for index in 0..device.gids {
                    let entry = port.gids.iter().find(|entry| entry.index == index);
                    let gid = entry.map_or([0; 16], |entry| entry.gid.0);
                    file(&format!("{at}/gids/{index}"), &words(gid))?;
                    if let Some(entry) = entry {
                        let kind = match entry.kind {
                            GidType::RoceV2 => "RoCE v2",
                            _ => "IB/RoCE v1",
                        };
                        file(&format!("{at}/gid_attrs/types/{index}"), kind)?;
                    }
                }
                fs::create_dir_all(root.join(format!("{at}/gid_attrs/ndevs")))?;
                for index in 0..device.pkeys {
                    let key = if index == 0 { "0xffff" } else { "0x0000" };
                    file(&format!("{at}/pkeys/{index}"), key)?;
                }
            }
        }
        Ok(())
    }
}

/// Bytes as the kernel prints GUIDs and GIDs: words of four digits.
fn words<const N: usize>(bytes: [u8; N]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        let colon = if index == 0 { "" } else { ":" };
        let _ = write!(text, "{colon}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;
    use crate::{Model, Profile};
    use verbless_devx::Backend;

    fn tree() -> Tree {
        let model =
            Model::builder().device(Profile::load("bluefield3").expect("a profile")).build();
        let devices = model.backend().enumerate().expect("it has a device");
        let shown = |info| Shown { info, gids: 8, pkeys: 2 };
        Tree::new(&devices.into_iter().map(shown).collect::<Vec<_>>()).expect("a tree")
    }

    fn text(tree: &Tree, path: &str) -> Result<String, Errno> {
        let mut text = String::new();
        let mut file = File::from(tree.open(path.as_bytes(), OFlag::O_RDONLY)?);
        file.read_to_string(&mut text).map_err(|_| Errno::EIO)?;
        Ok(text.trim_end().to_string())
    }

    #[test]
    fn paths_of_devices_are_told_from_others_by_their_text() {
        for ours in [
            "/sys/class/infiniband",
            "//sys/./class/infiniband_verbs/uverbs0",
            "/dev/infiniband/uverbs0",
            "/sys/class/net/../infiniband",
        ] {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for other in
            ["/sys/class/net", "sys/class/infiniband", "/dev", "/sys/class/infiniband/../net", ""]
        {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
        assert_eq!(device(b"/dev/infiniband/uverbs0"), Some(0));
        assert_eq!(device(b"/dev//infiniband/./uverbs12"), Some(12));
        for other in [
            "/dev/infiniband/uverbs",
            "/dev/infiniband/uverbs+1",
            "/dev/infiniband/uverbs01",
            "/dev/infiniband/rdma_cm",
        ] {
            assert_eq!(device(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_device_is_found_the_ways_that_libraries_look_for_it() {
        let tree = tree();
        for (path, expected) in [
            ("/sys/class/infiniband_verbs/abi_version", "6"),
            ("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
            ("/sys/class/infiniband_verbs/uverbs0/dev", "231:192"),
            ("/sys/class/infiniband_verbs/uverbs0/device/vendor", "0x15b3"),
            ("/sys/class/infiniband/mlx5_0/node_type", "1: CA"),
            ("/sys/class/infiniband/mlx5_0/board_id", "VBL0000000001"),
            ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("/sys/class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff"),
            ("/sys/class/infiniband/mlx5_0/device/../fb0b:00:01.0/device", "0xa2dc"),
        ] {
            assert_eq!(text(&tree, path).as_deref(), Ok(expected), "{path}");
        }
        assert_eq!(text(&tree, "/sys/class/infiniband/mlx5_1/node_type"), Err(Errno::ENOENT));
    }

    #[test]
    fn nothing_leads_out_of_the_tree_and_nothing_is_left_of_it() {
        let tree = tree();
        let inside = tree.directory.path().to_path_buf();
        for path in ["/../../../../etc/passwd", "/sys/class/infiniband/../../../../../etc/passwd"] {
            assert_eq!(text(&tree, path), Err(Errno::ENOENT), "{path}");
        }
        symlink("/etc/passwd", inside.join("sys/trap")).expect("a link");
        assert_eq!(text(&tree, "/sys/trap"), Err(Errno::ENOENT));
        let real = inside.join("dev/infiniband/uverbs0");
        assert_eq!(tree.shown(&real).as_deref(), Some(Path::new("/dev/infiniband/uverbs0")));
        assert_eq!(tree.shown(Path::new("/etc")), None);
        drop(tree);
        assert!(!inside.exists());
    }
}
