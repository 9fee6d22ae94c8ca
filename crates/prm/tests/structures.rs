//! Tests every structure of the description by reflection, and some by their own accessors.

use proptest::prelude::*;
use verbless_prm::reflect::{Kind, StructInfo, View};
use verbless_prm::{
    AddressPath, COMMANDS, CREATE_CQ, CommandInfo, CommandInput, CommandOutput, CommandStatus,
    CqContext, CqeSize, CreateCqIn, CreateCqOut, Devx, ENUMS, Opcode, QpContext, QueryHcaCapIn,
    Rst2initQpIn, STRUCTURES, Structure, bits, command,
};

/// Bytes of one element of a structure's tail; 0 if it has no tail.
fn tail_element(info: &StructInfo) -> usize {
    let own = info.fields.iter().filter(|field| field.is_tail()).map(|f| f.width as usize / 8);
    let nested = info.fields.iter().map(|field| match field.kind {
        Kind::Struct(nested) if nested.has_tail() && info.has_tail() => tail_element(nested),
        _ => 0,
    });
    own.chain(nested).max().unwrap_or(0)
}

/// (first bit, number of bits) of every leaf (a number or a byte array) and every gap.
fn places(view: &View<'_>) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    view.leaves(&mut |_, leaf| places.push((leaf.bit, leaf.width)));
    view.gaps(&mut |start, width| places.push((start, width)));
    places
}

fn copy_bits(from: &[u8], to: &mut [u8], start: usize, width: usize) {
    for bit in (start..start + width).step_by(64) {
        let width = (start + width - bit).min(64);
        bits::set(to, bit, width, bits::get(from, bit, width));
    }
}

/// Pseudo-random bytes: xorshift from `state`, which must not be 0.
fn noise(length: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

fn length(info: &StructInfo) -> usize {
    info.bytes + 4 * tail_element(info)
}

#[test]
fn fields_and_gaps_cover_every_structure() {
    for info in STRUCTURES {
        let from = noise(length(info), 0x9e37_79b9_7f4a_7c15);
        let mut to = vec![0xa5; from.len()];
        for (start, width) in places(&View::new(info, &from)) {
            copy_bits(&from, &mut to, start, width);
        }
        assert_eq!(from, to, "{}", info.name);
    }
}

#[test]
fn bits_belong_to_one_field_unless_overlaid() {
    for info in STRUCTURES {
        let mut owners = vec![0u32; length(info) * 8];
        let bytes = vec![0; length(info)];
        for field in info.fields.iter().filter(|field| !field.overlay) {
            for index in 0..field.elements(bytes.len()) {
                let start = field.bit(index);
                owners[start..start + field.width as usize].iter_mut().for_each(|n| *n += 1);
            }
        }
        assert!(owners.iter().all(|&n| n <= 1), "{} overlaps", info.name);
        for &(start, width) in info.reserved {
            owners[start as usize..(start + width) as usize].iter_mut().for_each(|n| *n += 1);
        }
        let overlays = info.fields.iter().any(|field| field.overlay);
        let whole = owners[..info.bytes * 8].iter().all(|&n| n == 1);
        assert!(whole || overlays, "{} has bits without a name", info.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn setting_field_preserves_all_others(seed in 1u64.., value: u64) {
        for info in STRUCTURES {
            let before = noise(length(info), seed);
            let view = View::new(info, &before);
            let mut numbers = Vec::new();
            view.leaves(&mut |_, leaf| {
                if matches!(leaf.field.kind, Kind::Number | Kind::Enum(_)) {
                    numbers.push((leaf.bit, leaf.width));
                }
            });
            for (start, width) in numbers {
                let value = value >> (64 - width);
                let mut after = before.clone();
                bits::set(&mut after, start, width, value);
                prop_assert_eq!(bits::get(&after, start, width), value);
                // With the field's bits restored, no bit may differ.
                for bit in start..start + width {
                    bits::set_flag(&mut after, bit, bits::flag(&before, bit));
                }
                prop_assert_eq!(&after, &before, "{} at bit {}", info.name, start);
            }
        }
    }

    #[test]
    fn view_of_any_bytes_prints(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        for info in STRUCTURES {
            let view = View::new(info, &bytes);
            let lines = view.to_string().lines().count();
            let (all, debug) = (format!("{view:#}"), format!("{view:?}"));
            prop_assert!(all.lines().count() >= lines);
            prop_assert!(debug.starts_with(info.name));
            let _ = view.nonzero_reserved();
        }
        if let Some(decoded) = command::Decoded::new(&bytes, Some(&bytes)) {
            prop_assert!(decoded.to_string().starts_with(decoded.command.name));
        }
    }

    #[test]
    fn random_command_bytes_decode(
        opcode in 0..COMMANDS.len(),
        mut bytes in proptest::collection::vec(any::<u8>(), 2..400),
    ) {
        bytes[..2].copy_from_slice(&COMMANDS[opcode].opcode.to_be_bytes());
        let decoded = command::Decoded::new(&bytes, Some(&bytes)).unwrap();
        prop_assert_eq!(decoded.command.opcode, COMMANDS[opcode].opcode);
        let all = format!("{decoded:#}");
        prop_assert!(all.lines().count() > 1);
    }
}

#[test]
fn cq_context_bytes_match_prm_layout() {
    let mut context = CqContext::zeroed();
    context.as_bytes_mut().fill(0xa5);
    context
        .set_cqe_sz(CqeSize::BYTES_128)
        .set_oi(true)
        .set_log_cq_size(0x1f)
        .set_uar_page(0x12_3456)
        .set_c_eqn_or_apu_element(0xdead_beef)
        .set_dbr_addr(0x0102_0304_0506_0708);
    let mut bytes = [0xa5; 0x40];
    // cqe_sz (23:21) becomes 001 and oi (bit 17) 1; the other bits stay as they were.
    bytes[1] = 0b0010_0111;
    bytes[0x0c..0x10].copy_from_slice(&[0xbf, 0x12, 0x34, 0x56]);
    bytes[0x14..0x18].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    bytes[0x38..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(*context.as_bytes(), bytes);
    assert_eq!(context.cqe_sz(), CqeSize::BYTES_128);
    assert_eq!(context.log_cq_size(), 0x1f);
    assert_eq!(context.dbr_addr(), 0x0102_0304_0506_0708);
}

#[test]
fn nested_structures_are_accessed_in_place() {
    let gid: [u8; 16] = std::array::from_fn(|i| i as u8);
    let mut input = Rst2initQpIn::new();
    input.qpc_mut().set_pd(0x654321);
    input.qpc_mut().primary_address_path_mut().set_rlid(0xbeef).set_rgid_rip(&gid);
    let path: &AddressPath = input.qpc().primary_address_path();
    assert_eq!((path.rlid(), path.rgid_rip()), (0xbeef, &gid));
    assert_eq!(input.qpc().pd(), 0x654321);
    let view = View::new(Rst2initQpIn::INFO, input.as_bytes());
    assert_eq!(view.get("qpc.primary_address_path.rlid"), Some(0xbeef));
    assert_eq!(view.get("qpc.primary_address_path.nonsense"), None);
    assert_eq!(view.get("qpc"), None);
    let offset = QpContext::INFO.field("primary_address_path").unwrap().bit(0) / 8;
    let qpc = &input.as_bytes()[Rst2initQpIn::INFO.field("qpc").unwrap().bit(0) / 8..];
    assert_eq!(&qpc[offset + 0x10..offset + 0x20], &gid);
}

#[test]
fn accessors_are_const_fns() {
    const INPUT: CreateCqIn = CreateCqIn::new();
    const CONTEXT: CqContext = {
        let mut context = CqContext::zeroed();
        context.set_log_cq_size(7).set_cqe_sz(CqeSize::BYTES_64);
        context
    };
    assert_eq!(INPUT.as_bytes()[..4], [0x04, 0x00, 0, 0]);
    assert_eq!(CONTEXT.log_cq_size(), 7);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "does not fit"))]
fn setter_panics_on_oversized_value_in_debug_builds_only() {
    let mut context = CqContext::zeroed();
    context.set_log_cq_size(33);
    assert_eq!(context.log_cq_size(), 1);
}

#[test]
fn from_prefix_rejects_too_few_bytes() {
    let mut bytes = [0; 0x41];
    assert!(CqContext::from_prefix(&bytes[..0x3f]).is_none());
    assert!(CqContext::from_prefix_mut(&mut bytes[..0x3f]).is_none());
    CqContext::from_prefix_mut(&mut bytes).unwrap().set_oi(true);
    assert!(CqContext::from_prefix(&bytes[..0x40]).unwrap().oi());
}

#[test]
fn debug_shows_fields_and_enum_values_by_name() {
    let mut context = CqContext::zeroed();
    context.set_log_cq_size(6).set_cqe_sz(CqeSize::BYTES_128).set_uar_page(0x1234);
    let text = format!("{context:?}");
    for part in ["cq_context {", "cqe_sz: BYTES_128", "log_cq_size: 6", "uar_page: 0x1234"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for field in CqContext::INFO.fields {
        assert!(text.contains(&format!("{}: ", field.name)), "{} is not in {text}", field.name);
    }
    let mut output = CreateCqOut::zeroed();
    output.set_status(CommandStatus::BAD_PARAM);
    assert!(format!("{output:?}").contains("status: BAD_PARAM"));
    assert_eq!(format!("{:?}", CommandStatus(0xee)), "0xee");
    let path = format!("{:?}", AddressPath::zeroed());
    assert!(path.contains("rgid_rip: [0; 16]"), "{path}");
}

#[test]
fn command_is_found_by_opcode_with_layouts() {
    let opcodes: Vec<u16> = COMMANDS.iter().map(|command| command.opcode).collect();
    assert!(opcodes.is_sorted_by(|a, b| a < b));
    for command in COMMANDS {
        let found = CommandInfo::by_opcode(command.opcode).unwrap();
        assert_eq!(found.name, command.name);
        assert_eq!(Opcode(command.opcode).name(), Some(command.name));
        assert_eq!(command.input.field("opcode").map(|f| (f.offset, f.width)), Some((0, 16)));
        assert_eq!(command.output.field("syndrome").map(|f| (f.offset, f.width)), Some((32, 32)));
    }
    assert!(CommandInfo::by_opcode(0).is_none());
    assert!(CommandInfo::of_input(&[4]).is_none());
    let create_cq = CommandInfo::of_input(CreateCqIn::new().as_bytes()).unwrap();
    assert_eq!((create_cq.name, create_cq.devx), ("CREATE_CQ", Devx::Create));
    assert_eq!(<CreateCqIn as CommandInput>::INFO.opcode, CREATE_CQ.opcode);
}

#[test]
fn every_output_has_status_and_syndrome() {
    fn failure<O: CommandOutput>() -> (CommandStatus, u32) {
        let mut output = O::default();
        let bytes = output.as_mut_bytes();
        bytes[0] = 3;
        bytes[4..8].copy_from_slice(&0x0012_3456u32.to_be_bytes());
        (output.status(), output.syndrome())
    }
    let wanted = (CommandStatus::BAD_PARAM, 0x12_3456);
    assert_eq!(failure::<CreateCqOut>(), wanted);
    assert_eq!(failure::<<QueryHcaCapIn as CommandInput>::Output>(), wanted);
}

#[test]
fn hca_cap_output_decodes_as_requested_page() {
    let input = QueryHcaCapIn::new();
    let mut output = [0; 0x1010];
    let general = CommandInfo::of_input(input.as_bytes()).unwrap();
    let page = general.view_output(input.as_bytes(), &output).holds.unwrap();
    assert_eq!(page.0, "capability");
    let (bit, width) = page.1.field("log_max_qp").map(|f| (f.bit(0), f.width as usize)).unwrap();
    bits::set(&mut output[0x10..], bit, width, 17);
    let text = command::Decoded::new(input.as_bytes(), Some(&output)).unwrap().to_string();
    assert!(text.contains("capability.log_max_qp = 0x11"), "{text}");
}

#[test]
fn structure_and_field_names_are_unique() {
    assert!(STRUCTURES.is_sorted_by(|a, b| a.name < b.name));
    assert!(ENUMS.is_sorted_by(|a, b| a.name < b.name));
    for info in STRUCTURES {
        for (i, field) in info.fields.iter().enumerate() {
            let twin = info.fields[..i].iter().find(|other| other.name == field.name);
            assert!(twin.is_none(), "{}.{}", info.name, field.name);
        }
        assert!(!info.sources.is_empty(), "{} has no source", info.name);
    }
}

#[test]
fn structure_size_matches_info() {
    fn check<S: Structure>() {
        assert_eq!(size_of::<S>(), S::BYTES);
        assert_eq!(S::INFO.bytes, S::BYTES);
        assert_eq!(align_of::<S>(), 1);
    }
    check::<CqContext>();
    check::<QpContext>();
    check::<CreateCqIn>();
    check::<AddressPath>();
}

#[test]
fn structure_is_model_only_without_other_source() {
    let mut tried = 0;
    for command in COMMANDS {
        for variant in command.variants {
            let field = command.input.field(variant.when).expect("the field selects the structure");
            for &value in variant.values {
                let mut input = vec![0; 4096];
                bits::set(&mut input, field.offset as usize, field.width as usize, value);
                let own = variant.info.is_model_only();
                let expected = own.then_some(command::ModelOnly::Structure(variant.info.name));
                assert_eq!(command.model_only(&input), expected, "{} {value:#x}", command.name);
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
}
