//! Tests of the whole report: its schema, its round trip, and its reader.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;
use schemars::generate::SchemaSettings;

use verbless_perf::{Bandwidth, Latency, Measured, Plan};

use super::*;
use crate::{Choice, FailedCommand, Lab, Stop};
use verbless_prm::Init2rtrQpIn;

pub(super) fn lab(profile: &str, link: Option<&str>) -> Lab {
    let choice =
        Choice { profile: profile.into(), link: link.map(str::to_owned), ..Choice::default() };
    Lab::open(&choice).unwrap_or_else(|Stop(why)| panic!("{profile}: {why}"))
}

pub(super) fn report(profile: &str, link: Option<&str>, identify: bool) -> Report {
    let lab = lab(profile, link);
    let mut input = Init2rtrQpIn::new();
    input.qpc_mut().set_remote_qpn(0x82).primary_address_path_mut().set_rlid(0x4321);
    let refused = FailedCommand {
        opcode: 0x503,
        op_mod: 0,
        status: 3,
        syndrome: 0x1234,
        errno: 121,
        input: input.as_bytes().to_vec(),
        output: vec![3, 0, 0, 0, 0, 0, 0x12, 0x34],
    };
    let row = |case: &str, outcome| Row {
        case: case.into(),
        failed_commands: vec![refused.clone(); usize::from(matches!(outcome, Outcome::Failed(_)))],
        kernel_log: Vec::new(),
        outcome,
        seconds: 0.25,
    };
    let run = Run {
        device: lab.describe(),
        preconditions: lab.preconditions(),
        cases: vec![
            row("qp::passes", Outcome::Passed),
            row("qp::fails", Outcome::Failed("<script>alert(1)</script> & \"more\"".into())),
            row("umr::skips", Outcome::Skipped("it needs hca_cap.umr".into())),
        ],
    };
    let program =
        Program { version: "0.1.0".into(), commit: None, prm: format!("{:016x}", 0x1234) };
    let peer = Some(Machine { architecture: "aarch64".into(), ..Machine::of_this() });
    let report =
        Report { peer, performance: performance(), ..Report::of(program, facts(&lab), &run) };
    if identify { report } else { report.without_identity() }
}

/// A bandwidth, a latency, and what could not be measured.
fn performance() -> Vec<Measurement> {
    let bandwidth =
        Bandwidth { peak: 9180.25, average: 9110.5, message_rate: 0.145768, arrived: 1.0 };
    let latency = Latency {
        min: 1.5,
        max: 99.25,
        typical: 2.0,
        average: 2.25,
        deviation: 0.5,
        percentile_99: 3.0,
        percentile_99_9: 50.0,
    };
    let of = |name: &str, result: Result<Measured, &str>| {
        let plan = Plan::named(name).expect("the plan's name is known");
        Measurement::of(&plan, result.map_err(str::to_owned), Some(100.0))
    };
    vec![
        of("write_bw", Ok(Measured::Bandwidth(bandwidth))),
        of("write_lat", Ok(Measured::Latency(latency))),
        of("ud_send_bw", Err("no <b>room</b>")),
    ]
}

#[test]
fn bandwidth_has_its_share_of_the_port() {
    let share = performance()[0].bandwidth.and_then(|it| it.port_share).expect("a speed");
    assert!((share - 9110.5 * 1048576.0 * 8.0 / 100e9).abs() < 1e-9, "{share}");
}

/// With `VERBLESS_WRITE_SCHEMA` set, the file is written instead.
#[test]
fn schema_in_repository_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/report.schema.json");
    let generator = SchemaSettings::draft2020_12().into_generator();
    let schema = generator.into_root_schema_for::<Report>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n";
    if std::env::var_os("VERBLESS_WRITE_SCHEMA").is_some() {
        std::fs::write(path, &text).expect("the schema can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, text, "run this test with VERBLESS_WRITE_SCHEMA=1");
}

#[test]
fn report_of_model_round_trips_through_json() {
    for identify in [false, true] {
        let report = report("bluefield3", None, identify);
        assert_eq!(report.devices.len(), 2);
        for device in &report.devices {
            assert_eq!((device.incomplete.as_deref(), device.model), (None, true));
            assert!(device.pages.len() > 4 && device.queries.len() > 3 && device.ports.len() == 1);
            assert!(device.queries.iter().all(|query| query.error.is_none()), "{device:?}");
        }
        let described = report.cases[1].failed_commands[0].describe();
        let status = "INIT2RTR_QP (opcode 0x503): status BAD_PARAM (0x3), syndrome 0x00001234";
        assert!(described.starts_with(status) && described.contains("remote_qpn = 0x82"));
        assert_eq!(described.contains("rlid = 0x4321"), identify, "{described}");
        let read = Report::parse(&report.json().unwrap()).unwrap();
        assert_eq!(read, report);
    }
}

/// Every text in a JSON value, names of fields included.
fn texts<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::String(text) => found.push(text),
        serde_json::Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name);
            texts(value, found);
        }),
        _ => {}
    }
}

#[test]
fn report_names_no_card_unless_asked() {
    for (profile, link) in [("connectx6dx", "infiniband"), ("bluefield3", "ethernet")] {
        let lab = lab(profile, Some(link));
        let secrets: Vec<String> = lab
            .devices()
            .iter()
            .flat_map(|info| {
                let guids = [info.node_guid, info.system_image_guid];
                let guids = guids.into_iter().map(|guid| format!("{guid:016x}"));
                let gids = info.ports.iter().flat_map(|port| &port.gids);
                let context = lab.device().unwrap().query_nic_vport_context().unwrap();
                let mac = context.permanent_address().as_bytes()[2..].to_vec();
                let mac = mac.iter().map(|byte| format!("{byte:02x}")).collect();
                guids.chain(gids.map(|it| it.gid.to_string())).chain([mac]).collect::<Vec<_>>()
            })
            .collect();
        let named = |identify: bool| {
            let json = report(profile, Some(link), identify).json().unwrap();
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            let mut all = Vec::new();
            texts(&value, &mut all);
            secrets.iter().filter(|secret| all.iter().any(|it| it.contains(&***secret))).count()
        };
        assert_eq!(named(false), 0, "{profile} {link}");
        assert_eq!(named(true), secrets.len(), "{profile} {link}: {secrets:?}");
    }
}

#[test]
fn reader_says_what_is_wrong_and_where() {
    let good = report("connectx6vf", None, false).json().unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        Report::parse(&good.replacen(from, to, 1)).unwrap_err()
    };
    for (from, to, why) in [
        ("\"format\": 1", "\"format\": 2", "its format is 2, and this hwtest reads 1"),
        ("\"format\": 1", "\"format\": 4294967296", "4294967296"),
        ("\"program\"", "\"grogram\"", "unknown field `grogram`"),
        ("\"passed\": 1", "\"passed\": -1", "`-1`, expected usize at line"),
        ("\"seconds\": 0.25", "\"seconds\": -0.25", "took -0.25 seconds"),
        ("\"seconds\": 0.25", "\"seconds\": 1e999", "number out of range at line"),
        ("\"outcome\": \"passed\"", "\"outcome\": \"ok\"", "unknown variant `ok`"),
        ("\"number\": 3,", "\"number\": 2,", "page 0x2 is twice or not in order"),
        ("\"number\": 3,", "\"number\": 65536,", "expected u16"),
        ("\"current\": \"", "\"current\": \"0", "no whole number of bytes at line"),
        ("\"current\": \"", "\"current\": \"zz", "hexadecimal digits without spaces at line"),
        ("\"current\": \"", &format!("\"current\": \"{}", "ff".repeat(0x1000)), "over 4096 bytes"),
        ("\"current\": \"", &format!("\"current\": \"{}", "ff".repeat(0x4000)), "more than 16384"),
    ] {
        let error = with(from, to);
        assert!(error.contains(why), "{to:.40}: {error}");
    }
    let deep =
        |depth| format!("{{\"format\": 1, \"x\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(Report::parse(&deep(100_000)).is_err());
    for text in ["", "{}", "[]", "null", "{\"format\": 1}", &good[..good.len() / 2]] {
        assert!(Report::parse(text).is_err(), "{text:.40}");
    }
    let missing = Report::read("/nonexistent/report.json".as_ref()).unwrap_err().to_string();
    assert!(missing.contains("cannot read the report /nonexistent/report.json"), "{missing}");
}

#[test]
fn reader_limits_devices_their_parts_and_cases() {
    let good = report("connectx6vf", None, false);
    let too_many = |change: &dyn Fn(&mut Report)| {
        let mut changed = good.clone();
        change(&mut changed);
        Report::parse(&changed.json().unwrap()).unwrap_err()
    };
    for (why, change) in [
        (
            "\"the report\" has 9 devices; the limit is 8",
            (&|it: &mut Report| it.devices = vec![it.devices[0].clone(); 9])
                as &dyn Fn(&mut Report),
        ),
        ("257 ports", &|it: &mut Report| {
            it.devices[0].ports = vec![it.devices[0].ports[0].clone(); 257]
        }),
        ("257 queries", &|it: &mut Report| {
            it.devices[0].queries = vec![it.devices[0].queries[0].clone(); 257]
        }),
        ("257 pages", &|it: &mut Report| {
            it.devices[0].pages = vec![it.devices[0].pages[0].clone(); 257]
        }),
        ("100001 cases", &|it: &mut Report| it.cases = vec![it.cases[0].clone(); 100_001]),
        ("257 failed commands", &|it: &mut Report| {
            let refused = it.cases[1].failed_commands[0].clone();
            it.cases[1].failed_commands = vec![refused; 257];
        }),
        ("10001 measurements", &|it: &mut Report| {
            it.performance = vec![it.performance[0].clone(); 10_001]
        }),
        ("\"write_lat\" of 2 bytes: -1", &|it: &mut Report| {
            it.performance[1].latency.as_mut().unwrap().max = -1.0
        }),
        ("took 2000000000 seconds", &|it: &mut Report| it.cases[0].seconds = 2e9),
    ] {
        let error = too_many(change);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn error_about_a_report_steers_no_terminal() {
    let file = std::env::temp_dir().join(format!("steers-{}.json", std::process::id()));
    let text = report("connectx6vf", None, false).json().unwrap();
    let text = text.replacen("\"program\"", "\"p\\u001b]0;x\\u0007\"", 1);
    std::fs::write(&file, text).expect("the file can be written");
    let error = Report::read(&file).unwrap_err().to_string();
    std::fs::remove_file(&file).expect("the file was written");
    assert!(error.contains("unknown field `p\\u{1b}]0;x\\u{7}`"), "{error}");
    assert!(!error.contains(char::is_control), "{error:?}");
}

/// What the property puts into a report: any text, or JSON's own signs and digits.
const CUT: &str = "\\PC{0,6}|[-0-9\"{}\\[\\],:]{0,4}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A changed report is refused, or is read as a report that can be written and shown.
    #[test]
    fn reader_survives_changed_reports(
        cuts in prop::collection::vec((any::<Index>(), CUT), 1..4),
    ) {
        static GOOD: LazyLock<String> =
            LazyLock::new(|| report("connectx6vf", None, true).json().unwrap());
        let mut text: Vec<char> = GOOD.chars().collect();
        for (at, put) in cuts {
            let at = at.index(text.len());
            text[at..].iter_mut().zip(put.chars()).for_each(|(old, new)| *old = new);
        }
        if let Ok(report) = Report::parse(&text.iter().collect::<String>()) {
            prop_assert!(report.html().len() > 1000);
            prop_assert_eq!(Report::parse(&report.json().unwrap()).unwrap(), report);
        }
    }
}

/// Changes one value of a JSON text to another of its type: a number, or hexadecimal digits.
fn change(value: &mut serde_json::Value, at: &mut usize, number: u64) {
    match value {
        serde_json::Value::Array(values) => values.iter_mut().for_each(|it| change(it, at, number)),
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(|it| change(it, at, number));
        }
        serde_json::Value::Number(_) | serde_json::Value::String(_) => {
            if *at == 0 {
                *value = match value {
                    serde_json::Value::Number(_) => (number >> (number % 64)).into(),
                    _ => number.to_be_bytes().map(|byte| format!("{byte:02x}")).concat().into(),
                };
            }
            *at = at.wrapping_sub(1);
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A report with other values is refused, or each thing that is made of it is made, or fails
    /// with a reason.
    #[test]
    fn readers_survive_changed_values(
        changes in prop::collection::vec((any::<Index>(), any::<u64>()), 1..6),
    ) {
        static GOOD: LazyLock<serde_json::Value> = LazyLock::new(|| {
            let mut report = report("bluefield3", None, false);
            report.devices.iter_mut().flat_map(|it| &mut it.pages).for_each(|it| it.fields.clear());
            serde_json::to_value(report).unwrap()
        });
        let mut values = GOOD.clone();
        for (at, number) in changes {
            change(&mut values, &mut at.index(400), number);
        }
        if let Ok(report) = Report::parse(&values.to_string()) {
            prop_assert!(report.html().len() > 1000);
            prop_assert!(report.clone().without_identity().json().is_ok());
            match report.profile_over("bluefield3") {
                Ok(profile) => prop_assert!(profile.contains("[caps.general]")),
                Err(Stop(why)) => prop_assert!(why.contains("the report"), "{}", why),
            }
        }
    }
}
