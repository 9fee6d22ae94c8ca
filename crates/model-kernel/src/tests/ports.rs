//! QUERY_PORT and QUERY_GID_TABLE: the response fields that depend on the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{GidTableSize, PkeyTableSize, PortType};

use super::super::port::GidEntry;
use super::support::{Device, Fixture, Request};

fn query(fixture: &Fixture) -> Vec<u8> {
    let mut response = vec![0xff; 48];
    Request::new(0, 2).number(0, 1).output(1, &mut response).send(&fixture.file).expect("the port");
    response
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

#[test]
fn query_port_agrees_between_write_and_ioctl() {
    let mut device = Device::with(Device::new().caps, false);
    device.caps.set_log_max_msg(30).set_gid_table_size(GidTableSize(2));
    let fixture = Fixture::of(Arc::new(device));
    let attributes = query(&fixture);
    assert_eq!((word(&attributes, 4), word(&attributes, 16)), (1 << 30, 32), "message size, GIDs");
    let by_write = |port: u8, room: usize| {
        let (mut core, mut response) = ([0; 16], vec![0xff; room]);
        core[8] = port;
        Request::new(0, 0)
            .number(2, 2)
            .input(0, &core)
            .output(1, &mut response)
            .send(&fixture.file)
            .map(|()| response)
    };
    assert_eq!(by_write(1, 40).expect("the port"), attributes[..40]);
    assert_eq!(by_write(2, 40), Err(Errno::EINVAL));
    assert_eq!(by_write(1, 39), Err(Errno::ENOSPC));
    fixture.device.alive.store(false, Ordering::Relaxed);
    let by_ioctl =
        |port| Request::new(0, 2).number(0, port).output(1, &mut [0; 48]).send(&fixture.file);
    assert_eq!(
        [by_write(1, 40).map(drop), by_ioctl(1)],
        [Err(Errno::ENOLINK); 2],
        "the device is dead"
    );
    assert_eq!([by_write(2, 40).map(drop), by_ioctl(2)], [Err(Errno::EINVAL); 2]);
}

#[test]
fn ethernet_port_reports_cm_and_ip_based_gids() {
    let mut device = Device::with(Device::new().caps, true);
    device.caps.set_port_type(PortType::ETHERNET);
    let attributes = query(&Fixture::of(Arc::new(device)));
    assert_eq!(word(&attributes, 0), 0x401_0000);
    assert_eq!((attributes[37], attributes[38]), (2, 1), "Ethernet, and each packet has a GRH");
}

#[test]
fn gid_and_pkey_table_sizes_follow_hca_cap() {
    // A gid_table_size above 4 is invalid and reads as 0, as in `mlx5_get_gid_table_len`.
    for (size, gids) in [(0, 8), (1, 16), (4, 128), (5, 0)] {
        let mut device = Device::with(Device::new().caps, false);
        device.caps.set_gid_table_size(GidTableSize(size)).set_pkey_table_size(PkeyTableSize(size));
        let attributes = query(&Fixture::of(Arc::new(device)));
        assert_eq!(word(&attributes, 16), gids, "GIDs of size {size}");
        let pkeys = u16::from_ne_bytes([attributes[20], attributes[21]]);
        assert_eq!(pkeys, 128 << size, "P_Keys of size {size}");
    }
}

#[test]
fn gid_table_requires_room_for_each_entry() {
    let mut device = Device::with(Device::new().caps, false);
    device.more_gids.push(GidEntry { index: 3, gid: [7; 16], kind: 1 });
    let fixture = Fixture::of(Arc::new(device));
    let table = |room: usize| {
        let (mut entries, mut count) = (vec![0; room], [0; 8]);
        Request::new(0, 5)
            .number(0, 32)
            .output(2, &mut entries)
            .output(3, &mut count)
            .send(&fixture.file)
            .map(|()| (entries, u64::from_ne_bytes(count)))
    };
    let (entries, count) = table(96).expect("the table");
    assert_eq!((count, &entries[32..48]), (2, &[7; 16][..]));
    assert_eq!((word(&entries, 48), word(&entries, 52), word(&entries, 56)), (3, 1, 1));
    assert_eq!(table(64).map(|(_, count)| count), Ok(2));
    assert_eq!(table(32), Err(Errno::EINVAL));
}
