//! Recordings of cases on the model, read and replayed.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::document::Document;
use super::entry::Entry;
use super::{RecordLimits, Recording, Replayed};
use crate::{Choice, Lab, Outcome, cases, run_case};

const LIMITS: RecordLimits = RecordLimits { bytes: 1 << 24, identity: false, payload: false };

/// The recording of the cases whose names contain `part`, and its closing sentence.
fn record(part: &str, limits: RecordLimits) -> (String, String) {
    let name = format!("verbless-recording-{}-{:?}", std::process::id(), std::thread::current());
    let file: PathBuf =
        std::env::temp_dir().join(name.replace(|c: char| !c.is_alphanumeric(), "-"));
    let recording = Recording::create(&file, limits).expect("a folder for temporary files");
    let lab = Lab::open(&Choice::default()).expect("the model");
    recording.describe(&lab, "a test", "the model");
    let lab = lab.recorded_in(recording.clone());
    for case in cases().filter(|case| case.id().contains(part)) {
        assert_eq!(run_case(&lab, case).outcome, Outcome::Passed);
    }
    let closing = recording.finish();
    let text = std::fs::read_to_string(&file).expect("it was written");
    std::fs::remove_file(&file).expect("it is there");
    (text, closing)
}

/// What becomes of the cases of a recording.
fn replay(text: &str) -> Vec<(String, Outcome)> {
    let document = Document::parse(text).expect("a recording");
    let mut ended = Vec::new();
    let done = |row: crate::Row| {
        ended.push((row.case, row.outcome));
        Ok::<_, ()>(())
    };
    Replayed::of(document).expect("devices").run(|_| true, false, done).expect("no error");
    ended
}

const PART: &str = "memory::mkey_query";

/// A short recording.
fn short() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| record(PART, LIMITS).0)
}

#[test]
fn recorded_cases_replay_without_a_difference() {
    let ended = replay(short());
    assert!(!ended.is_empty());
    for (case, outcome) in ended {
        assert_eq!(outcome, Outcome::Passed, "{case}");
    }
}

#[test]
fn kept_recordings_replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let files = files.map(|file| file.expect("a file").path());
    let packed: Vec<_> = files.filter(|it| it.extension() == Some("gz".as_ref())).collect();
    assert!(!packed.is_empty());
    for file in packed {
        let mut text = String::new();
        let mut reader = GzDecoder::new(File::open(&file).expect("a file"));
        reader.read_to_string(&mut text).expect("a text");
        let ended = replay(&text);
        assert!(!ended.is_empty(), "{}", file.display());
        for (case, outcome) in ended {
            let from = "if the driver asks for something else: recordings/README.md";
            assert_eq!(outcome, Outcome::Passed, "{}: {case} ({from})", file.display());
        }
    }
}

#[test]
fn changed_byte_is_named_by_its_field() {
    let at = short().find("CREATE_MKEY(0x200) INPUT").expect("the case makes a key");
    let (before, rest) = short().split_at(at);
    // The protection domain, in the last word of the second line.
    let line = rest.find("\n010: ").expect("a line") + "\n010: ".len() + 35;
    let mut changed = rest.to_owned();
    changed.replace_range(line - 1..line, if &rest[line - 1..line] == "f" { "e" } else { "f" });
    let ended = replay(&format!("{before}{changed}"));
    let differs = |(_, outcome): &(String, Outcome)| match outcome {
        Outcome::Failed(why) => why.contains("CREATE_MKEY): ") && why.contains("recorded"),
        _ => false,
    };
    assert!(ended.iter().any(differs), "{ended:#?}");
}

#[test]
fn case_that_asks_less_differs() {
    // The answer to the last request of the case is asked for, but the request is gone.
    let at = short().rfind("UAR_OBJ_DESTROY").expect("a request");
    let start = short()[..at].rfind('\n').expect("a line") + 1;
    let end = at + short()[at..].find('\n').expect("a line") + 1;
    let ended = replay(&format!("{}{}", &short()[..start], &short()[end..]));
    let last = &ended.last().expect("a case").1;
    assert!(
        matches!(last, Outcome::Failed(why) if why.contains("is not in the recording")),
        "{last:?}"
    );
}

/// What a case says of a recording with this change.
fn replay_of_changed(from: &str, to: &str) -> String {
    assert!(short().contains(from), "{from}");
    let ended = replay(&short().replacen(from, to, 1));
    let mut reasons = ended.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Failed(why) => Some(why),
        _ => None,
    });
    reasons.next().unwrap_or_default()
}

#[test]
fn answer_that_no_kernel_gives_is_refused() {
    // The handles of the requests that make something, in their order.
    let made: Vec<&str> = short()
        .split("\"new_handle\":")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default())
        .collect();
    let [first, second] = made[..2] else { panic!("{made:?}") };
    let new = |handle: &str| format!("\"new_handle\":{handle}");
    let why = replay_of_changed(&new(second), &new(first));
    assert!(why.contains(&format!("makes handle {first}, which is in use")), "{why}");
    let why = replay_of_changed(&format!(",{}", new(first)), "");
    assert!(why.contains("its recorded answer has no new handle in attribute 0x"), "{why}");
}

#[test]
fn wqes_and_cqes_are_recorded_without_data() {
    let (text, _) = record("memory::mkey_may_start_at_address_zero", LIMITS);
    let document = Document::parse(&text).expect("a recording");
    let entries: Vec<_> = document.cases.iter().flat_map(|case| &case.entries).collect();
    let wqes: Vec<_> = entries
        .iter()
        .filter_map(|it| match &it.entry {
            Entry::Wqe(wqe) if wqe.queue == "sq" => Some(wqe),
            _ => None,
        })
        .collect();
    let cqes: Vec<_> = entries
        .iter()
        .filter_map(|it| match &it.entry {
            Entry::Cqe(cqe) => Some(cqe),
            _ => None,
        })
        .collect();
    assert!(!wqes.is_empty() && !cqes.is_empty(), "{} and {}", wqes.len(), cqes.len());
    for wqe in wqes {
        // The control segment names the index and the queue (`mlx5_wqe_ctrl_seg`).
        let bytes = &wqe.bytes.0;
        assert_eq!(u32::from(u16::from_be_bytes([bytes[1], bytes[2]])), wqe.index, "{wqe:?}");
        assert_eq!(bytes[4..7], wqe.number.to_be_bytes()[1..], "{wqe:?}");
    }
    assert!(cqes.iter().all(|cqe| cqe.bytes.0.len() == 64));
    assert!(
        cqes.windows(2)
            .all(|two| two[1].number != two[0].number || two[1].index == two[0].index + 1)
    );
}

/// Cases with queues that read no memory of messages, and one that does.
#[test]
fn queues_replay_with_their_cqes() {
    let (text, _) = record("failure::wqe", LIMITS);
    let ended = replay(&text);
    assert!(ended.iter().any(|(_, outcome)| *outcome == Outcome::Passed), "{ended:#?}");
    let differs = |(_, outcome): &&(String, Outcome)| matches!(outcome, Outcome::Failed(_));
    assert_eq!(ended.iter().find(differs), None);
}

#[test]
fn changed_wqe_is_named() {
    let (text, _) = record("failure::wqe", LIMITS);
    // The opcode of the first send WQE.
    let at = text.find("] wqe {\"file\":0,\"queue\":\"sq\"").expect("a WQE");
    let bytes = at + text[at..].find("\"bytes\":\"").expect("its bytes") + "\"bytes\":\"".len();
    let mut changed = text.clone();
    let digit = bytes + 7;
    changed.replace_range(digit..=digit, if &text[digit..=digit] == "1" { "2" } else { "1" });
    let is_named = |why: &str| why.contains("WQE ") && why.contains("segment 0");
    let named = |(_, outcome): &(String, Outcome)| match outcome {
        Outcome::Failed(why) => is_named(why),
        _ => false,
    };
    let ended = replay(&changed);
    assert!(ended.iter().any(named), "{ended:#?}");
}

/// A recording of the cases whose names contain `part`, of which the recorder has seen all: the
/// queues of a case on a busy machine may be faster than its thread.
fn record_whole(part: &str, limits: RecordLimits) -> String {
    let is_whole = |text: &String| !text.contains("] unseen {");
    let mut tries = (0..400).map(|_| record(part, limits).0);
    tries.find(is_whole).expect("a recording without unseen entries")
}

/// The entries of a recording.
fn entries(text: &str) -> Vec<Entry> {
    let document = Document::parse(text).expect("a recording");
    document.cases.into_iter().flat_map(|case| case.entries).map(|it| it.entry).collect()
}

/// Whether a case that is named so passes on its recording.
fn passes(ended: &[(String, Outcome)], name: &str) -> bool {
    ended.iter().any(|(case, outcome)| case.contains(name) && *outcome == Outcome::Passed)
}

#[test]
fn events_replay_once_their_cq_is_armed() {
    let text = record_whole("events::cq_reports_once_per_arm", LIMITS);
    let arms: Vec<_> = entries(&text)
        .iter()
        .filter_map(|it| match it {
            Entry::Event(event) => event.arm,
            _ => None,
        })
        .collect();
    // The word that armed it has a consumer index of 1: one CQE was polled before.
    assert!(!arms.is_empty() && arms.iter().all(|[_, word]| word & 0xff_ffff > 0), "{arms:x?}");
    let ended = replay(&text);
    assert!(passes(&ended, "events::cq_reports_once_per_arm"), "{ended:#?}");
}

#[test]
fn event_that_is_missing_is_missed() {
    let text = record_whole("events::cq_reports_once_per_arm", LIMITS);
    let is_kept = |line: &&str| !line.contains("] event {");
    let without: String = text.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
    assert!(!passes(&replay(&without), "events::"));
}

#[test]
fn async_queries_replay_with_their_answers() {
    let name = "events::async_query_answers_through_its_channel";
    let ended = replay(&record_whole(name, LIMITS));
    assert!(passes(&ended, name), "{ended:#?}");
}

#[test]
fn receives_of_an_srq_replay_by_their_place_in_the_list() {
    let name = "srq::full_srq_rejects_until_completion";
    let text = record_whole(name, LIMITS);
    let indexes: Vec<_> = entries(&text)
        .iter()
        .filter_map(|it| match it {
            Entry::Wqe(wqe) if wqe.queue == "srq" => Some(wqe.index),
            _ => None,
        })
        .collect();
    assert!(indexes.len() > 1, "{indexes:?}");
    assert_eq!(indexes[..2], [0, 1]);
    let ended = replay(&text);
    assert!(passes(&ended, name), "{ended:#?}");
    // Another place than the program's.
    let at = text.find("\"queue\":\"srq\"").expect("a WQE of an SRQ");
    let (before, rest) = text.split_at(at);
    let changed = format!("{before}{}", rest.replacen("\"index\":0", "\"index\":1", 1));
    let is_named = |(_, outcome): &(String, Outcome)| match outcome {
        Outcome::Failed(why) => why.contains("recorded at index 0x1, posted at 0x0"),
        _ => false,
    };
    let ended = replay(&changed);
    assert!(ended.iter().any(is_named), "{ended:#?}");
}

#[test]
fn queues_of_frames_replay_without_the_frames() {
    let name = "frames::self_loopback_is_off_unless_enabled";
    let text = record_whole(name, LIMITS);
    let entries = entries(&text);
    for queue in ["sq", "rq"] {
        let is_of = |it: &&Entry| matches!(it, Entry::Wqe(wqe) if wqe.queue == queue);
        assert!(entries.iter().any(|it| is_of(&it)), "{queue}");
    }
    let ended = replay(&text);
    assert!(passes(&ended, name), "{ended:#?}");
}

#[test]
fn case_that_reads_messages_replays_only_with_their_bytes() {
    let name = "srq::message_is_scattered_over_receive_sges";
    let is_data = |it: &Entry| matches!(it, Entry::Data(_));
    let text = record_whole(name, LIMITS);
    assert!(!entries(&text).iter().any(is_data));
    assert!(!passes(&replay(&text), name));
    let text = record_whole(name, RecordLimits { payload: true, ..LIMITS });
    assert!(entries(&text).iter().any(is_data));
    let ended = replay(&text);
    assert!(passes(&ended, name), "{ended:#?}");
}

#[test]
fn recording_is_cut_at_its_limit() {
    let (text, closing) = record(PART, RecordLimits { bytes: 30_000, ..LIMITS });
    assert!(text.len() <= 30_000, "{}", text.len());
    assert!(closing.contains("the limit of 0 MiB was reached in memory::mkey_query"), "{closing}");
    let ended = replay(&text);
    let cut = |outcome: &Outcome| match outcome {
        Outcome::Skipped(why) => why.contains("the recording ends within it"),
        _ => false,
    };
    assert!(ended.last().is_some_and(|(_, outcome)| cut(outcome)), "{ended:?}");
}

#[test]
fn recording_has_no_address_of_the_device_unless_asked() {
    let lab = Lab::open(&Choice::default()).expect("the model");
    let guid = format!("{:016x}", lab.info().node_guid);
    let gid: String =
        lab.info().ports[0].gids[0].gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    // Mailboxes have a space after four bytes.
    let plain = |text: &str| text.replace([' ', '\n'], "");
    let part = "open::gid_table";
    let (hidden, _) = record(part, LIMITS);
    let (shown, _) = record(part, RecordLimits { identity: true, ..LIMITS });
    // Zeros at the end are left out.
    for id in [&guid, &gid].map(|id| id.trim_end_matches("00")) {
        assert!(!plain(&hidden).contains(id), "{id}");
        assert!(plain(&shown).contains(id), "{id}");
    }
    for text in [hidden, shown] {
        assert!(replay(&text).iter().all(|(_, outcome)| *outcome == Outcome::Passed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn damaged_recording_is_refused_or_replayed(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0x20_u8..0x7f), 1..6),
    ) {
        let mut bytes = short().as_bytes().to_vec();
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Ok(document) = Document::parse(&text)
            && let Ok(replayed) = Replayed::of(document)
        {
            // A panic of a case is its failure; one of the replay is one of this test.
            replayed.run(|_| true, false, |_| Ok::<_, ()>(())).expect("no error");
        }
    }
}
