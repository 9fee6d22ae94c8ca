//! Ioctls of a device: copied once, answered by the modelled kernel.

use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::answer::{Answer, Answerer, thread};
use super::process;
use super::sys::Notification;
use super::trace;
use crate::uverbs::{Client, PAGE, describe};

/// RDMA_VERBS_IOCTL: the one ioctl that uverbs devices have.
const VERBS: u32 = 0xc018_1b01;
/// Bytes of an ioctl's header.
const HEADER: usize = 24;

impl Answerer {
    pub(super) fn ioctl(&self, call: &Notification) -> Answer {
        let [descriptor, request, argument, ..] = call.arguments;
        let open = process::identify(call.tid, descriptor as i32)
            .ok()
            .and_then(|id| self.room.opens().get(id));
        let Some(open) = open else { return Answer::Kernel };
        if request as u32 != VERBS {
            return Errno::ENOTTY.into();
        }
        let result = self.caller(call).and_then(|caller| {
            let mut words = read_request(thread(call), argument)?;
            if !self.gate.is_waiting(call.id) {
                return Err(Errno::EINTR);
            }
            let before = words.clone();
            let client: Arc<dyn Client> = Arc::new(caller);
            let result = open.file.ioctl(&client, &mut words);
            if self.room.printing {
                let words = describe(&before, &words, &*client);
                eprintln!("{}", trace::ioctl(call.tid, open.number, &words, &result));
            }
            for (index, (old, new)) in before.iter().zip(&words).enumerate() {
                if old != new {
                    let at = argument.wrapping_add(8 * index as u64);
                    client.write(at, &new.to_ne_bytes())?;
                }
            }
            result
        });
        Answer::Ours(result.map(|()| 0))
    }
}

/// The header and the attributes of an ioctl, copied once.
fn read_request(thread: Pid, address: u64) -> Result<Vec<u64>, Errno> {
    let mut header = [0; HEADER];
    process::read(thread, address, &mut header).map_err(|_| Errno::EFAULT)?;
    let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
    if length as u64 > PAGE || length < HEADER || !length.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; length];
    bytes[..HEADER].copy_from_slice(&header);
    let rest = &mut bytes[HEADER..];
    if !rest.is_empty() {
        process::read(thread, address.wrapping_add(HEADER as u64), rest)
            .map_err(|_| Errno::EFAULT)?;
    }
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(8).map(word).collect())
}
