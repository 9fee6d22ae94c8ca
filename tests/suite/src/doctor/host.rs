//! The chain's links on the host: kernel release, modules, uverbs node, its permissions,
//! RLIMIT_MEMLOCK.
//!
//! Facts are read below a root directory, so that tests can give a tree of files. Sources: Linux
//! `Documentation/ABI/stable/sysfs-module` (taint), `drivers/infiniband/core/uverbs_main.c`
//! (devnode), `drivers/infiniband/core/umem.c` (pinned pages count as locked); in-tree mlx5_core
//! had version 5.0-0 until it had none.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{getegid, geteuid, getgroups};
use verbless_devx::{DeviceInfo, Error, ErrorKind, Kernel};

use super::chain::{Broken, Chain, Finding, Link};
use super::kernel_log;
use crate::need::{CAP_IPC_LOCK, privilege};
use crate::report::FIRST_PERSON;

/// PCI vendor of mlx5 functions.
const VENDOR: &str = "0x15b3";

/// Versions that the kernel's own modules had.
const IN_TREE: [&str; 2] = ["3.0-1", "5.0-0"];

/// Bytes that most cases pin at once, with queues and regions: less is not enough.
pub(super) const MIN_LOCKED: u64 = 2 << 20;

/// Bytes of the large region.
pub(super) const LARGE: usize = 64 << 20;

/// Bytes that the largest region and the queues beside it pin.
pub(super) const LOCKED_FOR_ALL: u64 = LARGE as u64 + (8 << 20);

/// The machine as this process sees it.
#[derive(Debug, Clone)]
pub struct Host {
    /// The directory that has `sys`, `proc`, `dev`, `lib` and `etc`.
    root: PathBuf,
    user: User,
    open: fn(&Path) -> io::Result<File>,
}

/// The user whose permissions count.
#[derive(Debug, Clone)]
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// This machine and this process.
    pub fn new() -> Self {
        let mut groups = vec![getegid().as_raw()];
        groups.extend(getgroups().unwrap_or_default().into_iter().map(nix::unistd::Gid::as_raw));
        let user = User { uid: geteuid().as_raw(), groups };
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        Self { root: "/".into(), user, open }
    }

    /// A machine whose files are below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), ..Self::new() }
    }

    /// The same machine, whose nodes are opened by `open`.
    #[cfg(test)]
    pub(super) fn opening(self, open: fn(&Path) -> io::Result<File>) -> Self {
        Self { open, ..self }
    }

    /// The same machine for another user.
    #[cfg(test)]
    pub(super) fn with_user(self, uid: u32, groups: &[u32]) -> Self {
        Self { user: User { uid, groups: groups.to_vec() }, ..self }
    }

    /// The backend of its devices.
    pub(super) fn kernel(&self) -> Kernel {
        Kernel::with_roots(self.root.join("sys"), self.root.join("dev/infiniband"))
    }

    /// The links up to the permissions of a device that the kernel has.
    pub(super) fn with_device(&self, chain: &mut Chain, info: &DeviceInfo) -> Result<(), Broken> {
        self.modules(chain)?;
        chain.check(Link::Device, || Finding::Holds(describe(info)))?;
        let path = self.root.join("dev/infiniband").join(&info.node);
        let opened = (self.open)(&path);
        let shown = path.display();
        chain.check(Link::Node, || match &opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Finding::Fails(format!(
                "{shown} is missing, though the kernel has the device {}: udev has not made it \
                 (`udevadm trigger`), or this container was not given it (--device={shown})",
                info.name
            )),
            Err(error) if !is_refusal(error) => Finding::Fails(format!(
                "{shown} does not open ({error}): the device was removed or is being reset; try \
                 again, and see the kernel's log"
            )),
            _ => Finding::Holds(shown.to_string()),
        })?;
        chain.check(Link::Permission, || {
            let metadata = fs::metadata(&path).ok();
            let mode = metadata.map(|it| (it.mode() & 0o777, it.uid(), it.gid()));
            match &opened {
                Ok(_) => Finding::Holds(self.permissions(mode)),
                Err(error) => self.refused(&shown.to_string(), error, mode),
            }
        })
    }

    /// The links of the model in this process; `why` says why it is the model, unless the user
    /// asked for it.
    pub(super) fn with_model(
        &self,
        chain: &mut Chain,
        info: &DeviceInfo,
        why: Option<&str>,
    ) -> Result<(), Broken> {
        chain.check(Link::Kernel, || Finding::Holds(self.linux()))?;
        let text = format!("{}, the model in this process: no module, no node", describe(info));
        chain.check(Link::Device, || match why {
            None => Finding::Holds(text),
            Some(why) => {
                Finding::Limited(format!("{text}; no hardware was checked, because {why}"))
            }
        })
    }

    /// Whether the machine has a PCI function of mlx5, with whatever driver.
    pub(super) fn has_function(&self) -> bool {
        self.functions().iter().any(Function::is_mlx5)
    }

    /// The links up to the one that explains why there is no device.
    pub(super) fn without_device(&self, chain: &mut Chain, error: &Error) -> Result<(), Broken> {
        let unbound = match error.kind() {
            ErrorKind::NotProbed => self.first_if_all_unbound(),
            _ => None,
        };
        let release = self.release();
        match (error.kind(), unbound) {
            (ErrorKind::ModuleMissing, _) => {
                chain.check(Link::Kernel, || Finding::Holds(self.linux()))?;
                chain.check(Link::Driver, || Finding::Fails(error.to_string()))
            }
            (ErrorKind::NotProbed, Some(function)) if self.knows(&function) == Some(false) => {
                self.modules(chain)?;
                chain.check(Link::Device, || {
                    Finding::Fails(format!(
                        "PCI function {} has the id {}, which mlx5_core of Linux {release} does \
                         not know: take a newer kernel, or the vendor's modules (DOCA-OFED)",
                        function.address, function.id
                    ))
                })
            }
            (ErrorKind::NotProbed, function) => {
                chain.check(Link::Kernel, || Finding::Holds(self.linux()))?;
                let module = if function.is_some() { "mlx5_core" } else { "mlx5_ib" };
                let bound = || self.functions().into_iter().find(|function| function.bound);
                let function = function.or_else(bound);
                chain.check(Link::Driver, || Finding::Fails(self.not_probed(module, function)))
            }
            _ => {
                self.modules(chain)?;
                chain.check(Link::Device, || Finding::Fails(error.to_string()))
            }
        }
    }

    /// Reports the kernel release and the modules as passed: a device exists, or another link is
    /// the one that fails.
    pub(super) fn modules(&self, chain: &mut Chain) -> Result<(), Broken> {
        let core = self.module("mlx5_core");
        chain.check(Link::Kernel, || {
            let is_vendors = core.as_ref().is_some_and(|it| it.is_vendors);
            match version(&self.release()) {
                Some(version) if version < (5, 10) && !is_vendors => Finding::Limited(format!(
                    "{}, older than the 5.10 that the driver needs: requests with newer \
                     attributes fail; take a newer kernel, or the vendor's modules (DOCA-OFED)",
                    self.linux()
                )),
                _ => Finding::Holds(self.linux()),
            }
        })?;
        let modules = ["mlx5_core", "mlx5_ib", "ib_uverbs"].map(|name| match self.module(name) {
            Some(module) => format!("{name} ({})", module.text),
            None => format!("no module {name} (built in, or not loaded)"),
        });
        chain.check(Link::Driver, || Finding::Holds(modules.join(", ")))
    }

    /// The limit of locked memory.
    pub(super) fn memlock(&self) -> Finding {
        match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((limit, _)) => memlock(limit, privilege(CAP_IPC_LOCK)),
            Err(errno) => Finding::Limited(format!("the limit is unknown ({errno})")),
        }
    }

    fn release(&self) -> String {
        self.text("proc/sys/kernel/osrelease").unwrap_or_else(|| "of an unknown release".into())
    }

    fn linux(&self) -> String {
        format!("Linux {} on {}", self.release(), std::env::consts::ARCH)
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    }

    /// A loaded module.
    fn module(&self, name: &str) -> Option<Module> {
        let folder = Path::new("sys/module").join(name);
        if !self.root.join(&folder).is_dir() {
            return None;
        }
        let [version, srcversion, taint] =
            ["version", "srcversion", "taint"].map(|file| self.text(folder.join(file)));
        let out_of_tree = taint.is_some_and(|flags| flags.contains('O'));
        let foreign = version.as_ref().is_some_and(|version| !IN_TREE.contains(&version.as_str()));
        let is_vendors = out_of_tree || foreign;
        let mut text = if is_vendors { "the vendor's" } else { "in-tree" }.to_string();
        if let Some(version) = version {
            text += &format!(" {version}");
        }
        if let Some(srcversion) = srcversion {
            text += &format!(", srcversion {srcversion}");
        }
        Some(Module { is_vendors, text })
    }

    /// The PCI functions of the vendor that are network controllers, by address.
    fn functions(&self) -> Vec<Function> {
        let folder = Path::new("sys/bus/pci/devices");
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let mut found: Vec<_> = entries
            .filter_map(|entry| {
                let address = entry.ok()?.file_name().into_string().ok()?;
                let read = |file: &str| self.text(folder.join(&address).join(file));
                let is_network = read("class").is_none_or(|class| class.starts_with("0x02"));
                let is_vendors = read("vendor")? == VENDOR && is_network;
                let device = read("device")?.trim_start_matches("0x").to_string();
                let bound = self.root.join(folder).join(&address).join("driver").exists();
                is_vendors.then_some(Function { address, id: format!("15b3:{device}"), bound })
            })
            .collect();
        found.sort_by(|a, b| a.address.cmp(&b.address));
        found
    }

    /// The first function, if no function has a driver.
    fn first_if_all_unbound(&self) -> Option<Function> {
        let functions = self.functions();
        let all_unbound = functions.iter().all(|function| !function.bound);
        functions.into_iter().next().filter(|_| all_unbound)
    }

    /// Whether the kernel's mlx5_core knows the function's id; `None` if the list of ids is not
    /// here, as in a container.
    fn knows(&self, function: &Function) -> Option<bool> {
        let aliases = self.text(format!("lib/modules/{}/modules.alias", self.release()))?;
        let of_core: Vec<_> = aliases
            .lines()
            .filter_map(|line| line.strip_prefix("alias ")?.strip_suffix(" mlx5_core"))
            .collect();
        let device = function.id.trim_start_matches("15b3:").to_uppercase();
        let id = format!("pci:v000015B3d0000{device}sv");
        (!of_core.is_empty()).then(|| of_core.iter().any(|alias| alias.starts_with(&id)))
    }

    /// The sentence on a function whose probe failed, with the kernel's own line.
    fn not_probed(&self, module: &str, function: Option<Function>) -> String {
        let Some(Function { address, id, .. }) = function else {
            return format!("{module} is loaded, but drives no function: see `dmesg | grep mlx5`");
        };
        let is_rdma = module == "mlx5_ib";
        let head = match is_rdma {
            true => format!(
                "{module} is loaded, but PCI function {address} ({id}) has no RDMA device here"
            ),
            false => format!("{module} is loaded, but has not taken PCI function {address} ({id})"),
        };
        let off = format!(
            "RDMA may be off (`devlink dev param show pci/{address} name enable_rdma`), or the \
             device belongs to another network namespace (`rdma system` says exclusive)"
        );
        match kernel_log::read(&self.root) {
            Ok(lines) => match kernel_log::failure(&lines, module, &address) {
                Some(line) => {
                    let advice = kernel_log::advice(line).unwrap_or(
                        "update firmware and kernel to releases that were made for each other, or \
                         ask the vendor's support about this line",
                    );
                    format!("{head}; its probe failed with \"{}\": {advice}", line.trim())
                }
                None if is_rdma => {
                    format!("{head}, and the kernel's log has no line on a failed probe: {off}")
                }
                None => format!(
                    "{head}, and the kernel's log has no line on a failed probe: this {module} may \
                     not know the id (compare `modinfo {module}`); take a newer kernel or the \
                     vendor's modules, or write the address to /sys/bus/pci/drivers/mlx5_core/bind \
                     for a new line"
                ),
            },
            Err(why) if is_rdma => format!(
                "{head}: its probe failed, or {off}; the kernel's log, which has failed probes, \
                 cannot be read here ({why}): run `dmesg | grep -e mlx5_ib -e infiniband` as root"
            ),
            Err(why) => format!(
                "{head}: its probe failed, or it does not know the id; the kernel's log, which \
                 says which, cannot be read here ({why}): run `dmesg | grep {address}` as root"
            ),
        }
    }

    /// Mode and owner of a node.
    pub(super) fn permissions(&self, mode: Option<(u32, u32, u32)>) -> String {
        match mode {
            Some((mode, uid, gid)) => {
                let (owner, group) = (self.name("passwd", uid), self.name("group", gid));
                format!("mode {mode:04o} of {owner}:{group}")
            }
            None => "it opens".into(),
        }
    }

    /// The sentence on a node that this user may not open.
    pub(super) fn refused(
        &self,
        node: &str,
        error: &io::Error,
        permissions: Option<(u32, u32, u32)>,
    ) -> Finding {
        let (user, shown) = (&self.user, self.permissions(permissions));
        let (mode, owner, gid) = permissions.unwrap_or_default();
        let group = self.name("group", gid);
        let allowed = user.uid == 0
            || mode & 0o006 == 0o006
            || (mode & 0o060 == 0o060 && user.groups.contains(&gid))
            || (mode & 0o600 == 0o600 && user.uid == owner);
        let advice = if allowed {
            format!(
                "its mode allows that, so a container or security module refuses it (start the \
                 container with --device={node}), or the device belongs to another network \
                 namespace (`rdma system` says exclusive; `rdma dev set NAME netns NAMESPACE` \
                 moves it)"
            )
        } else if mode & 0o060 == 0o060 && gid != 0 {
            format!(
                "this user (uid {}) is not in the group: `usermod -aG {group} USER`, then log in \
                 again, or run as root",
                user.uid
            )
        } else {
            format!(
                "this user (uid {}) may not open it: `chmod 666 {node}`, as the kernel makes \
                 it, and see which udev rule narrows it (`grep -r uverbs /etc/udev \
                 /usr/lib/udev`), or run as root",
                user.uid
            )
        };
        Finding::Fails(format!("{node} is refused ({error}); it has {shown}: {advice}"))
    }

    /// A system user's or group's name from the machine's own files, otherwise the number: reports
    /// have this text, and it names no person.
    fn name(&self, file: &str, number: u32) -> String {
        if number >= FIRST_PERSON {
            return number.to_string();
        }
        let text = self.text(Path::new("etc").join(file)).unwrap_or_default();
        let named = text.lines().find_map(|line| {
            let mut parts = line.split(':');
            let (name, _, id) = (parts.next()?, parts.next()?, parts.next()?);
            (id.parse() == Ok(number)).then(|| name.to_string())
        });
        named.unwrap_or_else(|| number.to_string())
    }
}

struct Module {
    is_vendors: bool,
    text: String,
}

/// A PCI function.
struct Function {
    address: String,
    /// Vendor and device, as `lspci -n` prints them.
    id: String,
    bound: bool,
}

impl Function {
    /// Whether the device id is one of mlx5: Connect-IB and later ConnectX, ConnectX-10 on
    /// NVLink-C2C, and BlueField.
    fn is_mlx5(&self) -> bool {
        let id = u16::from_str_radix(self.id.trim_start_matches("15b3:"), 16);
        matches!(id, Ok(0x1011..=0x10ff | 0x2101 | 0xa2d2..=0xa2ff))
    }
}

/// Name, place and board of a device.
fn describe(info: &DeviceInfo) -> String {
    let at = info.pci_address.as_ref().map_or(String::new(), |address| format!(" at {address}"));
    let (name, board) = (&info.name, &info.board_id);
    format!("{name}{at} ({:04x}:{:04x}, board {board})", info.vendor_id, info.device_id)
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What a limit of locked memory allows.
pub(super) fn memlock(limit: u64, lifted: bool) -> Finding {
    let mib = |bytes: u64| bytes >> 20;
    let raise = "raise it with `ulimit -l unlimited` (in limits.conf: memlock), LimitMEMLOCK= of \
                 systemd, --ulimit memlock=-1 of a container, or give the program CAP_IPC_LOCK";
    match limit {
        u64::MAX => Finding::Holds("no limit".into()),
        _ if lifted => Finding::Holds(format!("{} KiB, lifted by CAP_IPC_LOCK", limit >> 10)),
        _ if limit < MIN_LOCKED => Finding::Fails(format!(
            "registered memory is locked memory, whose limit is {} KiB; queues and regions of the \
             cases need {} MiB: {raise}",
            limit >> 10,
            mib(MIN_LOCKED)
        )),
        _ if limit < LOCKED_FOR_ALL => Finding::Limited(format!(
            "the limit is {} KiB, and large regions need {} MiB: cases with such are skipped or \
             fail; {raise}",
            limit >> 10,
            mib(LOCKED_FOR_ALL)
        )),
        _ => Finding::Holds(format!("{} KiB", limit >> 10)),
    }
}
