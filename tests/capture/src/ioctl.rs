//! The program's own `ioctl`, which every library that it loads calls: it makes the call, and
//! records the request to an RDMA device and the kernel's answer. The format is described in
//! `crates/devx/tests/data/recorded-requests.txt`.
#![allow(unsafe_code, reason = "it wraps the kernel's call for libraries; this module holds it")]

use std::ffi::{c_int, c_ulong, c_void};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbless_prm::IntoBytes;

use verbless_devx::abi::attr::{
    async_event_alloc, devx_async_cmd_fd_alloc, devx_async_event_fd_alloc, devx_obj_async_query,
    devx_subscribe_event, invoke_write, uhw,
};
use verbless_devx::abi::request::{DRIVER_NAMESPACE, INLINE_BYTES, RDMA_VERBS_IOCTL, VALID_OUTPUT};
use verbless_devx::abi::{Attribute, Header, Method, method};

/// The record and its current title; `None` while no record is made.
static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

#[derive(Default)]
struct Notes {
    title: String,
    text: String,
}

fn notes() -> MutexGuard<'static, Option<Notes>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the following requests a title, and begins to record.
pub(crate) fn title(title: &str) {
    notes().get_or_insert_default().title = title.to_owned();
}

/// Ends the record, and returns its text.
pub(crate) fn finish() -> String {
    notes().take().map_or(String::new(), |notes| notes.text)
}

/// `ioctl(2)`.
///
/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let call = || {
        // SAFETY: as the caller promises.
        unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
    };
    if request != c_ulong::from(RDMA_VERBS_IOCTL) || notes().is_none() {
        return call();
    }
    // SAFETY: the request begins with its header, which holds the number of attributes.
    let words = unsafe {
        let count = (*argument.cast::<Header>()).num_attrs;
        let words = (size_of::<Header>() + usize::from(count) * size_of::<Attribute>()) / 8;
        std::slice::from_raw_parts(argument.cast::<u64>(), words)
    };
    let mut before = words.to_vec();
    let result = call();
    let error = std::io::Error::last_os_error();
    if let Some(notes) = &mut *notes() {
        let title = notes.title.clone();
        if result == 0 {
            describe(&mut notes.text, &title, &mut before, &mut words.to_vec());
        } else {
            let header = Header::split(&mut before);
            let name = header.map_or(String::new(), |(header, _)| name_of(header.method()));
            let _ = writeln!(notes.text, "# [{name}] {title}: failed: {error}\n");
        }
    }
    // SAFETY: errno is this thread's; writing may have changed it.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(0) };
    result
}

/// A request as text: its input and its answer.
fn describe(text: &mut String, title: &str, before: &mut [u64], after: &mut [u64]) {
    let (Some((header, asked)), Some((_, answered))) =
        (Header::split(before), Header::split(after))
    else {
        return;
    };
    let method = header.method();
    let name = name_of(method);
    let _ = writeln!(text, "[{name}] {title}\n  {}", hex(header.as_bytes()));
    for (asked, answered) in asked.iter().zip(answered) {
        let _ = write!(text, "  {}", hex(&asked.as_bytes()[..8]));
        let data = hex(&asked.as_bytes()[8..]);
        let _ = if is_output(method, answered) {
            let answer = contents(answered);
            let zeros = answer.iter().rev().take_while(|&&byte| byte == 0).count();
            let answer = &answer[..(answer.len() - zeros).max(1)];
            writeln!(text, " *pointer* -> {}", hex(answer))
        } else if usize::from(asked.len) > INLINE_BYTES {
            writeln!(text, " *pointer* = {}", hex(&contents(asked)))
        } else if is_response(method, asked) {
            writeln!(text, " *pointer*")
        } else if is_fresh_file(method, asked.attr_id) {
            writeln!(text, " {data} -> fd {}", answered.data as i32)
        } else if is_file(method, asked.attr_id) {
            writeln!(text, " {data} fd")
        } else if asked.len == 0 && asked.data != answered.data {
            writeln!(text, " {data} -> handle {}", answered.data)
        } else {
            writeln!(text, " {data}")
        };
    }
    text.push('\n');
}

fn name_of(method: Method) -> String {
    match method.name() {
        "unknown method" => format!("{:#x} of {:#x}", method.method, method.object),
        name => name.to_owned(),
    }
}

/// Whether the inline data of an attribute is the address of a response, as older commands begin.
fn is_response(method: Method, asked: &Attribute) -> bool {
    method == method::INVOKE_WRITE && asked.attr_id == invoke_write::CORE_IN && asked.data != 0
}

/// Whether the kernel has written where the attribute points. The kernel does not flag this for the
/// driver's own data.
fn is_output(method: Method, answered: &Attribute) -> bool {
    let driver = method.object < DRIVER_NAMESPACE && answered.attr_id == uhw::OUT;
    answered.flags & VALID_OUTPUT != 0 || driver && answered.len > 0
}

fn is_fresh_file(of: Method, id: u16) -> bool {
    match of {
        method::ASYNC_EVENT_ALLOC => id == async_event_alloc::FD_HANDLE,
        method::DEVX_ASYNC_CMD_FD_ALLOC => id == devx_async_cmd_fd_alloc::HANDLE,
        method::DEVX_ASYNC_EVENT_FD_ALLOC => id == devx_async_event_fd_alloc::HANDLE,
        _ => false,
    }
}

fn is_file(of: Method, id: u16) -> bool {
    match of {
        method::DEVX_SUBSCRIBE_EVENT => id == devx_subscribe_event::FD_HANDLE,
        method::DEVX_OBJ_ASYNC_QUERY => id == devx_obj_async_query::FD,
        _ => false,
    }
}

/// The bytes that an attribute points to.
fn contents(attribute: &Attribute) -> Vec<u8> {
    let address = std::ptr::with_exposed_provenance::<u8>(attribute.data as usize);
    // SAFETY: the kernel has just read or written this many bytes there, and the library waits for
    // us.
    unsafe { std::slice::from_raw_parts(address, attribute.len.into()) }.to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
