//! Recognizes the software model, and keeps model-only layouts from hardware.
//!
//! Some layouts of `prm/` have no published source: they are the model's own. [`check`] sees every
//! command mailbox before it leaves this crate, and refuses such a layout unless
//! [`Context::as_model`] has found the model's PSID in QUERY_ADAPTER. `prm/` marks the layouts;
//! nothing here names a command.

use std::fmt;
use std::sync::atomic::Ordering;

use verbless_prm::{ModelOnly, QueryAdapterIn, QueryAdapterOut};

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};

/// The model's PSID. A device with another PSID is hardware.
pub const MODEL_PSID: &str = "VBL0000000001";

/// Proof that the device is the model, an argument of commands with a model-only layout. Only
/// [`Context::as_model`] creates one.
pub struct ModelToken(());

impl fmt::Debug for ModelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelToken")
    }
}

impl Context {
    /// Recognizes the software model by its PSID (QUERY_ADAPTER); `None` if the device is not the
    /// model. From then on this context may send commands that only the model has.
    ///
    /// # Errors
    /// As [`devx_other`](Self::devx_other).
    pub fn as_model(&self) -> Result<Option<ModelToken>> {
        let recognition = self.recognition();
        if !recognition.model.load(Ordering::Relaxed) {
            let mut output = QueryAdapterOut::zeroed();
            self.devx_other(QueryAdapterIn::new().as_bytes(), output.as_bytes_mut())?;
            let psid = output.query_adapter_struct().vsd_contd_psid();
            let shown = psid.strip_prefix(MODEL_PSID.as_bytes());
            if !shown.is_some_and(|rest| rest.iter().all(|&byte| byte == 0)) {
                return Ok(None);
            }
            recognition.model.store(true, Ordering::Relaxed);
        }
        Ok(Some(ModelToken(())))
    }
}

/// Refuses an input that only the model may see, unless the device was recognised as the model.
pub(crate) fn check(context: &Context, attempted: &'static str, input: &[u8]) -> Result<()> {
    let recognition = context.recognition();
    if recognition.model.load(Ordering::Relaxed) {
        return Ok(());
    }
    let opcode = input.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let command = opcode.and_then(recognition.commands);
    match command.and_then(|command| command.model_only(input)) {
        Some(what) => Err(refusal(context, attempted, input, what)),
        None => Ok(()),
    }
}

fn refusal(context: &Context, attempted: &'static str, input: &[u8], what: ModelOnly) -> Error {
    let device = &context.info().name;
    let hint = format!(
        "{what} is known only from the software model, and {device} has not shown the model's \
         PSID ({MODEL_PSID}), so nothing was sent: its firmware could take these bytes for \
         something else. On the model, call `as_model` first; for hardware, the layout must come \
         from a published source into prm/"
    );
    Error::new(ErrorKind::ModelOnly, attempted, hint).with_command(input)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use verbless_prm::reflect::{EnumInfo, FieldInfo, StructInfo};
    use verbless_prm::{CommandInfo, Devx};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::abi::attr::{devx_other, uhw};
    use crate::abi::mlx5::AllocContextResponse;
    use crate::abi::request::VALID_OUTPUT;
    use crate::abi::{Header, method};
    use crate::recognition::ModelRecognition;
    use crate::sys::testing;
    use crate::{DeviceInfo, Errno, FwctlScope, Mapping, OpenDevice, OpenFwctl, Protection};

    static TYPES: EnumInfo = EnumInfo {
        name: "thing_type",
        bits: 16,
        values: &[("PLAIN", 1), ("THREAD", 0x7000)],
        model_only: &[0x7000],
    };
    static INPUT: StructInfo = StructInfo {
        name: "make_thing_in",
        bytes: 16,
        sources: &["linux"],
        fields: &[
            FieldInfo::number("opcode", 0, 16),
            FieldInfo::number("obj_type", 48, 16).of(&TYPES),
            FieldInfo::number("fast", 64, 32).model_only(),
        ],
        reserved: &[(16, 32), (96, 32)],
    };
    static OUTPUT: StructInfo = StructInfo {
        name: "thing_out",
        bytes: 16,
        sources: &["linux"],
        fields: &[],
        reserved: &[],
    };
    static MODEL_INPUT: StructInfo = StructInfo { sources: &["model"], ..INPUT };

    const fn command(opcode: u16, input: &'static StructInfo) -> CommandInfo {
        CommandInfo {
            name: "MAKE_THING",
            opcode,
            input,
            output: &OUTPUT,
            devx: Devx::General,
            op_mods: &[],
            states: &[],
            capability: None,
            statuses: &[],
            variants: &[],
            sources: &["linux"],
        }
    }

    static PUBLIC: CommandInfo = command(0xb80, &INPUT);
    static OURS: CommandInfo = command(0xb81, &MODEL_INPUT);

    fn commands(opcode: u16) -> Option<&'static CommandInfo> {
        match opcode {
            0xb80 => Some(&PUBLIC),
            0xb81 => Some(&OURS),
            _ => CommandInfo::by_opcode(opcode),
        }
    }

    /// A device with a PSID, which counts the mailboxes that reach it.
    struct Board {
        psid: &'static str,
        mailboxes: Arc<AtomicUsize>,
    }

    /// A control file in memory.
    struct Control(Arc<AtomicUsize>);

    #[allow(
        unsafe_code,
        reason = "the trait's method is unsafe to call; it follows no pointer itself"
    )]
    // SAFETY: it accesses no memory.
    unsafe impl OpenFwctl for Control {
        unsafe fn ioctl(&self, _: u32, _: &mut [u64]) -> Result<(), Errno> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[allow(
        unsafe_code,
        reason = "the trait's method is unsafe to call; it follows no pointer itself"
    )]
    // SAFETY: it writes to outputs as `fill` does, and each descriptor is a new file.
    unsafe impl OpenDevice for Board {
        unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
            let (header, attributes) = Header::split(request).unwrap();
            let carries = [
                method::DEVX_OTHER,
                method::DEVX_OBJ_CREATE,
                method::DEVX_OBJ_MODIFY,
                method::DEVX_OBJ_QUERY,
                method::DEVX_OBJ_ASYNC_QUERY,
            ];
            self.mailboxes
                .fetch_add(usize::from(carries.contains(&header.method())), Ordering::Relaxed);
            for attribute in attributes {
                let mut adapter = QueryAdapterOut::zeroed();
                let answer = AllocContextResponse { response_length: 72, ..Default::default() };
                let mut psid = [0; 16];
                psid[..self.psid.len()].copy_from_slice(self.psid.as_bytes());
                adapter.query_adapter_struct_mut().set_vsd_contd_psid(&psid);
                match (header.method(), attribute.attr_id) {
                    (method::GET_CONTEXT, uhw::OUT) => testing::fill(attribute, answer.as_bytes()),
                    (method::DEVX_OTHER, devx_other::CMD_OUT) => {
                        testing::fill(attribute, adapter.as_bytes());
                    }
                    (method::DEVX_ASYNC_CMD_FD_ALLOC, _) => {
                        let file = memfd_create(c"answers", MFdFlags::MFD_CLOEXEC).unwrap();
                        attribute.data = file.into_raw_fd() as u64;
                    }
                    _ => {}
                }
                attribute.flags |= VALID_OUTPUT;
            }
            Ok(())
        }

        fn page_size(&self) -> usize {
            crate::page_size()
        }

        fn mmap(&self, _: u64, _: usize, _: Protection) -> Result<Mapping, Errno> {
            Err(Errno::EINVAL)
        }

        fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>> {
            Ok(Some(Arc::new(Control(self.mailboxes.clone()))))
        }
    }

    fn board(psid: &'static str) -> (Arc<Board>, Context) {
        let board = Arc::new(Board { psid, mailboxes: Arc::default() });
        let info = DeviceInfo { name: "mlx5_0".to_owned(), ..Default::default() };
        let recognition = ModelRecognition { model: AtomicBool::new(false), commands };
        let context = Context::recognising(board.clone(), info, recognition).unwrap();
        (board, context)
    }

    fn input(opcode: u16, kind: u16, fast: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&opcode.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..12].copy_from_slice(&fast.to_be_bytes());
        bytes
    }

    const OF_THE_MODEL: [(u16, u16, u32); 3] = [(0xb81, 0, 0), (0xb80, 0x7000, 0), (0xb80, 1, 9)];

    #[test]
    fn hardware_rejects_model_commands_on_every_path() {
        for psid in ["MT_0000000359", "", "VBL00000000001", "VBL0000000001X"] {
            let (board, context) = board(psid);
            assert!(context.as_model().unwrap().is_none(), "{psid}");
            let public = input(0xb80, 1, 0);
            let object = context.obj_create(&public, &mut [0; 16]).unwrap();
            let channel = context.command_channel().unwrap();
            let control = context.fwctl().unwrap().unwrap();
            let scope = FwctlScope::Configuration;
            let before = board.mailboxes.load(Ordering::Relaxed);
            for (opcode, kind, fast) in OF_THE_MODEL {
                let input = input(opcode, kind, fast);
                let refused = [
                    context.devx_other(&input, &mut [0; 16]).unwrap_err(),
                    context.obj_create(&input, &mut [0; 16]).unwrap_err(),
                    object.query(&input, &mut [0; 16]).unwrap_err(),
                    object.modify(&input, &mut [0; 16]).unwrap_err(),
                    channel.query(&object, &input, 16, 0).unwrap_err(),
                    control.rpc(scope, &input, &mut [0; 16]).unwrap_err(),
                ];
                for error in refused {
                    assert_eq!(error.kind(), ErrorKind::ModelOnly);
                    let text = error.to_string();
                    assert!(text.contains("mlx5_0 has not shown the model's PSID"), "{text}");
                }
            }
            assert_eq!(board.mailboxes.load(Ordering::Relaxed), before, "{psid}");
            context.devx_other(&public, &mut [0; 16]).unwrap();
            control.rpc(scope, &public, &mut [0; 16]).unwrap();
            assert_eq!(board.mailboxes.load(Ordering::Relaxed), before + 2, "{psid}");
        }
    }

    #[test]
    fn model_only_error_names_command_and_field() {
        let (_, context) = board("MT_0000000359");
        let send = |(opcode, kind, fast)| {
            let input = input(opcode, kind, fast);
            context.devx_other(&input, &mut [0; 16]).unwrap_err().to_string()
        };
        for (sent, said) in OF_THE_MODEL.map(send).iter().zip([
            "the command is known",
            "obj_type THREAD (0x7000) is known",
            "the field fast is known",
        ]) {
            assert!(sent.contains(said) && sent.contains("0xb8"), "{sent}");
        }
    }

    #[test]
    fn model_takes_its_commands_after_recognition() {
        let (_, context) = board(MODEL_PSID);
        let ours = input(0xb81, 0, 0);
        assert!(context.devx_other(&ours, &mut [0; 16]).is_err());
        assert!(context.as_model().unwrap().is_some());
        for (opcode, kind, fast) in OF_THE_MODEL {
            context.devx_other(&input(opcode, kind, fast), &mut [0; 16]).unwrap();
        }
    }
}
