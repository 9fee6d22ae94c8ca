//! The DOCA error of each failure.

use std::sync::Arc;

use verbless_devx::{Backend, Kernel};
use verbless_doca::dma::Dma;
use verbless_doca::{
    AccessFlags, DevInfo, ErrorKind, Inventory, Memory, Mmap, Result, Retrieve, WorkQ,
};
use verbless_model::{Ioctl, Model};
use verbless_prm::CqeSyndrome;

use crate::support::{disturbed, plain};

/// Starts a map, which registers its memory and creates a key.
fn start_map(dev: &verbless_doca::Dev) -> Result<Mmap> {
    let memory = Memory::allocate(4096).unwrap();
    Mmap::builder().memrange(memory).permissions(AccessFlags::LOCAL_READ_WRITE).add_dev(dev).start()
}

#[test]
fn kernel_or_device_error_maps_to_kind() {
    /// An errno of the registration.
    fn errno(model: &Model, errno: i32) {
        model.fail_ioctl(0, Ioctl::named("DEVX_UMEM_REG").unwrap(), 1, errno);
    }
    /// A disturbance of the model, before the start of a map.
    type Disturbance = fn(&Model);
    let refusals: [(&str, Disturbance, ErrorKind); 6] = [
        ("ENOMEM", |model| errno(model, 12), ErrorKind::NoMemory),
        ("EFAULT", |model| errno(model, 14), ErrorKind::Driver),
        ("EPERM", |model| errno(model, 1), ErrorKind::NotPermitted),
        (
            "CREATE_MKEY",
            |model| {
                model.fail_command(
                    0,
                    verbless_prm::Opcode(0x200),
                    1,
                    verbless_prm::CommandStatus(0x08),
                    0,
                )
            },
            ErrorKind::Driver,
        ),
        ("a dead device", |model| model.remove(0), ErrorKind::Shutdown),
        ("nothing", |_| (), ErrorKind::Unknown),
    ];
    for (what, disturb, expected) in refusals {
        let (model, dev) = disturbed();
        disturb(&model);
        match start_map(&dev) {
            Ok(_) => assert_eq!(what, "nothing"),
            Err(error) => assert_eq!(error.kind(), expected, "{what}: {error}"),
        }
    }
}

#[test]
fn missing_device_or_driver_is_distinguished() {
    let root = std::env::temp_dir().join(format!("verbless-doca-none-{}", std::process::id()));
    let list = || {
        let kernel: Arc<dyn Backend> = Arc::new(Kernel::with_roots(&root, root.join("dev")));
        DevInfo::list_of(&kernel).unwrap_err()
    };
    std::fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
    let empty = list();
    let address = root.join("bus/pci/devices/0000:03:00.0");
    std::fs::create_dir_all(&address).unwrap();
    std::fs::write(address.join("vendor"), "0x15b3\n").unwrap();
    std::fs::write(address.join("device"), "0xa2dc\n").unwrap();
    let without_driver = list();
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(empty.kind(), ErrorKind::NotFound, "{empty}");
    assert_eq!(without_driver.kind(), ErrorKind::Initialization, "{without_driver}");
    let model = crate::support::backend("bluefield3");
    assert_eq!(DevInfo::find_in(&model, "mlx5_7").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn cqe_syndrome_maps_to_job_error_kind() {
    // Values of `cqe_syndrome`.
    let kinds = [
        (0x01, ErrorKind::InvalidValue),
        (0x02, ErrorKind::IoFailed),
        (0x04, ErrorKind::NotPermitted),
        (0x11, ErrorKind::NotPermitted),
        (0x12, ErrorKind::InvalidValue),
        (0x13, ErrorKind::NotPermitted),
        (0x14, ErrorKind::IoFailed),
        (0x15, ErrorKind::TimeOut),
        (0x16, ErrorKind::TimeOut),
        (0x22, ErrorKind::ConnectionAborted),
    ];
    for (syndrome, expected) in kinds {
        let (model, dev) = disturbed();
        let (map, _) = plain(&dev, 4096, 1);
        let inventory = Inventory::builder(2).start().unwrap();
        let dma = Dma::builder(&dev).start().unwrap();
        let mut workq = WorkQ::new(4).unwrap();
        workq.add(&dma).unwrap();
        model.fail_request(0, None, 1, CqeSyndrome(syndrome));
        let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
        let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
        workq.submit(dma.memcpy(source, destination).user_data(5)).unwrap();
        let Err(Retrieve::IoFailed(event)) = workq.retrieve_within(None) else {
            panic!("{syndrome:#x} did not fail the job")
        };
        let error = event.result().unwrap_err();
        assert_eq!(error.kind(), expected, "{syndrome:#x}: {error}");
        assert_eq!(event.user_data().0, 5);
        assert!(error.device_failure().is_some());
        let text = format!("{error:?}");
        assert!(text.contains(&format!("kind: {expected:?}")), "{text}");
    }
}
