//! A card without a DPA.
#![cfg(feature = "model")]

use verbless::command::{CapMode, CapPage};
use verbless::model::{InProcess, Model, Profile, Refusal};
use verbless::prelude::*;
use verbless::prm::{
    AccessRegisterUserIn, CommandInput, CreateGeneralObjectIn, DestroyGeneralObjectIn,
    GeneralObjectType, HcaCap, ModifyGeneralObjectIn, QueryGeneralObjectIn, RegisterId,
};

fn opened() -> (Model, Device) {
    let card = Profile::load("connectx6dx").expect("the profile is built in");
    let model = Model::builder().device(card).build();
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
fn card_without_dpa_rejects_dpa_objects() {
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
    let (model, _device) = opened();
    for (kind, absent, unchanged) in kinds {
        if kind != Kind::DPA_UAR_EXTENSION {
            let made = refusal::<CreateGeneralObjectIn>(&model, kind.0, |_| {});
            assert_eq!(made, Some(Why::DpaAbsent), "{kind:?}");
        }
        let seen = refusal::<QueryGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
        assert_eq!(seen, Some(absent), "{kind:?}");
        let gone = refusal::<DestroyGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
        assert_eq!(gone, Some(absent), "{kind:?}");
        let set = refusal::<ModifyGeneralObjectIn>(&model, kind.0, |it| _ = it.set_obj_id(1));
        // For processes and threads, the device checks the set fields first.
        assert!(unchanged.is_none_or(|why| set == Some(why)), "{kind:?}: {set:?}");
    }
}

#[test]
fn card_without_dpa_reports_no_dpa_capability() {
    let (model, device) = opened();
    for mode in [CapMode::Current, CapMode::Maximum] {
        let page = device.query_hca_cap(CapPage::GENERAL, mode).expect("the general capabilities");
        let caps = HcaCap::from_prefix(&page[..]).expect("whole");
        assert!(!caps.apu() && !caps.access_register_user());
    }
    let refused = refusal::<AccessRegisterUserIn>(&model, AccessRegisterUserIn::READ, |it| {
        it.set_register_id(RegisterId::NIC_CAP_EXT);
    });
    assert_eq!(refused, Some(Refusal::Unsupported));
    #[cfg(feature = "dpa")]
    assert!(device.dpa_caps().is_err());
}
