//! Answers of NETLINK_RDMA: devices, links and objects, as `rdma dev`, `rdma link` and libibverbs
//! request them.
//!
//! Numbers and formats are those of Linux 6.12: `include/uapi/rdma/rdma_netlink.h`,
//! `drivers/infiniband/core/{netlink,nldev}.c`. Answered: GET, PORT_GET, SYS_GET, GET_CHARDEV,
//! STAT_GET, RES_GET and RES_*_GET (`objects`). Other commands that the kernel has fail with
//! EOPNOTSUPP, and unknown ones with EINVAL, as in the kernel.

mod objects;

use std::rc::Rc;

use nix::errno::Errno;

use super::sysfs::{FIRST_MINOR, MAJOR, ShownDevice};
use verbless_model::Resources;
use verbless_model_kernel::remote::DRIVER_ID;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Types below are netlink's own.
const FIRST_TYPE: u16 = 16;
const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// NLM_F_CAPPED: the error carries only the header of its request.
const CAPPED: u16 = 0x100;
/// NLA_F_NESTED.
const NESTED: u16 = 1 << 15;
/// Looks up the objects of a device, by its number in the model.
pub(super) type ObjectLists<'a> = &'a dyn Fn(usize) -> Rc<Resources>;
/// RDMA_NL_NLDEV, the client in the upper bits of a type.
const NLDEV: u16 = 5;
const CLIENT_SHIFT: u16 = 10;

/// Commands.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const GET_CHARDEV: u16 = 15;
    pub(super) const STAT_GET: u16 = 17;
    /// The last command of the kernel, and an unused number before it.
    pub(super) const LAST: u16 = 28;
    pub(super) const UNUSED: u16 = 8;
}

/// Attributes.
mod attribute {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const CAP_FLAGS: u16 = 4;
    pub(super) const FW_VERSION: u16 = 5;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const SYS_IMAGE_GUID: u16 = 7;
    pub(super) const SUBNET_PREFIX: u16 = 8;
    pub(super) const LID: u16 = 9;
    pub(super) const SM_LID: u16 = 10;
    pub(super) const LMC: u16 = 11;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const PORT_PHYS_STATE: u16 = 13;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const RES_SUMMARY: u16 = 15;
    pub(super) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(super) const RES_LQPN: u16 = 21;
    pub(super) const RES_RQPN: u16 = 22;
    pub(super) const RES_RQ_PSN: u16 = 23;
    pub(super) const RES_SQ_PSN: u16 = 24;
    pub(super) const RES_PATH_MIG_STATE: u16 = 25;
    pub(super) const RES_TYPE: u16 = 26;
    pub(super) const RES_STATE: u16 = 27;
    pub(super) const RES_CQE: u16 = 37;
    pub(super) const RES_USECNT: u16 = 38;
    pub(super) const RES_MRLEN: u16 = 45;
    pub(super) const RES_PDN: u16 = 60;
    pub(super) const RES_CQN: u16 = 61;
    pub(super) const RES_MRN: u16 = 62;
    pub(super) const RES_CM_IDN: u16 = 63;
    pub(super) const RES_CTXN: u16 = 64;
    pub(super) const NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const CHARDEV_TYPE: u16 = 69;
    pub(super) const CHARDEV_NAME: u16 = 70;
    pub(super) const CHARDEV_ABI: u16 = 71;
    pub(super) const CHARDEV: u16 = 72;
    pub(super) const UVERBS_DRIVER_ID: u16 = 73;
    pub(super) const DEV_DIM: u16 = 84;
    pub(super) const STAT_RES: u16 = 75;
    pub(super) const STAT_HWCOUNTERS: u16 = 80;
    pub(super) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(super) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(super) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(super) const RES_SRQN: u16 = 90;
    pub(super) const COPY_ON_FORK: u16 = 93;
    pub(super) const PRIVILEGED_QKEY_MODE: u16 = 96;
    pub(super) const NAME_ASSIGN_TYPE: u16 = 101;
    pub(super) const MONITOR_MODE: u16 = 103;
}

/// A message under construction.
#[derive(Debug, Default)]
struct NetlinkMessage(Vec<u8>);

impl NetlinkMessage {
    fn new(kind: u16, flags: u16, to: &Header) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(to.sequence.to_ne_bytes());
        bytes.extend(to.port.to_ne_bytes());
        Self(bytes)
    }

    /// Nested attributes.
    fn nested() -> Self {
        Self::default()
    }

    fn put(mut self, id: u16, payload: &[u8]) -> Self {
        self.0.extend((payload.len() as u16 + 4).to_ne_bytes());
        self.0.extend(id.to_ne_bytes());
        self.plain(payload)
    }

    fn plain(mut self, payload: &[u8]) -> Self {
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn u8(self, id: u16, value: u8) -> Self {
        self.put(id, &[value])
    }

    fn u32(self, id: u16, value: u32) -> Self {
        self.put(id, &value.to_ne_bytes())
    }

    fn u64(self, id: u16, value: u64) -> Self {
        self.put(id, &value.to_ne_bytes())
    }

    fn text(self, id: u16, text: &str) -> Self {
        self.put(id, &[text.as_bytes(), &[0]].concat())
    }

    fn end(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// A message's header, with the port of the answer.
#[derive(Debug, Clone, Copy)]
struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// Messages of a datagram that are answered; programs send one.
const MAX_MESSAGES: usize = 64;

/// Answers the messages of a datagram from the socket with this port. Each answer is a datagram.
pub(super) fn answers(
    devices: &[ShownDevice],
    resources: ObjectLists<'_>,
    port: u32,
    mut datagram: &[u8],
) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for _ in 0..MAX_MESSAGES {
        let Some((header, body, length)) = take(datagram, port) else { break };
        let whole = &datagram[..length.min(datagram.len())];
        answer(devices, resources, &header, body, whole, &mut answers);
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    answers
}

/// The first message: header, body and length.
fn take(datagram: &[u8], port: u32) -> Option<(Header, &[u8], usize)> {
    let header: &[u8; HEADER] = datagram.first_chunk()?;
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let length = word(0) as usize;
    let body = datagram.get(HEADER..length)?;
    Some((Header { kind: half(4), flags: half(6), sequence: word(8), port }, body, length))
}

fn answer(
    devices: &[ShownDevice],
    resources: ObjectLists<'_>,
    header: &Header,
    body: &[u8],
    whole: &[u8],
    answers: &mut Vec<Vec<u8>>,
) {
    let is_request = header.flags & REQUEST != 0 && header.kind >= FIRST_TYPE;
    let result = if !is_request {
        Ok(())
    } else if header.flags & DUMP != 0 {
        dump(devices, resources, header, body).map(|(messages, error)| {
            // A socket's receive buffer holds the messages of all devices.
            answers.extend(messages.into_iter().map(NetlinkMessage::end));
            let done = NetlinkMessage::new(DONE, MULTI, header);
            answers.push(done.plain(&error.to_ne_bytes()).end());
        })
    } else {
        single(devices, resources, header, body).map(|message| answers.push(message.end()))
    };
    // The kernel acknowledges no dump.
    let dumped = header.flags & DUMP != 0 && is_request && result.is_ok();
    if result.is_err() || header.flags & ACK != 0 && !dumped {
        let error = result.map_or_else(|errno| -(errno as i32), |()| 0);
        let message = NetlinkMessage::new(ERROR, CAPPED, header).plain(&error.to_ne_bytes());
        answers.push(message.plain(&whole[..HEADER]).end());
    }
}

/// The command of a message, if the kernel knows it.
fn command(header: &Header) -> Result<u16, Errno> {
    let (client, command) = (header.kind >> CLIENT_SHIFT, header.kind & ((1 << CLIENT_SHIFT) - 1));
    let known = 1..=command::LAST;
    if client != NLDEV || !known.contains(&command) || command == command::UNUSED {
        return Err(Errno::EINVAL);
    }
    Ok(command)
}

/// The messages of a dump, and its status.
fn dump(
    devices: &[ShownDevice],
    resources: ObjectLists<'_>,
    header: &Header,
    body: &[u8],
) -> Result<(Vec<NetlinkMessage>, i32), Errno> {
    let command = command(header)?;
    let message = || NetlinkMessage::new(header.kind, MULTI, header);
    match command {
        command::GET => {
            let all = devices.iter().enumerate();
            Ok((all.map(|(index, it)| device(message(), index, it)).collect(), 0))
        }
        command::RES_GET => {
            let all = devices.iter().enumerate();
            let of = |(index, it): (usize, &ShownDevice)| {
                objects::summary(message(), index, it, &resources(it.number))
            };
            Ok((all.map(of).collect(), 0))
        }
        command::PORT_GET => match find(devices, body) {
            Ok((index, it)) => {
                let ports = (1..).zip(&it.ports);
                let ports = ports.map(|(number, _)| port(message(), index, it, number));
                Ok((ports.collect::<Result<_, _>>()?, 0))
            }
            Err(errno) => Ok((Vec::new(), -(errno as i32))),
        },
        // These report errors as the status of the dump.
        command::STAT_GET => Ok(with_status(objects::statistics(header, devices, resources, body))),
        command::SYS_GET | command::GET_CHARDEV => Err(Errno::EINVAL),
        other => match objects::ResourceKind::of_command(other) {
            Some(kind) => Ok(with_status(objects::all(kind, header, devices, resources, body))),
            None => Err(refused(other)),
        },
    }
}

/// The messages of a dump, and its status, which is the error if there is one.
fn with_status(messages: Result<Vec<NetlinkMessage>, Errno>) -> (Vec<NetlinkMessage>, i32) {
    match messages {
        Ok(messages) => (messages, 0),
        Err(errno) => (Vec::new(), -(errno as i32)),
    }
}

/// One message.
fn single(
    devices: &[ShownDevice],
    resources: ObjectLists<'_>,
    header: &Header,
    body: &[u8],
) -> Result<NetlinkMessage, Errno> {
    let message = |command: u16| NetlinkMessage::new(NLDEV << CLIENT_SHIFT | command, 0, header);
    let command = command(header)?;
    match command {
        command::GET => {
            let (index, it) = find(devices, body)?;
            Ok(device(message(command), index, it))
        }
        command::PORT_GET => {
            let (index, it) = find(devices, body)?;
            let number = number(body, attribute::PORT_INDEX).ok_or(Errno::EINVAL)?;
            // The kernel answers with GET's number.
            port(message(command::GET), index, it, number)
        }
        command::RES_GET => {
            let (index, it) = find(devices, body)?;
            Ok(objects::summary(message(command), index, it, &resources(it.number)))
        }
        command::STAT_GET if find_attribute(body, attribute::STAT_RES).is_none() => {
            let (index, it) = find(devices, body)?;
            statistics(message(command), index, it, number(body, attribute::PORT_INDEX))
        }
        // netns mode shared, copy-on-fork of registered memory.
        command::SYS_GET => Ok(message(command)
            .u8(attribute::NETNS_MODE, 1)
            .u8(attribute::PRIVILEGED_QKEY_MODE, 0)
            .u8(attribute::MONITOR_MODE, 1)
            .u8(attribute::COPY_ON_FORK, 1)),
        command::GET_CHARDEV => chardev(devices, message(command), body),
        other => match objects::ResourceKind::of_command(other) {
            Some(kind) => objects::one(kind, message(command), devices, resources, body),
            None => Err(refused(other)),
        },
    }
}

fn refused(command: u16) -> Errno {
    tracing::info!(
        "NETLINK_RDMA command {command} refused with EOPNOTSUPP: changes, raw contexts of \
         resources and counters bound to queue pairs are not modelled"
    );
    Errno::EOPNOTSUPP
}

/// The payload of an attribute.
fn find_attribute(mut body: &[u8], id: u16) -> Option<&[u8]> {
    while let Some(&[l0, l1, i0, i1]) = body.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let payload = body.get(4..length)?;
        // Masks NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        if u16::from_ne_bytes([i0, i1]) & 0x3fff == id {
            return Some(payload);
        }
        body = body.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn number(body: &[u8], id: u16) -> Option<u32> {
    find_attribute(body, id)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The device that a request names.
fn find<'a>(devices: &'a [ShownDevice], body: &[u8]) -> Result<(usize, &'a ShownDevice), Errno> {
    let index = number(body, attribute::DEV_INDEX).ok_or(Errno::EINVAL)? as usize;
    devices.get(index).map(|device| (index, device)).ok_or(Errno::EINVAL)
}

fn handle(message: NetlinkMessage, index: usize, device: &ShownDevice) -> NetlinkMessage {
    let message = message.u32(attribute::DEV_INDEX, index as u32);
    message.text(attribute::DEV_NAME, &device.info.name)
}

fn device(message: NetlinkMessage, index: usize, device: &ShownDevice) -> NetlinkMessage {
    const CA: u8 = 1;
    let info = &device.info;
    let ethernet = device.ports.first().is_some_and(|port| port.ethernet);
    handle(message, index, device)
        .u32(attribute::PORT_INDEX, device.ports.len() as u32)
        .u64(attribute::CAP_FLAGS, device.flags)
        .text(attribute::FW_VERSION, &info.firmware)
        .u64(attribute::NODE_GUID, info.node_guid)
        .u64(attribute::SYS_IMAGE_GUID, info.system_image_guid)
        .u8(attribute::DEV_NODE_TYPE, CA)
        .u8(attribute::DEV_DIM, 0)
        .u8(attribute::NAME_ASSIGN_TYPE, 0)
        .text(attribute::DEV_PROTOCOL, if ethernet { "roce" } else { "ib" })
}

/// The hardware counters of a port; all are 0, as in sysfs.
fn statistics(
    message: NetlinkMessage,
    index: usize,
    device: &ShownDevice,
    port: Option<u32>,
) -> Result<NetlinkMessage, Errno> {
    let is_present = |port: &u32| (1..=device.ports.len()).contains(&(*port as usize));
    let port = port.filter(is_present).ok_or(Errno::EINVAL)?;
    let entries = device.counters.iter().fold(NetlinkMessage::nested(), |entries, name| {
        let entry = NetlinkMessage::nested()
            .text(attribute::STAT_HWCOUNTER_ENTRY_NAME, name)
            .u64(attribute::STAT_HWCOUNTER_ENTRY_VALUE, 0);
        entries.put(NESTED | attribute::STAT_HWCOUNTER_ENTRY, &entry.0)
    });
    Ok(handle(message, index, device)
        .u32(attribute::PORT_INDEX, port)
        .put(NESTED | attribute::STAT_HWCOUNTERS, &entries.0))
}

fn port(
    message: NetlinkMessage,
    index: usize,
    device: &ShownDevice,
    number: u32,
) -> Result<NetlinkMessage, Errno> {
    let position = number.checked_sub(1).ok_or(Errno::EINVAL)? as usize;
    let state = device.ports.get(position).ok_or(Errno::EINVAL)?;
    let mut message = handle(message, index, device).u32(attribute::PORT_INDEX, number);
    if !state.ethernet {
        let gid = state.gids.first().map_or([0; 16], |entry| entry.gid);
        let prefix = gid.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        message = message
            .u64(
                attribute::CAP_FLAGS,
                u64::from(state.flags()) | u64::from(state.capability_mask_2) << 32,
            )
            .u64(attribute::SUBNET_PREFIX, prefix)
            .u32(attribute::LID, state.lid.into())
            .u32(attribute::SM_LID, state.sm_lid.into())
            .u8(attribute::LMC, state.lmc);
    }
    // `ib_port_state` and `ib_port_phys_state`.
    let (logical, physical) = if state.active { (4, 5) } else { (1, 3) };
    Ok(message.u8(attribute::PORT_STATE, logical).u8(attribute::PORT_PHYS_STATE, physical))
}

/// The character device of a device for one client.
fn chardev(
    devices: &[ShownDevice],
    message: NetlinkMessage,
    body: &[u8],
) -> Result<NetlinkMessage, Errno> {
    let kind = find_attribute(body, attribute::CHARDEV_TYPE).ok_or(Errno::EINVAL)?;
    let kind = kind.split(|&byte| byte == 0).next().unwrap_or_default();
    let port = number(body, attribute::PORT_INDEX);
    let named = number(body, attribute::DEV_INDEX).is_some();
    let (index, device) = match find(devices, body) {
        Ok(found) => found,
        Err(errno) if named || port.is_some() => return Err(errno),
        // rdma_cm has one node for all devices.
        Err(_) => return Err(Errno::EOPNOTSUPP),
    };
    if port.is_some_and(|port| port == 0 || port as usize > device.ports.len()) {
        return Err(Errno::EINVAL);
    }
    if kind != b"uverbs" {
        return Err(Errno::EOPNOTSUPP);
    }
    // The uverbs node belongs to the device, not to a port.
    if port.is_some() {
        return Err(Errno::EINVAL);
    }
    let number = libc::makedev(MAJOR, FIRST_MINOR + index as u32);
    Ok(message
        .u32(attribute::UVERBS_DRIVER_ID, DRIVER_ID)
        .u64(attribute::CHARDEV, number)
        .u64(attribute::CHARDEV_ABI, 1)
        .text(attribute::CHARDEV_NAME, &device.info.node))
}

#[cfg(test)]
mod tests {
    use super::super::sysfs;
    use super::*;
    use verbless_model::{
        CqResource, Link, MkeyResource, Model, PdResource, Profile, QpResource, SrqResource,
    };
    use verbless_model_kernel::InProcess;

    fn devices(link: Link) -> Vec<ShownDevice> {
        let profile = Profile::load("bluefield3").expect("a profile").with_link(link);
        let model = Model::builder().device(profile.clone()).device(profile).build();
        sysfs::shown(&InProcess::of(&model))
    }

    /// The messages that answer one request, as type, flags and body.
    fn ask(
        devices: &[ShownDevice],
        command: u16,
        flags: u16,
        attributes: &[(u16, &[u8])],
    ) -> Vec<(u16, u16, Vec<u8>)> {
        let to = Header { kind: 0, flags: 0, sequence: 77, port: 0 };
        let mut request = NetlinkMessage::new(NLDEV << 10 | command, REQUEST | flags, &to);
        for (id, payload) in attributes {
            request = request.put(*id, payload);
        }
        let answers = answers(devices, &resources, 4321, &request.end());
        let apart = |bytes: Vec<u8>| {
            let (header, body, length) = take(&bytes, 0).expect("a message");
            assert_eq!((header.sequence, length), (77, bytes.len()));
            assert_eq!(&bytes[12..16], 4321u32.to_ne_bytes());
            (header.kind, header.flags, body.to_vec())
        };
        answers.into_iter().map(apart).collect()
    }

    fn error(answers: &[(u16, u16, Vec<u8>)]) -> i32 {
        let [(ERROR, CAPPED, body)] = answers else { panic!("{answers:?}") };
        assert_eq!(body.len(), 4 + HEADER);
        i32::from_ne_bytes(*body.first_chunk().expect("an error"))
    }

    /// RC QPs 100, 101, … and mkeys 0x200, 0x201, …
    fn resources(device: usize) -> Rc<Resources> {
        let qps = (100..103 + device as u32).map(|qpn| QpResource {
            qpn,
            pdn: 7,
            state: 3,
            port: 1,
            remote_qpn: Some(qpn + 50),
            sq_psn: 9,
            srqn: (qpn != 101).then_some(0x600),
            ..QpResource::default()
        });
        let mkeys = (0x200..0x207).map(|index| MkeyResource { index, pdn: 7, length: Some(4096) });
        Rc::new(Resources {
            contexts: vec![1, 2],
            pds: vec![PdResource { pdn: 7, uid: 2, users: 10 }],
            cqs: vec![CqResource { cqn: 0x400, uid: 2, entries: 64, users: 6 }],
            qps: qps.collect(),
            mkeys: mkeys.collect(),
            srqs: vec![SrqResource { srqn: 0x600, pdn: 7, cqn: None }],
        })
    }

    /// The payloads of all attributes with this number.
    fn every(mut body: &[u8], id: u16) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while let Some(payload) = find_attribute(body, id) {
            found.push(payload);
            let end = payload.as_ptr_range().end as usize - body.as_ptr() as usize;
            body = body.get(end.next_multiple_of(4)..).unwrap_or_default();
        }
        found
    }

    #[test]
    fn resources_of_every_kind_are_listed() {
        let devices = devices(Link::Infiniband);
        let second = (attribute::DEV_INDEX, &SECOND[..]);
        // Command, table, entry, id attribute, expected ids.
        for (command, table, entry, id, numbers) in [
            (10, 19, 20, attribute::RES_LQPN, vec![100, 101, 102, 103]),
            (12, 35, 36, attribute::RES_CQN, vec![0x400]),
            (13, 40, 41, attribute::RES_MRN, (0x200..0x207).collect()),
            (14, 46, 47, attribute::RES_PDN, vec![7]),
            (22, 86, 87, attribute::RES_CTXN, vec![1, 2]),
            (23, 88, 89, attribute::RES_SRQN, vec![0x600]),
        ] {
            let answers = ask(&devices, command, DUMP, &[second]);
            let [(kind, MULTI, body), (DONE, MULTI, end)] = &answers[..] else {
                panic!("command {command}: {answers:?}")
            };
            assert_eq!((*kind, &end[..]), (NLDEV << 10 | command, &[0; 4][..]));
            let table = find_attribute(body, table).expect("a table");
            let found: Vec<_> = every(table, entry).iter().map(|it| number(it, id)).collect();
            let expected: Vec<_> = numbers.into_iter().map(Some).collect();
            assert_eq!(found, expected, "command {command}");
        }
        let none = ask(&devices, 11, DUMP, &[second]);
        assert_eq!(none, [(DONE, MULTI, vec![0; 4])], "there is no rdma_cm");
        let (nowhere, first) = (9u32.to_ne_bytes(), 1u32.to_ne_bytes());
        for about in [
            &[(attribute::DEV_INDEX, &nowhere[..])][..],
            &[],
            &[second, (attribute::PORT_INDEX, &nowhere)],
        ] {
            let [(DONE, MULTI, end)] = &ask(&devices, 10, DUMP, about)[..] else {
                panic!("{about:?}")
            };
            assert_eq!(end[..], (-(Errno::EINVAL as i32)).to_ne_bytes());
        }
        let on_port = ask(&devices, 10, DUMP, &[second, (attribute::PORT_INDEX, &first)]);
        assert_eq!(on_port.len(), 2);
    }

    #[test]
    fn resource_is_found_by_its_number() {
        let devices = devices(Link::Infiniband);
        let (port, qpn, missing) = (1u32.to_ne_bytes(), 102u32.to_ne_bytes(), 99u32.to_ne_bytes());
        let second = (attribute::DEV_INDEX, &SECOND[..]);
        let on_port = (attribute::PORT_INDEX, &port[..]);
        let answers = ask(&devices, 10, 0, &[second, on_port, (attribute::RES_LQPN, &qpn[..])]);
        let [(kind, 0, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(*kind, NLDEV << 10 | 10);
        assert_eq!(find_attribute(body, attribute::DEV_NAME), Some(&b"mlx5_1\0"[..]));
        let found = [attribute::RES_LQPN, attribute::RES_RQPN, attribute::RES_PDN];
        assert_eq!(found.map(|id| number(body, id)), [Some(102), Some(152), Some(7)]);
        assert_eq!(find_attribute(body, attribute::RES_TYPE), Some(&[2][..]), "RC");
        assert_eq!(find_attribute(body, attribute::RES_STATE), Some(&[3][..]), "RTS");
        let cqn = 0x400u32.to_ne_bytes();
        let answers = ask(&devices, 12, 0, &[second, (attribute::RES_CQN, &cqn[..])]);
        let [(_, 0, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(number(body, attribute::RES_CQE), Some(63));
        // RES_QP_GET needs a port, RES_CQ_GET must not have one; the id is required, and must
        // exist.
        for (command, about, errno) in [
            (10, &[second, (attribute::RES_LQPN, &qpn[..])][..], Errno::EINVAL),
            (12, &[second, on_port, (attribute::RES_CQN, &cqn[..])], Errno::EINVAL),
            (10, &[second, on_port], Errno::EINVAL),
            (10, &[second, on_port, (attribute::RES_LQPN, &missing[..])], Errno::ENOENT),
        ] {
            let answers = ask(&devices, command, 0, about);
            assert_eq!(error(&answers), -(errno as i32), "{command} {about:?}");
        }
    }

    #[test]
    fn srq_dump_lists_its_qps() {
        let devices = devices(Link::Infiniband);
        let about = [(attribute::DEV_INDEX, FIRST)];
        let answers = ask(&devices, 23, DUMP, &about);
        let table = find_attribute(&answers[0].2, 88).expect("a table");
        let users = find_attribute(find_attribute(table, 89).expect("an entry"), 19);
        let users = every(users.expect("a table"), 20);
        let users: Vec<_> = users.iter().map(|it| number(it, attribute::RES_LQPN)).collect();
        assert_eq!(users, [Some(100), Some(102)]);
    }

    #[test]
    fn many_resources_come_in_messages_of_a_page() {
        let devices = devices(Link::Infiniband);
        let qps = (1..=1000).map(|qpn| QpResource { qpn, ..QpResource::default() });
        let many = Rc::new(Resources { qps: qps.collect(), ..Resources::default() });
        let many = |_: usize| many.clone();
        let to = Header { kind: 0, flags: 0, sequence: 1, port: 0 };
        let request = NetlinkMessage::new(NLDEV << 10 | 10, REQUEST | DUMP, &to)
            .put(attribute::DEV_INDEX, &0u32.to_ne_bytes());
        let answers = answers(&devices, &many, 0, &request.end());
        let mut seen = 0;
        for answer in &answers {
            assert!(answer.len() <= 4096, "{}", answer.len());
            let table = find_attribute(&answer[HEADER..], 19).unwrap_or_default();
            seen += every(table, 20).len();
        }
        assert_eq!(seen, 1000);
    }

    #[test]
    fn statistics_of_resources_are_listed() {
        let devices = devices(Link::Infiniband);
        let second = (attribute::DEV_INDEX, &SECOND[..]);
        let (qp, mr, cq) = (19u32.to_ne_bytes(), 40u32.to_ne_bytes(), 35u32.to_ne_bytes());
        let ask = |table: &[u8]| {
            ask(&devices, command::STAT_GET, DUMP, &[second, (attribute::STAT_RES, table)])
        };
        assert_eq!(ask(&qp), [(DONE, MULTI, vec![0; 4])], "no counter is bound to one");
        let keys = ask(&mr);
        let table = find_attribute(&keys[0].2, 40).expect("a table");
        assert_eq!(every(table, 41).len(), 7);
        let end = (-(Errno::EINVAL as i32)).to_ne_bytes().to_vec();
        assert_eq!(ask(&cq), [(DONE, MULTI, end)]);
    }

    #[test]
    fn resources_of_a_device_are_counted() {
        let devices = devices(Link::Infiniband);
        for (flags, about) in [(0, &[(attribute::DEV_INDEX, &SECOND[..])][..]), (DUMP, &[])] {
            let answers = ask(&devices, command::RES_GET, flags, about);
            let (kind, _, body) = &answers[usize::from(flags == DUMP)];
            assert_eq!(*kind, NLDEV << 10 | command::RES_GET);
            assert_eq!(find_attribute(body, attribute::DEV_NAME), Some(&b"mlx5_1\0"[..]));
            let mut table = find_attribute(body, attribute::RES_SUMMARY).expect("a table");
            let mut found = Vec::new();
            while let Some(entry) = find_attribute(table, attribute::RES_SUMMARY_ENTRY) {
                let name = find_attribute(entry, attribute::RES_SUMMARY_ENTRY_NAME);
                let name = String::from_utf8_lossy(name.expect("a name")).into_owned();
                found.push((name, number(entry, attribute::RES_SUMMARY_ENTRY_CURR)));
                table = &table[(entry.len() + 4).next_multiple_of(4)..];
            }
            let expected =
                [("pd", 1), ("cq", 1), ("qp", 4), ("cm_id", 0), ("mr", 7), ("ctx", 2), ("srq", 1)];
            let expected = expected.map(|(name, count)| (format!("{name}\0"), Some(count)));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn counters_of_a_port_are_listed() {
        let devices = devices(Link::Infiniband);
        let ask = |port: u32| {
            let port = port.to_ne_bytes();
            let about = [(attribute::DEV_INDEX, &SECOND[..]), (attribute::PORT_INDEX, &port)];
            ask(&devices, command::STAT_GET, 0, &about)
        };
        let answers = ask(1);
        let [(kind, 0, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(*kind, NLDEV << 10 | command::STAT_GET);
        let table = find_attribute(body, attribute::STAT_HWCOUNTERS).expect("a table");
        let first = find_attribute(table, attribute::STAT_HWCOUNTER_ENTRY).expect("an entry");
        let name = find_attribute(first, attribute::STAT_HWCOUNTER_ENTRY_NAME);
        assert_eq!(name, Some(&b"rx_write_requests\0"[..]));
        assert_eq!(number(first, attribute::STAT_HWCOUNTER_ENTRY_VALUE), Some(0));
        for none in [0, 2] {
            assert_eq!(error(&ask(none)), -(Errno::EINVAL as i32));
        }
    }

    const FIRST: &[u8] = &[0; 4];
    const SECOND: [u8; 4] = 1u32.to_ne_bytes();

    #[test]
    fn device_dump_ends_with_done() {
        let devices = devices(Link::Ethernet);
        let answers = ask(&devices, command::GET, DUMP, &[]);
        let [one, other, (DONE, MULTI, end)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(end, &[0; 4]);
        for (name, (kind, flags, body)) in ["mlx5_0\0", "mlx5_1\0"].iter().zip([one, other]) {
            assert_eq!((*kind, *flags), (NLDEV << 10 | command::GET, MULTI));
            assert_eq!(find_attribute(body, attribute::DEV_NAME), Some(name.as_bytes()));
            assert_eq!(find_attribute(body, attribute::DEV_PROTOCOL), Some(&b"roce\0"[..]));
        }
        let guid = devices[1].info.node_guid.to_ne_bytes();
        assert_eq!(find_attribute(&other.2, attribute::NODE_GUID), Some(&guid[..]));
    }

    #[test]
    fn port_get_reports_state_and_rejects_absent_port() {
        let devices = devices(Link::Infiniband);
        let ask = |port: u32| {
            let port = port.to_ne_bytes();
            let about = [(attribute::DEV_INDEX, &SECOND[..]), (attribute::PORT_INDEX, &port)];
            ask(&devices, command::PORT_GET, 0, &about)
        };
        let answers = ask(1);
        let [(kind, 0, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(*kind, NLDEV << 10 | command::GET, "as the kernel has it");
        let state = &devices[1].ports[0];
        assert_eq!(number(body, attribute::LID), Some(state.lid.into()));
        assert_eq!(find_attribute(body, attribute::PORT_STATE), Some(&[4][..]));
        let prefix = 0xfe80_0000_0000_0000u64.to_ne_bytes();
        assert_eq!(find_attribute(body, attribute::SUBNET_PREFIX), Some(&prefix[..]));
        for none in [0, 2] {
            assert_eq!(error(&ask(none)), -(Errno::EINVAL as i32));
        }
        let missing = super::tests::ask(&devices, command::PORT_GET, DUMP, &[]);
        let [(DONE, MULTI, end)] = &missing[..] else { panic!("{missing:?}") };
        assert_eq!(end[..], (-(Errno::EINVAL as i32)).to_ne_bytes());
    }

    #[test]
    fn port_has_cap_flags_and_lid_on_infiniband_only() {
        for link in [Link::Infiniband, Link::Ethernet] {
            let mut devices = devices(link);
            devices[0].ports[0].capability_mask_2 = 5;
            let first = 1u32.to_ne_bytes();
            let about = [(attribute::DEV_INDEX, FIRST), (attribute::PORT_INDEX, &first[..])];
            let answers = ask(&devices, command::PORT_GET, 0, &about);
            let flags = u64::from(devices[0].ports[0].flags()) | 5 << 32;
            let is_present = link == Link::Infiniband;
            let body = &answers[0].2;
            let expected = is_present.then_some(flags.to_ne_bytes());
            assert_eq!(
                find_attribute(body, attribute::CAP_FLAGS),
                expected.as_ref().map(|it| &it[..])
            );
            for id in [attribute::LID, attribute::SM_LID, attribute::LMC] {
                assert_eq!(find_attribute(body, id).is_some(), is_present, "{id}");
            }
            assert_eq!(number(body, attribute::PORT_INDEX), Some(1));
        }
    }

    #[test]
    fn non_request_messages_are_ignored_or_rejected() {
        let devices = devices(Link::Ethernet);
        let response = |kind: u16, flags: u16| {
            let to = Header { kind: 0, flags: 0, sequence: 3, port: 0 };
            let index = 0u32.to_ne_bytes();
            let request = NetlinkMessage::new(kind, flags, &to).put(attribute::DEV_INDEX, &index);
            let answers = answers(&devices, &resources, 1, &request.end());
            let apart = |bytes: Vec<u8>| {
                let (header, body, _) = take(&bytes, 0).expect("a message");
                let error = body.first_chunk().map_or(0, |word| i32::from_ne_bytes(*word));
                (header.kind, if header.kind == ERROR { error } else { 0 })
            };
            answers.into_iter().map(apart).collect::<Vec<_>>()
        };
        let get = NLDEV << CLIENT_SHIFT | command::GET;
        let (done, invalid) = ((ERROR, 0), (ERROR, -(Errno::EINVAL as i32)));
        for (kind, flags, expected) in [
            (get, 0, vec![]),
            (get, ACK, vec![done]),
            (get, DUMP | ACK, vec![done]),
            (FIRST_TYPE - 1, REQUEST, vec![]),
            (FIRST_TYPE - 1, REQUEST | DUMP | ACK, vec![done]),
            (FIRST_TYPE, REQUEST, vec![invalid]),
            (get - (1 << CLIENT_SHIFT), REQUEST, vec![invalid]),
            (get, REQUEST, vec![(get, 0)]),
            (get, REQUEST | ACK, vec![(get, 0), done]),
            (get, REQUEST | DUMP | ACK, vec![(get, 0), (get, 0), (DONE, 0)]),
        ] {
            assert_eq!(response(kind, flags), expected, "{kind:#x} {flags:#x}");
        }
    }

    #[test]
    fn datagram_of_many_messages_is_answered_in_part() {
        let devices = devices(Link::Ethernet);
        let to = Header { kind: 0, flags: 0, sequence: 3, port: 0 };
        let get = NLDEV << CLIENT_SHIFT | command::GET;
        let message = NetlinkMessage::new(get, REQUEST, &to).u32(attribute::DEV_INDEX, 0).end();
        let answered = |count| answers(&devices, &resources, 1, &message.repeat(count)).len();
        assert_eq!([1, 64, 65, 2000].map(answered), [1, 64, 64, 64]);
    }

    #[test]
    fn get_chardev_names_only_uverbs_nodes() {
        let devices = devices(Link::Infiniband);
        let ask = |attributes: &[(u16, &[u8])]| ask(&devices, command::GET_CHARDEV, 0, attributes);
        let kind = |name: &'static [u8]| (attribute::CHARDEV_TYPE, name);
        let second = (attribute::DEV_INDEX, &SECOND[..]);
        let answers = ask(&[kind(b"uverbs\0"), second]);
        let [(_, 0, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(find_attribute(body, attribute::CHARDEV_NAME), Some(&b"uverbs1\0"[..]));
        assert_eq!(find_attribute(body, attribute::CHARDEV), Some(&0xe7c1u64.to_ne_bytes()[..]));
        assert_eq!(number(body, attribute::UVERBS_DRIVER_ID), Some(1));
        let unsupported = -(Errno::EOPNOTSUPP as i32);
        assert_eq!(error(&ask(&[kind(b"umad\0"), second])), unsupported);
        assert_eq!(error(&ask(&[kind(b"rdma_cm\0")])), unsupported);
        let invalid = -(Errno::EINVAL as i32);
        assert_eq!(error(&ask(&[second])), invalid);
        let port = (attribute::PORT_INDEX, &SECOND[..]);
        assert_eq!(error(&ask(&[kind(b"uverbs\0"), second, port])), invalid);
        // Other clients have a node per port.
        for (port, expected) in [(0u32, invalid), (1, unsupported), (2, invalid)] {
            let port = port.to_ne_bytes();
            let about = [kind(b"umad\0"), second, (attribute::PORT_INDEX, &port)];
            assert_eq!(error(&ask(&about)), expected);
        }
        let ninth = 9u32.to_ne_bytes();
        assert_eq!(error(&ask(&[kind(b"uverbs\0"), (attribute::DEV_INDEX, &ninth)])), invalid);
    }

    #[test]
    fn unmodelled_command_fails_with_eopnotsupp() {
        let devices = devices(Link::Infiniband);
        let about = [(attribute::DEV_INDEX, FIRST)];
        for (command, flags, expected) in [
            (19, DUMP, Errno::EOPNOTSUPP),
            (2, 0, Errno::EOPNOTSUPP),
            (command::UNUSED, 0, Errno::EINVAL),
            (command::LAST + 1, 0, Errno::EINVAL),
            (0, DUMP, Errno::EINVAL),
        ] {
            let answers = ask(&devices, command, flags, &about);
            assert_eq!(error(&answers), -(expected as i32), "command {command}");
        }
        let answers = ask(&devices, command::SYS_GET, ACK, &[]);
        assert_eq!(answers.len(), 2);
        assert_eq!(find_attribute(&answers[0].2, attribute::COPY_ON_FORK), Some(&[1][..]));
        assert_eq!(error(&answers[1..]), 0);
        for length in 0..40 {
            let mut bytes = vec![0xff; length];
            if let Some(first) = bytes.first_mut() {
                *first = length as u8;
            }
            let _ = super::answers(&devices, &resources, 0, &bytes);
        }
    }
}
