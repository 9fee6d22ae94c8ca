//! What the samples say to each other over their channel.

#[path = "../examples/support/copying.rs"]
mod copying;
#[path = "../examples/support/mod.rs"]
mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use copying::Copying;
use support::Channel;

/// Both ends of a connection.
fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [listener.accept().unwrap().0, there]
}

const PATIENCE: Duration = Duration::from_millis(500);

/// What a host of 100 bytes ends with when it is told this, and how far it was then.
fn waits(tell: impl FnOnce(&mut Channel) + Send) -> (Result<(), String>, Vec<u64>) {
    let [here, there] = connection();
    let mut heard = Vec::new();
    let mut here = Channel::with_patience(here, PATIENCE).unwrap();
    let mut there = Channel::new(there).unwrap();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| tell(&mut there));
        Copying::wait(&mut here, 100, |bytes| heard.push(bytes)).map_err(|it| it.to_string())
    });
    (result, heard)
}

#[test]
fn a_host_waits_as_long_as_the_copy_goes_on() {
    let start = Instant::now();
    let (result, heard) = waits(|there| {
        for bytes in [10, 20, 30, 40, 50, 100] {
            std::thread::sleep(PATIENCE / 4);
            Copying::Copied(bytes).send(there).unwrap();
        }
        Copying::Done.send(there).unwrap();
    });
    assert_eq!((result, heard), (Ok(()), vec![10, 20, 30, 40, 50, 100]));
    assert!(start.elapsed() > PATIENCE, "longer than it waits for one message");
}

#[test]
fn a_host_waits_no_longer_when_nothing_comes() {
    let (result, heard) = waits(|there| {
        Copying::Copied(10).send(there).unwrap();
        std::thread::sleep(3 * PATIENCE);
    });
    assert!(result.unwrap_err().starts_with("the other side: "));
    assert_eq!(heard, [10]);
}

#[test]
fn a_host_believes_no_progress_that_is_none() {
    for told in [0, 10, 9, 101, u64::MAX] {
        let (result, heard) = waits(|there| {
            Copying::Copied(10).send(there).unwrap();
            Copying::Copied(told).send(there).unwrap();
        });
        assert_eq!(result, Err(format!("the DPU says {told} of 100 bytes after 10")));
        assert_eq!(heard, [10]);
    }
    for message in [&b""[..], b"C", b"C1234567", b"C123456789", b"Dd", b"done", &[0; 64]] {
        let (result, _) = waits(|there| there.send(message).unwrap());
        assert_eq!(result, Err("the DPU says what is no progress of a copy".into()));
    }
    let (result, _) = waits(|there| Copying::Failed("no room".into()).send(there).unwrap());
    assert_eq!(result, Err("the DPU failed: no room".into()));
}

#[test]
fn a_message_longer_than_any_is_refused_before_there_is_room_for_it() {
    let [here, mut there] = connection();
    there.write_all(&u32::MAX.to_be_bytes()).unwrap();
    let refused = Channel::new(here).unwrap().receive().unwrap_err().to_string();
    assert!(refused.contains("announced 4294967295 bytes"), "{refused}");
}
