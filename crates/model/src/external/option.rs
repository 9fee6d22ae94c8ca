//! Socket options that the standard library lacks. (nix has them with its feature `socket` only,
//! which this crate does not use.)

#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// Sets a numeric option.
pub(super) fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value is a number of that length, and lives through the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    Ok(Errno::result(result).map(drop)?)
}

/// Gets a numeric option.
pub(super) fn get(socket: &UdpSocket, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: there is room for a number of that length, which lives through the call.
    let result = unsafe {
        let into = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, into, &raw mut length)
    };
    Errno::result(result)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_reads_back_and_invalid_one_fails() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        set(&socket, level, name, libc::IP_PMTUDISC_PROBE).unwrap();
        assert_eq!(get(&socket, level, name).unwrap(), libc::IP_PMTUDISC_PROBE);
        assert!(set(&socket, level, 0x7fff, 1).is_err());
        assert!(get(&socket, level, 0x7fff).is_err());
    }
}
