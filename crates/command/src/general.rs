//! General objects: one create, query, modify and destroy command for every newer object type.
//!
//! The layout of an object follows its header and depends on its type. This crate passes it as
//! bytes, which the caller encodes.

use std::os::fd::BorrowedFd;

use verbless_devx::{Context, Error, EventChannel};
use verbless_prm as prm;
use verbless_prm::hot::event_type;
use verbless_prm::{
    CreateGeneralObjectIn, CreateGeneralObjectOut, GeneralObjectType, ModifyGeneralObjectIn,
    ModifyGeneralObjectOut, QueryGeneralObjectIn, QueryGeneralObjectOut,
};

use crate::device::Device;
use crate::execute;
use crate::owned::Owned;

/// An object of a general type.
#[derive(Debug)]
pub struct GeneralObject {
    id: u32,
    obj_type: GeneralObjectType,
    owned: Owned<()>,
}

impl Device {
    /// CREATE_GENERAL_OBJECT of type `obj_type` with the object's own layout in `body`.
    pub fn create_general_object(
        &self,
        obj_type: GeneralObjectType,
        body: &[u8],
    ) -> Result<GeneralObject, Error> {
        let mut head = CreateGeneralObjectIn::new();
        head.set_obj_type(obj_type);
        let mut output = CreateGeneralObjectOut::zeroed();
        let object = self.obj_create(&[head.as_bytes(), body].concat(), output.as_bytes_mut())?;
        Ok(GeneralObject { id: output.obj_id(), obj_type, owned: Owned::new(object, ()) })
    }

    /// ALLOW_OTHER_VHCA_ACCESS: lets another function with `key` create an alias of one of our
    /// objects.
    pub fn allow_other_vhca_access(
        &self,
        obj_type: GeneralObjectType,
        id: u32,
        key: &[u8; 32],
    ) -> Result<(), Error> {
        let mut input = prm::AllowOtherVhcaAccessIn::new();
        input
            .set_object_type_to_be_accessed(obj_type)
            .set_object_id_to_be_accessed(id)
            .set_access_key(key);
        execute::execute(self, &input, &mut prm::AllowOtherVhcaAccessOut::zeroed())
    }
}

impl GeneralObject {
    /// The object's id among those of its type.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The context in which the object was created.
    pub fn context(&self) -> &Context {
        self.owned.object().context()
    }

    /// QUERY_GENERAL_OBJECT: `bytes` of the object's own layout.
    pub fn query(&self, bytes: usize) -> Result<Vec<u8>, Error> {
        let mut head = QueryGeneralObjectIn::new();
        head.set_obj_type(self.obj_type).set_obj_id(self.id);
        let mut output = vec![0; QueryGeneralObjectOut::BYTES + bytes];
        self.owned.object().query(head.as_bytes(), &mut output)?;
        Ok(output.split_off(QueryGeneralObjectOut::BYTES))
    }

    /// MODIFY_GENERAL_OBJECT: passes the object's own layout; the layout selects the fields to
    /// change.
    pub fn modify(&self, body: &[u8]) -> Result<(), Error> {
        let mut head = ModifyGeneralObjectIn::new();
        head.set_obj_type(self.obj_type).set_obj_id(self.id);
        let mut output = ModifyGeneralObjectOut::zeroed();
        self.owned.object().modify(&[head.as_bytes(), body].concat(), output.as_bytes_mut())
    }

    /// Signals an eventfd on the device's object change events of this object, for as long as the
    /// channel lives.
    ///
    /// # Errors
    /// EINVAL: the device does not deliver this event to users, or the file is not an eventfd.
    pub fn signal_changes(
        &self,
        channel: &EventChannel,
        eventfd: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let events = [u16::from(event_type::OBJECT_CHANGE)];
        channel.subscribe_eventfd(Some(self.owned.object()), &events, eventfd)
    }

    /// DESTROY_GENERAL_OBJECT.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
