//! The model with few features: a device without a DPA, as every device is in a build without the
//! feature `dpa` (in a build with it, the tests use a card without a DPA), and the answer of a
//! build without the feature `toml` to a file.
#![cfg(feature = "model")]

use verbless::command::{CapMode, CapPage};
use verbless::model::{HAS_DPA, InProcess, Model, Profile, ProfileError, Refusal};
use verbless::prelude::*;
use verbless::prm::{
    AccessRegisterUserIn, CommandInput, CreateGeneralObjectIn, DestroyGeneralObjectIn,
    GeneralObjectType, HcaCap, ModifyGeneralObjectIn, QueryGeneralObjectIn, RegisterId,
};

/// The devices without a DPA.
const CARDS: &[&str] = if HAS_DPA { &["connectx6dx"] } else { &["connectx6dx", "bluefield3"] };

fn opened(card: &str) -> (Model, Device) {
    let model = Model::builder().device(Profile::load(card).expect("it is built in")).build();
    let backend = InProcess::of(&model);
    let info = backend.find("mlx5_0").expect("the model has it");
    let device = Device::open(&backend, &info).expect("the model opens");
    (model, device)
}

/// Sends a command with an edited header, and zeros after it.
fn refusal<I: CommandInput>(model: &Model, of: u16, edit: impl FnOnce(&mut I)) -> Option<Refusal> {
    let mut input = I::default();
    edit(&mut input);
    let mut bytes = [input.as_bytes(), &[0; 512]].concat();
    bytes[..2].copy_from_slice(&<I as CommandInput>::INFO.opcode.to_be_bytes());
    bytes[6..8].copy_from_slice(&of.to_be_bytes());
    let mut output = [0; 1024];
    model.device(0).execute(&bytes, &mut output);
    Refusal::of_syndrome(u32::from_be_bytes(*output[4..].first_chunk().expect("4 bytes")))
}

#[test]
fn reduced_build_has_no_dpa() {
    assert!(!HAS_DPA || !is_reduced());
}

/// Whether this must be a build without these features.
fn is_reduced() -> bool {
    std::env::var_os("VERBLESS_TEST_REDUCED").is_some()
}

#[test]
fn file_profile_without_toml_names_feature() {
    let error = Profile::load("/nowhere/card.toml").expect_err("there is no such file");
    let said = error.to_string();
    assert!(said.contains("/nowhere/card.toml"), "{said}");
    match error {
        ProfileError::NoFiles { .. } => assert!(said.contains("feature `toml`"), "{said}"),
        other => assert!(!is_reduced(), "{other}"),
    }
}

#[test]
fn reduced_build_rejects_dpa_objects() {
    use {GeneralObjectType as Kind, Refusal as Why};
    let kinds = [
        (Kind::DPA_PROCESS, Why::NoSuchDpaProcess, None),
        (Kind::DPA_THREAD, Why::NoSuchDpaThread, None),
        (Kind::DPA_OUTBOX, Why::NoSuchDpaOutbox, Some(Why::NotModelled)),
        (Kind::DPA_WINDOW, Why::NoSuchDpaWindow, Some(Why::NotModelled)),
        (Kind::DPA_CALL, Why::NoSuchDpaCall, Some(Why::NotModelled)),
        (Kind::DPA_CORE_DUMP, Why::NoSuchDpaCoreDump, Some(Why::NotModelled)),
        (Kind::DPA_EQ, Why::NoSuchDpaEq, Some(Why::NotModelled)),
        (Kind::DPA_EMULATED_DEVICE, Why::NoSuchEmulatedDevice, Some(Why::NoSuchEmulatedDevice)),
        (Kind::DPA_EMULATED_DOORBELL, Why::NoSuchEmulatedDoorbell, Some(Why::NotModelled)),
        (Kind::DPA_UAR_EXTENSION, Why::NoSuchUarExtension, Some(Why::NotModelled)),
    ];
    for card in CARDS {
        let (model, _device) = opened(card);
        for (kind, absent, unchanged) in kinds {
            if kind != Kind::DPA_UAR_EXTENSION {
                let made = refusal::<CreateGeneralObjectIn>(&model, kind.0, |_| {});
                assert_eq!(made, Some(Why::DpaAbsent), "{card}: {kind:?}");
            }
            let seen = refusal::<QueryGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
            assert_eq!(seen, Some(absent), "{card}: {kind:?}");
            let gone = refusal::<DestroyGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
            assert_eq!(gone, Some(absent), "{card}: {kind:?}");
            let set = refusal::<ModifyGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
            // For processes and threads, the device checks the set fields first.
            assert!(unchanged.is_none_or(|why| set == Some(why)), "{card}: {kind:?}: {set:?}");
        }
    }
}

#[test]
fn reduced_build_reports_no_dpa_capability() {
    for card in CARDS {
        let (model, device) = opened(card);
        for mode in [CapMode::Current, CapMode::Maximum] {
            let page = device.query_hca_cap(CapPage::GENERAL, mode).expect("its capabilities");
            let caps = HcaCap::from_prefix(&page[..]).expect("whole");
            assert!(!caps.apu() && !caps.access_register_user(), "{card}");
        }
        let read = AccessRegisterUserIn::READ;
        let asked = refusal::<AccessRegisterUserIn>(&model, read, |it| {
            it.set_register_id(RegisterId::NIC_CAP_EXT);
        });
        assert_eq!(asked, Some(Refusal::Unsupported), "{card}");
        #[cfg(feature = "dpa")]
        assert!(device.dpa_caps().is_err(), "{card}");
    }
}
