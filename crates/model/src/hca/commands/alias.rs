//! Mkeys shared with other functions, and their aliases.
//!
//! The owner sets a secret with ALLOW_OTHER_VHCA_ACCESS. A function that knows it creates an alias
//! by CREATE_GENERAL_OBJECT, and reaches the memory with the access flags of the owner's key until
//! the owner destroys the key. No public source says what hardware does with a wrong secret: here
//! the command fails. The first word of `metadata` is the alias's protection domain, and the low
//! byte of the alias's key is 0, as in UCX (`uct_ib_mlx5_devx_mem_attach`). The output holds the
//! alias's context after its head if the outbox has room for it, as UCX's has; Linux's
//! `mlx5_cmd_alias_obj_create` has room for only the head.

use verbless_prm::reflect::View;
use verbless_prm::{
    AliasContext, AllowOtherVhcaAccessIn, AllowOtherVhcaAccessOut, CREATE_GENERAL_OBJECT,
    CreateGeneralObjectIn, CreateGeneralObjectOut, CrossVhcaReference, GeneralObjectType,
    OtherVhcaObject, Structure,
};

use super::call::{Call, Outcome};
use crate::hca::objects::{Alias, Foreign, SharedAccess};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// An object of another function that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForeignObject {
    vhca_id: u16,
    index: u32,
}

impl ForeignObject {
    /// The object of another function that a command names, if any.
    pub(crate) fn by(input: &[u8]) -> Option<Self> {
        let head = CreateGeneralObjectIn::from_prefix(input)?;
        let is_alias = head.opcode() == CREATE_GENERAL_OBJECT.opcode
            && head.obj_type() == GeneralObjectType::MKEY
            && head.alias_object();
        let context = AliasContext::from_prefix(input.get(CreateGeneralObjectIn::BYTES..)?)?;
        is_alias.then(|| Self {
            vhca_id: context.vhca_id_to_be_accessed(),
            index: context.object_id_to_be_accessed(),
        })
    }

    /// The number of the object's function, if this function may reach it.
    pub(crate) fn of(self, hca: &Hca) -> Option<usize> {
        hca.neighbours.get(&self.vhca_id).copied()
    }

    /// The object in its owner, function number `function`, with the access key that the owner set;
    /// `None` if the owner has not shared it, or is dead.
    pub(crate) fn answer(self, function: usize, owner: &Hca) -> Option<Foreign> {
        let offer = owner.objects.mkeys.get(&self.index)?.offer.clone()?;
        (!owner.fatal).then_some(Foreign { function, index: self.index, offer })
    }
}

/// ALLOW_OTHER_VHCA_ACCESS.
pub(in crate::hca) fn allow(
    call: &mut Call<'_>,
    input: &AllowOtherVhcaAccessIn,
    _: &mut AllowOtherVhcaAccessOut,
) -> Outcome {
    let allowed = call.hca().caps.general_2().allowed_object_for_other_vhca_access();
    if input.object_type_to_be_accessed() != GeneralObjectType::MKEY
        || allowed & OtherVhcaObject::MKEY.0 == 0
    {
        return Err(Refusal::NotToBeShared);
    }
    let index = input.object_id_to_be_accessed();
    call.find(kind::Mkey, index)?;
    call.hca_mut().offers += 1;
    let new = call.hca().offers;
    let access_key = *input.access_key();
    call.change(kind::Mkey, index, |mkey| {
        // A new secret does not revoke existing aliases.
        let serial = mkey.offer.as_ref().map_or(new, |offer| offer.serial);
        mkey.offer = Some(SharedAccess { access_key, serial });
    })
}

/// CREATE_GENERAL_OBJECT of an alias of a memory key.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let answer = call.hca_mut().answer.take();
    let supported = call.hca().caps.general_2().cross_vhca_object_to_object_supported();
    // Only aliases of keys are general objects: CREATE_MKEY creates keys.
    if !input.alias_object()
        || supported & CrossVhcaReference::MKEY_TO_MKEY.0 == 0
        || input.log_obj_range() != 0
    {
        return Err(Refusal::Unsupported);
    }
    let Some(context) = AliasContext::from_prefix(call.list) else {
        return Err(Refusal::ListTooShort);
    };
    let view = View::new(<AliasContext as Structure>::INFO, context.as_bytes());
    if view.nonzero_reserved().is_some() {
        return Err(Refusal::Reserved);
    }
    // vhca_id_type selects numbers chosen by software, which no function has.
    if context.vhca_id_type() {
        return Err(Refusal::Unsupported);
    }
    let pd = context.metadata().first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
    call.find(kind::Pd, pd)?;
    let hca = call.hca();
    call.check_count(hca.objects.keys(), hca.caps.general().log_max_mkey())?;
    let Foreign { function, index, offer } = answer.ok_or(Refusal::NoOffer)?;
    if offer.access_key != *context.access_key() {
        return Err(Refusal::NoOffer);
    }
    let alias = Alias { uid: call.uid, pd, function, index, serial: offer.serial };
    output.set_obj_id(call.make(kind::Alias, alias)?);
    call.hca_mut().add_key_owner(function);
    // Only an outbox with room for it gets the context after the head.
    let shown = CreateGeneralObjectOut::BYTES..CreateGeneralObjectOut::BYTES + AliasContext::BYTES;
    if let Some(room) = call.output.get_mut(shown) {
        let mut made = *context;
        made.set_access_key(&[0; 32]);
        room.copy_from_slice(made.as_bytes());
    }
    Ok(())
}

/// Removes an alias from the count of keys that refer to its owner.
pub(in crate::hca) fn removed(hca: &mut Hca, _: u32, alias: Alias) {
    hca.remove_key_owner(alias.function);
}
