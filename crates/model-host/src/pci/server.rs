//! The vfio-user server: one socket and one thread per function.

use std::fs::File;
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
use super::control::Controller;
use super::function::PciFunction;
use super::interrupts::Vectors;
use super::layout::Layout;
use crate::links::{LinkError, LinkOptions};
use crate::run::{Host, RunError};
use verbless_model::memory::{GuestMemory, HostMemory};
use verbless_model::{Model, Profile};

/// Why PCI devices cannot be served.
#[derive(Debug, Error)]
pub enum PciError {
    /// Each function needs its own socket.
    #[error(
        "{given} sockets were given for {wanted} functions: give one --socket for each function"
    )]
    Sockets {
        /// Number of sockets.
        given: usize,
        /// Number of functions.
        wanted: usize,
    },
    /// A socket cannot be bound or listened to.
    #[error("cannot serve the socket {}: {source}", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The error of the socket.
        source: vfio_user::Error,
    },
    /// The link options cannot be applied.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// The name of the server cannot be used.
    #[error(transparent)]
    Name(#[from] RunError),
    /// The thread that answers `ctl` cannot be started.
    #[error("cannot answer `ctl`: {0}")]
    Control(std::io::Error),
}

/// Options of the PCI devices.
#[derive(Debug)]
pub struct PciOptions {
    /// The profile of each device.
    pub devices: Vec<Profile>,
    /// Functions per device, 1 to 8.
    pub functions: u16,
    /// Instead of `functions`: one function for each side that a device has, the host's first.
    pub sides: bool,
    /// One socket per function, in the order of the devices.
    pub sockets: Vec<PathBuf>,
    /// Trap every doorbell: no UAR page is mapped into the guest.
    pub trap: bool,
    /// The file to which every command is written with its answer, as text that `cargo xtask prm
    /// decode` reads.
    pub record: Option<File>,
    /// Options for the links.
    pub links: LinkOptions,
    /// Name for `verbless-model ctl`, which changes the devices.
    pub name: Option<String>,
}

/// Serves devices on one fabric, each socket to one client, until all clients have disconnected.
///
/// # Errors
/// Sockets and functions differ in number, or a socket cannot be bound or listened to.
///
/// # Panics
/// A thread cannot be started.
pub fn serve(mut options: PciOptions) -> Result<(), PciError> {
    let counts: Vec<usize> = options.devices.iter().map(|it| functions(it, &options)).collect();
    let wanted = counts.iter().sum();
    if options.sockets.len() != wanted {
        return Err(PciError::Sockets { given: options.sockets.len(), wanted });
    }
    let mut builder = Model::builder().threaded().identity(options.links.identity);
    let mut memories = Vec::new();
    for (profile, count) in options.devices.iter().zip(counts) {
        let own: Vec<_> = (0..count).map(|_| Arc::new(GuestMemory::default())).collect();
        memories.extend(own.iter().cloned());
        let own = own.into_iter().map(|memory| memory as Arc<dyn HostMemory>);
        builder = match options.sides {
            true => builder.device_with_sides_in(profile.clone(), own),
            false => builder.device_in(profile.clone(), own),
        };
    }
    let model = builder.build();
    let _watch = options.record.take().map(|file| model.record_commands(file));
    if options.links.faults.fails_ioctls() {
        return Err(LinkError::Ioctls.into());
    }
    let _links = std::mem::take(&mut options.links).apply(&model)?;
    let host = options.name.as_deref().map(Host::new).transpose()?;
    let _controller = host
        .map(|host| Controller::new(host, model.clone()).map_err(PciError::Control))
        .transpose()?;
    let mut servers = Vec::new();
    for (id, (socket, memory)) in options.sockets.iter().zip(memories).enumerate() {
        let function = attach(&model, id, memory, options.trap);
        let server = bind(socket, &function)
            .map_err(|source| PciError::Socket { socket: socket.clone(), source })?;
        servers.push((server, function));
    }
    let threads: Vec<_> = servers
        .into_iter()
        .map(|(server, mut function)| {
            thread::spawn(move || {
                let ended = server.run(&mut function);
                function.client_left();
                ended
            })
        })
        .collect();
    for (socket, thread) in options.sockets.iter().zip(threads) {
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match ended {
            Err(source @ vfio_user::Error::SocketAccept(_)) => {
                return Err(PciError::Socket { socket: socket.clone(), source });
            }
            // A client that is killed closes its connection without notice.
            Err(error) => {
                tracing::warn!(%error, socket = %socket.display(), "serving a client failed");
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// How many functions a device has.
fn functions(device: &Profile, options: &PciOptions) -> usize {
    if options.sides { device.sides().count() } else { options.functions.into() }
}

/// Creates the PCI front end of function `id`; `memory` is the guest's.
pub(super) fn attach(
    model: &Model,
    id: usize,
    memory: Arc<GuestMemory>,
    trap: bool,
) -> PciFunction {
    let device = model.device(id);
    let card = device.system_image_guid();
    let functions = model.all_devices().iter().filter(|it| it.system_image_guid() == card).count();
    let profile = device.profile();
    let vectors = Arc::new(Vectors::new(profile.device().vectors));
    device.set_interrupts(Some(vectors.clone()));
    let layout = Layout::new(&profile, trap);
    let mut function = PciFunction {
        device,
        memory,
        config: ConfigSpace::new(&profile, layout.bytes, functions > 1),
        registers: Registers::new(),
        vectors,
        layout,
    };
    function.follow_command_register();
    function
}

fn bind(socket: &Path, function: &PciFunction) -> Result<Server, vfio_user::Error> {
    let pages = function.device.uars();
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use vfio_user::Client;

    use super::*;
    use crate::run::{self, Control};

    fn options(sockets: Vec<PathBuf>) -> PciOptions {
        PciOptions {
            devices: vec![Profile::load("bluefield3").unwrap(); 2],
            functions: 1,
            sides: false,
            sockets,
            trap: false,
            record: None,
            links: LinkOptions::default(),
            name: None,
        }
    }

    fn connect(socket: &Path) -> Client {
        let start = Instant::now();
        loop {
            match Client::new(socket) {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed().as_secs() < 20, "{error}"),
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn serve_reports_regions_and_ends_with_last_client() {
        let directory = std::env::temp_dir().join(format!("serve-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let sockets: Vec<_> = ["one", "two"].map(|name| directory.join(name)).into();
        let name = format!("serve-{}", std::process::id());
        let named = PciOptions { name: Some(name.clone()), ..options(sockets.clone()) };
        let server = thread::spawn(move || serve(named));
        let mut clients: Vec<_> = sockets.iter().map(|it| connect(it)).collect();
        for client in &mut clients {
            let region = |index| client.region(index).unwrap();
            let access = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
            let config = region(VFIO_PCI_CONFIG_REGION_INDEX);
            assert_eq!((config.size, config.flags & access), (4096, access));
            let bar = region(VFIO_PCI_BAR0_REGION_INDEX);
            let flags = access | VFIO_REGION_INFO_FLAG_MMAP;
            assert_eq!((bar.size, bar.flags & flags), (32 << 20, flags));
            let areas: Vec<_> = bar.sparse_areas.iter().map(|it| (it.offset, it.size)).collect();
            assert_eq!(areas, [(4 << 20, 28 << 20)], "the pages of user contexts");
            assert!(bar.file_offset.is_some());
            assert_eq!(region(VFIO_PCI_BAR0_REGION_INDEX + 2).size, 0);
            let msix = client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap();
            assert_eq!((msix.count, msix.flags), (64, 9), "EVENTFD and NORESIZE");
            let others = (0..VFIO_PCI_MSIX_IRQ_INDEX).map(|it| client.get_irq_info(it).unwrap());
            assert!(others.into_iter().all(|it| (it.count, it.flags) == (0, 0)));
            let mut identity = [0; 4];
            client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut identity).unwrap();
            assert_eq!(identity, [0xb3, 0x15, 0xdc, 0xa2]);
        }
        assert!(
            run::control(&name, &Control::Show).unwrap().contains("device 1 (Host) port 1: up")
        );
        clients.pop();
        assert!(!server.is_finished(), "a client is left");
        assert!(run::control(&name, &Control::Show).is_ok());
        drop(clients);
        server.join().unwrap().unwrap();
        assert!(run::control(&name, &Control::Show).is_err(), "the server has ended");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn serve_rejects_wrong_socket_count() {
        let cases = [
            (options(vec![]), 2),
            (PciOptions { functions: 3, ..options(vec!["a".into(); 2]) }, 6),
            (PciOptions { sides: true, functions: 3, ..options(vec!["a".into(); 3]) }, 4),
        ];
        for (options, expected) in cases {
            let error = serve(options).unwrap_err();
            assert!(matches!(error, PciError::Sockets { wanted, .. } if wanted == expected));
        }
    }

    #[test]
    fn header_type_has_multifunction_bit() {
        let profile = || Profile::load("bluefield3").unwrap();
        let memory = || Arc::new(GuestMemory::default());
        let memories = |count| (0..count).map(|_| memory() as Arc<dyn HostMemory>);
        let model = Model::builder()
            .device_in(profile(), memories(1))
            .device_in(profile(), memories(2))
            .stepped()
            .build();
        for (id, expected) in [(0, 0), (1, 0x80), (2, 0x80)] {
            let mut kind = [0xff];
            attach(&model, id, memory(), false).config.read(0x0e, &mut kind);
            assert_eq!(kind, [expected], "function {id}");
        }
    }
}
