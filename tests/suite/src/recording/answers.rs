//! Recorded answers in the requests of a replay.
//!
//! The driver relies on a kernel's answers when it frees memory and closes files, and a recording
//! is a stranger's: an answer that no kernel gives is found before anything follows from it.

use std::collections::HashSet;
use std::os::fd::IntoRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use verbless_devx::Errno;
use verbless_devx::abi::request::VALID_OUTPUT;
use verbless_devx::abi::{Attribute, Header as IoctlHeader, Method, method};

use super::attributes::{Kind, kind};
use super::compare::method_of;
use super::entry::Ioctl;
use super::replay::ReplayState;
use crate::own_memory;

/// Methods that end what has a new handle.
const DESTROYS: [Method; 5] = [
    method::DEVX_OBJ_DESTROY,
    method::DEVX_UMEM_DEREG,
    method::FLOW_MATCHER_DESTROY,
    method::FLOW_DESTROY,
    method::UAR_OBJ_DESTROY,
];

/// The handle that a request ends if it succeeds.
pub(super) fn destroyed(sent: &Ioctl) -> Option<u64> {
    let is_destroy = DESTROYS.contains(&method_of(sent));
    sent.attributes.iter().find_map(|attr| attr.handle).filter(|_| is_destroy)
}

/// Why no kernel gives such an answer of success: each new handle differs from the file's live
/// ones, and each new channel is there. A recording is a stranger's.
pub(super) fn impossible(
    state: &ReplayState,
    file: u32,
    recorded: &Ioctl,
    request: &mut [u64],
) -> Option<String> {
    let (header, attributes) = IoctlHeader::split(request).filter(|_| recorded.errno == 0)?;
    let method = header.method();
    let mut new = HashSet::new();
    attributes.iter().find_map(|attribute| {
        let id = attribute.attr_id;
        let answered = recorded.attributes.iter().find(|it| it.id == id);
        match kind(method, attribute) {
            Kind::NewHandle => match answered.and_then(|it| it.new_handle) {
                None => Some(format!("its recorded answer has no new handle in attribute {id:#x}")),
                Some(handle) => {
                    let live = state.handles.get(&file).is_some_and(|it| it.contains_key(&handle));
                    (live || !new.insert(handle)).then(|| {
                        format!("its recorded answer makes handle {handle}, which is in use")
                    })
                }
            },
            Kind::NewFile if answered.is_none_or(|it| it.new_channel.is_none()) => {
                Some(format!("its recorded answer has no new channel in attribute {id:#x}"))
            }
            _ => None,
        }
    })
}

/// A request of this run with what the recorded answer made.
pub(super) fn made(sent: &Ioctl, recorded: &Ioctl) -> Ioctl {
    let mut made = sent.clone();
    let method = method_of(sent);
    for attr in &mut made.attributes {
        if let Some(answered) = recorded.attributes.iter().find(|it| it.id == attr.id) {
            let attribute = Attribute { attr_id: attr.id, ..Attribute::default() };
            let is_new = kind(method, &attribute) == Kind::NewHandle;
            attr.new_handle = answered.new_handle.filter(|_| is_new);
            attr.output.clone_from(&answered.output);
        }
    }
    made
}

/// Writes the recorded answer into a request.
pub(super) fn answer(
    state: &mut ReplayState,
    recorded: &Ioctl,
    output: &[u8],
    request: &mut [u64],
) -> Result<(), Errno> {
    let Some((header, attributes)) = IoctlHeader::split(request) else { return Ok(()) };
    let method = header.method();
    for attribute in attributes {
        let Some(attr) = recorded.attributes.iter().find(|it| it.id == attribute.attr_id) else {
            continue;
        };
        if attr.filled {
            attribute.flags |= VALID_OUTPUT;
        }
        let empty = Vec::new();
        let bytes = match kind(method, attribute) {
            Kind::Output => attr.output.as_ref().map_or(&empty, |bytes| &bytes.0),
            Kind::OutputMailbox => output,
            // A call that fails makes nothing.
            Kind::NewHandle | Kind::NewFile if recorded.errno != 0 => continue,
            Kind::NewHandle => {
                attribute.data = attr.new_handle.unwrap_or(attribute.data);
                continue;
            }
            Kind::NewFile => {
                if let Some(number) = attr.new_channel {
                    let (ours, theirs) = socketpair(
                        AddressFamily::Unix,
                        SockType::SeqPacket,
                        None,
                        SockFlag::SOCK_CLOEXEC,
                    )?;
                    state.channels.push((number, ours));
                    attribute.data = theirs.into_raw_fd() as u64;
                    state.descriptors.insert(attribute.data, number);
                }
                continue;
            }
            _ => continue,
        };
        let end = bytes.len().min(attribute.len.into());
        if !own_memory::write(attribute.data, &bytes[..end]) {
            return Err(Errno::EFAULT);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use verbless_devx::abi::attr::{async_event_alloc, devx_umem_reg};

    use super::*;
    use crate::recording::entry::Attr;

    /// Whether an answer to a request with one attribute is impossible, and why.
    fn why(state: &ReplayState, method: Method, answered: Attr) -> Option<String> {
        let mut request = [&IoctlHeader::new(method, 1).words()[..], &[0; 2]].concat();
        let (_, attributes) = IoctlHeader::split(&mut request).expect("a request");
        attributes[0].attr_id = answered.id;
        let Method { object, method } = method;
        let attributes = vec![answered];
        let recorded = Ioctl { object, method, attributes, ..Ioctl::default() };
        impossible(state, 0, &recorded, &mut request)
    }

    #[test]
    fn channel_that_an_answer_lacks_is_no_descriptor_0() {
        let id = async_event_alloc::FD_HANDLE;
        let why = |attr| why(&ReplayState::default(), method::ASYNC_EVENT_ALLOC, attr);
        let lacks = why(Attr { id, ..Attr::default() }).expect("it has no channel");
        assert!(lacks.contains("no new channel"), "{lacks}");
        assert_eq!(why(Attr { id, new_channel: Some(0), ..Attr::default() }), None);
    }

    #[test]
    fn handle_is_new_in_its_file() {
        let (id, mut state) = (devx_umem_reg::HANDLE, ReplayState::default());
        let registered = |handle| Attr { id, new_handle: handle, ..Attr::default() };
        let registers = method::DEVX_UMEM_REG;
        let object = registers.object;
        assert!(why(&state, registers, registered(None)).is_some());
        state.handles.entry(1).or_default().insert(7, object);
        assert_eq!(why(&state, registers, registered(Some(7))), None, "of another file");
        state.handles.entry(0).or_default().insert(7, object);
        assert!(why(&state, registers, registered(Some(7))).is_some());
    }

    #[test]
    fn handle_of_another_attribute_makes_nothing() {
        let attr = |id, new_handle| Attr { id, new_handle, ..Attr::default() };
        let Method { object, method } = method::DEVX_UMEM_REG;
        let ioctl = |attributes| Ioctl { object, method, attributes, ..Ioctl::default() };
        let ids = [devx_umem_reg::LEN, devx_umem_reg::HANDLE];
        let sent = ioctl(ids.map(|id| attr(id, None)).into());
        let made = made(&sent, &ioctl(vec![attr(ids[0], Some(3)), attr(ids[1], Some(4))]));
        let handles: Vec<_> = made.attributes.iter().map(|attr| attr.new_handle).collect();
        assert_eq!(handles, [None, Some(4)]);
    }
}
