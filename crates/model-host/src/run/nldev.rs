//! The answers of NETLINK_RDMA: what `rdma dev`, `rdma link` and libibverbs ask about devices.
//!
//! Numbers and formats are those of Linux 6.12: `include/uapi/rdma/rdma_netlink.h`,
//! `drivers/infiniband/core/{netlink,nldev}.c`. GET, PORT_GET, SYS_GET and GET_CHARDEV are
//! answered; what else the kernel knows is refused with EOPNOTSUPP, what it does not know with
//! EINVAL, as it does.

use nix::errno::Errno;

use super::sysfs::{FIRST_MINOR, MAJOR, Shown};
use verbless_model_kernel::remote::DRIVER_ID;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Types below are the protocol's own.
const FIRST_TYPE: u16 = 16;
const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// Flag of an error without the message that it answers.
const CAPPED: u16 = 0x100;
/// The client of messages about devices, in the upper bits of a type.
const NLDEV: u16 = 5;
const CLIENT_SHIFT: u16 = 10;

/// Commands.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const GET_CHARDEV: u16 = 15;
    /// The last command that the kernel knows, and an unused number before it.
    pub(super) const LAST: u16 = 28;
    pub(super) const NONE: u16 = 8;
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
    pub(super) const NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const CHARDEV_TYPE: u16 = 69;
    pub(super) const CHARDEV_NAME: u16 = 70;
    pub(super) const CHARDEV_ABI: u16 = 71;
    pub(super) const CHARDEV: u16 = 72;
    pub(super) const UVERBS_DRIVER_ID: u16 = 73;
    pub(super) const DEV_DIM: u16 = 84;
    pub(super) const COPY_ON_FORK: u16 = 93;
    pub(super) const PRIVILEGED_QKEY_MODE: u16 = 96;
    pub(super) const NAME_ASSIGN_TYPE: u16 = 101;
    pub(super) const MONITOR_MODE: u16 = 103;
}

/// A message that is being written.
#[derive(Debug)]
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, to: &Header) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(to.sequence.to_ne_bytes());
        bytes.extend(to.port.to_ne_bytes());
        Self(bytes)
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

/// A message's header, and to which port the answer goes.
#[derive(Debug, Clone, Copy)]
struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// The answers to all messages of a datagram from the socket with this port number, each a datagram
/// of its own.
pub(super) fn answers(devices: &[Shown], port: u32, mut datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    while let Some((header, body, length)) = take(datagram, port) {
        let whole = &datagram[..length.min(datagram.len())];
        answer(devices, &header, body, whole, &mut answers);
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
    devices: &[Shown],
    header: &Header,
    body: &[u8],
    whole: &[u8],
    answers: &mut Vec<Vec<u8>>,
) {
    let is_request = header.flags & REQUEST != 0 && header.kind >= FIRST_TYPE;
    let result = if !is_request {
        Ok(())
    } else if header.flags & DUMP != 0 {
        dump(devices, header, body).map(|(messages, error)| {
            // As many devices as there may be take less than a socket has room for.
            answers.extend(messages.into_iter().map(Message::end));
            let done = Message::new(DONE, MULTI, header);
            answers.push(done.plain(&error.to_ne_bytes()).end());
        })
    } else {
        once(devices, header, body).map(|message| answers.push(message.end()))
    };
    // The kernel acknowledges no dump.
    let dumped = header.flags & DUMP != 0 && is_request && result.is_ok();
    if result.is_err() || header.flags & ACK != 0 && !dumped {
        let error = result.map_or_else(|errno| -(errno as i32), |()| 0);
        let message = Message::new(ERROR, CAPPED, header).plain(&error.to_ne_bytes());
        answers.push(message.plain(&whole[..HEADER]).end());
    }
}

/// The command of a message, if the kernel knows it.
fn command(header: &Header) -> Result<u16, Errno> {
    let (client, command) = (header.kind >> CLIENT_SHIFT, header.kind & ((1 << CLIENT_SHIFT) - 1));
    let known = 1..=command::LAST;
    if client != NLDEV || !known.contains(&command) || command == command::NONE {
        return Err(Errno::EINVAL);
    }
    Ok(command)
}

/// Many messages, and how a dump ends.
fn dump(devices: &[Shown], header: &Header, body: &[u8]) -> Result<(Vec<Message>, i32), Errno> {
    let command = command(header)?;
    let message = || Message::new(header.kind, MULTI, header);
    match command {
        command::GET => {
            let all = devices.iter().enumerate();
            Ok((all.map(|(index, it)| device(message(), index, it)).collect(), 0))
        }
        command::PORT_GET => match find(devices, body) {
            Ok((index, it)) => {
                let ports = (1..).zip(&it.ports);
                let ports = ports.map(|(number, _)| port(message(), index, it, number));
                Ok((ports.collect::<Result<_, _>>()?, 0))
            }
            Err(errno) => Ok((Vec::new(), -(errno as i32))),
        },
        command::SYS_GET | command::GET_CHARDEV => Err(Errno::EINVAL),
        other => Err(refused(other)),
    }
}

/// One message.
fn once(devices: &[Shown], header: &Header, body: &[u8]) -> Result<Message, Errno> {
    let message = |command: u16| Message::new(NLDEV << CLIENT_SHIFT | command, 0, header);
    let command = command(header)?;
    match command {
        command::GET => {
            let (index, it) = find(devices, body)?;
            Ok(device(message(command), index, it))
        }
        command::PORT_GET => {
            let (index, it) = find(devices, body)?;
            let number = number(body, attribute::PORT_INDEX).ok_or(Errno::EINVAL)?;
            // The kernel names the other command here.
            port(message(command::GET), index, it, number)
        }
        // Devices are seen from all network namespaces; memory that is registered survives a fork.
        command::SYS_GET => Ok(message(command)
            .u8(attribute::NETNS_MODE, 1)
            .u8(attribute::PRIVILEGED_QKEY_MODE, 0)
            .u8(attribute::MONITOR_MODE, 1)
            .u8(attribute::COPY_ON_FORK, 1)),
        command::GET_CHARDEV => chardev(devices, message(command), body),
        other => Err(refused(other)),
    }
}

fn refused(command: u16) -> Errno {
    tracing::info!(
        "NETLINK_RDMA command {command} refused with EOPNOTSUPP: of resources, statistics and \
         changes nothing is modelled"
    );
    Errno::EOPNOTSUPP
}

/// The payload of an attribute.
fn find_attribute(mut body: &[u8], id: u16) -> Option<&[u8]> {
    while let Some(&[l0, l1, i0, i1]) = body.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let payload = body.get(4..length)?;
        // The upper bits say nested, and in network order.
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

/// The device that a request is about.
fn find<'a>(devices: &'a [Shown], body: &[u8]) -> Result<(usize, &'a Shown), Errno> {
    let index = number(body, attribute::DEV_INDEX).ok_or(Errno::EINVAL)? as usize;
    devices.get(index).map(|device| (index, device)).ok_or(Errno::EINVAL)
}

fn handle(message: Message, index: usize, device: &Shown) -> Message {
    let message = message.u32(attribute::DEV_INDEX, index as u32);
    message.text(attribute::DEV_NAME, &device.info.name)
}

fn device(message: Message, index: usize, device: &Shown) -> Message {
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

fn port(message: Message, index: usize, device: &Shown, number: u32) -> Result<Message, Errno> {
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

/// The node below /dev that a kind of client has for a device.
fn chardev(devices: &[Shown], message: Message, body: &[u8]) -> Result<Message, Errno> {
    let kind = find_attribute(body, attribute::CHARDEV_TYPE).ok_or(Errno::EINVAL)?;
    let kind = kind.split(|&byte| byte == 0).next().unwrap_or_default();
    let port = number(body, attribute::PORT_INDEX);
    let named = number(body, attribute::DEV_INDEX).is_some();
    let (index, device) = match find(devices, body) {
        Ok(found) => found,
        Err(errno) if named || port.is_some() => return Err(errno),
        // A kind of client that has one node for all devices: rdma_cm.
        Err(_) => return Err(Errno::EOPNOTSUPP),
    };
    if port.is_some_and(|port| port == 0 || port as usize > device.ports.len()) {
        return Err(Errno::EINVAL);
    }
    if kind != b"uverbs" {
        return Err(Errno::EOPNOTSUPP);
    }
    // The node is the device's, and no port's.
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
    use verbless_model::{Link, Model, Profile};
    use verbless_model_kernel::InProcess;

    fn devices(link: Link) -> Vec<Shown> {
        let profile = Profile::load("bluefield3").expect("a profile").with_link(link);
        let model = Model::builder().device(profile.clone()).device(profile).build();
        sysfs::shown(&InProcess::of(&model))
    }

    /// The messages that answer one request: type, flags and body of each.
    fn ask(
        devices: &[Shown],
        command: u16,
        flags: u16,
        attributes: &[(u16, &[u8])],
    ) -> Vec<(u16, u16, Vec<u8>)> {
        let to = Header { kind: 0, flags: 0, sequence: 77, port: 0 };
        let mut request = Message::new(NLDEV << 10 | command, REQUEST | flags, &to);
        for (id, payload) in attributes {
            request = request.put(*id, payload);
        }
        let answers = answers(devices, 4321, &request.end());
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

    const FIRST: &[u8] = &[0; 4];
    const SECOND: [u8; 4] = 1u32.to_ne_bytes();

    #[test]
    fn a_dump_shows_every_device_and_says_that_it_is_done() {
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
    fn a_port_says_what_query_port_does_and_one_that_is_not_there_is_refused() {
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
    fn a_port_of_infiniband_has_flags_and_a_lid_and_one_of_ethernet_has_none() {
        for link in [Link::Infiniband, Link::Ethernet] {
            let mut devices = devices(link);
            devices[0].ports[0].capability_mask_2 = 5;
            let first = 1u32.to_ne_bytes();
            let about = [(attribute::DEV_INDEX, FIRST), (attribute::PORT_INDEX, &first[..])];
            let answers = ask(&devices, command::PORT_GET, 0, &about);
            let flags = u64::from(devices[0].ports[0].flags()) | 5 << 32;
            let is_there = link == Link::Infiniband;
            let body = &answers[0].2;
            let expected = is_there.then_some(flags.to_ne_bytes());
            assert_eq!(
                find_attribute(body, attribute::CAP_FLAGS),
                expected.as_ref().map(|it| &it[..])
            );
            for id in [attribute::LID, attribute::SM_LID, attribute::LMC] {
                assert_eq!(find_attribute(body, id).is_some(), is_there, "{id}");
            }
            assert_eq!(number(body, attribute::PORT_INDEX), Some(1));
        }
    }

    #[test]
    fn what_is_no_request_to_this_client_is_not_answered_or_refused() {
        let devices = devices(Link::Ethernet);
        let say = |kind: u16, flags: u16| {
            let to = Header { kind: 0, flags: 0, sequence: 3, port: 0 };
            let index = 0u32.to_ne_bytes();
            let request = Message::new(kind, flags, &to).put(attribute::DEV_INDEX, &index);
            let answers = answers(&devices, 1, &request.end());
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
            assert_eq!(say(kind, flags), expected, "{kind:#x} {flags:#x}");
        }
    }

    #[test]
    fn the_node_of_a_device_is_named_and_other_kinds_have_none() {
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
        // Of another kind of client each port has a node, if there is such a port.
        for (port, expected) in [(0u32, invalid), (1, unsupported), (2, invalid)] {
            let port = port.to_ne_bytes();
            let about = [kind(b"umad\0"), second, (attribute::PORT_INDEX, &port)];
            assert_eq!(error(&ask(&about)), expected);
        }
        let ninth = 9u32.to_ne_bytes();
        assert_eq!(error(&ask(&[kind(b"uverbs\0"), (attribute::DEV_INDEX, &ninth)])), invalid);
    }

    #[test]
    fn what_is_not_modelled_is_not_what_is_missing_and_acknowledgements_come_when_asked_for() {
        let devices = devices(Link::Infiniband);
        let about = [(attribute::DEV_INDEX, FIRST)];
        for (command, flags, expected) in [
            (9, DUMP, Errno::EOPNOTSUPP),
            (2, 0, Errno::EOPNOTSUPP),
            (command::NONE, 0, Errno::EINVAL),
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
            let _ = super::answers(&devices, 0, &bytes);
        }
    }
}
