//! The meaning of a BTH's opcode: service, message, position in the message, and the extension
//! headers.

use verbless_prm::BthOpcode;

/// The service of a packet: bits 7:5 of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which mlx5 does not have.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

/// The type of a packet's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// The request of an RDMA READ.
    ReadRequest,
    /// The answer to an RDMA READ.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// The answer to an atomic.
    AtomicAcknowledge,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
    /// Congestion notification of InfiniBand.
    Congestion,
    /// Congestion notification of RoCE v2.
    RoceCongestion,
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether a message begins with a packet at this position.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with a packet at this position.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A decoded opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// The service.
    pub service: Service,
    /// The message.
    pub message: Message,
    /// The packet's position in its message.
    pub position: Position,
    /// Whether immediate data follows.
    pub immediate: bool,
    /// Whether the receiver must invalidate a key, and an IETH follows.
    pub invalidate: bool,
}

/// The low five bits of each opcode: message, position, with immediate data, with a key to
/// invalidate.
const OPERATIONS: [(u8, Message, Position, bool, bool); 23] = {
    use Message::*;
    use Position::*;
    [
        (0x00, Send, First, false, false),
        (0x01, Send, Middle, false, false),
        (0x02, Send, Last, false, false),
        (0x03, Send, Last, true, false),
        (0x04, Send, Only, false, false),
        (0x05, Send, Only, true, false),
        (0x06, Write, First, false, false),
        (0x07, Write, Middle, false, false),
        (0x08, Write, Last, false, false),
        (0x09, Write, Last, true, false),
        (0x0a, Write, Only, false, false),
        (0x0b, Write, Only, true, false),
        (0x0c, ReadRequest, Only, false, false),
        (0x0d, ReadResponse, First, false, false),
        (0x0e, ReadResponse, Middle, false, false),
        (0x0f, ReadResponse, Last, false, false),
        (0x10, ReadResponse, Only, false, false),
        (0x11, Acknowledge, Only, false, false),
        (0x12, AtomicAcknowledge, Only, false, false),
        (0x13, CompareSwap, Only, false, false),
        (0x14, FetchAdd, Only, false, false),
        (0x16, Send, Last, false, true),
        (0x17, Send, Only, false, true),
    ]
};

const SERVICES: [(u8, Service); 5] =
    [(0, Service::Rc), (1, Service::Uc), (2, Service::Rd), (3, Service::Ud), (5, Service::Xrc)];

impl Opcode {
    /// A congestion notification. Its opcode names no service; `service` is [`Service::Rc`].
    const fn congestion(message: Message) -> Self {
        Self {
            service: Service::Rc,
            message,
            position: Position::Only,
            immediate: false,
            invalidate: false,
        }
    }

    /// Decodes an opcode; `None` if it is reserved.
    pub fn of(opcode: BthOpcode) -> Option<Self> {
        match opcode {
            BthOpcode::CNP => return Some(Self::congestion(Message::Congestion)),
            BthOpcode::ROCE_CNP => return Some(Self::congestion(Message::RoceCongestion)),
            _ => {}
        }
        let (high, low) = (opcode.0 >> 5, opcode.0 & 0x1f);
        let &(_, service) = SERVICES.iter().find(|(bits, _)| *bits == high)?;
        let &(_, message, position, immediate, invalidate) =
            OPERATIONS.iter().find(|(bits, ..)| *bits == low)?;
        Some(Self { service, message, position, immediate, invalidate }).filter(|it| it.exists())
    }

    /// The opcode's bits in the BTH; `None` if there is no such opcode.
    pub fn bits(self) -> Option<BthOpcode> {
        if self == Self::congestion(Message::Congestion) {
            return Some(BthOpcode::CNP);
        }
        if self == Self::congestion(Message::RoceCongestion) {
            return Some(BthOpcode::ROCE_CNP);
        }
        let (high, _) = SERVICES.iter().find(|(_, service)| *service == self.service)?;
        let wanted = (self.message, self.position, self.immediate, self.invalidate);
        let (low, ..) = OPERATIONS
            .iter()
            .find(|&&(_, message, position, imm, key)| (message, position, imm, key) == wanted)?;
        self.exists().then_some(BthOpcode(high << 5 | low))
    }

    /// Whether the service has the opcode.
    fn exists(self) -> bool {
        match self.service {
            Service::Rc | Service::Xrc => true,
            Service::Uc => {
                matches!(self.message, Message::Send | Message::Write) && !self.invalidate
            }
            Service::Rd => !self.invalidate,
            Service::Ud => {
                self.message == Message::Send && self.position == Position::Only && !self.invalidate
            }
        }
    }

    /// Whether the packet goes from responder to requester.
    pub const fn is_response(self) -> bool {
        matches!(
            self.message,
            Message::ReadResponse | Message::Acknowledge | Message::AtomicAcknowledge
        )
    }

    /// Whether the headers have an RDETH.
    pub fn has_rdeth(self) -> bool {
        self.service == Service::Rd
    }

    /// Whether the headers have a DETH.
    pub fn has_deth(self) -> bool {
        self.service == Service::Ud || self.service == Service::Rd && !self.is_response()
    }

    /// Whether the headers have an XRCETH.
    pub fn has_xrceth(self) -> bool {
        self.service == Service::Xrc && !self.is_response()
    }

    /// Whether the headers have an RETH.
    pub fn has_reth(self) -> bool {
        self.message == Message::ReadRequest
            || self.message == Message::Write && self.position.begins()
    }

    /// Whether the headers have an AtomicETH.
    pub fn has_atomic_eth(self) -> bool {
        matches!(self.message, Message::CompareSwap | Message::FetchAdd)
    }

    /// Whether the headers have an AETH.
    pub fn has_aeth(self) -> bool {
        match self.message {
            Message::Acknowledge | Message::AtomicAcknowledge => true,
            Message::ReadResponse => self.position != Position::Middle,
            _ => false,
        }
    }

    /// Whether the headers have an AtomicAckETH.
    pub fn has_atomic_ack_eth(self) -> bool {
        self.message == Message::AtomicAcknowledge
    }

    /// Whether a payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        matches!(
            self.message,
            Message::Send
                | Message::Write
                | Message::ReadResponse
                | Message::Congestion
                | Message::RoceCongestion
        )
    }
}
