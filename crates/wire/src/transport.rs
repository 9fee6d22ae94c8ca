//! The base transport header and the extension headers after it.

use verbless_prm::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, Immdt, Rdeth, Reth, Xrceth};

use super::malformed::Malformed;
use super::opcode::Opcode;

/// The extension headers of a packet, in the order in which they follow the BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Reliable datagrams.
    pub rdeth: Option<Rdeth>,
    /// Datagrams: Q_Key and sender.
    pub deth: Option<Deth>,
    /// XRC: the SRQ.
    pub xrceth: Option<Xrceth>,
    /// RDMA: address, key and length.
    pub reth: Option<Reth>,
    /// Atomics: address, key and operands.
    pub atomic_eth: Option<AtomicEth>,
    /// Responses: syndrome and MSN.
    pub aeth: Option<Aeth>,
    /// An atomic's answer.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// Immediate data.
    pub immdt: Option<Immdt>,
    /// The key to invalidate.
    pub ieth: Option<Ieth>,
}

/// Lists the extension headers: the field of each, and the opcodes that have it.
macro_rules! each_extension {
    ($then:ident) => {
        $then! {
            rdeth: Rdeth = "RDETH", |opcode| opcode.has_rdeth();
            deth: Deth = "DETH", |opcode| opcode.has_deth();
            xrceth: Xrceth = "XRCETH", |opcode| opcode.has_xrceth();
            reth: Reth = "RETH", |opcode| opcode.has_reth();
            atomic_eth: AtomicEth = "AtomicETH", |opcode| opcode.has_atomic_eth();
            aeth: Aeth = "AETH", |opcode| opcode.has_aeth();
            atomic_ack_eth: AtomicAckEth = "AtomicAckETH", |opcode| opcode.has_atomic_ack_eth();
            immdt: Immdt = "ImmDt", |opcode| opcode.immediate;
            ieth: Ieth = "IETH", |opcode| opcode.invalidate;
        }
    };
}

macro_rules! extensions {
    ($($field:ident: $view:ident = $name:literal, |$opcode:ident| $has:expr;)*) => {
        impl Extensions {
            /// Bytes of the headers that are present.
            pub fn length(&self) -> usize {
                0 $(+ if self.$field.is_some() { $view::BYTES } else { 0 })*
            }

            /// Whether these are the headers of packets of an opcode.
            pub fn are_those_of(&self, opcode: Opcode) -> bool {
                true $(&& self.$field.is_some() == { let $opcode = opcode; $has })*
            }

            /// Takes the headers of packets of an opcode off the front of `rest`, and returns what
            /// follows them.
            pub fn parse(
                opcode: Opcode,
                mut rest: &[u8],
            ) -> Result<(Self, &[u8]), Malformed> {
                let mut all = Self::default();
                $(
                    if { let $opcode = opcode; $has } {
                        let header = $view::from_prefix(rest).ok_or(Malformed::Truncated {
                            header: $name,
                            needs: $view::BYTES,
                            has: rest.len(),
                        })?;
                        all.$field = Some(*header);
                        rest = &rest[$view::BYTES..];
                    }
                )*
                Ok((all, rest))
            }

            fn emit(&self, mut rest: &mut [u8]) {
                $(
                    if let Some(header) = &self.$field {
                        let (bytes, after) = rest.split_at_mut($view::BYTES);
                        bytes.copy_from_slice(header.as_bytes());
                        rest = after;
                    }
                )*
                let _ = rest;
            }
        }
    };
}

each_extension!(extensions);

/// A BTH and its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The base transport header. Its pad count is computed when it is emitted.
    pub bth: Bth,
    /// The extension headers.
    pub extensions: Extensions,
}

impl Transport {
    /// The packet's opcode; `None` if it is reserved, which never happens in a parsed packet.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::of(self.bth.opcode())
    }

    /// Bytes of the headers.
    pub fn length(&self) -> usize {
        Bth::BYTES + self.extensions.length()
    }

    /// Parses the headers at the start of `bytes`; returns them and the payload, without the pad.
    ///
    /// # Errors
    /// [`Malformed`]: truncated, another version, a reserved opcode, too much pad.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let bth = Self::bth_of(bytes)?;
        let opcode = Opcode::of(bth.opcode()).ok_or(Malformed::Opcode(bth.opcode().0))?;
        let (extensions, rest) = Extensions::parse(opcode, &bytes[Bth::BYTES..])?;
        let pad = usize::from(bth.pad_count());
        let payload = match rest.len().checked_sub(pad) {
            Some(length) if rest.len().is_multiple_of(4) => &rest[..length],
            _ => return Err(Malformed::Pad { count: pad, has: rest.len() }),
        };
        if !payload.is_empty() && !opcode.has_payload() || payload.is_empty() && pad != 0 {
            return Err(Malformed::Pad { count: pad, has: rest.len() });
        }
        Ok((Self { bth, extensions }, payload))
    }

    /// Parses only the BTH, which must have the known version.
    pub(super) fn bth_of(bytes: &[u8]) -> Result<Bth, Malformed> {
        let bth = *Bth::from_prefix(bytes).ok_or(Malformed::Truncated {
            header: "BTH",
            needs: Bth::BYTES,
            has: bytes.len(),
        })?;
        match bth.version() {
            0 => Ok(bth),
            version => Err(Malformed::Version { header: "BTH", version }),
        }
    }

    /// Writes the headers of a packet with `payload` bytes of payload to the start of `bytes`.
    pub(super) fn emit(&self, payload: usize, bytes: &mut [u8]) {
        let opcode = self.opcode();
        assert!(
            opcode.is_some_and(|opcode| self.extensions.are_those_of(opcode)),
            "{opcode:?} has other extension headers than {:?}",
            self.extensions
        );
        let mut bth = self.bth;
        bth.set_pad_count((payload.next_multiple_of(4) - payload) as u8);
        let (head, rest) = bytes.split_at_mut(Bth::BYTES);
        head.copy_from_slice(bth.as_bytes());
        self.extensions.emit(rest);
    }
}
