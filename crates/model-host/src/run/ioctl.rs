//! Ioctls of a device: copied once, then executed by the modelled kernel.

use std::sync::Arc;

use nix::errno::Errno;

use super::answer::{Answer, Answerer};
use super::open::{OpenFile, ServedFile};
use super::sys::Notification;
use super::trace;
use verbless_model_kernel::remote::{
    Client, DeviceFile, FwctlFile, HEADER_WORDS, IoctlDescription, describe, fwctl_request,
    ioctl_length, log_refusal,
};

/// RDMA_VERBS_IOCTL, the only ioctl of uverbs devices.
const VERBS: u32 = 0xc018_1b01;

impl Answerer {
    pub(super) fn ioctl(&self, call: &Notification) -> Answer {
        let [descriptor, request, argument, ..] = call.arguments;
        let Some(open) = self.opened(call, descriptor) else { return Answer::Kernel };
        let result = match &open.file {
            ServedFile::Verbs(_) if request as u32 != VERBS => Err(Errno::ENOTTY),
            ServedFile::Verbs(file) => self.verbs(call, argument, &open, file),
            ServedFile::Fwctl(file) => self.control(call, request as u32, argument, &open, file),
        };
        Answer::Ours(result.map(|()| 0))
    }

    fn control(
        &self,
        call: &Notification,
        request: u32,
        argument: u64,
        open: &OpenFile,
        file: &FwctlFile,
    ) -> Result<(), Errno> {
        let caller = self.caller(call)?;
        let result = open.calls.alone(|| file.ioctl(&caller, request, argument));
        if let Some(lines) = &self.shared.printed {
            let words =
                IoctlDescription { name: fwctl_request(request), ..IoctlDescription::default() };
            lines.print(&trace::ioctl(call.tid, &open.node.name(), &words, &result));
        }
        result
    }

    fn verbs(
        &self,
        call: &Notification,
        argument: u64,
        open: &OpenFile,
        file: &DeviceFile,
    ) -> Result<(), Errno> {
        self.caller(call).and_then(|caller| {
            let mut words = self.read_request(&caller, call, argument)?;
            let before = words.clone();
            let client: Arc<dyn Client> = Arc::new(caller);
            let result = open.calls.alone(|| file.ioctl(&client, &mut words));
            if let Some(lines) = &self.shared.printed {
                let words = describe(&before, &words, &*client);
                lines.print(&trace::ioctl(call.tid, &open.node.name(), &words, &result));
            }
            for (index, (old, new)) in before.iter().zip(&words).enumerate() {
                if old != new {
                    let at = argument.wrapping_add(8 * index as u64);
                    client.write(at, &new.to_ne_bytes())?;
                }
            }
            result
        })
    }

    /// Copies the header and the attributes of an ioctl once. Only the copy is checked and
    /// executed.
    fn read_request(
        &self,
        client: &dyn Client,
        call: &Notification,
        address: u64,
    ) -> Result<Vec<u64>, Errno> {
        let mut words = vec![0; HEADER_WORDS];
        self.read_words(call, address, &mut words)?;
        let length = ioctl_length(words.first_chunk().ok_or(Errno::EFAULT)?)
            .inspect_err(|&errno| log_refusal(client, &words, errno))?;
        words.resize(length / 8, 0);
        let rest = address.wrapping_add(8 * HEADER_WORDS as u64);
        self.read_words(call, rest, &mut words[HEADER_WORDS..])?;
        Ok(words)
    }

    fn read_words(
        &self,
        call: &Notification,
        address: u64,
        words: &mut [u64],
    ) -> Result<(), Errno> {
        let mut bytes = vec![0; 8 * words.len()];
        if !bytes.is_empty() {
            self.read(call, address, &mut bytes).map_err(|errno| match errno {
                Errno::EINTR => Errno::EINTR,
                _ => Errno::EFAULT,
            })?;
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }
}
