//! The vfio-user server: one socket and one thread per function.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use thiserror::Error;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{IrqInfo, Server, ServerRegion, SparseArea};

use super::bar::Registers;
use super::config::{CONFIG_BYTES, ConfigSpace};
use super::function::Function;
use super::interrupts::Vectors;
use super::layout::Layout;
use crate::memory::GuestMemory;
use crate::model::Model;
use crate::profile::Profile;
use crate::world::HcaId;

/// A socket could not be served.
#[derive(Debug, Error)]
#[error("{}: {source}", socket.display())]
pub struct PciError {
    /// The socket.
    pub socket: PathBuf,
    /// What went wrong.
    source: vfio_user::Error,
}

/// What there is to attach.
#[derive(Debug, Clone)]
pub struct PciOptions {
    /// A socket per device. Function 0 listens there, function n at the same path with `.n` after it.
    pub sockets: Vec<PathBuf>,
    /// What each device is.
    pub profile: Profile,
    /// Functions per device, 1 to 8.
    pub functions: u32,
    /// No UAR page is mapped into the guest: every doorbell is a message.
    pub trap: bool,
}

/// Serves devices on one fabric, for ever.
///
/// # Errors
/// When a socket cannot be bound or listened to.
///
/// # Panics
/// When the system gives no thread.
pub fn serve(options: &PciOptions) -> Result<(), PciError> {
    let mut builder = Model::builder().threaded();
    let mut places = Vec::new();
    for socket in &options.sockets {
        for function in 0..options.functions {
            let memory = Arc::new(GuestMemory::default());
            builder = builder.device_in(options.profile.clone(), memory.clone());
            places.push((socket_of(socket, function), memory));
        }
    }
    let model = builder.build();
    let mut servers = Vec::new();
    for (id, (socket, memory)) in places.into_iter().enumerate() {
        let failed = |source| PciError { socket: socket.clone(), source };
        let function = attach(&model, id, memory, options);
        let server = bind(&socket, &model, &function).map_err(failed)?;
        servers.push((socket, server, function));
    }
    let threads: Vec<_> = servers
        .into_iter()
        .map(|(socket, server, mut function)| {
            thread::spawn(move || {
                loop {
                    let ended = server.run(&mut function);
                    function.client_left();
                    match ended {
                        Err(source @ vfio_user::Error::SocketAccept(_)) => {
                            return PciError { socket, source };
                        }
                        Err(error) => tracing::warn!(%error, "a client is gone"),
                        Ok(()) => {}
                    }
                }
            })
        })
        .collect();
    let mut ended = threads.into_iter().map(thread::JoinHandle::join);
    match ended.next() {
        Some(Ok(error)) => Err(error),
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

/// Where function `function` of the device at `socket` listens.
fn socket_of(socket: &Path, function: u32) -> PathBuf {
    if function == 0 {
        return socket.into();
    }
    let mut path = socket.as_os_str().to_owned();
    path.push(format!(".{function}"));
    path.into()
}

pub(super) fn attach(
    model: &Model,
    id: HcaId,
    memory: Arc<GuestMemory>,
    options: &PciOptions,
) -> Function {
    let device = options.profile.device();
    let layout = Layout::new(&options.profile, options.trap);
    let vectors = Arc::new(Vectors::new(device.vectors));
    model.shared.lock().hcas[id].interrupts = Some(vectors.clone());
    Function {
        shared: model.shared.clone(),
        id,
        memory,
        config: ConfigSpace::new(&options.profile, layout.bytes, options.functions > 1),
        registers: Registers::new(),
        vectors,
        layout,
    }
}

fn bind(socket: &Path, model: &Model, function: &Function) -> Result<Server, vfio_user::Error> {
    let pages = model.shared.lock().hcas[function.id].bar.clone();
    let vectors = function.vectors.count();
    let irqs = (0..VFIO_PCI_NUM_IRQS).map(|index| match index {
        VFIO_PCI_MSIX_IRQ_INDEX => {
            IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE, count: vectors }
        }
        _ => IrqInfo { index, flags: 0, count: 0 },
    });
    let regions = (0..VFIO_PCI_NUM_REGIONS).map(|index| {
        let mut region = ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                index,
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        };
        let info = &mut region.region_info;
        let access = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        match index {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                (info.size, info.flags) = (CONFIG_BYTES as u64, access);
            }
            VFIO_PCI_BAR0_REGION_INDEX => {
                (info.size, info.flags) = (function.layout.bytes, access);
                if let Some(mapped) = &function.layout.mapped {
                    info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
                    let area = vfio_region_sparse_mmap_area {
                        offset: mapped.start,
                        size: mapped.end - mapped.start,
                    };
                    region.sparse_areas = vec![SparseArea { area }];
                    region.mmap_fd = Some(pages.file().as_fd().as_raw_fd());
                }
            }
            _ => {}
        }
        region
    });
    Server::new(socket, true, irqs.collect(), regions.collect())
}
