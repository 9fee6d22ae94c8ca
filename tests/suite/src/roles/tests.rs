//! A server and a client of roles against others who send anything.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::frame;
use super::process::Program;
use super::remote::{Ended, Peer};
use super::server::Server;
use super::wire::{self, About, kind};
use crate::{Choice, Lab, Stop};

const VERSION: &str = "1.0 (commit a)";

fn about() -> About {
    let lab = Lab::open(&Choice::default()).unwrap_or_else(|Stop(why)| panic!("{why}"));
    About::of(&lab, vec!["it is checked".into()]).unwrap_or_else(|Stop(why)| panic!("{why}"))
}

/// A server whose roles end at once, because this test program knows no such test, and its lines.
struct Running {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

static SERVER: LazyLock<Running> = LazyLock::new(|| {
    let lab = Lab::open(&Choice::default()).unwrap_or_else(|Stop(why)| panic!("{why}"));
    let program = Program::this(["--exact", "--quiet", "no such test"]).expect("this program");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let shown = lines.clone();
    let show = move |line: &str| shown.lock().unwrap().push(line.to_owned());
    let server = Server::new(lab, &about(), program, VERSION, show);
    let server = Arc::new(server.unwrap_or_else(|Stop(why)| panic!("{why}")));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || server.serve(&listener, false));
    Running { address, lines }
});

/// One test at a time: the server has one client.
static ALONE: Mutex<()> = Mutex::new(());

/// Connects once the server has noticed that its last client is gone.
fn connected() -> Peer {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Peer::connect(&SERVER.address.to_string(), VERSION) {
            Ok(peer) => return peer,
            Err(Stop(why)) => assert!(
                why.contains("serves another client") && Instant::now() < end,
                "the server serves no client any more: {why}"
            ),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first bytes of a client of this version.
fn hello() -> Vec<u8> {
    let (one, other) = tcp_pair();
    let sent = std::thread::spawn(move || {
        let _ = wire::handshake(&one, VERSION);
    });
    let mut bytes = vec![0; 16 + VERSION.len()];
    (&other).read_exact(&mut bytes).expect("a hello");
    drop(other);
    sent.join().expect("the thread ends");
    bytes
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
    (one, listener.accept().expect("a connection").0)
}

/// A frame with any kind, length and bytes; most have a known kind and the right length.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let known = b"snkmgxeiqz".to_vec();
    let ids = super::all().into_iter().map(|case| case.id()).collect::<Vec<_>>();
    let start = (any::<u32>(), proptest::sample::select(ids))
        .prop_map(|(life, id)| [&life.to_be_bytes()[..], id.as_bytes()].concat());
    let bytes = prop_oneof![proptest::collection::vec(any::<u8>(), 0..64), start];
    let length = prop_oneof![4 => Just(None), 1 => any::<u32>().prop_map(Some)];
    (proptest::sample::select(known), length, bytes).prop_map(|(kind, length, bytes)| {
        let length = length.unwrap_or(bytes.len() as u32);
        [&[kind][..], &length.to_be_bytes(), &bytes].concat()
    })
}

/// Anything, or a right beginning and then frames.
fn any_client() -> impl Strategy<Value = Vec<u8>> {
    static HELLO: LazyLock<Vec<u8>> = LazyLock::new(hello);
    let frames = proptest::collection::vec(any_frame(), 0..6)
        .prop_map(|frames| [HELLO.clone(), frames.concat()].concat());
    prop_oneof![1 => proptest::collection::vec(any::<u8>(), 0..100), 3 => frames]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn server_survives_clients_that_send_anything(bytes in any_client()) {
        let _alone = ALONE.lock().unwrap();
        drop(connected());
        let mut client = TcpStream::connect(SERVER.address).expect("the server listens");
        // The server may close the connection meanwhile.
        let _ = client.write_all(&bytes);
        let _ = client.shutdown(Shutdown::Write);
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        let mut answer = Vec::new();
        if let Err(error) = client.read_to_end(&mut answer) {
            prop_assert_eq!(error.kind(), ErrorKind::ConnectionReset, "no disconnect");
        }
        drop(connected());
    }

    #[test]
    fn client_survives_servers_that_send_anything(bytes in any_client()) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.write_all(&bytes);
        });
        let connected = Peer::connect(&address, VERSION);
        server.join().expect("the thread ends");
        prop_assert!(connected.is_err(), "no such server says what it is");
    }
}

#[test]
fn client_starts_nothing_but_cases_of_two_machines() {
    let _alone = ALONE.lock().unwrap();
    for id in ["no::such", "../../bin/sh", "kills::key_of_dead_program_gives_no_access"] {
        let peer = connected();
        assert!(peer.missing(id).is_err(), "{id}");
        drop(peer);
        // The line is there once the next client is served.
        drop(connected());
        let lines = SERVER.lines.lock().unwrap().join("\n");
        assert!(lines.contains(&format!("it asks for {id:?}, which is no case")), "{lines}");
    }
}

#[test]
fn second_client_is_refused_and_the_first_goes_on() {
    let _alone = ALONE.lock().unwrap();
    let first = connected();
    assert_eq!(first.about().device, about().device);
    let second = Peer::connect(&SERVER.address.to_string(), VERSION);
    let Err(Stop(why)) = second else { panic!("two clients are served") };
    assert!(why.contains("it serves another client"), "{why}");
    let id = "exchange::programs_connect_by_address_bytes_and_exchange_data";
    assert!(first.missing(id).is_ok_and(|missing| missing.is_empty()));
}

#[test]
fn idle_clients_do_not_use_up_the_server() {
    let _alone = ALONE.lock().unwrap();
    let first = connected();
    // The server speaks first, and waits for the answer of eight clients; it closes the others.
    let mut refused = 0;
    let idle: Vec<_> =
        (0..12).map(|_| TcpStream::connect(SERVER.address).expect("there")).collect();
    for mut client in &idle {
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
        refused += client.read(&mut [0]).unwrap_or(0);
    }
    assert!((1..=8).contains(&refused), "{refused} of 12");
    drop(idle);
    let id = "exchange::programs_connect_by_address_bytes_and_exchange_data";
    assert!(first.missing(id).is_ok(), "the first goes on");
}

#[test]
fn facts_of_a_server_are_checked() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        assert!(wire::handshake(&stream, VERSION).is_ok());
        let mut about = about();
        about.facts.pages.push(about.facts.pages[0].clone());
        let about = serde_json::to_string(&about).expect("JSON");
        frame::write(&mut stream, kind::ABOUT, about.as_bytes()).expect("room");
    });
    let Err(Stop(why)) = Peer::connect(&address, VERSION) else { panic!("a page is twice") };
    assert!(why.contains("what it says of itself: ") && why.contains("is twice"), "{why}");
    server.join().expect("the server ends");
}

#[test]
fn role_that_ends_without_a_word_is_noticed() {
    let _alone = ALONE.lock().unwrap();
    let peer = connected();
    let id = "exchange::programs_connect_by_address_bytes_and_exchange_data";
    for life in 1..3 {
        let mut role = peer.start(id, life).unwrap_or_else(|Stop(why)| panic!("{why}"));
        assert!(frame::read(&mut role, frame::MAX_BYTES).is_err(), "the role got a frame");
        // The test program succeeds without a test.
        assert_eq!(peer.settle().ok(), Some(Ended::Success));
    }
}

#[test]
fn server_that_goes_away_is_reported_as_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let done = wire::handshake(&stream, VERSION).is_ok();
        let about = serde_json::to_string(&about()).expect("JSON");
        frame::write(&mut stream, kind::ABOUT, about.as_bytes()).expect("room");
        // Gone while a role should start.
        let read = frame::read_within(&stream, Duration::from_secs(5), frame::MAX_BYTES);
        (done, read.map(|frame| frame.0).ok())
    });
    let peer = Peer::connect(&address, VERSION).unwrap_or_else(|Stop(why)| panic!("{why}"));
    let started = peer.start("exchange::any", 1);
    assert!(started.is_ok());
    let Err(Stop(why)) = peer.settle() else { panic!("the role ended") };
    assert!(why.contains("is lost: it closed the connection"), "{why}");
    assert_eq!(server.join().ok(), Some((true, Some(kind::START))));
}
