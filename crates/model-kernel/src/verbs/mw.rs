//! Memory windows: ALLOC_MW and DEALLOC_MW.
//!
//! A window is a KLM mkey that is free until a work request binds it. The kernel creates it, and
//! the library binds it by UMR.

use nix::errno::Errno;
use verbless_prm::{CreateMkeyIn, CreateMkeyOut, MkeyAccessMode, Opcode};

use super::super::abi::{attr, object};
use super::super::file::Method;
use super::super::handles::Object;
use super::super::mailbox::{NUMBER, inbox};
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::objects::Verbs;

/// `ib_mw_type`: type 1 is bound by a verb, type 2 by a work request.
const TYPE_1: u8 = 1;
const TYPE_2: u8 = 2;
/// Bytes of `mlx5_ib_alloc_mw`, and of its response.
const DRIVER_BYTES: usize = 8;
/// The number of entries of a key is a multiple of this.
const GRANULE: u32 = 4;

impl Method<'_> {
    pub(crate) fn alloc_mw(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let kernel = &self.file.kernel;
        if !kernel.caps.imaicl() {
            return Err(refused(
                Errno::EOPNOTSUPP,
                "the device has no memory windows (capability imaicl)",
            ));
        }
        self.state.context()?;
        let pd = self.state.lookup(request.u32(8).into(), object::PD)?;
        let Some(&Object::Pd { pdn }) = self.state.object(pd) else { return Err(Errno::EINVAL) };
        let kind = request.u8(12);
        if kind != TYPE_1 && kind != TYPE_2 {
            return Err(refused(Errno::EINVAL, format!("mw type {kind} is invalid: 1 or 2")));
        }
        let driver = self.driver_request(0, DRIVER_BYTES)?;
        if driver.u32(0) != 0 || driver.u8(5) != 0 || driver.u16(6) != 0 {
            let words = "the driver's data has a comp_mask or reserved bits";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let entries = u32::from(driver.u8(4).max(1)).next_multiple_of(GRANULE);
        let handle = self.state.free_handle()?;
        let variant = kernel.next_key_variant();
        let mut input = CreateMkeyIn::new();
        let key = input.memory_key_mkey_entry_mut();
        key.set_free(true).set_umr_en(true).set_lr(true).set_en_rinval(kind == TYPE_2);
        key.set_access_mode_1_0(MkeyAccessMode::KLMS.0).set_translations_octword_size(entries);
        key.set_pd(pdn).set_qpn(0xff_ffff).set_mkey_7_0(variant);
        let mut output = CreateMkeyOut::default();
        kernel.exec(input.as_bytes(), output.as_bytes_mut())?;
        let mut destroy = inbox(Opcode::DESTROY_MKEY, 0, 0, 16);
        NUMBER.set(&mut destroy, output.mkey_index());
        let mut reply = UverbsResponse::default();
        reply.u32(handle).u32((output.mkey_index() << 8) + u32::from(variant));
        let answered = self
            .put_window_response()
            .and_then(|()| self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()));
        let (object, uses) = (Object::Verbs(Verbs::Mw { destroy }), vec![pd]);
        if let Err(errno) = answered {
            return Err(self.abort(object, uses, errno));
        }
        self.state.insert_using(handle, object, uses);
        Ok(())
    }

    /// Writes the driver's response: its own length, cut to the client's buffer.
    fn put_window_response(&mut self) -> Result<(), Errno> {
        let room = self.attrs.len(attr::UHW_OUT).unwrap_or(0).min(DRIVER_BYTES);
        if room == 0 {
            return Ok(());
        }
        let mut response = [0; DRIVER_BYTES];
        response[4..].copy_from_slice(&(room as u32).to_ne_bytes());
        self.attrs.put(attr::UHW_OUT, &response[..room])
    }
}
