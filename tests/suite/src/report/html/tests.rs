//! Tests of the page: it is well formed, escapes untrusted texts, and loads nothing else.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::*;
use crate::report::tests::report;
use crate::report::{CaseResult, CommandFailure, Ending, Hex};

/// The elements and texts of a page.
fn parse(page: &str) -> (Vec<String>, String) {
    let (mut elements, mut texts) = (Vec::new(), String::new());
    let mut reader = Reader::from_str(page);
    // Elements such as meta have no end in HTML.
    reader.config_mut().check_end_names = false;
    loop {
        match reader.read_event().expect("well-formed") {
            Event::Start(tag) | Event::Empty(tag) => {
                for attribute in tag.attributes() {
                    let attribute = attribute.expect("an attribute");
                    let name = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
                    assert!(!name.starts_with("on") && name != "src", "{name}");
                    let link = String::from_utf8_lossy(&attribute.value).into_owned();
                    assert!(name != "href" || link.starts_with('#'), "{link}");
                }
                elements.push(String::from_utf8_lossy(tag.name().as_ref()).into_owned());
            }
            Event::Text(text) => texts.push_str(&text.decode().expect("UTF-8")),
            Event::GeneralRef(entity) => {
                let name = entity.decode().expect("UTF-8");
                texts.push_str(match &*name {
                    "lt" => "<",
                    "gt" => ">",
                    "amp" => "&",
                    "quot" => "\"",
                    other => panic!("{other}"),
                });
            }
            Event::Eof => return (elements, texts),
            _ => {}
        }
    }
}

#[test]
fn page_offers_plain_names_alone_to_a_shell() {
    let again = |name: &str| {
        let mut report = report("connectx6vf", None, false);
        report.cases[1].case = name.into();
        report.html().contains("hwtest --filter")
    };
    assert!(again("qp::rc_write-2.b"));
    for name in ["qp::a; rm -rf ~", "qp::$(id)", "-o", "qp::é", ""] {
        assert!(!again(name), "{name}");
    }
}

#[test]
fn page_has_every_section_and_nothing_from_elsewhere() {
    let report = report("bluefield3", None, false);
    let (elements, texts) = parse(&report.html());
    for element in ["script", "img", "link", "iframe", "object", "base", "form", "image", "use"] {
        assert!(!elements.iter().any(|it| it == element), "{element}");
    }
    assert_eq!(elements.iter().filter(|it| *it == "polyline").count(), 2, "curves");
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && !STYLE.contains("</"));
    for text in [
        "qp::fails",
        "<script>alert(1)</script> & \"more\"",
        "it needs hca_cap.umr",
        "log2 of the largest number of QPs.",
        "on the DPU",
        "QUERY_HCA_VPORT_CONTEXT",
        "a2dc",
        "Machine of the peer",
        "these are numbers of the model",
        "ud_send_bw",
        "9110.50",
        "no <b>room</b>",
        "64 KiB",
    ] {
        assert!(texts.contains(text), "{text}");
    }
}

#[test]
fn every_text_of_a_report_stays_a_text() {
    const HOSTILE: &str = "\"'><script src=//x>&lt;\u{202e}\u{1b}</style></title>";
    let mut json: serde_json::Value =
        serde_json::from_str(&report("connectx6dx", None, true).json().unwrap()).unwrap();
    let mut changed = 0;
    spoil(&mut json, &mut |text| {
        // Bytes and names of enums cannot be anything.
        let fixed = text.bytes().all(|byte| byte.is_ascii_hexdigit())
            || ["host", "physical", "ethernet", "passed", "failed", "skipped", "blocked"]
                .contains(&&**text);
        if !fixed {
            *text = HOSTILE.into();
            changed += 1;
        }
    });
    assert!(changed > 50, "{changed}");
    let report = Report::parse(&json.to_string()).expect("the text is a report");
    let page = report.html();
    let (elements, texts) = parse(&page);
    assert!(!elements.iter().any(|it| it == "script"));
    assert_eq!(elements.iter().filter(|it| *it == "style" || *it == "title").count(), {
        let ticks = report.cases.iter().filter(|it| it.ran()).count();
        let points = report.performance.iter().filter(|it| it.error.is_none()).count();
        2 + ticks + points
    });
    assert!(!page.contains('\u{202e}') && !page.contains('\u{1b}'));
    assert!(texts.contains("\"'><script src=//x>&lt;\\u{202e}\\u{1b}</style></title>"));
}

/// Changes every string of a JSON value.
fn spoil(value: &mut serde_json::Value, change: &mut impl FnMut(&mut String)) {
    match value {
        serde_json::Value::String(text) => change(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|it| spoil(it, change)),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(|it| spoil(it, change)),
        _ => {}
    }
}

#[test]
fn page_shows_odd_numbers() {
    let mut report = report("connectx6vf", None, false);
    let case = |seconds| CaseResult {
        case: "odd".into(),
        outcome: Ending::Failed,
        reason: None,
        seconds,
        failed_commands: vec![
            CommandFailure {
                opcode: 0x50a,
                op_mod: u16::MAX,
                status: 255,
                syndrome: u32::MAX,
                errno: i32::MIN,
                input: serde_json::from_str::<Hex>("\"050a\"").unwrap(),
                output: serde_json::from_str::<Hex>("\"ff\"").unwrap(),
            };
            1
        ],
        kernel_log: vec!["mlx5_core 0000:08:00.0: <b>bold</b>".into()],
    };
    report.cases = [0.0, 1e300, 1e-300].map(case).to_vec();
    report.devices[0].pages[0].number = 0x3f;
    report.devices[0].queries[0].input = Hex::new(&[0xff, 0xff]);
    report.devices[0].queries[1].output = Hex::new(&[0xff; 0x2000]);
    let (_, texts) = parse(&report.html());
    assert!(texts.contains("page 0x3f") && texts.contains("does not know this page's layout"));
    for odd in [0.0, 1e-300, 1e15, f64::INFINITY, f64::NAN] {
        report.performance.iter_mut().filter_map(|it| it.bandwidth.as_mut()).for_each(|it| {
            it.average = odd;
        });
        parse(&report.html());
    }
    report.cases.clear();
    report.devices.clear();
    parse(&report.html());
}
