//! A directory tree in place of sysfs and `/dev`, removed on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_devx::Kernel;

pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "verbless-devx-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("sys")).unwrap();
        fs::create_dir_all(root.join("dev")).unwrap();
        Self(root)
    }

    pub(crate) fn kernel(&self) -> Kernel {
        Kernel::with_roots(self.0.join("sys"), self.0.join("dev"))
    }

    /// A file with a line of text.
    pub(crate) fn file(&self, path: impl AsRef<Path>, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    pub(crate) fn directory(&self, path: &str) -> &Self {
        fs::create_dir_all(self.0.join(path)).unwrap();
        self
    }

    /// A link to another path in the tree, or to an absolute path.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(self.0.join(target), path).unwrap();
        self
    }

    pub(crate) fn unlink(&self, path: &str) -> &Self {
        fs::remove_file(self.0.join(path)).unwrap();
        self
    }

    /// A PCI function of an mlx5 device, with its driver if it has one.
    pub(crate) fn function(&self, address: &str, driver: Option<&str>) -> &Self {
        let device = format!("sys/devices/pci0000:00/{address}");
        self.file(format!("{device}/vendor"), "0x15b3").file(format!("{device}/device"), "0x101d");
        self.link(&format!("sys/bus/pci/devices/{address}"), &device);
        if let Some(driver) = driver {
            self.directory(&format!("sys/bus/pci/drivers/{driver}"));
            self.link(&format!("{device}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
        }
        self
    }

    /// An RDMA device `name` with the node `node` on `parent` (below `sys/devices`), and one RoCE
    /// port.
    pub(crate) fn rdma(&self, name: &str, node: &str, parent: &str) -> &Self {
        let rdma = format!("sys/class/infiniband/{name}");
        let port = format!("{rdma}/ports/1");
        self.file(format!("sys/class/infiniband_verbs/{node}/ibdev"), name)
            .link(
                &format!("sys/class/infiniband_verbs/{node}/device"),
                &format!("sys/devices/{parent}"),
            )
            .file(format!("{rdma}/board_id"), "MT_0000000359")
            .file(format!("{rdma}/fw_ver"), "22.31.1014")
            .file(format!("{rdma}/node_guid"), "0c42:a103:0065:1234")
            .file(format!("{rdma}/sys_image_guid"), "0c42:a103:0065:1200")
            .file(format!("{port}/link_layer"), "Ethernet")
            .file(format!("{port}/state"), "4: ACTIVE")
            .file(format!("{port}/gids/0"), "fe80:0000:0000:0000:0e42:a1ff:fe65:1234")
            .file(format!("{port}/gids/1"), "fe80:0000:0000:0000:0e42:a1ff:fe65:1234")
            .file(format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000")
            .file(format!("{port}/gids/10"), "0000:0000:0000:0000:0000:ffff:0a00:0001")
            .file(format!("{port}/gid_attrs/types/0"), "IB/RoCE v1")
            .file(format!("{port}/gid_attrs/types/1"), "RoCE v2")
            .file(format!("{port}/gid_attrs/types/10"), "RoCE v2")
            .file(format!("{port}/gid_attrs/ndevs/0"), "ens1f0np0")
            .file(format!("{port}/gid_attrs/ndevs/1"), "ens1f0np0")
            .file(format!("{port}/gid_attrs/ndevs/10"), "ens1f0np0")
            .directory(&format!("sys/devices/{parent}/net/ens1f0np0"))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
