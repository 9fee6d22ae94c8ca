//! Hostile buffers: malformed headers and attribute lists, each with the errno that Linux gives.

use nix::errno::Errno;

use super::support::{Fixture, Request, command};

/// A valid OTHER with QUERY_HCA_CAP.
fn other(input: &[u8], output: &mut [u8]) -> Request {
    Request::new(0x1000, 0x1000).input(0x1000, input).output(0x1001, output)
}

#[test]
fn malformed_ioctl_header_is_rejected() {
    let fixture = Fixture::new();
    let good = Request::new(0x1000, 0x1002).input(0x1000, &[0; 4]).words;
    let with = |index: usize, f: &dyn Fn(u64) -> u64| {
        let mut words = good.clone();
        words[index] = f(words[index]);
        words
    };
    let cases: &[(&str, Vec<u64>, Errno)] = &[
        ("empty", vec![], Errno::EFAULT),
        ("cut in the header", good[..2].to_vec(), Errno::EFAULT),
        ("cut in the attributes", good[..4].to_vec(), Errno::EFAULT),
        ("length too small", with(0, &|w| w - 8), Errno::EINVAL),
        ("length too large", with(0, &|w| w + 16), Errno::EINVAL),
        ("length 0", with(0, &|w| w & !0xffff), Errno::EINVAL),
        ("count too large", with(0, &|w| w + (1 << 48)), Errno::EINVAL),
        ("more than a page", with(0, &|w| w & 0xffff_ffff_0000 | 4104 | 255 << 48), Errno::EINVAL),
        ("reserved1", with(1, &|_| 1), Errno::EPROTONOSUPPORT),
        ("reserved2", with(2, &|w| w | 1 << 32), Errno::EPROTONOSUPPORT),
        ("another driver", with(2, &|_| 2), Errno::EINVAL),
        ("no such object", with(0, &|w| w | 0x0fff_0000), Errno::EPROTONOSUPPORT),
        ("no such method", with(0, &|w| w | 0xff << 32), Errno::EPROTONOSUPPORT),
    ];
    for (what, words, errno) in cases {
        assert_eq!(fixture.file.ioctl(&mut words.clone()), Err(*errno), "{what}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn malformed_attribute_is_rejected() {
    let fixture = Fixture::new();
    let input = command(0x101, 0, 16);
    let short = [0; 15];
    let pointer = input.as_ptr() as u64;
    let mut room = [0; 16];
    let out = room.as_mut_ptr() as u64;
    let request = || Request::new(0x1000, 0x1000);
    let cases = [
        (
            "inbox too short",
            request().input(0x1000, &short).raw(0x1001, 16, 1, 0, out),
            Errno::EINVAL,
        ),
        (
            "outbox too short",
            request().input(0x1000, &input).raw(0x1001, 15, 1, 0, out),
            Errno::EINVAL,
        ),
        ("no outbox", request().input(0x1000, &input), Errno::EINVAL),
        ("no inbox", request().raw(0x1001, 16, 1, 0, out), Errno::EINVAL),
        ("nothing", request(), Errno::EINVAL),
        ("inbox twice", request().input(0x1000, &input).input(0x1000, &input), Errno::EINVAL),
        ("reserved of the inbox", request().raw(0x1000, 16, 1, 0x100, pointer), Errno::EINVAL),
        ("element id", request().raw(0x1000, 16, 1, 1, pointer), Errno::EINVAL),
        ("inbox at an unmapped address", request().raw(0x1000, 16, 1, 0, 64), Errno::EFAULT),
        (
            "outbox at an unmapped address",
            request().input(0x1000, &input).raw(0x1001, 16, 1, 0, 64),
            Errno::EFAULT,
        ),
        (
            "an unknown mandatory attribute",
            request().input(0x1000, &input).raw(0x1001, 16, 1, 0, out).number(0x1002, 0),
            Errno::EPROTONOSUPPORT,
        ),
        (
            "an attribute id of no namespace",
            request().input(0x1000, &input).raw(0x1001, 16, 1, 0, out).number(0xffff, 0),
            Errno::EPROTONOSUPPORT,
        ),
    ];
    for (what, mut request, errno) in cases {
        assert_eq!(request.send(&fixture.file), Err(errno), "{what}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn unknown_optional_attribute_is_ignored() {
    let fixture = Fixture::new();
    let input = command(0x101, 0, 16);
    let mut output = [0xff; 16];
    let mut request = other(&input, &mut output).raw(0x1007, 4, 0, 0, 0).raw(0x1007, 4, 0, 0, 0);
    assert_eq!(request.send(&fixture.file), Ok(()));
    assert_eq!(output, [0; 16]);
}

#[test]
fn filled_output_is_flagged_valid() {
    let fixture = Fixture::new();
    let input = command(0x101, 0, 16);
    let mut output = [0xff; 16];
    let mut request = other(&input, &mut output);
    assert_eq!(request.send(&fixture.file), Ok(()));
    assert_eq!((request.flags(0), request.flags(1)), (1, 3));
}

#[test]
fn values_and_flags_have_their_lengths() {
    let fixture = Fixture::new();
    let mut out = [0; 4];
    let at = out.as_mut_ptr() as u64;
    let eqn = || Request::new(0x1000, 0x1002);
    let channel = || Request::new(0x1005, 0x1000).handle(0x1000, 0);
    let cases = [
        ("vector of 8 bytes", eqn().number(0x1000, 0).raw(0x1001, 4, 1, 0, at), Errno::EINVAL),
        ("vector of 2 bytes", eqn().input(0x1000, &[0; 2]).raw(0x1001, 4, 1, 0, at), Errno::EINVAL),
        ("output of 8 bytes", eqn().input(0x1000, &[0; 4]).raw(0x1001, 8, 1, 0, at), Errno::EINVAL),
        ("flags of 2 bytes", channel().input(0x1001, &[0; 2]), Errno::EINVAL),
        ("flags of 5 bytes", channel().input(0x1001, &[0; 5]), Errno::EINVAL),
        ("flags of 9 bytes", channel().input(0x1001, &[0; 9]), Errno::EINVAL),
        ("flags unknown", channel().input(0x1001, &[2, 0, 0, 0]), Errno::EINVAL),
        ("flags unknown above", channel().number(0x1001, 1 << 40), Errno::EINVAL),
        (
            "a handle with a length",
            Request::new(0x1005, 0x1000).raw(0x1000, 4, 1, 0, 0),
            Errno::EINVAL,
        ),
    ];
    for (what, mut request, errno) in cases {
        assert_eq!(request.send(&fixture.file), Err(errno), "{what}");
    }
    assert_eq!(fixture.client.installed.lock().expect("no panic").len(), 0);
    assert_eq!(channel().number(0x1001, 1).send(&fixture.file), Ok(()), "flags of 8 bytes");
    let import = |len, reserved, fd: i64| {
        let mut id = [0; 4];
        Request::new(0x1002, 0x1000)
            .handle(0x1000, 0)
            .number(0x1001, 0)
            .number(0x1002, 4096)
            .input(0x1003, &[0; 4])
            .output(0x1004, &mut id)
            .raw(0x1006, len, 1, reserved, fd.cast_unsigned())
            .send(&fixture.file)
    };
    assert_eq!(
        import(0, 0, 1 << 20),
        Err(Errno::EBADF),
        "a valid attribute with an unknown descriptor"
    );
    for (len, reserved, fd) in [(4, 0, 1 << 20), (0, 4, 1 << 20), (0, 0, 1 << 31), (0, 0, -1 << 32)]
    {
        let refused = import(len, reserved, fd);
        assert_eq!(refused, Err(Errno::EINVAL), "a descriptor: {len} {reserved} {fd}");
    }
    for (len, reserved) in [(4, 0), (0, 4)] {
        let refused = Request::new(0x1005, 0x1000).raw(0x1000, len, 1, reserved, 0);
        let mut refused = refused.input(0x1001, &[0; 4]);
        assert_eq!(refused.send(&fixture.file), Err(Errno::EINVAL), "a handle: {len} {reserved}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn foreign_handles_are_rejected() {
    let fixture = Fixture::new();
    let pd = fixture.create(&command(0x800, 0, 16)).expect("a PD");
    let cases = [
        ("never given", pd + 1, Errno::ENOENT),
        ("negative", u64::MAX, Errno::EINVAL),
        ("past 32 bits", 1 << 32 | pd, Errno::ENOENT),
    ];
    for (what, handle, errno) in cases {
        assert_eq!(fixture.destroy(0x1001, handle), Err(errno), "{what}");
    }
    assert_eq!(fixture.destroy(0x1002, pd), Err(Errno::EINVAL), "an object of another kind");
    assert_eq!(fixture.destroy(0x1008, pd), Err(Errno::EINVAL), "an object of another kind");
    assert_eq!(fixture.destroy(0x1001, pd), Ok(()));
    assert_eq!(fixture.destroy(0x1001, pd), Err(Errno::ENOENT), "destroyed before");
    assert_eq!(fixture.close(), 0);
}

#[test]
fn foreign_event_channels_are_rejected() {
    use std::os::fd::AsRawFd;
    let fixture = Fixture::new();
    let other = Fixture::new();
    let foreign = other.channel(0).expect("a channel");
    let plain = std::fs::File::open("/dev/null").expect("there is /dev/null");
    let subscribe = |fd: u64| {
        Request::new(0x1000, 0x1003).handle(0x1000, fd).input(0x1002, &[9, 0]).send(&fixture.file)
    };
    assert_eq!(subscribe(plain.as_raw_fd() as u64), Err(Errno::EBADF));
    assert_eq!(subscribe(foreign.as_raw_fd() as u64), Err(Errno::EBADF));
    assert_eq!(subscribe(1 << 20), Err(Errno::EBADF));
    assert_eq!(subscribe(u64::MAX), Err(Errno::EBADF));
    assert_eq!(subscribe(1 << 40), Err(Errno::EINVAL));
    let mut command_fd = Request::new(0x1004, 0x1000).handle(0x1000, 0);
    assert_eq!(command_fd.send(&fixture.file), Ok(()));
    assert_eq!(subscribe(command_fd.data(0)), Err(Errno::EBADF), "a channel of another kind");
}
