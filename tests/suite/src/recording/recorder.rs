//! The backend that records what passes through it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_devx::abi::request::{INLINE_BYTES, MANDATORY, VALID_OUTPUT};
use verbless_devx::abi::{Attribute, Header as IoctlHeader, attr, method};
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, OpenFwctl, Protection, RepresentorInfo,
};
use zerocopy::IntoBytes;

use super::attributes::{Kind, kind};
use super::bytes::Bytes;
use super::compare::method_of;
use super::entry::{Attr, Control, Entry, Event, Ioctl, Mailbox, Map, OPEN_ERRORS, Open, Unseen};
use super::rings::{Rings, watch};
use super::writer::Section;
use crate::own_memory;

/// A backend whose devices record every request, its answer and every mapping.
pub(crate) struct RecordingBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) section: Arc<Section>,
}

impl Backend for RecordingBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn find(&self, name: &str) -> Result<DeviceInfo, Error> {
        self.backend.find(name)
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.backend.representors(device)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let name = device.name.clone();
        match self.backend.open(device) {
            Ok(device) => {
                let file = self.section.next_file();
                let kind = String::new();
                let open = Open { file: Some(file), device: name, kind, error: None };
                self.section.add(Entry::Open(open));
                let section = self.section.clone();
                let rings = Rings::new(Some(section.clone()), file);
                let rings = Arc::new(Mutex::new(rings));
                let (channels, queries) = Default::default();
                Ok(Arc::new(RecordedDevice { device, section, file, channels, queries, rings }))
            }
            Err(error) => {
                let kind = OPEN_ERRORS.iter().find(|(kind, _)| *kind == error.kind());
                let kind = kind.unwrap_or(&OPEN_ERRORS[0]).1.to_owned();
                let why = Some(error.to_string());
                self.section.add(Entry::Open(Open { file: None, device: name, kind, error: why }));
                Err(error)
            }
        }
    }
}

/// An open device of a [`RecordingBackend`].
struct RecordedDevice {
    device: Arc<dyn OpenDevice>,
    section: Arc<Section>,
    file: u32,
    /// The numbers of channels by descriptor. A descriptor is used again after it is closed: the
    /// newest channel has it.
    channels: Mutex<HashMap<u64, u32>>,
    /// The commands of asynchronous queries that have no answer yet, by channel and `wr_id`.
    queries: Mutex<HashMap<(i64, u64), Vec<u8>>>,
    rings: Arc<Mutex<Rings>>,
}

impl Drop for RecordedDevice {
    fn drop(&mut self) {
        self.rings().look();
    }
}

#[allow(unsafe_code, reason = "the trait's method is unsafe to call; it forwards the promise")]
// SAFETY: requests and answers are those of the device inside; it only reads where they point.
unsafe impl OpenDevice for RecordedDevice {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        // What was posted and completed before it.
        self.rings().look();
        let mut noted = self.before(request);
        if method_of(&noted.ioctl) == method::DEVX_OBJ_ASYNC_QUERY {
            // Before the request: another thread may read the answer at once.
            self.note_query(&noted);
        }
        // SAFETY: as the caller promises.
        let result = unsafe { self.device.ioctl(request) };
        // What completed before a queue was reset or destroyed: its driver then retires the CQEs.
        self.rings().look_after_request();
        self.after(&mut noted, request, result);
        noted.ioctl.errno = result.err().map_or(0, |errno| errno as i32);
        if result.is_ok() {
            self.follow(&noted);
        }
        match noted.input {
            Some(input) => self.section.add_command(noted.ioctl, input, noted.output),
            None => self.section.add(Entry::Ioctl(noted.ioctl)),
        }
        result
    }

    fn page_size(&self) -> usize {
        self.device.page_size()
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        let mapping = self.device.mmap(offset, length, protection);
        self.section.add(Entry::Map(Map {
            file: self.file,
            offset,
            length: length as u64,
            errno: mapping.as_ref().err().map_or(0, |&errno| errno as i32),
        }));
        mapping
    }

    fn read_channel(&self, channel: BorrowedFd<'_>, record: &mut [u8]) -> Result<usize, Errno> {
        let read = self.device.read_channel(channel, record);
        if let Ok(number) = u32::try_from(self.channel(channel.as_raw_fd() as u64)) {
            match read {
                Ok(0) | Err(Errno::EOVERFLOW) => self.section.add(Entry::Unseen(Unseen {
                    file: self.file,
                    queue: "channel".into(),
                    number,
                    count: 0,
                    why: "the channel ended, or lost events".into(),
                })),
                Ok(length) => self.read_event(number, &record[..length.min(record.len())]),
                Err(_) => {}
            }
        }
        read
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        let control = self.device.open_fwctl();
        let found = !matches!(control, Ok(None));
        self.section.add(Entry::Control(Control { file: self.file, found }));
        control
    }
}

/// A request, as far as it is known.
struct Noted {
    ioctl: Ioctl,
    /// The input mailbox of its command.
    input: Option<Vec<u8>>,
    output: Vec<u8>,
}

impl RecordedDevice {
    /// What a request asks.
    fn before(&self, request: &mut [u64]) -> Noted {
        let (ioctl, input) =
            note_request(self.file, request, |descriptor| self.channel(descriptor));
        let ioctl = Ioctl { thread: self.section.thread(), ..ioctl };
        Noted { ioctl, input, output: Vec::new() }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what was read from a channel, after the WQEs and CQEs before it.
    fn read_event(&self, channel: u32, record: &[u8]) {
        let mut rings = self.rings();
        rings.look();
        let arm = rings.arm_of(channel, record);
        let id = record.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(input), Some(output)) =
            (queries.remove(&(channel.into(), id)), record.get(size_of::<u64>()..))
        {
            self.section.learn_answer(&input, output);
        }
        let bytes = Bytes(record.to_vec());
        self.section.add(Entry::Event(Event { file: self.file, channel, bytes, arm }));
    }

    /// Notes a query that will be answered through a channel.
    fn note_query(&self, noted: &Noted) {
        use attr::devx_obj_async_query::{FD, WR_ID};
        let of = |id| noted.ioctl.attributes.iter().find(|attr| attr.id == id);
        let id = of(WR_ID).and_then(|attr| attr.input.as_ref());
        let id = id.and_then(|bytes| bytes.0.first_chunk()).map(|it| u64::from_ne_bytes(*it));
        let channel = of(FD).and_then(|attr| attr.channel);
        if let (Some(id), Some(channel), Some(input)) = (id, channel, &noted.input) {
            let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
            queries.insert((channel, id), input.clone());
        }
    }

    /// Follows the queues of the device.
    fn follow(&self, noted: &Noted) {
        let input = noted.input.as_deref().unwrap_or_default();
        let first = self.rings().follow(&noted.ioctl, input, &noted.output);
        if first {
            watch(&self.rings);
        }
    }

    /// The number of a channel; -1 for any other file.
    fn channel(&self, descriptor: u64) -> i64 {
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.get(&descriptor).map_or(-1, |&number| number.into())
    }

    /// Adds what the answer says.
    fn after(&self, noted: &mut Noted, request: &mut [u64], result: Result<(), Errno>) {
        let Some((header, attributes)) = IoctlHeader::split(request) else { return };
        let method = header.method();
        for (attribute, attr) in attributes.iter().zip(&mut noted.ioctl.attributes) {
            let kind = kind(method, attribute);
            attr.filled = attribute.flags & VALID_OUTPUT != 0;
            // A refused command has an output, whatever the flag says.
            let refused = result == Err(Errno::EREMOTEIO) && kind == Kind::OutputMailbox;
            // A new handle or file is written without the flag.
            let is_new = result.is_ok() && matches!(kind, Kind::NewHandle | Kind::NewFile);
            if !attr.filled && !refused && !is_new {
                continue;
            }
            let bytes = || own_memory::read(attribute.data, attribute.len.into());
            match kind {
                Kind::Output => attr.output = Some(Bytes(bytes())),
                Kind::OutputMailbox => noted.output = bytes(),
                Kind::NewHandle => attr.new_handle = Some(attribute.data),
                Kind::NewFile => {
                    let number = self.section.next_channel();
                    attr.new_channel = Some(number);
                    let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
                    channels.insert(attribute.data, number);
                }
                _ => {}
            }
        }
    }
}

/// What a request asks, and the input mailbox of its command. `channel` numbers the descriptors of
/// channels.
pub(super) fn note_request(
    file: u32,
    request: &mut [u64],
    channel: impl Fn(u64) -> i64,
) -> (Ioctl, Option<Vec<u8>>) {
    let Some((header, attributes)) = IoctlHeader::split(request) else {
        let ioctl = Ioctl { file, well_formed: false, ..Ioctl::default() };
        return (ioctl, None);
    };
    let method = header.method();
    let usual = IoctlHeader::new(method, header.num_attrs);
    let name = method.name();
    let mut ioctl = Ioctl {
        file,
        name: if name.contains(' ') { String::new() } else { name.into() },
        object: method.object,
        method: method.method,
        well_formed: true,
        odd_header: (*header != usual).then(|| Bytes(header.as_bytes().to_vec())),
        ..Ioctl::default()
    };
    let mut input = None;
    for attribute in attributes.iter() {
        let kind = kind(method, attribute);
        let mut attr = Attr {
            id: attribute.attr_id,
            flags: (attribute.flags != MANDATORY).then_some(attribute.flags),
            element: u16::from_le_bytes([attribute.elem_id, attribute.reserved]),
            ..Attr::default()
        };
        match kind {
            Kind::Input => attr.input = Some(Bytes(input_bytes(attribute))),
            Kind::InputMailbox => {
                input = Some(own_memory::read(attribute.data, attribute.len.into()));
                (attr.mailbox, attr.room) = (Some(Mailbox::Input), attribute.len);
            }
            Kind::Address | Kind::OfAddress => attr.address = Some(attribute.data),
            Kind::Output => attr.room = attribute.len,
            Kind::OutputMailbox => {
                (attr.mailbox, attr.room) = (Some(Mailbox::Output), attribute.len);
            }
            Kind::Handle => attr.handle = Some(attribute.data),
            Kind::File => attr.channel = Some(channel(attribute.data)),
            Kind::OwnFile => attr.channel = Some(-1),
            Kind::NewHandle | Kind::NewFile => {}
        }
        ioctl.attributes.push(attr);
    }
    (ioctl, input)
}

/// The bytes of an input: in the attribute itself, or where it points.
fn input_bytes(attribute: &Attribute) -> Vec<u8> {
    let len = usize::from(attribute.len);
    match len <= INLINE_BYTES {
        true => attribute.data.to_ne_bytes()[..len].to_vec(),
        false => own_memory::read(attribute.data, len),
    }
}
