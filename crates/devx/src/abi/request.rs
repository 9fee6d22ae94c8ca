//! A request of the uverbs ioctl: one header, then attributes.
//!
//! Source: Linux `include/uapi/rdma/rdma_user_ioctl_cmds.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::method::Method;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const RDMA_VERBS_IOCTL: u32 = 0xc018_1b01;

/// `RDMA_DRIVER_MLX5`, the driver id of every request to an mlx5 device (`ib_user_ioctl_verbs.h`).
pub const DRIVER_ID_MLX5: u32 = 1;

/// First id of objects, methods and attributes that belong to a driver (`UVERBS_ID_DRIVER_NS`).
pub const DRIVER_NAMESPACE: u16 = 0x1000;

/// The kernel refuses the request with EPROTONOSUPPORT if it does not know this attribute
/// (`UVERBS_ATTR_F_MANDATORY`).
pub const MANDATORY: u16 = 1;

/// The kernel has filled this output (`UVERBS_ATTR_F_VALID_OUTPUT`); set by the kernel only.
pub const VALID_OUTPUT: u16 = 2;

/// Bytes of payload that travel inside the attribute itself; longer inputs, and outputs of any
/// length, are pointers.
pub const INLINE_BYTES: usize = 8;

/// `struct ib_uverbs_ioctl_hdr`, 24 bytes, followed by `num_attrs` [`Attribute`]s.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// Bytes of header and attributes: 24 + 16 * `num_attrs`. The kernel refuses a length above one
    /// page or different from this sum.
    pub length: u16,
    /// Object that the method belongs to.
    pub object_id: u16,
    /// Method of the object.
    pub method_id: u16,
    /// Number of attributes that follow.
    pub num_attrs: u16,
    /// Zero, or the kernel answers EPROTONOSUPPORT.
    pub reserved1: u64,
    /// [`DRIVER_ID_MLX5`], or the kernel answers EINVAL.
    pub driver_id: u32,
    /// Zero, or the kernel answers EPROTONOSUPPORT.
    pub reserved2: u32,
}

/// `struct ib_uverbs_attr`, 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Attribute {
    /// Which attribute of the method; the order of attributes means nothing to the kernel.
    pub attr_id: u16,
    /// Bytes of payload of an input or output; 0 for handles and file descriptors.
    pub len: u16,
    /// [`MANDATORY`] from the caller, [`VALID_OUTPUT`] from the kernel.
    pub flags: u16,
    /// Element of an enum attribute; 0 for every other attribute.
    pub elem_id: u8,
    /// Zero, or the kernel answers EINVAL.
    pub reserved: u8,
    /// Inline input bytes (first byte at the lowest address), a pointer, a handle (u32 widened)
    /// or a file descriptor (i32 sign-extended). For a new handle or descriptor the kernel
    /// writes it here.
    pub data: u64,
}

/// Words (u64) of a header.
pub const HEADER_WORDS: usize = size_of::<Header>() / 8;

/// Words (u64) of an attribute.
pub const ATTRIBUTE_WORDS: usize = size_of::<Attribute>() / 8;

impl Header {
    /// The header of a call of `method` with `num_attrs` attributes.
    #[must_use]
    pub const fn new(method: Method, num_attrs: u16) -> Self {
        Self {
            length: (size_of::<Self>() + num_attrs as usize * size_of::<Attribute>()) as u16,
            object_id: method.object,
            method_id: method.method,
            num_attrs,
            reserved1: 0,
            driver_id: DRIVER_ID_MLX5,
            reserved2: 0,
        }
    }

    /// The header as the words that a request begins with.
    #[must_use]
    pub const fn words(self) -> [u64; HEADER_WORDS] {
        zerocopy::transmute!(self)
    }

    /// The method that this header calls.
    #[must_use]
    pub const fn method(&self) -> Method {
        Method { object: self.object_id, method: self.method_id }
    }

    /// The header and the attributes of a request, in place. `None` when the words do not hold a
    /// whole header, or `num_attrs` and `length` do not describe exactly these words.
    #[must_use]
    pub fn split(request: &mut [u64]) -> Option<(&mut Self, &mut [Attribute])> {
        let (header, rest) = request.split_at_mut_checked(HEADER_WORDS)?;
        let header = Self::mut_from_bytes(header.as_mut_bytes()).ok()?;
        let attributes = <[Attribute]>::mut_from_bytes(rest.as_mut_bytes()).ok()?;
        let length = size_of::<Self>() + size_of_val(attributes);
        if attributes.len() != usize::from(header.num_attrs) || length != usize::from(header.length)
        {
            return None;
        }
        Some((header, attributes))
    }
}

// Sizes in the kernel's headers.
const _: () = {
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<Attribute>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::method;

    #[test]
    fn split_rejects_inconsistent_lengths() {
        let mut words = [0u64; HEADER_WORDS + ATTRIBUTE_WORDS];
        words[..HEADER_WORDS].copy_from_slice(&Header::new(method::DEVX_OTHER, 1).words());
        assert_eq!(Header::split(&mut words).unwrap().1.len(), 1);
        for cut in 0..words.len() {
            assert!(Header::split(&mut words[..cut]).is_none(), "{cut} words");
        }
        words[..HEADER_WORDS].copy_from_slice(&Header::new(method::DEVX_OTHER, 2).words());
        assert!(Header::split(&mut words).is_none());
    }

    proptest::proptest! {
        #[test]
        fn split_accepts_only_consistent_words(
            mut words in proptest::collection::vec(proptest::num::u64::ANY, 0..24),
            length: u16,
            num_attrs in 0u16..12,
        ) {
            if let Some(words) = words.first_chunk_mut::<HEADER_WORDS>() {
                let header: &mut Header = zerocopy::transmute_mut!(words);
                (header.length, header.num_attrs) = (length, num_attrs);
            }
            let room = words.len();
            if let Some((header, attributes)) = Header::split(&mut words) {
                proptest::prop_assert_eq!(usize::from(header.length), room * 8);
                proptest::prop_assert_eq!(attributes.len(), usize::from(num_attrs));
            }
        }
    }
}
