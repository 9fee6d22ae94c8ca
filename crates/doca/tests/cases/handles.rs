//! Getters and `Debug` output of handles.

use verbless_doca::async_event::AsyncEvents;
use verbless_doca::dma::Dma;
use verbless_doca::graph::Graph;
use verbless_doca::rdma::Rdma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{
    AccessFlags, AsyncWorkQ, BufArray, BufPool, DevInfoRep, DynamicMmap, Error, ErrorKind,
    Extensions, Inventory, JobType, Memory, Refused, Retrieve, UserData, WorkQ,
};

use crate::support::{dev, map, plain};

#[test]
fn builders_have_getters_for_setters() {
    let dev = dev();
    let memory = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE);
    let inventory = Inventory::builder(3).name("three").extensions(Extensions::LINKED_LIST);
    assert_eq!((inventory.get_name(), inventory.num_elements()), ("three", 3));
    assert_eq!(inventory.get_extensions(), Extensions::LINKED_LIST);
    let pool = BufPool::builder(&memory, 5, 32);
    assert_eq!(pool.get_range(), None);
    let pool = pool.alignment(64).range(memory.address(), 640).extensions(Extensions::LINKED_LIST);
    assert_eq!((pool.get_alignment(), pool.get_range()), (64, Some((memory.address(), 640))));
    assert_eq!((pool.num_elements(), pool.element_size()), (5, 32));
    assert_eq!(pool.get_extensions(), Extensions::LINKED_LIST);
    let array = BufArray::builder(&memory, 3, 64).start_offset(128);
    assert_eq!(
        (array.get_start_offset(), array.num_elements(), array.element_size()),
        (128, 3, 64)
    );
    assert_eq!(array.start().unwrap().element_size(), 64);
    assert_eq!((Dma::builder(&dev).dev(), Sha::builder(&dev).dev()), (&dev, &dev));
    let rdma = Rdma::builder(&dev).retry_count(3);
    assert_eq!((rdma.dev(), rdma.properties().retry_count), (&dev, 3));
    let events = AsyncEvents::builder(&dev).user_data(9);
    assert_eq!((events.dev(), events.get_user_data()), (&dev, UserData(9)));
    let event = SyncEvent::builder(&dev);
    assert_eq!((event.publisher_location(), event.subscriber_location()), (None, None));
    assert!(event.get_memory().is_none());
    let event = event.publisher_add_location(Location::Cpu).unwrap();
    let event = event.subscriber_add_location(Location::Cpu).unwrap();
    // SAFETY: nothing else accesses the memory.
    #[allow(unsafe_code, reason = "the event takes a promise")]
    let event = unsafe { event.memory(Memory::allocate(8).unwrap()) };
    let cpu = Some(Location::Cpu);
    assert_eq!((event.publisher_location(), event.subscriber_location()), (cpu, cpu));
    assert_eq!((event.dev(), event.get_memory().map(Memory::len)), (&dev, Some(8)));
    let queue = WorkQ::builder(7);
    assert_eq!((queue.depth(), queue.is_event_driven()), (7, false));
    assert!(queue.event_driven().is_event_driven());
}

/// Checks the `Debug` output of a value.
fn shows(value: &dyn std::fmt::Debug, expected: &[&str]) {
    let text = format!("{value:?}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn handles_show_identity_in_debug() {
    let dev = dev();
    let (memory, inventory) = plain(&dev, 1 << 16, 4);
    shows(dev.info(), &["DevInfo(", "mlx5_0"]);
    shows(&memory, &["Mmap"]);
    shows(&inventory, &["Inventory"]);
    let buffer = inventory.buf_by_addr(&memory, memory.address(), 64).unwrap();
    shows(&buffer, &["Buf"]);
    let array = BufArray::builder(&memory, 3, 64).start().unwrap();
    shows(&array, &["BufArray", "len: 3", "element_size: 64"]);
    let pool = BufPool::builder(&memory, 5, 32).start().unwrap();
    shows(&pool, &["BufPool", "num_elements: 5", "num_free_elements: 5", "element_size: 32"]);
    shows(&buffer.add_ref().unwrap(), &["BufRef"]);
    let mut graph = Graph::builder();
    let dma = Dma::builder(&dev).start().unwrap();
    let node = graph.ctx_node(&dma, JobType::DmaMemcpy);
    assert_eq!((node.index(), graph.user_node(|_| Ok(())).index()), (0, 1));
    assert_eq!(graph.user_node(|_| Ok(())).index(), 2);
    shows(&graph, &["GraphBuilder", "nodes: 3"]);
    let graph = graph.start().unwrap();
    shows(&graph, &["Graph"]);
    shows(&graph.instance(), &["Instance"]);
    let rdma = Rdma::builder(&dev);
    shows(&rdma, &["RdmaBuilder", "mlx5_0", "properties"]);
    let rdma = rdma.start().unwrap();
    shows(&rdma, &["Rdma", "mlx5_0", "state"]);
    shows(rdma.dev(), &["Dev(mlx5_0)"]);
    let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
    let event = event.subscriber_add_location(Location::Cpu).unwrap().start().unwrap();
    shows(&event, &["SyncEvent(Word(0x", "mlx5_0"]);
    let sha = Sha::builder(&dev).start().unwrap();
    let partial = sha.partial(Algorithm::Sha512);
    shows(&partial, &["Partial(Sha512)"]);
    assert_eq!(partial.algorithm(), Algorithm::Sha512);
    assert_eq!(sha.partial(Algorithm::Sha256).algorithm(), Algorithm::Sha256);
    assert_eq!(Sha::max_list_buf_num_elem(), u32::MAX);
    let workq = WorkQ::builder(8).event_driven().build().unwrap();
    shows(&workq, &["WorkQ"]);
    let workq = AsyncWorkQ::new(workq).unwrap();
    shows(&workq, &["AsyncWorkQ", "workq: WorkQ"]);
    workq.add_graph(&graph).unwrap();
    assert_eq!(graph.workqs(), 1);
    let events = AsyncEvents::builder(&dev).start().unwrap();
    shows(events.dev(), &["Dev(mlx5_0)"]);
    shows(
        &map(&dev, 4096, AccessFlags::RDMA_READ).export_rdma(&dev).unwrap(),
        &["ExportDescriptor"],
    );
    shows(&rdma.export().unwrap(), &["ConnectionDescriptor"]);
}

#[test]
fn representor_shows_its_interface_name() {
    let (_, dpu) = crate::support::sides();
    let reps = DevInfoRep::list(&dpu).unwrap();
    let rep = &reps[0];
    shows(rep, &["DevInfoRep("]);
    let open = rep.open().unwrap();
    shows(&open, &["DevRep(", rep.interface_name()]);
    assert_eq!(rep.representor_info().name, rep.interface_name());
}

#[test]
fn stores_report_capacity_and_extensions() {
    let dev = dev();
    let (memory, inventory) = plain(&dev, 1 << 16, 4);
    assert_eq!(inventory.extensions(), Extensions::LINKED_LIST);
    assert_eq!((Extensions::NONE.bits(), Extensions::LINKED_LIST.bits()), (0, 1));
    assert_eq!(Inventory::builder(2).start().unwrap().extensions(), Extensions::NONE);
    assert!(!memory.is_empty());
    let array = BufArray::builder(&memory, 3, 64).start().unwrap();
    assert!(!array.is_empty());
    let at = memory.address() + 0x1000;
    let pool = BufPool::builder(&memory, 4, 64).range(at, 256).start().unwrap();
    assert_eq!((pool.num_elements(), pool.element_size()), (4, 64));
    assert_eq!(pool.alloc().unwrap().head(), at, "in the range");
    let large = BufPool::builder(&memory, 5, 64).range(at, 256).start();
    assert_eq!(large.unwrap_err().kind(), ErrorKind::InvalidValue);
    let mut full = DynamicMmap::new("full");
    full.set_max_chunks(1).unwrap();
    full.start().unwrap();
    full.populate(small(), 4096, None).unwrap();
    let refused = full.populate(small(), 4096, None).unwrap_err();
    shows(&refused.given, &["NotPopulated", "memory"]);
}

fn small() -> Memory {
    Memory::allocate(4096).unwrap()
}

#[test]
fn pointer_round_trips_through_user_data() {
    let mut number = 7u32;
    let pointer: *mut u32 = &mut number;
    assert_eq!(UserData::from(pointer).as_ptr::<u32>(), pointer);
    assert_eq!(UserData::from(pointer.cast_const()).as_ptr::<u32>(), pointer);
    assert_eq!(UserData::from(pointer), UserData(pointer as u64));
}

#[test]
fn rights_intersect_bit_by_bit() {
    let write = AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ;
    let read = AccessFlags::RDMA_READ | AccessFlags::RDMA_ATOMIC;
    assert_eq!(write & read, AccessFlags::RDMA_READ);
    assert_eq!(write & AccessFlags::RDMA_ATOMIC, AccessFlags::LOCAL_READ_ONLY);
}

#[test]
fn refused_displays_error_and_has_source() {
    let (_model, dev) = crate::support::disturbed();
    let (memory, inventory) = plain(&dev, 4096, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let source = inventory.buf_by_data(&memory, memory.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&memory, memory.address() + 64, 64).unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    let refused: Refused<_> = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(refused.to_string(), refused.error.to_string());
    assert!(refused.to_string().starts_with("DOCA_ERROR_"), "{refused}");
    assert!(std::error::Error::source(&refused).is_none(), "there is nothing below");
    let lower = verbless_devx::Error::new(verbless_devx::ErrorKind::Io, "reading", "");
    let refused = Refused { error: Error::from(lower), given: () };
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("reading"));
    let why = workq.progress_retrieve().unwrap_err();
    assert!(matches!(why, Retrieve::Again));
    assert_eq!(why.to_string(), "DOCA_ERROR_AGAIN: no job is done yet");
    let failed = Retrieve::Failed(Error::from(verbless_devx::Error::new(
        verbless_devx::ErrorKind::Full,
        "posting",
        "",
    )));
    assert!(failed.to_string().starts_with("DOCA_ERROR_AGAIN: "), "{failed}");
}

#[test]
fn callback_reaches_node_index_and_data() {
    let dev = dev();
    let (memory, inventory) = plain(&dev, 1 << 12, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
    let counter = graph.user_node(|_| Ok(()));
    let user = graph.user_node(move |node| {
        let own = node.node().index();
        *node.user_node_data::<u32>(counter).ok_or(ErrorKind::NotFound)? += own;
        match node.user_node_data::<u64>(counter) {
            Some(_) => Err(ErrorKind::Unexpected),
            None => Ok(()),
        }
    });
    graph.add_dependency(copy, user).unwrap();
    graph.add_dependency(counter, user).unwrap();
    let graph = graph.start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    let source = inventory.buf_by_data(&memory, memory.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&memory, memory.address() + 64, 64).unwrap();
    instance.set_ctx_node_data(copy, dma.memcpy(source, destination)).unwrap();
    instance.set_user_node_data(counter, 5u32).unwrap();
    instance.set_user_node_data(user, 0u32).unwrap();
    workq.submit_graph(&instance, 9).unwrap();
    let event = loop {
        match workq.progress_retrieve() {
            Ok(event) => break event,
            Err(Retrieve::Again) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    shows(&event, &["GraphDone", "user_data: UserData(9)", "result: Ok", "failed: None"]);
    assert_eq!(instance.take_user_node_data::<u32>(counter).unwrap(), Some(5 + user.index()));
}
