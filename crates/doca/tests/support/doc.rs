// Hidden support of the documentation's examples, which include this file: devices of the model in
// this process.

#[allow(dead_code, reason = "each example uses its part")]
mod doc {
    use std::future::{Future, poll_fn};
    use std::os::fd::BorrowedFd;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use verbless_devx::Backend;
    use verbless_doca::{AccessFlags, Buf, Dev, DevInfo, Extensions, Inventory, Memory, Mmap};
    use verbless_model::{Model, Profile, Side};
    use verbless_model_kernel::InProcess;

    /// A machine with two BlueFields in a network.
    pub(crate) fn backend() -> Arc<dyn Backend> {
        let card = Profile::load("bluefield3").unwrap();
        let model = Model::builder().device(card.clone()).device(card).build();
        Arc::new(InProcess::of(&model))
    }

    /// A machine with one BlueField, and its model.
    pub(crate) fn model() -> (Model, Dev) {
        let card = Profile::load("bluefield3").unwrap();
        let model = Model::builder().device(card).build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        (model, dev)
    }

    /// The devices of such a machine.
    pub(crate) fn devs() -> [Dev; 2] {
        let infos = DevInfo::list_of(&backend()).unwrap();
        [0, 1].map(|at: usize| infos[at].open().unwrap())
    }

    /// One of these devices.
    pub(crate) fn dev() -> Dev {
        devs()[0].clone()
    }

    /// A host, and the DPU in it.
    pub(crate) fn sides() -> [Arc<dyn Backend>; 2] {
        let card = Profile::load("bluefield3").unwrap();
        let kernel = InProcess::of(&Model::builder().device_with_topology(card).build());
        [Side::Host, Side::Dpu]
            .map(|side| -> Arc<dyn Backend> { Arc::new(kernel.clone().on_side(side)) })
    }

    pub(crate) fn map(dev: &Dev) -> Mmap {
        let access = AccessFlags::LOCAL_READ_WRITE;
        let memory = Memory::allocate(4096).unwrap();
        Mmap::builder().memrange(memory).permissions(access).add_dev(dev).start().unwrap()
    }

    /// A buffer without data.
    pub(crate) fn room(dev: &Dev) -> Buf {
        let inventory = Inventory::builder(1).extensions(Extensions::LINKED_LIST).start().unwrap();
        let map = map(dev);
        inventory.buf_by_addr(&map, map.address(), 4096).unwrap()
    }

    /// A buffer with data.
    pub(crate) fn data(dev: &Dev, bytes: &[u8]) -> Buf {
        let mut buffer = room(dev);
        buffer.append(bytes).unwrap();
        buffer
    }

    /// Waits like an executor's reactor, except that [`block_on`] polls again and again.
    pub(crate) async fn readable(file: BorrowedFd<'_>) -> std::io::Result<()> {
        poll_fn(|_| match poll(&mut [PollFd::new(file, PollFlags::POLLIN)], PollTimeout::ZERO) {
            Ok(0) => Poll::Pending,
            Ok(_) => Poll::Ready(Ok(())),
            Err(errno) => Poll::Ready(Err(errno.into())),
        })
        .await
    }

    /// An executor of one task.
    pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            std::thread::yield_now();
        }
    }
}
