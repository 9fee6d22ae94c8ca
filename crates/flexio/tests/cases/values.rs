//! Numbers of states, and errors of file readers, with their texts and sources.

use std::error::Error;
use std::io;

use verbless_flexio::stream::report::ReportError;
use verbless_flexio::tracer::trace_file::FileError;
use verbless_flexio::{Function, QpState};

#[test]
fn qp_state_has_device_number() {
    let states = [
        (QpState::Rst, 0),
        (QpState::Init, 1),
        (QpState::Rtr, 2),
        (QpState::Rts, 3),
        (QpState::Err, 6),
        (QpState::Other(4), 4),
    ];
    for (state, number) in states {
        assert_eq!(state.number(), number, "{state:?}");
    }
}

#[test]
fn report_and_trace_errors_have_text_and_source() {
    let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
    for (error, expected) in [
        (ReportError::NotAReport, "not a report of a message"),
        (ReportError::Version(9), "version 9"),
        (ReportError::Truncated, "ends within a report"),
        (ReportError::Field("level"), "invalid level"),
    ] {
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.source().is_none(), "{error}");
    }
    assert!(ReportError::Io(broken()).source().is_some());
    for (error, expected) in [
        (FileError::NotATrace, "not a trace file"),
        (FileError::Version(9, 8), "version 9 and records of 8 bytes"),
        (FileError::Truncated(7), "within record 7"),
        (FileError::Number(6), "record 6 has no number"),
    ] {
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.source().is_none(), "{error}");
    }
    assert!(FileError::Io(broken()).source().is_some());
}

#[test]
fn function_shows_its_signature() {
    let function = Function::<(u64, u32), u64>::embedded("add(u64,u32)->u64");
    assert_eq!(format!("{function:?}"), "add(u64,u32)->u64");
    assert_eq!((function.name(), function.signature()), ("add", "add(u64,u32)->u64"));
}
