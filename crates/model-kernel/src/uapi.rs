//! Requests and responses of verbs, field by field: the uapi's structures in the CPU's byte order.

/// A request, zero-extended to its structure.
#[derive(Debug)]
pub(crate) struct UverbsRequest(pub Vec<u8>);

impl UverbsRequest {
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.field::<1>(at)[0]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.field(at))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.field(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.field(at))
    }

    pub(crate) fn gid(&self, at: usize) -> [u8; 16] {
        self.field(at)
    }
}

/// A response under construction, appended field by field.
#[derive(Debug, Default)]
pub(crate) struct UverbsResponse(Vec<u8>);

impl UverbsResponse {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// How many records of an object its client has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedEvents {
    pub completions: u32,
    pub events: u32,
}

/// `ib_uverbs_destroy_cq_resp`.
pub(crate) fn reported_events(reported: ReportedEvents) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&reported.completions.to_ne_bytes());
    bytes[4..].copy_from_slice(&reported.events.to_ne_bytes());
    bytes
}
