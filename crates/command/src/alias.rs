//! Keys of other functions: the owner opens an mkey to functions with its access key
//! (ALLOW_OTHER_VHCA_ACCESS), and they create an alias of it.
//!
//! An alias is an mkey of this function with the memory and access flags of the owner's mkey. It is
//! valid until the owner destroys its mkey: an access through it then fails like one with an
//! unknown key. A DPU reaches its host's memory in this way (UCX: `uct_ib_mlx5_devx_mem_attach`).

use std::fmt;
use std::fs::File;
use std::io::Read;

use verbless_devx::{Error, ErrorKind, Pd};
use verbless_prm as prm;
use verbless_prm::{AliasContext, CreateGeneralObjectOut, GeneralObjectType};

use crate::caps::Caps;
use crate::device::Device;
use crate::error::invalid;
use crate::mkey::MkeyObject;
use crate::owned::Owned;
use verbless_prm::number::{Lkey, Rkey};

/// The access key that gives other functions access to an object: 32 bytes. `Debug` does not show
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessKey([u8; 32]);

impl AccessKey {
    /// An access key of these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Random bytes of the system (`/dev/urandom`).
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The bytes, to send to the other function.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(32 bytes)")
    }
}

/// Attributes of an alias of a memory key.
#[derive(Debug, Clone)]
pub struct AliasAttr {
    /// Protection domain in this function, whose queue pairs may use the alias.
    pub pd: Pd,
    /// The function that owns the key ([`Device::vhca_id`] there).
    pub vhca_id: u16,
    /// The remote key of the owner's mkey.
    pub key: Rkey,
    /// The access key that the owner set.
    pub access_key: AccessKey,
}

/// An alias in this function of another function's mkey.
#[derive(Debug)]
pub struct AliasKey {
    key: u32,
    owned: Owned<AliasAttr>,
}

impl Caps {
    /// Whether the function can share its mkeys with other functions, and create aliases of their
    /// mkeys (UCX's `uct_ib_mlx5_devx_check_xgvmi`).
    pub fn shares_keys(&self) -> bool {
        self.general_2.as_ref().is_some_and(|page| {
            let (refers, opens) = (
                page.cross_vhca_object_to_object_supported(),
                page.allowed_object_for_other_vhca_access(),
            );
            refers & prm::CrossVhcaReference::MKEY_TO_MKEY.0 != 0
                && opens & prm::OtherVhcaObject::MKEY.0 != 0
        })
    }
}

impl MkeyObject {
    /// ALLOW_OTHER_VHCA_ACCESS: functions with the access key may create aliases of this mkey,
    /// until it is destroyed. A second access key replaces the first.
    ///
    /// # Errors
    /// The device cannot share mkeys ([`Caps::shares_keys`]); the mkey is of another context than
    /// the device.
    pub fn allow(&self, device: &Device, secret: &AccessKey) -> Result<(), Error> {
        let Rkey(key) = self.rkey();
        if !self.is_of(device) {
            let what = "the memory key is of another context than the device: share it there";
            return Err(invalid("ALLOW_OTHER_VHCA_ACCESS", what));
        }
        device.allow_other_vhca_access(GeneralObjectType::MKEY, key >> 8, &secret.0)
    }
}

impl Device {
    /// The vhca_id: the number of this function among those of its device.
    pub fn vhca_id(&self) -> u16 {
        self.caps().general.vhca_id()
    }

    /// CREATE_GENERAL_OBJECT of an alias of a memory key of another function.
    ///
    /// # Errors
    /// The device cannot share mkeys; no function in reach has such an mkey; the access key is not
    /// its owner's.
    pub fn create_alias_key(&self, attr: AliasAttr) -> Result<AliasKey, Error> {
        const ATTEMPTED: &str = "CREATE_GENERAL_OBJECT";
        if !self.caps().shares_keys() {
            let what = "the device makes no aliases of memory keys: hca_cap_2 lacks \
                        cross_vhca_object_to_object_supported or \
                        allowed_object_for_other_vhca_access for them";
            return Err(invalid(ATTEMPTED, what));
        }
        let mut input = prm::CreateAliasObjIn::zeroed();
        let head = input.hdr_mut();
        head.set_opcode(prm::CREATE_GENERAL_OBJECT.opcode).set_obj_type(GeneralObjectType::MKEY);
        let mut parameters = prm::GeneralObjCreateParam::zeroed();
        parameters.set_alias_object(true);
        head.set_op_param(u32::from_be_bytes(*parameters.as_bytes()));
        let mut metadata = [0; 16];
        metadata[..4].copy_from_slice(&attr.pd.pdn().to_be_bytes());
        let Rkey(key) = attr.key;
        input
            .alias_ctx_mut()
            .set_vhca_id_to_be_accessed(attr.vhca_id)
            .set_object_id_to_be_accessed(key >> 8)
            .set_access_key(&attr.access_key.0)
            .set_metadata(&metadata);
        const HEAD: usize = CreateGeneralObjectOut::BYTES;
        let mut output = [0; HEAD + AliasContext::BYTES];
        let object = self.obj_create(input.as_bytes(), &mut output)?;
        let number = CreateGeneralObjectOut::from_prefix(&output).map_or(0, |head| head.obj_id());
        let alias = AliasKey { key: number << 8, owned: Owned::new(object, attr) };
        match AliasContext::from_prefix(&output[HEAD..]).map_or(0, AliasContext::status) {
            0 => Ok(alias),
            state => Err(Error::new(
                ErrorKind::Command,
                ATTEMPTED,
                format!(
                    "the alias is in state {state} and not good (0): does its owner's key still \
                     exist, and is the secret its own?"
                ),
            )),
        }
    }
}

impl AliasKey {
    /// The key for local segments. Its addresses are those of the owner's mkey.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The key to give to a peer.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// The attributes that the alias was created with.
    pub fn attr(&self) -> &AliasAttr {
        self.owned.attr()
    }

    /// DESTROY_GENERAL_OBJECT. The owner's mkey stays.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
