//! Random buffers: the kernel never panics, and no object remains after the file is closed.

use proptest::prelude::*;

use super::super::abi::{AttrKind, methods};
use super::super::file::File;
use super::support::{Device, Fixture, Request, TestClient, buffer, command};
use crate::InProcess;
use verbless_model::{Model, ObjectCounts, Profile};

/// An attribute: id, length, flags, reserved, and the source of its data.
type Attr = (usize, u16, u16, u16, u64, u8);

fn attribute() -> impl Strategy<Value = Attr> {
    (
        0..12usize,
        prop_oneof![
            Just(0u16),
            Just(4),
            Just(8),
            Just(16),
            Just(32),
            Just(48),
            Just(72),
            Just(0x110),
            any::<u16>()
        ],
        prop_oneof![Just(1u16), Just(0), any::<u16>()],
        prop_oneof![8 => Just(0u16), 1 => any::<u16>()],
        any::<u64>(),
        0..6u8,
    )
}

/// Plausible calls: methods with attributes, and the index that selects the mailbox's command.
type Call = ((usize, Vec<Attr>), usize);

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (0..methods().count(), prop::collection::vec(attribute(), 0..7));
    prop::collection::vec((call, any::<usize>()), 1..24)
}

/// Makes the calls. `numbers` is the first number of the device's objects.
fn make(file: &File, calls: Vec<Call>, numbers: u32) {
    // Two pages for start addresses, and room after them for the longest output.
    let (_memory, page) = buffer(2 + 16);
    for ((method, attrs), pick) in calls {
        let method = methods().nth(method).expect("there is one");
        let opcodes = [0x800, 0x400, 0x500, 0x200, 0x403, 0x50b, 0x402, 0xa00, 0x101, 0x100, 0x910];
        let number = numbers + (pick >> 8) as u32 % 8;
        let input = command(opcodes[pick % opcodes.len()], number, 0x110);
        // Scratch memory that the kernel reads and writes; it holds no Rust object.
        let mut scratch = Box::new([0u8; 0x1_0000]);
        scratch[..0x110].copy_from_slice(&input);
        let pointer = scratch.as_mut_ptr() as u64;
        let mut request = Request::new(method.object, method.id);
        for (index, len, flags, reserved, data, source) in attrs {
            let spec = method.attrs.get(index % (method.attrs.len() + 1));
            let id = spec.map_or(0x1009, |spec| spec.id);
            let data_less = spec.is_some_and(|spec| {
                matches!(spec.kind, AttrKind::Handle { .. } | AttrKind::Fd { .. } | AttrKind::RawFd)
            });
            let len = if data_less && source != 0 { 0 } else { len };
            let data = match source {
                // Every output fits: it has at most 65535 bytes.
                0 | 1 => pointer,
                2 => data % 8,
                3 => page + data % 0x2000,
                4 => 64,
                _ => data % 4096,
            };
            request = request.raw(id, len, flags, reserved, data);
        }
        let _ = request.send(file);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nearly_valid_requests_leave_no_objects(calls in calls()) {
        let fixture = Fixture::without_context(Device::new());
        let _ = fixture.get_context(1);
        make(&fixture.file, calls, 0x48);
        prop_assert_eq!(fixture.close(), 0);
    }

    #[test]
    fn random_calls_leave_no_objects_on_model(calls in calls(), numbers in 0x10..0x420u32) {
        let profile = Profile::load("connectx6dx").expect("the profile is built in");
        let model = Model::builder().device(profile).stepped().build();
        let lease = InProcess::of(&model).lease(0).expect("a lease");
        let file = File::new(lease.kernel.clone(), TestClient::new());
        let _ = super::support::get_context(&file, 1);
        make(&file, calls, numbers);
        drop((file, lease));
        prop_assert_eq!(model.counts(0), ObjectCounts::default());
    }

    #[test]
    fn random_words_never_panic(mut words in prop::collection::vec(any::<u64>(), 0..40)) {
        let fixture = Fixture::new();
        let _ = fixture.file.ioctl(&mut words);
        prop_assert_eq!(fixture.close(), 0);
    }

    #[test]
    fn random_headers_with_the_right_length_never_panic(
        object in prop_oneof![0..20u16, 0x1000..0x100au16],
        method in prop_oneof![0..8u16, 0x1000..0x1006u16],
        attrs in prop::collection::vec(
            (prop_oneof![0..5u16, 0x1000..0x1008u16], 0..80u16, 0..4096u64),
            0..8,
        ),
    ) {
        let fixture = Fixture::new();
        let mut request = Request::new(object, method);
        for (id, len, data) in attrs {
            request = request.raw(id, len, 1, 0, data);
        }
        let _ = request.send(&fixture.file);
        prop_assert_eq!(fixture.close(), 0);
    }
}
