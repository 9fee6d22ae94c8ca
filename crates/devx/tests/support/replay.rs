//! A device that compares every request with a script of recorded ones and returns the recorded
//! answers.
#![allow(unsafe_code, reason = "a fake kernel reads and writes where requests point")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;
use zerocopy::IntoBytes;

use nix::sys::memfd::{MFdFlags, memfd_create};

use verbless_devx::abi::request::VALID_OUTPUT;
use verbless_devx::abi::{Attribute, Header};
use verbless_devx::{Errno, Mapping, OpenDevice, Protection};

use super::pair;

/// A request of the script. The format is described in `data/recorded-requests.txt`.
#[derive(Debug)]
struct Scripted {
    title: String,
    header: String,
    attributes: Vec<ScriptedAttribute>,
}

#[derive(Debug)]
struct ScriptedAttribute {
    head: String,
    data: String,
    is_file: bool,
    payload: Option<String>,
    answer: Option<String>,
}

fn parse(script: &str) -> VecDeque<Scripted> {
    let mut requests = VecDeque::new();
    for line in script.lines() {
        if line.starts_with('[') {
            let (title, header) = (line.to_owned(), String::new());
            requests.push_back(Scripted { title, header, attributes: Vec::new() });
        } else if let Some(text) = line.strip_prefix("  ") {
            let request = requests.back_mut().expect("a title first");
            let text = text.split('#').next().unwrap_or_default().trim();
            let (text, answer) = cut(text, "->");
            let (text, payload) = cut(text, "=");
            let mut words = text.split_whitespace().map(str::to_owned);
            let head = words.next().expect("a header or an attribute");
            match words.next() {
                None => request.header = head,
                Some(data) => {
                    let is_file = words.next().is_some();
                    request.attributes.push(ScriptedAttribute {
                        head,
                        data,
                        is_file,
                        payload,
                        answer,
                    });
                }
            }
        }
    }
    requests
}

fn cut<'a>(text: &'a str, mark: &str) -> (&'a str, Option<String>) {
    match text.split_once(mark) {
        Some((text, rest)) => (text, Some(rest.trim().to_owned())),
        None => (text, None),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..][..2], 16).unwrap()).collect()
}

/// Whether text matches a pattern in which `p` is any digit, and one `...` any run.
fn matches(pattern: &str, text: &str) -> bool {
    let same = |pattern: &str, text: &str| {
        pattern.len() == text.len()
            && pattern.bytes().zip(text.bytes()).all(|(p, t)| p == b'p' || p == t)
    };
    match pattern.split_once("...") {
        None => same(pattern, text),
        Some((start, end)) => {
            text.len() >= start.len() + end.len()
                && same(start, &text[..start.len()])
                && same(end, &text[text.len() - end.len()..])
        }
    }
}

/// The device. Requests after the end of the script succeed and are listed.
pub(crate) struct Replay {
    state: Mutex<ScriptState>,
}

struct ScriptState {
    script: VecDeque<Scripted>,
    /// Recorded file number to ours.
    files: HashMap<u64, i32>,
    /// Our ends of the files that were handed out.
    ends: Vec<OwnedFd>,
    after: Vec<String>,
}

impl Replay {
    pub(crate) fn new(script: &str) -> Self {
        let (files, ends, after) = (HashMap::new(), Vec::new(), Vec::new());
        Self { state: Mutex::new(ScriptState { script: parse(script), files, ends, after }) }
    }

    /// Maps the script's file `recorded` to `file`.
    pub(crate) fn map_file(&self, recorded: u64, file: &impl AsRawFd) {
        self.state.lock().unwrap().files.insert(recorded, file.as_raw_fd());
    }

    /// Titles of the requests not sent yet.
    pub(crate) fn left(&self) -> Vec<String> {
        self.state.lock().unwrap().script.iter().map(|request| request.title.clone()).collect()
    }

    /// Requests after the end of the script, in hex.
    pub(crate) fn after(&self) -> Vec<String> {
        self.state.lock().unwrap().after.clone()
    }
}

// SAFETY: it writes recorded outputs to the request's buffers, and each descriptor is a new file.
unsafe impl OpenDevice for Replay {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        if std::thread::panicking() {
            return Ok(());
        }
        let mut state = self.state.lock().unwrap();
        let Some(expected) = state.script.pop_front() else {
            state.after.push(hex(request.as_bytes()));
            return Ok(());
        };
        let title = &expected.title;
        let (header, attributes) = Header::split(request).expect("lengths that agree");
        assert_eq!(hex(header.as_bytes()), expected.header, "header of {title}");
        assert_eq!(attributes.len(), expected.attributes.len(), "attributes of {title}");
        for (at, (attribute, expected)) in
            attributes.iter_mut().zip(&expected.attributes).enumerate()
        {
            assert_eq!(hex(&attribute.as_bytes()[..8]), expected.head, "attribute {at} of {title}");
            let data = hex(&attribute.as_bytes()[8..]);
            if expected.is_file {
                let recorded = u64::from_le_bytes(unhex(&expected.data).try_into().unwrap());
                let ours = *state.files.get(&recorded).expect("a file that was handed out");
                assert_eq!(attribute.data, i64::from(ours).cast_unsigned(), "file of {title}");
            } else if expected.data != "*pointer*" {
                assert_eq!(data, expected.data, "data of attribute {at} of {title}");
            } else {
                assert_ne!(attribute.data, 0, "pointer of attribute {at} of {title}");
            }
            if let Some(payload) = &expected.payload {
                // SAFETY: the caller promises readable bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts(attribute.data as *const u8, attribute.len.into())
                };
                let payload = payload.replace(' ', "");
                assert!(
                    matches(&payload, &hex(bytes)),
                    "payload of attribute {at} of {title}: {}",
                    hex(bytes)
                );
            }
            if let Some(answer) = &expected.answer {
                answer_with(&mut state, attribute, answer);
            }
        }
        Ok(())
    }

    fn page_size(&self) -> usize {
        verbless_devx::page_size()
    }

    fn mmap(&self, _: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        let file = memfd_create(c"uar", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&file, length as i64)?;
        Mapping::shared(file.as_fd(), 0, length, protection)
    }
}

fn answer_with(state: &mut ScriptState, attribute: &mut Attribute, answer: &str) {
    if let Some(handle) = answer.strip_prefix("handle ") {
        attribute.data = handle.parse().unwrap();
    } else if let Some(file) = answer.strip_prefix("fd ") {
        let (ours, theirs) = pair();
        state.files.insert(file.parse().unwrap(), theirs.as_raw_fd());
        attribute.data = theirs.into_raw_fd() as u64;
        state.ends.push(ours);
    } else {
        let bytes = unhex(answer);
        // SAFETY: the caller promises writable bytes.
        let buffer = unsafe {
            std::slice::from_raw_parts_mut(attribute.data as *mut u8, attribute.len.into())
        };
        buffer.fill(0);
        buffer[..bytes.len()].copy_from_slice(&bytes);
        attribute.flags |= VALID_OUTPUT;
    }
}
