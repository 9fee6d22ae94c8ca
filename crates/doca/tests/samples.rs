//! Messages that the two sides of a sample exchange over their channel.

#[path = "../examples/support/copying.rs"]
mod copying;
#[path = "../examples/support/files.rs"]
mod files;
#[path = "../examples/support/mod.rs"]
mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use copying::Copying;
use files::{Answer, Filled, Hello, MAX_NAME_BYTES, Opened, Request, SLOTS};
use support::Channel;
use verbless_doca::rdma::ConnectionDescriptor;

/// Both ends of a connection.
fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [listener.accept().unwrap().0, there]
}

const TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a host that waits for a copy of 100 bytes; `send_messages` is its DPU.
/// Returns the host's result and the progress that the DPU reported.
fn waits(send_messages: impl FnOnce(&mut Channel) + Send) -> (Result<(), String>, Vec<u64>) {
    let [here, there] = connection();
    let mut received = Vec::new();
    let mut here = Channel::with_timeout(here, TIMEOUT).unwrap();
    let mut there = Channel::new(there).unwrap();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| send_messages(&mut there));
        Copying::wait(&mut here, 100, |bytes| received.push(bytes)).map_err(|it| it.to_string())
    });
    (result, received)
}

#[test]
fn host_waits_while_copy_progresses() {
    let start = Instant::now();
    let (result, received) = waits(|there| {
        for bytes in [10, 20, 30, 40, 50, 100] {
            std::thread::sleep(TIMEOUT / 4);
            Copying::Copied(bytes).send(there).unwrap();
        }
        Copying::Done.send(there).unwrap();
    });
    assert_eq!((result, received), (Ok(()), vec![10, 20, 30, 40, 50, 100]));
    assert!(start.elapsed() > TIMEOUT, "the copy outlasts the limit for one message");
}

#[test]
fn host_times_out_without_progress() {
    let (result, received) = waits(|there| {
        Copying::Copied(10).send(there).unwrap();
        std::thread::sleep(3 * TIMEOUT);
    });
    assert!(result.unwrap_err().starts_with("the other side: "));
    assert_eq!(received, [10]);
}

#[test]
fn host_rejects_invalid_progress() {
    for reported in [0, 10, 9, 101, u64::MAX] {
        let (result, received) = waits(|there| {
            Copying::Copied(10).send(there).unwrap();
            Copying::Copied(reported).send(there).unwrap();
        });
        assert_eq!(result, Err(format!("the DPU says {reported} of 100 bytes after 10")));
        assert_eq!(received, [10]);
    }
    for message in [&b""[..], b"C", b"C1234567", b"C123456789", b"Dd", b"done", &[0; 64]] {
        let (result, _) = waits(|there| there.send(message).unwrap());
        assert_eq!(result, Err("the DPU sent no progress message".into()));
    }
    let (result, _) = waits(|there| Copying::Failed("no room".into()).send(there).unwrap());
    assert_eq!(result, Err("the DPU failed: no room".into()));
}

#[test]
fn oversized_message_is_rejected_before_allocation() {
    let [here, mut there] = connection();
    there.write_all(&u32::MAX.to_be_bytes()).unwrap();
    let refused = Channel::new(here).unwrap().receive().unwrap_err().to_string();
    assert!(refused.contains("announced 4294967295 bytes"), "{refused}");
}

/// Both ends of a channel.
fn channel() -> [Channel; 2] {
    connection().map(|end| Channel::new(end).unwrap())
}

#[test]
fn file_server_messages_round_trip() {
    let [mut here, mut there] = channel();
    for request in [
        Request::Open(String::new()),
        Request::Open("ein/Verzeichnis/ü".into()),
        Request::Open("x".repeat(MAX_NAME_BYTES)),
        Request::Fill { slot: 0, offset: 0 },
        Request::Fill { slot: SLOTS - 1, offset: u64::MAX },
    ] {
        request.send(&mut here).unwrap();
        assert_eq!(Request::parse(&there.receive().unwrap()), Ok(request));
    }
    let opened = Opened { length: u64::MAX - 1, identity: 0x0102_0304_0506_0708 };
    opened.send(&mut here).unwrap();
    assert!(
        matches!(Opened::receive(&mut there).unwrap(), Answer::Is(received) if received == opened)
    );
    let sum = std::array::from_fn(|at| at as u8);
    let filled = Filled { slot: 1, offset: 1 << 40, bytes: 0xfedc_ba98, sum };
    filled.send(&mut here).unwrap();
    assert!(
        matches!(Filled::receive(&mut there).unwrap(), Answer::Is(received) if received == filled)
    );
    let connection = [7; ConnectionDescriptor::BYTES];
    for window in [vec![], vec![9; 60]] {
        Hello { connection, window: window.clone() }.send(&mut here).unwrap();
        let Answer::Is(received) = Hello::receive(&mut there).unwrap() else { panic!("refused") };
        assert_eq!((received.connection, received.window), (connection, window));
    }
    files::refuse(&mut here, "no such file");
    match Hello::receive(&mut there).unwrap() {
        Answer::Refused(why) => assert_eq!(why, "no such file"),
        Answer::Is(_) => panic!("a refusal is not a greeting"),
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// A message that begins like a valid one, or not, of about the same length.
    fn message(&mut self) -> Vec<u8> {
        let lengths = [0, 1, 2, 9, 10, 16, 17, 45, 46, ConnectionDescriptor::BYTES, 5000];
        let length = (lengths[self.below(lengths.len())] + self.below(3)).saturating_sub(1);
        let mut message: Vec<u8> = (0..length).map(|_| self.below(256) as u8).collect();
        if let Some(first) = message.first_mut() {
            *first = b"COFE\0"[self.below(5)];
        }
        if let (Some(second), 0) = (message.get_mut(1), self.below(2)) {
            *second = self.below(4) as u8;
        }
        message
    }
}

#[test]
fn request_parse_is_canonical() {
    let [mut here, mut there] = channel();
    let (mut random, mut seen) = (Random(0x5eed_0f11), [0; 3]);
    for _ in 0..20_000 {
        let message = random.message();
        match Request::parse(&message) {
            Ok(request) => {
                seen[usize::from(matches!(request, Request::Fill { .. }))] += 1;
                if let Request::Fill { slot, .. } = request {
                    assert!(slot < SLOTS, "{message:?}");
                }
                request.send(&mut here).unwrap();
                assert_eq!(
                    there.receive().unwrap(),
                    message,
                    "the request is sent as it was parsed"
                );
            }
            Err(why) => {
                seen[2] += 1;
                assert!(!why.is_empty());
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 50), "messages of each kind: {seen:?}");
}

#[test]
fn random_replies_parse_or_fail_within_bounds() {
    let [mut here, mut there] = channel();
    let (mut random, mut seen) = (Random(0x5eed_0f12), [[0; 3]; 3]);
    /// Whether it is an answer, a refusal, or neither.
    fn sort<T>(received: support::Result<Answer<T>>) -> (usize, Option<T>) {
        match received {
            Ok(Answer::Is(answer)) => (0, Some(answer)),
            Ok(Answer::Refused(_)) => (1, None),
            Err(_) => (2, None),
        }
    }
    for turn in 0..20_000 {
        let message = random.message();
        here.send(&message).unwrap();
        let which = turn % 3;
        let sort = match which {
            0 => {
                let (sort, hello) = sort(Hello::receive(&mut there));
                if let Some(Hello { connection, window }) = hello {
                    assert_eq!([&connection[..], &window].concat(), message[1..]);
                }
                sort
            }
            1 => {
                let (sort, opened) = sort(Opened::receive(&mut there));
                assert_eq!(opened.is_some(), message.len() == 17 && message[0] == b'O');
                sort
            }
            _ => {
                let (sort, filled) = sort(Filled::receive(&mut there));
                assert_eq!(filled.is_some(), message.len() == 46 && message[0] == b'F');
                if let Some(Filled { slot, sum, .. }) = filled {
                    assert_eq!((slot, &sum[..]), (message[1], &message[14..]));
                }
                sort
            }
        };
        seen[which][sort] += 1;
    }
    assert!(seen.iter().flatten().all(|&count| count > 20), "messages of each kind: {seen:?}");
}
