//! The command queue from a driver's side.

use proptest::prelude::*;
use verbless_prm::mailbox::xor8;
use verbless_prm::{
    AllocPdIn, AllocUarIn, CmdifChecksum, CommandInput, CommandMailbox, CommandOwnership,
    CommandQueueEntry, CommandTransport, CreateEqIn, DeallocPdIn, DeliveryStatus, EnableHcaIn,
    HcaCap, InitHcaIn, ManagePagesIn, NopIn, QueryHcaCapIn, QueryPagesIn, SetHcaCapIn, Structure,
    TeardownHcaIn, TeardownProfile,
};

use super::super::rig::{
    CMDQ_ADDR_H, CMDQ_ADDR_L, COMMAND_DOORBELL_VECTOR, Driver, MEMORY, MEMORY_BYTES, QUEUE,
};
use super::sign;
use crate::captured_log::captured_log;
use verbless_model::memory::HostMemory;

/// Sends a command, which must succeed; returns its output.
fn run_ok<I: CommandInput>(driver: &mut Driver, input: &I, list: &[u8]) -> Vec<u8> {
    let bytes = <I::Output as Structure>::BYTES;
    let output = driver.send(&[input.as_bytes(), list].concat(), bytes.max(16)).unwrap();
    assert_eq!(output[0], 0, "{}: {output:02x?}", <I as CommandInput>::INFO.name);
    output
}

fn enabled() -> Driver {
    let mut driver = Driver::new();
    run_ok(&mut driver, &EnableHcaIn::new(), &[]);
    driver
}

/// QUERY_HCA_CAP of the current general capabilities.
fn query_cap() -> QueryHcaCapIn {
    let mut query = QueryHcaCapIn::new();
    query.set_op_mod(1);
    query
}

fn up() -> Driver {
    let mut driver = enabled();
    let mut query = QueryPagesIn::new();
    query.set_op_mod(QueryPagesIn::INIT_PAGES);
    let output = run_ok(&mut driver, &query, &[]);
    let count = u32::from_be_bytes(output[12..16].try_into().unwrap());
    let pages: Vec<u8> =
        (0..u64::from(count)).flat_map(|page| ((1 << 40) + page * 4096).to_be_bytes()).collect();
    let mut give = ManagePagesIn::new();
    give.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(count);
    run_ok(&mut driver, &give, &pages);
    run_ok(&mut driver, &InitHcaIn::new(), &[]);
    driver
}

#[test]
fn inline_output_is_signed_and_keeps_token() {
    let mut driver = Driver::new();
    let entry = driver.entry(EnableHcaIn::new().as_bytes(), 12);
    let answered = driver.ring(&entry);
    assert_eq!(answered.ownership(), CommandOwnership::SOFTWARE);
    assert_eq!(answered.status(), DeliveryStatus::OK);
    assert_eq!(answered.command_output_inline_data(), &[0; 16]);
    assert_eq!(xor8(answered.as_bytes()), 0xff, "the answer is signed");
    assert_eq!(answered.token(), entry.token());
}

#[test]
fn long_output_fills_signed_mailboxes() {
    let mut driver = enabled();
    let entry = driver.entry(query_cap().as_bytes(), 0x1010);
    let answered = driver.ring(&entry);
    let output = driver.output(&answered);
    let capability = HcaCap::from_prefix(&output[16..]).unwrap();
    assert_eq!(capability.num_ports(), 1);
    let mut mailbox = CommandMailbox::zeroed();
    let mut at = answered.output_mailbox();
    let mut count = 0;
    while at != 0 {
        driver.memory.read(at, mailbox.as_bytes_mut()).unwrap();
        assert_eq!((xor8(mailbox.as_bytes()), xor8(mailbox.control())), (0xff, 0xff));
        assert_eq!((mailbox.block_number(), mailbox.token()), (count, entry.token()));
        at = mailbox.next();
        count += 1;
    }
    assert_eq!(count, 8);
}

#[test]
fn bad_entry_yields_delivery_status() {
    type Spoil = fn(&mut CommandQueueEntry);
    let cases: [(DeliveryStatus, Spoil); 8] = [
        (DeliveryStatus::BAD_DESCRIPTOR_TYPE, |entry| {
            entry.set_type(CommandTransport(6));
        }),
        (DeliveryStatus::INPUT_LENGTH_ERR, |entry| {
            entry.set_input_length(0);
        }),
        (DeliveryStatus::INPUT_LENGTH_ERR, |entry| {
            entry.set_input_length(u32::MAX);
        }),
        (DeliveryStatus::INPUT_LENGTH_ERR, |entry| {
            entry.set_input_length(17);
        }),
        (DeliveryStatus::OUTPUT_LENGTH_ERR, |entry| {
            entry.set_output_length(0);
        }),
        (DeliveryStatus::OUTPUT_LENGTH_ERR, |entry| {
            entry.set_output_length(u32::MAX);
        }),
        (DeliveryStatus::INPUT_POINTER_ALIGNMENT, |entry| {
            entry.set_input_mailbox(entry.input_mailbox() | 1);
        }),
        (DeliveryStatus::OUTPUT_POINTER_ALIGNMENT, |entry| {
            entry.set_output_mailbox(entry.output_mailbox() | 1);
        }),
    ];
    for (status, spoil) in cases {
        let mut driver = Driver::new();
        let mut entry = driver.entry(EnableHcaIn::new().as_bytes(), 16);
        spoil(&mut entry);
        let answered = driver.ring(&entry);
        assert_eq!(answered.status(), status);
        assert_eq!(answered.ownership(), CommandOwnership::SOFTWARE);
        run_ok(&mut driver, &EnableHcaIn::new(), &[]); // fails if the bad entry was executed
    }
}

#[test]
fn bad_mailbox_yields_delivery_status() {
    type Spoil = fn(&mut CommandMailbox, u64);
    let cases: [(DeliveryStatus, usize, Spoil); 7] = [
        (DeliveryStatus::TOKEN_ERR, 0, |mailbox, _| {
            mailbox.set_token(0xee);
        }),
        (DeliveryStatus::TOKEN_ERR, 7, |mailbox, _| {
            mailbox.set_token(0xee);
        }),
        (DeliveryStatus::BAD_BLOCK_NUMBER, 3, |mailbox, _| {
            mailbox.set_block_number(4);
        }),
        // A chain that loops.
        (DeliveryStatus::BAD_BLOCK_NUMBER, 3, |mailbox, address| {
            mailbox.set_next(address);
        }),
        // A chain that ends too early.
        (DeliveryStatus::OUTPUT_LENGTH_ERR, 3, |mailbox, _| {
            mailbox.set_next(0);
        }),
        // A chain whose next mailbox is outside memory.
        (DeliveryStatus::FIRMWARE_ERR, 3, |mailbox, _| {
            mailbox.set_next(1 << 50);
        }),
        (DeliveryStatus::OUTPUT_POINTER_ALIGNMENT, 3, |mailbox, address| {
            mailbox.set_next(address + 512);
        }),
    ];
    for (status, number, spoil) in cases {
        let mut driver = enabled();
        let entry = driver.entry(query_cap().as_bytes(), 0x1010);
        let first = entry.output_mailbox();
        let address = first + 1024 * number as u64;
        let mut mailbox = CommandMailbox::zeroed();
        driver.memory.read(address, mailbox.as_bytes_mut()).unwrap();
        spoil(&mut mailbox, address);
        driver.memory.write(address, mailbox.as_bytes()).unwrap();
        assert_eq!(driver.ring(&entry).status(), status);
    }
}

#[test]
fn input_of_many_mailboxes_arrives_whole() {
    let mut driver = enabled();
    let output = driver.send(query_cap().as_bytes(), 0x1010).unwrap();
    let mut set = SetHcaCapIn::new();
    let capability: &[u8; 0x1000] = output[16..].try_into().unwrap();
    set.set_capability(capability);
    run_ok(&mut driver, &set, &[]);
    assert_eq!(driver.send(query_cap().as_bytes(), 0x1010).unwrap(), output);
}

#[test]
fn signatures_are_checked_once_they_are_enabled() {
    let mut driver = enabled();
    let output = driver.send(query_cap().as_bytes(), 0x1010).unwrap();
    let mut set = SetHcaCapIn::new();
    let mut capability: [u8; 0x1000] = output[16..].try_into().unwrap();
    let general = HcaCap::from_prefix_mut(&mut capability).unwrap();
    general.set_cmdif_checksum(CmdifChecksum::ENABLED);
    set.set_capability(&capability);
    run_ok(&mut driver, &set, &[]);

    let mut entry = driver.entry(NopIn::new().as_bytes(), 16);
    entry.set_signature(!xor8(entry.as_bytes()));
    assert_eq!(driver.ring(&entry).status(), DeliveryStatus::OK);
    let signature = entry.signature();
    entry.set_signature(signature ^ 1);
    assert_eq!(driver.ring(&entry).status(), DeliveryStatus::SIGNATURE_ERR);

    let mut entry = driver.entry(query_cap().as_bytes(), 0x1010);
    entry.set_signature(!xor8(entry.as_bytes()));
    assert_eq!(
        driver.ring(&entry).status(),
        DeliveryStatus::SIGNATURE_ERR,
        "the mailboxes are not signed"
    );

    // A mailbox has two signatures: of its control part, and of the whole.
    type Spoil = fn(&mut CommandMailbox);
    let cases: [(DeliveryStatus, Spoil); 3] = [
        (DeliveryStatus::OK, |_| {}),
        (DeliveryStatus::SIGNATURE_ERR, |mailbox| mailbox.as_bytes_mut()[0x10] ^= 1),
        (DeliveryStatus::SIGNATURE_ERR, |mailbox| {
            let (control, whole) = (mailbox.ctrl_signature(), mailbox.signature());
            mailbox.set_ctrl_signature(control ^ 1).set_signature(whole ^ 1);
        }),
    ];
    for (status, spoil) in cases {
        let mut entry = driver.entry(query_cap().as_bytes(), 16 + 512);
        let at = entry.output_mailbox();
        let mut mailbox = CommandMailbox::zeroed();
        driver.memory.read(at, mailbox.as_bytes_mut()).unwrap();
        sign(&mut mailbox);
        spoil(&mut mailbox);
        driver.memory.write(at, mailbox.as_bytes()).unwrap();
        entry.set_signature(!xor8(entry.as_bytes()));
        assert_eq!(driver.ring(&entry).status(), status);
    }
}

#[test]
fn length_above_16_mib_is_rejected_before_mailboxes() {
    type Set = fn(&mut CommandQueueEntry, u32);
    let cases: [(Set, DeliveryStatus); 2] = [
        (|entry, length| _ = entry.set_input_length(length), DeliveryStatus::INPUT_LENGTH_ERR),
        (|entry, length| _ = entry.set_output_length(length), DeliveryStatus::OUTPUT_LENGTH_ERR),
    ];
    for (set, too_long) in cases {
        // The mailboxes have another command's token.
        for (length, expected) in
            [(16 << 20, DeliveryStatus::TOKEN_ERR), ((16 << 20) + 1, too_long)]
        {
            let mut driver = Driver::new();
            let mailbox = driver.mailboxes(&[0; 512]);
            let mut entry = driver.entry(EnableHcaIn::new().as_bytes(), 16);
            entry.set_input_mailbox(mailbox).set_output_mailbox(mailbox);
            set(&mut entry, length);
            assert_eq!(driver.ring(&entry).status(), expected, "{length:#x}");
        }
    }
}

#[test]
fn mailbox_at_512_byte_boundary_is_accepted() {
    let mut driver = enabled();
    let mut entry = driver.entry(query_cap().as_bytes(), 16 + 512);
    let at = entry.output_mailbox();
    let address = driver.allocate(0x1000) + 512;
    let mut mailbox = CommandMailbox::zeroed();
    driver.memory.read(at, mailbox.as_bytes_mut()).unwrap();
    driver.memory.write(address, mailbox.as_bytes()).unwrap();
    entry.set_output_mailbox(address);
    assert_eq!(driver.ring(&entry).status(), DeliveryStatus::OK);
}

#[test]
fn command_log_has_opcode_name_and_lengths() {
    let mut driver = Driver::new();
    let text = captured_log(|| run_ok(&mut driver, &EnableHcaIn::new(), &[]).clear());
    let expected = "0x104 ENABLE_HCA slot=0 uid=0 op_mod=0 input=16 output=16 status=0";
    assert!(text.contains(expected), "{text}");
    for (input, output, logged) in [(7, 1, false), (8, 1, true), (12, 1, true), (8, 0, false)] {
        let input = vec![1; input];
        let text = captured_log(|| super::log(3, &input, &vec![5; output]));
        assert_eq!(text.contains("slot=3 uid=257 op_mod=257"), logged, "{} {output}", input.len());
    }
}

#[test]
fn software_owned_entry_is_ignored() {
    let mut driver = Driver::new();
    let mut entry = driver.entry(EnableHcaIn::new().as_bytes(), 16);
    entry.set_ownership(CommandOwnership::SOFTWARE).set_status(DeliveryStatus::TOKEN_ERR);
    assert_eq!(driver.ring(&entry), entry);
}

#[test]
fn one_doorbell_serves_several_slots() {
    let mut driver = enabled();
    for slot in [0, 5, 31] {
        let entry = driver.entry(NopIn::new().as_bytes(), 16);
        driver.put(slot, &entry);
    }
    let other = driver.entry(NopIn::new().as_bytes(), 16);
    driver.put(1, &other);
    driver.write(COMMAND_DOORBELL_VECTOR, 1 | 1 << 5 | 1 << 31);
    assert_eq!(driver.get(1), other, "its doorbell was not rung");
    for slot in [0, 5, 31] {
        let answered = driver.get(slot);
        assert_eq!(answered.ownership(), CommandOwnership::SOFTWARE);
        assert_eq!(answered.status(), DeliveryStatus::OK);
    }
}

/// Creates an EQ of 32 entries for one event type; returns the address of its ring.
fn event_queue(driver: &mut Driver, kind: u8) -> u64 {
    let output = run_ok(driver, &AllocUarIn::new(), &[]);
    let page = u32::from_be_bytes(output[8..12].try_into().unwrap()) & 0xff_ffff;
    let ring = driver.allocate(0x1000);
    // Entries begin with owner bit 1; the device writes 0 in the first round.
    for index in 0..32 {
        driver.memory.store8(ring + 64 * index + 63, 1).unwrap();
    }
    let mut create = CreateEqIn::new();
    create.set_event_bitmask(0, 1 << kind);
    create.eq_context_entry_mut().set_uar_page(page).set_log_eq_size(5);
    run_ok(driver, &create, &ring.to_be_bytes());
    ring
}

#[test]
fn completion_eqe_is_written_per_command_slot() {
    let mut driver = up();
    let ring = event_queue(&mut driver, 0x0a);
    let eqe = |driver: &Driver, index: u64| {
        let mut eqe = [0; 64];
        driver.memory.read(ring + 64 * index, &mut eqe).unwrap();
        eqe
    };
    assert_eq!(eqe(&driver, 0)[63], 1, "CREATE_EQ itself is not reported to its EQ");
    for (index, slot) in [3_u32, 31, 0].into_iter().enumerate() {
        let entry = driver.entry(NopIn::new().as_bytes(), 16);
        driver.put(slot, &entry);
        driver.write(COMMAND_DOORBELL_VECTOR, 1 << slot);
        let eqe = eqe(&driver, index as u64);
        assert_eq!((eqe[1], eqe[63]), (0x0a, 0));
        assert_eq!(eqe[0x20..0x24], (1_u32 << slot).to_be_bytes());
    }
}

/// The pages wanted by the page requests in an EQ ring, from entry `from` on.
fn page_requests(driver: &Driver, ring: u64, from: u64) -> Vec<i32> {
    let mut wanted = Vec::new();
    for index in from..32 {
        let mut eqe = [0; 64];
        driver.memory.read(ring + 64 * index, &mut eqe).unwrap();
        if eqe[63] != 0 {
            break;
        }
        assert_eq!((eqe[1], &eqe[0x20..0x24]), (0x0b, &[0; 4][..]), "of function 0");
        wanted.push(i32::from_be_bytes(eqe[0x24..0x28].try_into().unwrap()));
    }
    wanted
}

#[test]
fn page_requests_follow_object_count() {
    let mut driver = up();
    let ring = event_queue(&mut driver, 0x0b);
    assert_eq!(page_requests(&driver, ring, 0), [32], "32 pages back the first 256 objects");
    let pds: Vec<u32> = (0..555)
        .map(|_| {
            let output = run_ok(&mut driver, &AllocPdIn::new(), &[]);
            u32::from_be_bytes(output[8..12].try_into().unwrap())
        })
        .collect();
    assert_eq!(
        page_requests(&driver, ring, 1),
        [32, 32],
        "32 pages back 256 objects; each page request is sent once"
    );

    let mut give = ManagePagesIn::new();
    give.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(96);
    let pages: Vec<u8> =
        (0..96).flat_map(|page| ((2_u64 << 40) + page * 4096).to_be_bytes()).collect();
    run_ok(&mut driver, &give, &pages);
    assert_eq!(page_requests(&driver, ring, 3), [0; 0]);

    for pd in &pds {
        let mut free = DeallocPdIn::new();
        free.set_pd(*pd);
        run_ok(&mut driver, &free, &[]);
    }
    assert_eq!(page_requests(&driver, ring, 3), [-32], "one batch stays spare");
    let mut take = ManagePagesIn::new();
    take.set_op_mod(ManagePagesIn::HCA_RETURN_PAGES).set_input_num_entries(32);
    let answer = driver.send(take.as_bytes(), 16 + 32 * 8).unwrap();
    assert_eq!(answer[8..12], 32_u32.to_be_bytes());
    let first = u64::from_be_bytes(answer[16..24].try_into().unwrap());
    assert!(first >= 2 << 40, "the newest go first");
}

#[test]
fn page_request_repeats_after_allocation_fail() {
    let mut driver = up();
    let ring = event_queue(&mut driver, 0x0b);
    let mut refuse = ManagePagesIn::new();
    refuse.set_op_mod(ManagePagesIn::ALLOCATION_FAIL);
    run_ok(&mut driver, &refuse, &[]);
    assert_eq!(page_requests(&driver, ring, 1), [0; 0], "the refusal itself makes no request");
    run_ok(&mut driver, &AllocPdIn::new(), &[]);
    assert_eq!(page_requests(&driver, ring, 1), [32]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_command_queue_entries_leave_device_healthy(
        entries in proptest::collection::vec(any::<[u8; 64]>(), 1..32),
        memory in proptest::collection::vec(any::<u8>(), 1..8192),
        pointers in proptest::collection::vec((0..8_u64, 0..8_u64), 32),
        doorbells in any::<u32>(),
    ) {
        let mut driver = up();
        let mailboxes = driver.allocate(16 * 1024);
        driver.memory.write(mailboxes, &memory).unwrap();
        for (slot, (bytes, (input, output))) in entries.iter().zip(&pointers).enumerate() {
            let mut entry = CommandQueueEntry::zeroed();
            *entry.as_bytes_mut() = *bytes;
            // Three in four are plausible, to reach the code after the checks.
            if bytes[0] & 3 != 0 {
                entry.set_type(CommandTransport::PCIE).set_ownership(CommandOwnership::HARDWARE);
                entry.set_input_length(u32::from(bytes[5]) * 8);
                entry.set_output_length(u32::from(bytes[6]) * 32);
                let [input, output] = [input, output].map(|at| mailboxes + at * 1024);
                entry.set_input_mailbox(input).set_output_mailbox(output);
            }
            driver.put(slot as u32, &entry);
        }
        driver.write(COMMAND_DOORBELL_VECTOR, doorbells);
        driver.model.run_until_idle();
        prop_assert!(driver.read(0x1010) & 0xff00_0000 == 0, "still healthy");
    }

    #[test]
    fn random_inputs_of_known_commands_are_answered(
        commands in proptest::collection::vec(
            (
                any::<proptest::sample::Index>(),
                proptest::collection::vec(any::<u8>(), 8..700),
                0..5_u16,
                any::<bool>(),
            ),
            1..40,
        ),
    ) {
        let mut driver = up();
        for (which, mut input, op_mod, sparse) in commands {
            let command = *which.get(verbless_prm::COMMANDS);
            if sparse {
                // An input of mostly zeros passes more checks than random bytes.
                for (at, byte) in input.iter_mut().skip(8).enumerate() {
                    if at % 7 != 0 {
                        *byte = 0;
                    }
                }
            }
            input[..2].copy_from_slice(&command.opcode.to_be_bytes());
            input[2..4].fill(0);
            input[4..8].copy_from_slice(&u32::from(op_mod).to_be_bytes());
            let output = driver.send(&input, 0x1010).unwrap();
            prop_assert_eq!(output.len(), 0x1010);
            driver.model.run_until_idle();
        }
    }
}

#[test]
fn command_queue_outside_memory_is_ignored() {
    let mut driver = Driver::new();
    for queue in [0, MEMORY + MEMORY_BYTES, MEMORY + MEMORY_BYTES - 0x1000 + 64, 1 << 52] {
        driver.write(CMDQ_ADDR_H, (queue >> 32) as u32);
        driver.write(CMDQ_ADDR_L, queue as u32);
        driver.write(COMMAND_DOORBELL_VECTOR, u32::MAX);
    }
    driver.start();
    run_ok(&mut driver, &EnableHcaIn::new(), &[]);
}

/// nic_interface = disabled, in the dword of [`CMDQ_ADDR_L`].
const NIC_INTERFACE_DISABLED: u32 = 1 << 8;

#[test]
fn gracefully_closed_function_answers_commands() {
    let mut driver = up();
    let mut teardown = TeardownHcaIn::new();
    teardown.set_profile(TeardownProfile::GRACEFUL_CLOSE);
    run_ok(&mut driver, &teardown, &[]);
    // A driver then reclaims its pages by commands.
    run_ok(&mut driver, &NopIn::new(), &[]);
}

#[test]
fn closed_function_answers_commands_after_restart() {
    let profiles = [TeardownProfile::FORCE_CLOSE, TeardownProfile::PREPARE_FAST_TEARDOWN];
    let nic_interfaces: [&[u32]; 2] = [&[0], &[NIC_INTERFACE_DISABLED, 0]];
    for (profile, states) in
        profiles.into_iter().flat_map(|one| nic_interfaces.map(|states| (one, states)))
    {
        let mut driver = up();
        let mut teardown = TeardownHcaIn::new();
        teardown.set_profile(profile);
        run_ok(&mut driver, &teardown, &[]);
        let nop = driver.entry(NopIn::new().as_bytes(), 16);
        assert_eq!(driver.ring(&nop), nop, "{profile:?}: no answer");
        for state in states {
            driver.write(CMDQ_ADDR_L, QUEUE as u32 | state);
        }
        run_ok(&mut driver, &EnableHcaIn::new(), &[]);
        run_ok(&mut driver, &NopIn::new(), &[]);
    }
}
