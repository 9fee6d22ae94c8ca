use std::sync::Mutex;

use verbless::model::Model;

use crate::channel::tests::{agreeing, flushing};

use super::*;

/// The received texts.
type Seen = Arc<Mutex<Vec<String>>>;

fn stream(change: impl FnOnce(&mut MsgStreamConfig)) -> (Model, Process, Seen, MsgStream) {
    let (model, process) = agreeing();
    let seen = Seen::default();
    let into = seen.clone();
    let mut config = MsgStreamConfig::new("mine");
    config.transport = MsgTransport::Window;
    config.thread = false;
    change(&mut config);
    let output = Output::messages(move |it| into.lock().unwrap().push(it.text.to_string()));
    let stream = MsgStream::create(&process, &config, output).unwrap();
    (model, process, seen, stream)
}

/// Writes entry `number`, a message of one entry, as a program would.
fn write(stream: &MsgStream, number: u64, text: &str) {
    let head = text.len() as u64 | (Level::Info as u64) << 16;
    stream.shared.reader().channel.write(number, head, text.as_bytes());
}

/// The word at offset `at` of the stream's control block.
fn control_word(stream: &MsgStream, at: u64) -> u64 {
    stream.shared.reader().channel.word(at)
}

#[test]
fn poll_delivers_messages_and_lost_counts() {
    let (_model, process, seen, stream) = stream(|_| ());
    assert_eq!((stream.id().0, stream.name()), (1, "mine"));
    assert!(stream.thread().is_none() && stream.qp_numbers().is_none());
    assert_eq!(stream.poll().unwrap(), 0);
    (0..3).for_each(|number| write(&stream, number, &format!("message {number}")));
    assert_eq!([stream.poll().unwrap(), stream.poll().unwrap()], [3, 0]);
    assert_eq!(*seen.lock().unwrap(), ["message 0", "message 1", "message 2"]);
    assert_eq!(stream.lost().unwrap(), StreamLosses::default());
    stream.shared.reader().channel.put(0x20, 5);
    assert_eq!(stream.lost().unwrap().without_room, 5);
    stream.set_level(Level::Debug).unwrap();
    assert!(stream.set_level(Level::Always).is_err());
    stream.flush().unwrap();
    let config = MsgStreamConfig { thread: false, ..MsgStreamConfig::new("another") };
    let another = MsgStream::create(&process, &config, Output::messages(|_| ())).unwrap();
    assert_eq!(another.id().0, 2);
    stream.destroy().unwrap();
    drop(another);
    assert_eq!(process.streams().take(false).unwrap(), 1, "both numbers are free");
}

#[test]
fn default_stream_is_0_with_fixed_level() {
    let (_model, _process, _, stream) = stream(|it| {
        *it = MsgStreamConfig { thread: false, ..MsgStreamConfig::default_stream() };
    });
    assert_eq!(stream.id().0, 0);
    let error = stream.set_level(Level::Debug).unwrap_err().to_string();
    assert!(error.contains("level stays Info"), "{error}");
}

#[test]
fn stream_thread_delivers_unless_async() {
    let (_model, _process, seen, threaded) = stream(|it| it.thread = true);
    assert!(threaded.thread().is_some());
    write(&threaded, 0, "one");
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while seen.lock().unwrap().is_empty() {
        assert!(std::time::Instant::now() < end, "no message arrived");
        thread::yield_now();
    }
    threaded.destroy().unwrap();
    let (_model, _process, _, alone) = stream(|it| {
        (it.thread, it.sync_mode) = (true, MsgSyncMode::Async);
    });
    assert!(alone.thread().is_none());
}

#[test]
fn control_block_describes_ring_and_queues() {
    let rows = [
        // Batch, maximum number of entries per message, log2 of the WQEBBs, carrier.
        (MsgTransport::Window, MsgSyncMode::Sync, (1, 1, 0, 1)),
        (MsgTransport::Rc, MsgSyncMode::Sync, (1, 1, 6, 2)),
        (MsgTransport::Uc, MsgSyncMode::Sync, (1, 1, 6, 2)),
        (MsgTransport::Ud, MsgSyncMode::Sync, (1, 1, 7, 3)),
        (MsgTransport::Rc, MsgSyncMode::Tracer, (64, 64, 4, 2)),
    ];
    for (transport, sync_mode, expected) in rows {
        let (_model, _process, _, stream) = stream(|it| {
            (it.transport, it.sync_mode) = (transport, sync_mode);
        });
        let (head, batch) = (control_word(&stream, 0), control_word(&stream, 0x10));
        let found = (batch as u32, (batch >> 32) as u32, (head >> 56) as u8, (head >> 32) as u8);
        assert_eq!(found, expected, "{transport:?} {sync_mode:?}");
        let entry = if sync_mode == MsgSyncMode::Tracer { 6 } else { 8 };
        assert_eq!(((head >> 40) as u8, (head >> 48) as u8), (14 - entry, entry));
        assert_eq!(control_word(&stream, 0x18) as u32, ROOM_RETRIES);
        let numbers = stream.qp_numbers();
        let queue = (control_word(&stream, 0x28) >> 32) as u32;
        assert_eq!(numbers.map(|(_, own)| own), (queue != 0).then_some(queue));
        assert!(numbers.is_none_or(|(host, own)| host != own && host != 0));
        assert_eq!(numbers.is_none(), transport == MsgTransport::Window);
    }
    let (_model, _process, _, stream) = stream(|it| it.sync_mode = MsgSyncMode::Async);
    assert_eq!(control_word(&stream, 0x18) as u32, 0, "no thread waits");
}

#[test]
fn records_format_by_number_or_count_as_damaged() {
    let (_model, _process, seen, stream) = stream(|it| {
        it.sync_mode = MsgSyncMode::Tracer;
        it.formats = vec!["none".into(), "%d packets".into()];
    });
    let write = |number, format: u64, word: u64| {
        let channel = &stream.shared.reader().channel;
        channel.write(number, format | 7 << 32, &word.to_le_bytes());
    };
    write(0, 1, 5);
    write(1, 2, 6);
    write(2, 0, 7);
    assert_eq!(stream.poll().unwrap(), 2, "messages");
    assert_eq!(*seen.lock().unwrap(), ["5 packets", "none"]);
    assert_eq!(stream.lost().unwrap(), StreamLosses { damaged: 1, ..StreamLosses::default() });
}

#[test]
fn handed_over_entries_missing_after_timeout_are_lost() {
    let (_model, process) = flushing(5);
    for transport in [MsgTransport::Uc, MsgTransport::Rc] {
        let mut config = MsgStreamConfig::new("mine");
        (config.transport, config.thread) = (transport, false);
        let stream = MsgStream::create(&process, &config, Output::messages(|_| ())).unwrap();
        let begun = std::time::Instant::now();
        stream.flush().unwrap();
        // A reliable transport is waited for as long as a call may take.
        let reliable = transport == MsgTransport::Rc;
        assert_eq!(begun.elapsed() >= process.timeout(), reliable, "{transport:?}");
        assert_eq!(
            stream.lost().unwrap(),
            StreamLosses { undelivered: 5, ..StreamLosses::default() }
        );
        stream.flush().unwrap();
        assert_eq!(stream.lost().unwrap().undelivered, 5, "once");
    }
}

#[test]
fn output_error_is_reported_once() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_model, process) = agreeing();
    let mut config = MsgStreamConfig::new("mine");
    (config.transport, config.thread) = (MsgTransport::Window, false);
    let stream = MsgStream::create(&process, &config, Output::lines(Full)).unwrap();
    write(&stream, 0, "one");
    let error = stream.poll().unwrap_err().to_string();
    assert!(error.contains("writing messages of mine to its output"), "{error}");
    assert_eq!(stream.poll().unwrap(), 0);
    assert_eq!(format!("{:?}", Output::lines(Full)), "Output::lines");
}

#[test]
fn conversions_have_c_widths() {
    let text = |format: &str, word: u64| {
        let template = Template::parse(format).unwrap();
        template.text(&[word, 0, 0, 0, 0, 0])
    };
    let word = 0xffff_fff1_8000_8081;
    for (format, expected) in [
        ("%hd", "-32639"),
        ("%hhd", "-127"),
        ("%hx", "8081"),
        ("%hhx", "81"),
        ("%x", "80008081"),
        ("%lx", "fffffff180008081"),
    ] {
        assert_eq!(text(format, word), expected, "{format}");
    }
    assert_eq!(text("%99d", 7).len(), 99);
    assert!(Template::parse("%100d").unwrap_err().to_string().contains("more than two digits"));
}

#[test]
#[cfg(feature = "sdk-2022")]
#[allow(deprecated, reason = "they are what is tested")]
fn deprecated_calls_flush_and_end_default_stream() {
    use super::deprecated::{log_dev_flush, log_dev_init, print_flush, print_init};
    let (_model, process) = flushing(5);
    let (_other_model, other) = agreeing();
    let output = || Output::messages(|_| ());
    let error = print_init(&process, &other.uar(), 1 << 14, output(), true).unwrap_err();
    assert!(error.to_string().contains("of another process"), "{error}");
    let error = log_dev_init(&process, &MsgStreamConfig::new("mine"), output()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("creates only the default stream, not mine"), "{text}");
    let printed = print_init(&process, &process.uar(), 1 << 14, output(), true).unwrap();
    assert_eq!(printed.id().0, 0);
    print_flush(&printed).unwrap();
    assert_eq!(printed.lost().unwrap().undelivered, 5);
    drop(printed);
    let mut config = MsgStreamConfig::default_stream();
    (config.transport, config.thread) = (MsgTransport::Uc, false);
    let made = log_dev_init(&process, &config, output()).unwrap();
    log_dev_flush(&made).unwrap();
    assert_eq!(made.lost().unwrap().undelivered, 5);
}
