//! Event channels: which subscriptions the kernel accepts, and which records arrive.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use verbless_prm::Opcode;
use verbless_prm::hot::event_type as event;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::super::channel::Channel;
use super::super::client::Client as _;
use super::super::eventfds::MAX_EVENTFDS;
use super::super::events::MAX_SUBSCRIPTIONS;
use super::super::file::File;
use super::super::mailbox::Field;
use super::super::subscriptions::{EventChannel, MAX_OF_EVENT, Subscription};
use super::support::{FIRST, Fixture, Request, TestClient, command, get_context};

/// The handle of a CQ on completion vector 0.
fn cq_handle(fixture: &Fixture) -> u64 {
    let mut input = command(Opcode::CREATE_CQ.0, 0, 0x110);
    Field(0x24, 31, 0).set(&mut input, FIRST + 2);
    fixture.create(&input).expect("a CQ")
}

/// A CQ on completion vector 0: handle and number.
fn cq(fixture: &Fixture) -> (u64, u32) {
    let handle = cq_handle(fixture);
    let number = (FIRST..FIRST + 64)
        .find(|&number| {
            let mut output = [0; 16];
            let input = command(Opcode::QUERY_CQ.0, number, 16);
            Request::new(0x1001, 0x1003)
                .handle(0x1000, handle)
                .input(0x1001, &input)
                .output(0x1002, &mut output)
                .send(&fixture.file)
                .is_ok()
        })
        .expect("the CQ has a number");
    (handle, number)
}

fn subscribe(
    fixture: &Fixture,
    channel: &impl AsRawFd,
    object: Option<u64>,
    kinds: &[u16],
    cookie: Option<u64>,
    eventfd: Option<i32>,
) -> Result<(), Errno> {
    let list: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_ne_bytes()).collect();
    let mut request = Request::new(0x1000, 0x1003)
        .handle(0x1000, channel.as_raw_fd() as u64)
        .input(0x1002, &list);
    if let Some(object) = object {
        request = request.handle(0x1001, object);
    }
    if let Some(cookie) = cookie {
        request = request.number(0x1004, cookie);
    }
    if let Some(fd) = eventfd {
        request = request.input(0x1003, &fd.to_ne_bytes());
    }
    request.send(&fixture.file)
}

/// Reads a record without waiting; empty when there is none, `None` at the end of the file.
fn record(fd: &OwnedFd) -> Option<Vec<u8>> {
    let mut file = std::fs::File::from(fd.try_clone().expect("a descriptor"));
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
        .expect("the descriptor is a socket");
    let mut bytes = vec![0; 4096];
    match file.read(&mut bytes) {
        Ok(0) => None,
        Ok(len) => {
            bytes.truncate(len);
            Some(bytes)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn cq_event_reaches_subscriber_with_cookie() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], Some(0xc00c1e), None), Ok(()));
    fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
    fixture.device.event(1, 1, event::COMPLETION, &[(6, number + 1)]);
    let bytes = record(&channel).expect("the channel is open");
    assert_eq!(bytes.len(), 8 + 64);
    assert_eq!(bytes[..8], 0xc00c1eu64.to_ne_bytes());
    assert_eq!((bytes[9], bytes[8 + 0x38 + 3]), (0, number as u8));
    assert_eq!(record(&channel), Some(vec![]), "another CQ's event is not ours");
}

#[test]
fn channel_without_data_holds_each_cookie_once() {
    let fixture = Fixture::new();
    let (first, first_number) = cq(&fixture);
    let (second, second_number) = cq(&fixture);
    let channel = fixture.channel(1).expect("a channel");
    assert_eq!(subscribe(&fixture, &channel, Some(first), &[0], Some(1), None), Ok(()));
    assert_eq!(subscribe(&fixture, &channel, Some(second), &[0], Some(2), None), Ok(()));
    for (index, number) in
        [first_number, first_number, second_number, first_number].iter().enumerate()
    {
        fixture.device.event(1, index as u64, event::COMPLETION, &[(6, *number)]);
    }
    assert_eq!(record(&channel), Some(1u64.to_ne_bytes().to_vec()));
    assert_eq!(record(&channel), Some(2u64.to_ne_bytes().to_vec()));
    assert_eq!(record(&channel), Some(vec![]));
    fixture.device.event(1, 4, event::COMPLETION, &[(6, first_number)]);
    assert_eq!(record(&channel), Some(1u64.to_ne_bytes().to_vec()), "read, so reported again");
}

#[test]
fn only_events_of_the_list_may_be_subscribed_to() {
    let fixture = Fixture::new();
    let (handle, _) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let all = [0u16; 17];
    type Case<'a> = (&'a str, Option<u64>, &'a [u16], Result<(), Errno>);
    let cases: &[Case<'_>] = &[
        ("CQ error and completion", Some(handle), &[0, 4], Ok(())),
        ("port change of an object", Some(handle), &[9], Err(Errno::EINVAL)),
        ("port change", None, &[9], Ok(())),
        ("CQ error of the device", None, &[4], Err(Errno::EINVAL)),
        ("one bad of two", Some(handle), &[0, 0xa], Err(Errno::EINVAL)),
        ("past the numbers", Some(handle), &[0x100], Err(Errno::EINVAL)),
        ("sixteen", Some(handle), &all[..16], Ok(())),
        ("seventeen", Some(handle), &all, Err(Errno::EINVAL)),
    ];
    for (what, object, kinds, expected) in cases {
        assert_eq!(
            subscribe(&fixture, &channel, *object, kinds, Some(1), None),
            *expected,
            "{what}"
        );
    }
    let mut odd = Request::new(0x1000, 0x1003)
        .handle(0x1000, channel.as_raw_fd() as u64)
        .input(0x1002, &[9, 0, 9]);
    assert_eq!(odd.send(&fixture.file), Err(Errno::EINVAL));
}

#[test]
fn port_event_reaches_subscribers_and_async_files() {
    let fixture = Fixture::new();
    let channel = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &channel, None, &[9], Some(5), None), Ok(()));
    let mut alloc = Request::new(0x10, 0).handle(0, 0);
    assert_eq!(alloc.send(&fixture.file), Ok(()));
    let file = fixture.take_fd(alloc.data(0));
    // The sub-type is byte 3, which `event` leaves 0; here it goes in as a dword of the data.
    fixture.device.event(0, 0, event::PORT_CHANGE, &[(2, 1 << 28)]);
    assert_eq!(record(&channel).map(|bytes| bytes.len()), Some(72));
    assert_eq!(record(&file), Some(vec![]), "no sub-type that verbs know");
}

#[test]
fn eventfd_is_signaled_instead_of_channel() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let eventfd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    let fd = std::os::fd::AsFd::as_fd(&eventfd).as_raw_fd();
    let refused = subscribe(&fixture, &channel, Some(handle), &[0], Some(1), Some(fd));
    assert_eq!(refused, Err(Errno::EINVAL), "a cookie and an eventfd");
    let bad = subscribe(&fixture, &channel, Some(handle), &[0], None, Some(1 << 20));
    assert_eq!(bad, Err(Errno::EBADF));
    let socket = subscribe(&fixture, &channel, Some(handle), &[0], None, Some(channel.as_raw_fd()));
    assert_eq!(socket, Err(Errno::EINVAL), "not an eventfd");
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], None, Some(fd)), Ok(()));
    fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
    assert_eq!(eventfd.read(), Ok(1));
    assert_eq!(record(&channel), Some(vec![]));
}

#[test]
fn full_blocking_eventfd_holds_up_no_device() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let eventfd = EventFd::from_flags(EfdFlags::empty()).expect("an eventfd");
    let fd = std::os::fd::AsFd::as_fd(&eventfd).as_raw_fd();
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], None, Some(fd)), Ok(()));
    eventfd.write(u64::MAX - 1).expect("there is room");
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
            }
            sender.send(()).expect("the receiver waits");
        });
        let done = done.recv_timeout(std::time::Duration::from_secs(20));
        // A read of the counter unblocks a blocked write.
        assert_eq!(eventfd.read(), Ok(u64::MAX));
        assert_eq!(done, Ok(()), "the device waits for a program");
    });
}

#[test]
fn eventfds_per_process_are_bounded_and_shared() {
    let fixture = Fixture::new();
    let channel = fixture.channel(0).expect("a channel");
    let (handle, number) = cq(&fixture);
    let eventfd = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    let signal = |object, fd: &EventFd| {
        let fd = std::os::fd::AsFd::as_fd(fd).as_raw_fd();
        subscribe(&fixture, &channel, object, &[0, 4], None, Some(fd))
    };
    let shared = eventfd();
    for _ in 0..100 {
        assert_eq!(signal(Some(handle), &shared), Ok(()));
    }
    let first = eventfd();
    assert_eq!(signal(Some(handle), &first), Ok(()));
    // The kernel holds them although the client closes its own.
    let others = [cq_handle(&fixture), cq_handle(&fixture)];
    for held in 2..MAX_EVENTFDS {
        assert_eq!(signal(Some(others[held % 2]), &eventfd()), Ok(()), "{held} are held");
    }
    assert_eq!(signal(Some(handle), &eventfd()), Err(Errno::ENOMEM));
    assert_eq!(signal(Some(handle), &shared), Ok(()), "those that are held may be used again");
    fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
    assert_eq!((shared.read(), first.read()), (Ok(101), Ok(1)));
    // They end with the object.
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    let (handle, _) = cq(&fixture);
    assert_eq!(signal(Some(handle), &eventfd()), Ok(()));
}

#[test]
fn eventfds_count_as_descriptors_that_are_kept() {
    use std::sync::atomic::Ordering;
    let fixture = Fixture::new();
    let channel = fixture.channel(0).expect("a channel");
    let (handle, _) = cq(&fixture);
    let signal = || {
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        let fd = std::os::fd::AsFd::as_fd(&fd).as_raw_fd();
        subscribe(&fixture, &channel, Some(handle), &[0], None, Some(fd))
    };
    // The channel's own, and that of the first subscriptions.
    fixture.client.most_claims.store(4, Ordering::Relaxed);
    assert_eq!((signal(), signal(), signal()), (Ok(()), Ok(()), Err(Errno::EMFILE)));
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    let (handle, _) = cq(&fixture);
    let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
    let fd = std::os::fd::AsFd::as_fd(&fd).as_raw_fd();
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], None, Some(fd)), Ok(()));
}

#[test]
fn subscriptions_per_channel_are_bounded() {
    let fixture = Fixture::new();
    let channel = fixture.channel(0).expect("a channel");
    let kinds: Vec<u16> = [0, 4].repeat(8);
    let calls_of_one = 2 * MAX_OF_EVENT / kinds.len();
    let all = (0..MAX_SUBSCRIPTIONS / (2 * MAX_OF_EVENT)).flat_map(|_| {
        let handle = cq_handle(&fixture);
        std::iter::repeat_n(handle, calls_of_one)
    });
    let results = all
        .map(|handle| (handle, subscribe(&fixture, &channel, Some(handle), &kinds, Some(1), None)));
    let results: Vec<_> = results.collect();
    let (last, calls) = (results[results.len() - 1], results.len());
    assert!(results[..calls - 1].iter().all(|(_, result)| *result == Ok(())));
    assert_eq!(last.1, Err(Errno::ENOMEM), "the file itself holds the channel as well");
    let second = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &second, Some(last.0), &kinds, Some(1), None), Ok(()));
    assert_eq!(fixture.destroy(0x1001, results[0].0), Ok(()));
    let again = subscribe(&fixture, &channel, Some(cq_handle(&fixture)), &kinds, Some(1), None);
    assert_eq!(again, Ok(()), "those of an object end with it");
}

#[test]
fn subscriptions_to_one_event_are_bounded() {
    let fixture = Fixture::new();
    let (handle, channel) = (cq_handle(&fixture), fixture.channel(0).expect("a channel"));
    let to = |object, kinds: &[u16]| subscribe(&fixture, &channel, object, kinds, Some(1), None);
    for (object, kind) in [(Some(handle), 0), (None, event::PORT_CHANGE.into())] {
        let all = vec![kind; MAX_OF_EVENT - 1];
        assert!(all.chunks(16).all(|kinds| to(object, kinds) == Ok(())), "{kind}");
        let before = fixture.file.kernel.subscriptions.len();
        assert_eq!(to(object, &[kind; 2]), Err(Errno::ENOMEM), "{kind}");
        assert_eq!(fixture.file.kernel.subscriptions.len(), before, "all or none");
        assert_eq!((to(object, &[kind]), to(object, &[kind])), (Ok(()), Err(Errno::ENOMEM)));
    }
    // Other events, other objects, and other clients' device events are counted separately.
    assert_eq!((to(Some(handle), &[4]), to(Some(cq_handle(&fixture)), &[0])), (Ok(()), Ok(())));
    let client = TestClient::new();
    let file = File::new(fixture.file.kernel.clone(), client.clone());
    get_context(&file, 1).expect("a context");
    let mut theirs = Request::new(0x1005, 0x1000).handle(0x1000, 0).input(0x1001, &[0; 4]);
    assert_eq!(theirs.send(&file), Ok(()));
    let kinds = u16::from(event::PORT_CHANGE).to_ne_bytes();
    let mut request = Request::new(0x1000, 0x1003).handle(0x1000, theirs.data(0));
    assert_eq!(request.input(0x1002, &kinds).number(0x1004, 1).send(&file), Ok(()));
    // Another client of the same file has the same objects.
    let list = 0_u16.to_ne_bytes();
    request = Request::new(0x1000, 0x1003).handle(0x1000, channel.as_raw_fd() as u64);
    request = request.input(0x1002, &list).handle(0x1001, handle).number(0x1004, 1);
    let other: std::sync::Arc<dyn super::super::client::Client> = client;
    assert_eq!(fixture.file.ioctl_of(&other, &mut request.words), Err(Errno::ENOMEM));
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(to(Some(cq_handle(&fixture)), &[0; 16]), Ok(()), "those of an object end with it");
}

#[test]
fn each_64_subscriptions_count_as_a_kept_descriptor() {
    use std::sync::atomic::Ordering;
    let fixture = Fixture::new();
    let (handle, _) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let subscribe = || subscribe(&fixture, &channel, Some(handle), &[0; 16], Some(1), None);
    // The channel itself, and two for subscriptions.
    fixture.client.most_claims.store(3, Ordering::Relaxed);
    (0..8).for_each(|_| assert_eq!(subscribe(), Ok(())));
    assert_eq!(subscribe(), Err(Errno::EMFILE));
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    let (handle, _) = cq(&fixture);
    let again = self::subscribe(&fixture, &channel, Some(handle), &[0; 16], Some(1), None);
    assert_eq!(again, Ok(()), "those of an object end with it");
}

#[test]
fn subscriptions_end_with_object_or_channel() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let second = fixture.channel(0).expect("a channel");
    for fd in [&channel, &second] {
        assert_eq!(subscribe(&fixture, fd, Some(handle), &[0, 4], Some(1), None), Ok(()));
    }
    assert_eq!(fixture.file.kernel.subscriptions.len(), 4);
    drop(second);
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(fixture.file.kernel.subscriptions.len(), 0);
    fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
    assert_eq!(record(&channel), Some(vec![]));
    let (handle, _) = cq(&fixture);
    let third = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &third, Some(handle), &[0], Some(1), None), Ok(()));
    drop(third);
    let _ = fixture.channel(0);
    assert_eq!(fixture.file.kernel.subscriptions.len(), 0, "noticed at the next call");
}

#[test]
fn destroy_keeps_subscriptions_of_other_file() {
    let fixture = Fixture::new();
    let neighbour = File::new(fixture.file.kernel.clone(), TestClient::new());
    get_context(&neighbour, 1).expect("a context");
    let channel = fixture.channel(0).expect("a channel");
    // The other file has one as well: every per-file number has the same value in both.
    let mut own = Request::new(0x1005, 0x1000).handle(0x1000, 0).input(0x1001, &[0; 4]);
    assert_eq!(own.send(&neighbour), Ok(()));
    for round in 0..4 {
        let (mine, number) = cq(&fixture);
        assert_eq!(subscribe(&fixture, &channel, Some(mine), &[0], Some(round), None), Ok(()));
        let mut input = command(Opcode::CREATE_CQ.0, 0, 0x110);
        Field(0x24, 31, 0).set(&mut input, FIRST + 2);
        let mut output = [0; 16];
        let mut request = Request::new(0x1001, 0x1000)
            .handle(0x1000, 0)
            .input(0x1001, &input)
            .output(0x1002, &mut output);
        request.send(&neighbour).expect("a CQ of the other file");
        let theirs = request.data(0);
        let destroyed = Request::new(0x1001, 0x1001).handle(0x1000, theirs).send(&neighbour);
        assert_eq!(destroyed, Ok(()));
        fixture.device.event(1, round, event::COMPLETION, &[(6, number)]);
        let event = record(&channel).expect("the channel is open");
        assert_eq!(event.get(..8), Some(&round.to_ne_bytes()[..]), "round {round}");
        assert_eq!(fixture.destroy(0x1001, mine), Ok(()));
    }
}

#[test]
fn closing_file_ends_its_channels() {
    let fixture = Fixture::new();
    let channel = fixture.channel(0).expect("a channel");
    assert_eq!(fixture.close(), 0);
    assert_eq!(record(&channel), None);
}

#[test]
fn only_removal_ends_event_channels() {
    use std::sync::atomic::Ordering;
    let fixture = Fixture::new();
    let (handle, _) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let mut alloc = Request::new(0x10, 0).handle(0, 0);
    assert_eq!(alloc.send(&fixture.file), Ok(()));
    let file = fixture.take_fd(alloc.data(0));
    fixture.device.alive.store(false, Ordering::Relaxed);
    fixture.device.raise(0);
    assert_eq!(record(&channel), Some(Vec::new()), "DevX's channels stay open");
    let fatal = record(&file).expect("the file is still open");
    assert_eq!(fatal, [1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)), Err(Errno::ENXIO));
    fixture.device.removed.store(true, Ordering::Relaxed);
    fixture.device.raise(0);
    assert_eq!(record(&channel), None);
    assert_eq!(fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)), Err(Errno::EIO));
    assert_eq!(fixture.channel(0).map(drop), Err(Errno::EIO));
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()), "a lost object counts as destroyed");
}

#[test]
fn bound_ignores_subscriptions_to_destroyed_object() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    let most = vec![0; MAX_OF_EVENT];
    for kinds in most.chunks(16) {
        assert_eq!(subscribe(&fixture, &channel, Some(handle), kinds, Some(1), None), Ok(()));
    }
    let kernel = fixture.file.kernel.clone();
    let (sender, outcome) = std::sync::mpsc::channel();
    let (events, _theirs) = Channel::new(0).expect("a channel");
    let claim = Arc::new(fixture.client.claim().expect("a descriptor"));
    fixture.device.race(Opcode::DESTROY_CQ, move || {
        let of_next = Subscription {
            key: 0,
            number: Some(number),
            object: Some(kernel.subscriptions.serial()),
            channel: Arc::new(EventChannel::new(events, false)),
            cookie: 2,
            eventfd: None,
            claim,
        };
        let _ = sender.send(kernel.subscriptions.add(vec![of_next]));
    });
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(outcome.recv(), Ok(Ok(())));
    assert_eq!(fixture.file.kernel.subscriptions.len(), 1, "that of the next object stays");
}

#[test]
fn event_reaches_no_subscriber_of_destroyed_object() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], Some(1), None), Ok(()));
    let device = fixture.device.clone();
    fixture.device.race(Opcode::DESTROY_CQ, move || {
        device.event(1, 0, event::COMPLETION, &[(6, number)]);
    });
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(record(&channel), Some(vec![]));
}

#[test]
fn refused_destroy_keeps_subscriptions() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    for kinds in [&[0][..], &[0, event::CQ_ERROR.into()]] {
        assert_eq!(subscribe(&fixture, &channel, Some(handle), kinds, Some(1), None), Ok(()));
    }
    fixture.device.refuse_next(Opcode::DESTROY_CQ.0, 6);
    assert_eq!(fixture.destroy(0x1001, handle), Err(Errno::EBUSY));
    fixture.device.event(1, 0, event::COMPLETION, &[(6, number)]);
    let records = [record(&channel), record(&channel), record(&channel)];
    assert_eq!(records.map(|it| it.map(|it| it.len())), [Some(72), Some(72), Some(0)]);
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(fixture.file.kernel.subscriptions.len(), 0);
}

#[test]
fn event_during_refused_destroy_reaches_subscribers() {
    let fixture = Fixture::new();
    let (handle, number) = cq(&fixture);
    let channel = fixture.channel(0).expect("a channel");
    assert_eq!(subscribe(&fixture, &channel, Some(handle), &[0], Some(1), None), Ok(()));
    let device = fixture.device.clone();
    fixture.device.race(Opcode::DESTROY_CQ, move || {
        for index in 0..2 {
            device.event(1, index, event::COMPLETION, &[(6, number)]);
        }
    });
    fixture.device.refuse_next(Opcode::DESTROY_CQ.0, 6);
    assert_eq!(fixture.destroy(0x1001, handle), Err(Errno::EBUSY));
    fixture.device.event(1, 2, event::COMPLETION, &[(6, number)]);
    let lengths = [(); 4].map(|()| record(&channel).map(|it| it.len()));
    assert_eq!(lengths, [Some(72), Some(72), Some(72), Some(0)]);
    assert_eq!(fixture.destroy(0x1001, handle), Ok(()));
    assert_eq!(fixture.file.kernel.subscriptions.len(), 0);
}

#[test]
fn removal_waits_for_no_client_to_discard_its_events() {
    use std::sync::atomic::Ordering;
    let stalled = Fixture::new();
    let client = TestClient::new();
    let file = File::new(stalled.file.kernel.clone(), client.clone());
    let other = Fixture { device: stalled.device.clone(), client, file };
    other.get_context(1).expect("a context");
    let mut channels = Vec::new();
    for (index, fixture) in (0..).zip([&stalled, &other]) {
        let (handle, number) = cq(fixture);
        let channel = fixture.channel(0).expect("a channel");
        assert_eq!(subscribe(fixture, &channel, Some(handle), &[0], Some(1), None), Ok(()));
        stalled.device.event(1, index, event::COMPLETION, &[(6, number)]);
        channels.push(channel);
    }
    let client = stalled.client.clone();
    let stalls = client.descriptors.lock().expect("no panic");
    stalled.device.alive.store(false, Ordering::Relaxed);
    stalled.device.removed.store(true, Ordering::Relaxed);
    let (device, (sender, removed)) = (stalled.device.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        device.raise(0);
        let _ = sender.send(());
    });
    assert_eq!(removed.recv_timeout(std::time::Duration::from_secs(20)), Ok(()));
    assert_eq!(record(&channels[1]), None);
    assert_eq!(
        record(&channels[0]).map(|it| it.len()),
        Some(72),
        "the record is not discarded yet"
    );
    drop(stalls);
    assert_eq!(record(&channels[0]), None);
}
