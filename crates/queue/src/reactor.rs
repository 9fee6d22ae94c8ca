//! Completions and handshakes in a tokio program.
//!
//! Tasks of one runtime each serve a queue pair: [`AsyncCqEvents::ready`] sleeps until a completion
//! queue has completions, and [`Domain::handshake_async`] connects within a time limit. The runtime
//! needs tokio's drivers of I/O and time (`enable_all`).

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::time::timeout;
use verbless_command::{Device, Error, ErrorKind};
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::Connected;

use crate::domain::handshake::{DONE, HEAD, SUM};
use crate::domain::handshake::{confirmed, data_length, failed, greet, peer};
use crate::domain::{ConnectOptions, Cq, Domain, Peer, Qp};
use crate::events::{CqEvents, Parked};

/// A [`CqEvents`] whose file tokio watches.
#[derive(Debug)]
pub struct AsyncCqEvents {
    /// A duplicate of the descriptor of `events`. It is dropped first, so that tokio stops watching
    /// before the channel is closed.
    file: AsyncFd<OwnedFd>,
    events: CqEvents,
}

impl AsyncCqEvents {
    /// A file for the completion queues of `device`, watched by the current runtime.
    ///
    /// # Errors
    /// As [`CqEvents::new`]; [`ErrorKind::Io`] if the runtime cannot watch it.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without the driver of I/O.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let events = CqEvents::new(device)?;
        let file = watched(&events)?;
        Ok(Self { file, events })
    }

    /// Delivers the completion events of `cq`, and its errors, to this file: [`CqEvents::add`].
    ///
    /// # Errors
    /// As [`CqEvents::add`].
    pub fn add(&self, cq: &mut Cq, token: u64) -> Result<(), Error> {
        self.events.add(cq, token)
    }

    /// Waits until `cq` has completions. Poll the queue until it is empty before the next call. A
    /// future that is dropped loses nothing.
    ///
    /// # Errors
    /// As [`CqEvents::park`] and [`CqEvents::wait`].
    pub async fn ready(&mut self, cq: &mut Cq) -> Result<(), Error> {
        // Lets other tasks run even if this queue is never empty.
        tokio::task::consume_budget().await;
        loop {
            if self.events.park(cq)? == Parked::Ready {
                return Ok(());
            }
            self.events.check_gone()?;
            // Cleared before the events are read: an event that comes in between is not lost.
            let readable = async {
                self.file.readable().await.map_err(unwatched)?.clear_ready();
                Ok::<_, Error>(())
            };
            match cq.until_check() {
                None => readable.await?,
                Some(check) => timeout(check, readable).await.unwrap_or(Ok(()))?,
            }
            self.events.collect(cq)?;
            cq.check_when_due()?;
        }
    }

    /// The inner [`CqEvents`]: for waits on QP and port events.
    pub fn events(&self) -> &CqEvents {
        &self.events
    }
}

/// A duplicate of the descriptor of `events`, watched by the current runtime.
fn watched(events: &CqEvents) -> Result<AsyncFd<OwnedFd>, Error> {
    let file = events.as_fd().try_clone_to_owned().map_err(unwatched)?;
    // SAFETY: the descriptor is valid, and the `AsyncFd` owns it: nothing else closes or
    // replaces it until the `AsyncFd` is dropped.
    #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }
        .map_err(|error| unwatched(error.into()))
}

/// The event channel cannot be watched.
fn unwatched(error: std::io::Error) -> Error {
    let hint = "check the limit of open files (`ulimit -n`), and that the runtime still runs";
    Error::new(ErrorKind::Io, format!("watching an event channel: {error}"), hint)
        .with_source(error)
}

impl Domain {
    /// [`Domain::handshake`] without blocking the thread: connects `qp` with the queue pair of the
    /// program at the other end of `stream`. That program may call either function. The peer has
    /// `limit` to answer; the commands that connect `qp` block the thread for as long as the device
    /// takes.
    ///
    /// # Errors
    /// As [`Domain::handshake`]; [`ErrorKind::Io`] too if `limit` has passed. After an error, or if
    /// the future is dropped, the queue pair may have left RESET: [`Qp::reset`] it before another
    /// try.
    pub async fn handshake_async<S: Connected, R: ReceiveSide>(
        &self,
        qp: &mut Qp<S, R>,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        data: &[u8],
        options: &ConnectOptions,
        limit: Duration,
    ) -> Result<Peer, Error> {
        let exchange = async {
            let service = S::TYPE.0;
            let greeting = greet(service, &self.address(qp, options)?, data)?;
            stream.write_all(&greeting).await.map_err(failed)?;
            stream.flush().await.map_err(failed)?;
            let mut head = [0; HEAD];
            stream.read_exact(&mut head).await.map_err(failed)?;
            let mut rest = vec![0; data_length(&head)? + SUM];
            stream.read_exact(&mut rest).await.map_err(failed)?;
            let peer = peer(service, &head, &rest)?;
            self.connect(qp, &peer.address, options)?;
            stream.write_all(&DONE).await.map_err(failed)?;
            stream.flush().await.map_err(failed)?;
            let mut done = [0; DONE.len()];
            stream.read_exact(&mut done).await.map_err(failed)?;
            confirmed(done)?;
            Ok(peer)
        };
        let late = |_| Err(failed(std::io::ErrorKind::TimedOut.into()));
        timeout(limit, exchange).await.unwrap_or_else(late)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use verbless_command::KeyAccess;
    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use super::*;
    use crate::domain::{CqConfig, QpConfig};
    use crate::wr;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A domain on each of two devices.
    fn domains() -> [Domain; 2] {
        let card = Profile::load("connectx6dx").expect("a built-in profile");
        let model = Model::builder().device(card.clone()).device(card).build();
        let backend = InProcess::of(&model);
        let found = backend.enumerate().expect("two devices");
        let open = |number: usize| {
            let device = Device::open(&backend, &found[number]).expect("the device opens");
            Domain::new(&device).expect("a domain")
        };
        [open(0), open(1)]
    }

    /// A domain on the device of a model that can remove it.
    fn removable() -> (Model, Domain) {
        let card = Profile::load("connectx6dx").expect("a built-in profile");
        let model = Model::builder().device(card).build();
        let backend = InProcess::of(&model);
        let found = backend.enumerate().expect("a device");
        let device = Device::open(&backend, &found[0]).expect("the device opens");
        (model, Domain::new(&device).expect("a domain"))
    }

    fn queues(domain: &Domain) -> (Qp, Cq) {
        let cq = domain.completion_queue(&CqConfig::new(32)).expect("a CQ");
        (domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq).expect("a QP"), cq)
    }

    async fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let near = TcpStream::connect(address).await.expect("a connection");
        (near, listener.accept().await.expect("a connection").0)
    }

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(future);
    }

    #[test]
    fn handshake_connects_and_cqe_wakes_task() {
        run(async {
            let [near, far] = domains();
            let ((mut near_qp, _near_cq), (mut far_qp, mut far_cq)) = (queues(&near), queues(&far));
            let region = far.region(64, KeyAccess::LOCAL).expect("a region");
            far_qp.post_receive(region.sge(0, 64).expect("a range"), 7).expect("room");
            let mut events = AsyncCqEvents::new(far.device()).expect("a channel");
            events.add(&mut far_cq, 0).expect("the CQ is added");
            let (here, mut there) = streams().await;
            let here = here.into_std().expect("a stream");
            // The other side blocks, and sends a little later.
            let other = std::thread::spawn(move || {
                here.set_nonblocking(false).expect("the stream blocks");
                let options = ConnectOptions::default();
                let peer = near.handshake(&mut near_qp, &here, b"near", &options);
                std::thread::sleep(Duration::from_millis(20));
                near_qp.post(&wr::Send::new(wr::Inline(b"wake")), 0).expect("room");
                (peer.expect("the handshake succeeds"), near_qp)
            });
            let options = ConnectOptions::default();
            let peer = far.handshake_async(&mut far_qp, &mut there, b"far", &options, LIMIT).await;
            assert_eq!(peer.expect("the handshake succeeds").data, b"near");
            events.ready(&mut far_cq).await.expect("a completion");
            let done =
                far_qp.poll(&mut far_cq).expect("a completion").expect("the request succeeded");
            assert_eq!(done.cookie, 7);
            let (peer, _near_qp) = other.join().expect("the thread ends");
            assert_eq!(peer.data, b"far");
        });
    }

    #[test]
    fn handshake_with_silent_peer_times_out() {
        run(async {
            let [near, _] = domains();
            let (mut qp, _cq) = queues(&near);
            let (mut here, _there) = streams().await;
            let limit = Duration::from_millis(50);
            let options = ConnectOptions::default();
            let error = near.handshake_async(&mut qp, &mut here, &[], &options, limit).await;
            let error = error.expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("did not answer in time"), "{error}");
        });
    }

    /// Fails unless `wait` ends because the device was removed.
    async fn ends_with_device(wait: impl Future<Output = Result<(), Error>>) {
        let waited = timeout(LIMIT, wait).await.expect("the wait ends");
        assert_eq!(waited.expect_err("the device was removed").kind(), ErrorKind::DeviceGone);
    }

    #[test]
    fn every_ready_fails_once_device_is_gone() {
        for end in [Model::kill, Model::remove] {
            run(async {
                let (model, domain) = removable();
                let mut events = AsyncCqEvents::new(domain.device()).expect("a channel");
                let mut cqs = [queues(&domain).1, queues(&domain).1];
                cqs.iter_mut().for_each(|cq| events.add(cq, 0).expect("the CQ is added"));
                end(&model, 0);
                for _ in 0..2 {
                    for cq in &mut cqs {
                        ends_with_device(events.ready(cq)).await;
                    }
                }
            });
        }
    }

    #[test]
    fn every_ready_over_edges_fails_once_device_is_gone() {
        for end in [Model::kill, Model::remove] {
            run(async {
                let (model, domain) = removable();
                let mut events = CqEvents::new(domain.device()).expect("a channel");
                let file = watched(&events).expect("tokio takes it");
                let (_qp, mut cq) = queues(&domain);
                events.add(&mut cq, 0).expect("the CQ is added");
                end(&model, 0);
                for _ in 0..3 {
                    let edge = async || {
                        file.readable().await?.clear_ready();
                        Ok(())
                    };
                    ends_with_device(events.ready(&mut cq, edge)).await;
                }
            });
        }
    }

    #[test]
    fn ready_fails_after_last_cqe_of_removed_device() {
        run(async {
            let (model, domain) = removable();
            let (mut qp, mut cq) = queues(&domain);
            domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("the QP connects");
            let mut events = AsyncCqEvents::new(domain.device()).expect("a channel");
            events.add(&mut cq, 0).expect("the CQ is added");
            {
                let mut sleeper = std::pin::pin!(events.ready(&mut cq));
                let short = timeout(Duration::from_millis(50), &mut sleeper).await;
                short.expect_err("there is no CQE yet");
                qp.post(&wr::Nop::new().signaled(), 7).expect("room");
                // The device completes it meanwhile, and the task sleeps on.
                std::thread::sleep(Duration::from_millis(50));
                model.remove(0);
                sleeper.await.expect("the CQE comes first");
            }
            assert_eq!(qp.poll(&mut cq).expect("a CQE").expect("the request succeeded").cookie, 7);
            ends_with_device(events.ready(&mut cq)).await;
        });
    }
}
