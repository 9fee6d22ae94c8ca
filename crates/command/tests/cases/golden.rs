//! Golden bytes of commands.

use std::sync::{Arc, Mutex};

use verbless_command::{Device, KeyAccess, KeyMemory, MkeyAttr, RemoteAccess};
use verbless_devx::{Backend, page_size};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::Opcode;

use crate::support::register_pages;

/// Offsets and widths from mlx5_ifc.h in Linux 7.2, and for the UMEM from UCX's ib_mlx5_ifc.h.
#[test]
fn umem_mkey_command_matches_ucx_bytes() {
    let model = Model::builder().device(Profile::load("bluefield3").expect("a profile")).build();
    let inputs = Arc::new(Mutex::new(Vec::new()));
    let sink = inputs.clone();
    let _watch = model.watch_commands(move |command| {
        if command.input[..2] == Opcode::CREATE_MKEY.0.to_be_bytes() {
            sink.lock().expect("no panic").push(command.input.to_vec());
        }
    });
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("a device").remove(0);
    let device = Device::open(&backend, &info).expect("the device opens");
    let umem = register_pages(&device);
    let pd = device.alloc_pd().expect("a protection domain");
    let page = page_size() as u64;
    let (start, offset) = (0x5000_0000_0000 + 0x100, page + 0x100);
    let access = KeyAccess {
        local_write: true,
        remote: RemoteAccess { read: true, write: true, atomic: false },
        ..KeyAccess::LOCAL
    };
    let key = device.create_mkey(MkeyAttr {
        pd: pd.clone(),
        access,
        start,
        // To the middle of the third page.
        length: 2 * page + 0x80,
        memory: KeyMemory::Umem { umem: umem.clone(), offset },
    });
    let key = key.expect("a key");

    // create_mkey_in with 0x110 bytes; fields not listed are 0.
    let mut expected = vec![0; 0x110];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    // opcode CREATE_MKEY; the kernel writes the uid after it.
    put(0x00, &[0x02, 0x00]);
    // mkey_umem_valid, bit 97 of create_mkey_in, after pg_access.
    put(0x0c, &0x4000_0000_u32.to_be_bytes());
    // memory_key_mkey_entry (mkc) at 0x10. Bit offsets below are within mkc, unless they say
    // create_mkey_in. rw, rr, lw, lr: bits 18 to 21; access_mode_1_0, bit 22: MTT.
    put(0x10, &0x0000_3d00_u32.to_be_bytes());
    // qpn: any QP; and the variant, which is random.
    let variant = key.lkey().0 & 0xff;
    put(0x14, &(0xffff_ff00 | variant).to_be_bytes());
    // pd, bit 104.
    put(0x1c, &pd.pdn().to_be_bytes());
    // start_addr, bit 128; len, bit 192.
    put(0x20, &start.to_be_bytes());
    put(0x28, &(2 * page + 0x80).to_be_bytes());
    // translations_octword_size, bit 416, and translations_octword_actual_size, bit 768 of
    // create_mkey_in: UCX writes 1 for any length. No log_page_size: the UMEM has the pages.
    put(0x44, &1_u32.to_be_bytes());
    put(0x60, &1_u32.to_be_bytes());
    // mkey_umem_id and mkey_umem_offset, bits 800 and 832 of create_mkey_in.
    put(0x64, &umem.id().to_be_bytes());
    put(0x68, &offset.to_be_bytes());
    let mut input = inputs.lock().expect("no panic").last().expect("a command").clone();
    input[2..4].fill(0);
    let differs = input.iter().zip(&expected).position(|(sent, expected)| sent != expected);
    assert_eq!(differs.map(|at| format!("byte {at:#x}: {:02x?}", &input[at & !3..][..4])), None);
    assert_eq!(input.len(), expected.len());
}
