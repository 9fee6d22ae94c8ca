//! Parses an ioctl's buffer as Linux's `drivers/infiniband/core/uverbs_ioctl.c` does, and writes
//! its outputs.
//!
//! A buffer is a header of 24 bytes and 16 bytes per attribute. [`Request::parse`] checks the
//! header and finds the method; [`Attrs`] checks each attribute against its description in
//! [`super::abi`] and holds it. The caller looks handles up, in the client's order.

use nix::errno::Errno;

use super::abi::{self, AttrKind, MethodSpec, methods};
use super::client::Client;
use super::page::PAGE;
use super::refused::refused;
use super::release::KernelRelease;
use super::unmodelled;

/// Words of the header: length, ids and count; reserved; driver id and reserved.
pub const HEADER_WORDS: usize = 3;
/// Words of an attribute: id, length, flags and the last two bytes; data.
const ATTR_WORDS: usize = 2;

/// An attribute in the client's layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawAttr {
    pub id: u16,
    pub len: u16,
    pub flags: u16,
    /// Element id and reserved byte: zero in every kind of attribute here.
    pub reserved: u16,
    pub data: u64,
}

/// A request with a valid header.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub method: &'static MethodSpec,
    words: &'a mut [u64],
}

impl<'a> Request<'a> {
    /// Checks the header. `words` is the client's buffer; results are written into the same buffer.
    pub(super) fn parse(words: &'a mut [u64]) -> Result<Self, Errno> {
        let header = words.first_chunk().ok_or(Errno::EFAULT)?;
        let (expected, method) = check_header(header)?;
        let words = words.get_mut(..expected / 8).ok_or(Errno::EFAULT)?;
        Ok(Self { method, words })
    }

    /// Number of attributes.
    pub(super) fn len(&self) -> usize {
        (self.words.len() - HEADER_WORDS) / ATTR_WORDS
    }

    /// Attribute number `index` of the buffer, unchecked.
    pub(super) fn raw(&self, index: usize) -> RawAttr {
        let at = HEADER_WORDS + ATTR_WORDS * index;
        let [id, len, flags, reserved] = halves(self.words[at]);
        RawAttr { id, len, flags, reserved, data: self.words[at + 1] }
    }

    /// Writes the data word of an attribute: a new handle.
    pub(super) fn set_data(&mut self, index: usize, data: u64) {
        self.words[HEADER_WORDS + ATTR_WORDS * index + 1] = data;
    }

    /// Marks an output as written.
    pub(super) fn set_output(&mut self, index: usize) {
        self.words[HEADER_WORDS + ATTR_WORDS * index] |= u64::from(abi::VALID_OUTPUT) << 32;
    }
}

/// The length in bytes of the request after a header, if the header is valid.
pub fn length(header: &[u64; HEADER_WORDS]) -> Result<usize, Errno> {
    check_header(header).map(|(length, _)| length)
}

/// The length of a request and its method, from its header.
fn check_header(header: &[u64; HEADER_WORDS]) -> Result<(usize, &'static MethodSpec), Errno> {
    let &[ids, reserved1, driver] = header;
    let [length, object, method, count] = halves(ids);
    let expected = (HEADER_WORDS + ATTR_WORDS * usize::from(count)) * 8;
    if u64::from(length) > PAGE || usize::from(length) != expected {
        let words = format!(
            "length {length} of the header is not {expected}, which {count} attributes need, or \
             more than a page"
        );
        return Err(refused(Errno::EINVAL, words));
    }
    if reserved1 != 0 || driver >> 32 != 0 {
        return Err(refused(Errno::EPROTONOSUPPORT, "reserved fields of the header are not 0"));
    }
    if driver as u32 != abi::DRIVER_ID {
        let words = format!("driver_id {} of the header is not mlx5's", driver as u32);
        return Err(refused(Errno::EINVAL, words));
    }
    let known = methods().find(|known| (known.object, known.id) == (object, method));
    Ok((expected, known.ok_or_else(|| unmodelled::method(object, method))?))
}

/// The method that a header names, and the attributes one by one.
pub(super) fn method_and_attributes(
    words: &[u64],
) -> (Option<&'static MethodSpec>, impl Iterator<Item = RawAttr> + '_) {
    let [_, object, method, _] = halves(words.first().copied().unwrap_or_default());
    let known = methods().find(|known| (known.object, known.id) == (object, method));
    let attributes = words.get(HEADER_WORDS..).unwrap_or_default().chunks_exact(ATTR_WORDS);
    let raw = |words: &[u64]| {
        let [id, len, flags, reserved] = halves(words[0]);
        RawAttr { id, len, flags, reserved, data: words[1] }
    };
    (known, attributes.map(raw))
}

/// The four 16-bit fields of a word, lowest address first (the ABI is in the CPU's byte order).
fn halves(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

/// An attribute that matched its description.
#[derive(Debug)]
struct Attr {
    id: u16,
    index: usize,
    len: u16,
    data: u64,
    /// The data at the client's pointer, if it is read before the method runs.
    copy: Option<Vec<u8>>,
}

/// The action on an attribute before the next one is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// None: the attribute is unknown and not mandatory, or plain data.
    Go,
    /// Find or make the object that the attribute names.
    Resolve { id: u16, object: u16, access: abi::Access, fd: bool, data: u64 },
}

/// The attributes of one call, and access to the client's memory.
pub(super) struct Attrs<'a> {
    pub request: Request<'a>,
    pub client: &'a dyn Client,
    release: KernelRelease,
    present: Vec<Attr>,
}

impl<'a> Attrs<'a> {
    pub(super) fn new(
        request: Request<'a>,
        client: &'a dyn Client,
        release: KernelRelease,
    ) -> Self {
        Self { request, client, release, present: Vec::new() }
    }

    /// Reads attribute `index`: checks it against its description, and copies its data if the
    /// method needs that before it runs.
    pub(super) fn accept(&mut self, index: usize) -> Result<Next, Errno> {
        let raw = self.request.raw(index);
        let method = self.request.method;
        let exists = method.call != abi::Call::UmemReg || self.release.has_umem_attribute(raw.id);
        let known = method.attrs.iter().find(|spec| exists && spec.id == raw.id);
        let Some(spec) = known else {
            if raw.flags & abi::MANDATORY == 0 {
                return Ok(Next::Go);
            }
            let words = format!("this method has no mandatory {}", named(raw.id));
            return Err(refused(Errno::EPROTONOSUPPORT, words));
        };
        if self.get(raw.id).is_some() {
            return Err(refused(Errno::EINVAL, format!("{} occurs twice", named(raw.id))));
        }
        let mut copy = None;
        let mut next = Next::Go;
        match spec.kind {
            AttrKind::In { min, len, zero_tail, copied } => {
                if zero_tail && raw.len > len && !self.is_clear(raw, len) {
                    let words =
                        format!("{} has nonzero bytes after the {len} known ones", named(raw.id));
                    return Err(refused(Errno::EOPNOTSUPP, words));
                }
                check_length(raw, min, len, zero_tail)?;
                if copied && raw.len > 8 {
                    let mut bytes = vec![0; usize::from(raw.len)];
                    self.client.read(raw.data, &mut bytes)?;
                    copy = Some(bytes);
                }
            }
            AttrKind::Out { min, len, zero_tail } => check_length(raw, min, len, zero_tail)?,
            AttrKind::Handle { object, access } | AttrKind::Fd { object, access } => {
                if raw.reserved != 0 || raw.len != 0 {
                    return Err(no_bytes(raw));
                }
                let fd = matches!(spec.kind, AttrKind::Fd { .. });
                next = Next::Resolve { id: raw.id, object, access, fd, data: raw.data };
            }
            AttrKind::RawFd => {
                if raw.reserved != 0 || raw.len != 0 {
                    return Err(no_bytes(raw));
                }
                if i32::try_from(raw.data as i64).is_err() {
                    let words = format!("{} is no descriptor: {:#x}", named(raw.id), raw.data);
                    return Err(refused(Errno::EINVAL, words));
                }
            }
        }
        self.present.push(Attr { id: raw.id, index, len: raw.len, data: raw.data, copy });
        Ok(next)
    }

    /// Whether the bytes past `len` of an input are zero.
    fn is_clear(&self, raw: RawAttr, len: u16) -> bool {
        let mut bytes = vec![0; usize::from(raw.len - len)];
        if raw.len <= 8 {
            bytes.copy_from_slice(&raw.data.to_ne_bytes()[usize::from(len)..usize::from(raw.len)]);
        } else if self.client.read(raw.data.wrapping_add(u64::from(len)), &mut bytes).is_err() {
            return false;
        }
        bytes.iter().all(|&byte| byte == 0)
    }

    /// Checks that every mandatory attribute is present.
    pub(super) fn check_mandatory(&self) -> Result<(), Errno> {
        let missing = |spec: &&abi::AttrSpec| spec.mandatory && self.get(spec.id).is_none();
        match self.request.method.attrs.iter().find(missing) {
            Some(spec) => Err(refused(Errno::EINVAL, format!("{} is missing", named(spec.id)))),
            None => Ok(()),
        }
    }

    fn get(&self, id: u16) -> Option<&Attr> {
        self.present.iter().find(|attr| attr.id == id)
    }

    /// Whether an optional attribute is present.
    pub(super) fn has(&self, id: u16) -> bool {
        self.get(id).is_some()
    }

    /// An attribute's length in bytes; ENOENT if it is not present.
    pub(super) fn len(&self, id: u16) -> Result<usize, Errno> {
        self.get(id).map(|attr| usize::from(attr.len)).ok_or(Errno::ENOENT)
    }

    /// The data word: a number, a descriptor, or the address of an output.
    pub(super) fn data(&self, id: u16) -> Result<u64, Errno> {
        self.get(id).map(|attr| attr.data).ok_or(Errno::ENOENT)
    }

    /// A number (sent as eight bytes) not above `max`; EINVAL when it is.
    pub(super) fn number(&self, id: u16, max: u64) -> Result<u64, Errno> {
        match self.data(id)? {
            value if value <= max => Ok(value),
            value => {
                let words = format!("{} is {value}; at most {max} is allowed", named(id));
                Err(refused(Errno::EINVAL, words))
            }
        }
    }

    /// Flags of four or eight bytes, 0 if the attribute is absent; EINVAL for a flag that is not
    /// allowed.
    pub(super) fn flags(&self, id: u16, allowed: u32) -> Result<u32, Errno> {
        let Some(attr) = self.get(id) else { return Ok(0) };
        let flags = match attr.len {
            8 => attr.data,
            4 => attr.data & 0xffff_ffff,
            length => {
                let words = format!("{} has {length} bytes: flags have 4 or 8", named(id));
                return Err(refused(Errno::EINVAL, words));
            }
        };
        if flags & !u64::from(allowed) != 0 {
            let words = format!("{} is {flags:#x}; {allowed:#x} may be set", named(id));
            return Err(refused(Errno::EINVAL, words));
        }
        Ok(flags as u32)
    }

    /// All bytes of an input.
    pub(super) fn bytes(&self, id: u16) -> Result<Vec<u8>, Errno> {
        let attr = self.get(id).ok_or(Errno::ENOENT)?;
        self.take(attr, usize::from(attr.len))
    }

    /// The first `max` bytes of an input; fewer when it is shorter.
    pub(super) fn prefix(&self, id: u16, max: usize) -> Result<Vec<u8>, Errno> {
        let attr = self.get(id).ok_or(Errno::ENOENT)?;
        self.take(attr, usize::from(attr.len).min(max))
    }

    fn take(&self, attr: &Attr, len: usize) -> Result<Vec<u8>, Errno> {
        if let Some(copy) = &attr.copy {
            return Ok(copy[..len].to_vec());
        }
        if attr.len <= 8 {
            return Ok(attr.data.to_ne_bytes()[..len].to_vec());
        }
        let mut bytes = vec![0; len];
        self.client.read(attr.data, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes an output, cut to the client's room, and marks it written.
    pub(super) fn put(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let &Attr { index, len, data, .. } = self.get(id).ok_or(Errno::ENOENT)?;
        self.client.write(data, &bytes[..bytes.len().min(usize::from(len))])?;
        self.request.set_output(index);
        Ok(())
    }

    /// Writes an output if the client gave room for it.
    pub(super) fn put_if_present(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        if self.has(id) { self.put(id, bytes) } else { Ok(()) }
    }

    /// Writes an output and zeroes the rest of its room.
    pub(super) fn put_or_zero(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let mut whole = bytes.to_vec();
        whole.resize(self.len(id)?.max(bytes.len()), 0);
        self.put(id, &whole)
    }

    /// Marks an output that other code wrote.
    pub(super) fn written(&mut self, id: u16) {
        if let Some(index) = self.get(id).map(|attr| attr.index) {
            self.request.set_output(index);
        }
    }

    /// Writes the handle or descriptor number of a new object into its attribute.
    pub(super) fn put_handle(&mut self, id: u16, handle: u64) {
        if let Some(index) = self.get(id).map(|attr| attr.index) {
            self.request.set_data(index, handle);
        }
    }
}

fn check_length(raw: RawAttr, min: u16, len: u16, zero_tail: bool) -> Result<(), Errno> {
    if raw.reserved != 0 {
        let words = format!("the reserved field of {} is not 0", named(raw.id));
        return Err(refused(Errno::EINVAL, words));
    }
    if raw.len < min || (!zero_tail && raw.len > len) {
        let expected =
            if zero_tail { format!("at least {min}") } else { format!("{min} to {len}") };
        let words = format!("{} has {} bytes, not {expected}", named(raw.id), raw.len);
        return Err(refused(Errno::EINVAL, words));
    }
    Ok(())
}

/// The errno for an object's attribute with a length.
fn no_bytes(raw: RawAttr) -> Errno {
    let words = format!("{} names an object, and has a length or reserved bits", named(raw.id));
    refused(Errno::EINVAL, words)
}

/// The name of an attribute for messages.
fn named(id: u16) -> String {
    format!("attribute {id:#x}")
}
