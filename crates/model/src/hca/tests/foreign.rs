//! Refusals of ALLOW_OTHER_VHCA_ACCESS, alias objects and DPA UAR extensions.

use verbless_prm::{
    AllowOtherVhcaAccessIn, CreateGeneralObjectIn, DeallocUarIn, DestroyGeneralObjectIn,
    DestroyMkeyIn, DpaUarExtension, GeneralObjectType, QueryGeneralObjectIn,
};

use super::rig::{Rig, User};
use crate::hca::Refusal;
use crate::profile::{Link, Profile};

const LINK: Link = Link::Infiniband;
const SECRET: [u8; 32] = [7; 32];

#[test]
fn allow_other_vhca_access_accepts_only_own_mkeys() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    assert_eq!(rig.allow_access(other.uid, mkey, SECRET), Err(Refusal::NoSuchMkey));
    assert_eq!(rig.allow_access(mine.uid, mkey + 1, SECRET), Err(Refusal::NoSuchMkey));
    let cq_access = rig.send::<AllowOtherVhcaAccessIn>(mine.uid, |input| {
        input.set_object_type_to_be_accessed(GeneralObjectType::CQ);
        input.set_object_id_to_be_accessed(mine.cq);
    });
    assert_eq!(cq_access.err(), Some(Refusal::NotToBeShared));
    // No refused command granted access.
    assert_eq!(rig.alias(other, (1, mkey), SECRET), Err(Refusal::NoOffer));
    rig.allow_access(mine.uid, mkey, SECRET).unwrap();
    rig.alias(other, (1, mkey), SECRET).unwrap();
}

/// Two users, a key of the first, and an alias of the second to it.
fn with_alias() -> (Rig, [User; 2], u32, u32) {
    let mut rig = Rig::up(LINK);
    let users = [rig.user(), rig.user()];
    let mkey = rig.mkey(users[0], |_| {}).unwrap();
    rig.allow_access(users[0].uid, mkey, SECRET).unwrap();
    let alias = rig.alias(users[1], (1, mkey), SECRET).unwrap();
    assert_ne!(alias, mkey, "aliases and keys have indexes of one range");
    (rig, users, mkey, alias)
}

/// Destroys general object `number` of type MKEY, which is an alias.
fn destroy_alias(rig: &mut Rig, uid: u16, number: u32) -> Result<(), Refusal> {
    let kind = GeneralObjectType::MKEY.0;
    rig.call::<DestroyGeneralObjectIn>(uid, kind, &[], 0, |input| {
        input.set_obj_id(number);
    })
    .map(drop)
}

fn destroy_mkey(rig: &mut Rig, uid: u16, index: u32) -> Result<(), Refusal> {
    rig.send::<DestroyMkeyIn>(uid, |input| {
        input.set_mkey_index(index);
    })
    .map(drop)
}

#[test]
fn alias_needs_own_pd_and_existing_function() {
    let (mut rig, [mine, other], mkey, _) = with_alias();
    let foreign_pd = User { pd: mine.pd, ..other };
    assert_eq!(rig.alias(foreign_pd, (1, mkey), SECRET), Err(Refusal::NoSuchPd));
    assert_eq!(rig.alias(other, (2, mkey), SECRET), Err(Refusal::NoOffer), "no such function");
}

#[test]
fn alias_is_destroyed_only_by_its_creator() {
    let (mut rig, [mine, other], mkey, alias) = with_alias();
    assert_eq!(destroy_alias(&mut rig, mine.uid, alias), Err(Refusal::NoSuchAlias));
    // The alias outlives its key.
    destroy_mkey(&mut rig, mine.uid, mkey).unwrap();
    assert_eq!((rig.counts().aliases, rig.counts().mkeys), (1, 0));
    assert_eq!(destroy_alias(&mut rig, other.uid, alias), Ok(()));
    assert_eq!(rig.counts().aliases, 0);
}

#[test]
fn alias_is_not_usable_as_mkey() {
    let (mut rig, [mine, other], mkey, alias) = with_alias();
    assert_eq!(destroy_alias(&mut rig, mine.uid, mkey), Err(Refusal::NoSuchAlias));
    assert_eq!(destroy_mkey(&mut rig, other.uid, alias), Err(Refusal::NoSuchMkey));
    let shared = rig.allow_access(other.uid, alias, SECRET);
    assert_eq!(shared, Err(Refusal::NoSuchMkey), "an alias cannot be shared again");
}

#[test]
fn alias_output_context_is_optional() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    rig.allow_access(mine.uid, mkey, SECRET).unwrap();
    for room in [0, 63, 64] {
        let (number, context) = rig.alias_with(room, other, (1, mkey), SECRET).unwrap();
        assert_ne!(number, 0);
        let shown = context.get(4..8) == Some(&mkey.to_be_bytes()[..]);
        assert_eq!(shown, room == 64, "{room} bytes");
    }
    assert_eq!(rig.counts().aliases, 3);
}

#[test]
fn create_general_object_mkey_requires_alias_object() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let kind = GeneralObjectType::MKEY.0;
    let key = rig.call::<CreateGeneralObjectIn>(user.uid, kind, &[0; 64], 64, |_| {});
    assert_eq!(key.err(), Some(Refusal::Unsupported));
    let short = rig.call::<CreateGeneralObjectIn>(user.uid, kind, &[0; 63], 64, |input| {
        input.set_alias_object(true);
    });
    assert_eq!(short.err(), Some(Refusal::ListTooShort));
}

#[test]
fn device_without_sharing_rejects_allow_access_and_alias() {
    let mut rig = Rig::up_of(Profile::load("connectx6dx").unwrap());
    let user = rig.user();
    let mkey = rig.mkey(user, |_| {}).unwrap();
    assert_eq!(rig.allow_access(user.uid, mkey, SECRET), Err(Refusal::NotToBeShared));
    assert_eq!(rig.alias(user, (1, mkey), SECRET), Err(Refusal::Unsupported));
}

#[test]
fn uar_extension_needs_own_uar_and_reachable_dpa() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let kind = GeneralObjectType::DPA_UAR_EXTENSION;
    let mut wanted = DpaUarExtension::default();
    wanted.set_uar_page(mine.uar).set_vhca_id(1).set_process_serial(7).set_device_id(9);
    let extend = |rig: &mut Rig, uid, wanted: &DpaUarExtension| rig.general(uid, kind, wanted);
    assert_eq!(
        extend(&mut rig, other.uid, &wanted),
        Err(Refusal::NoSuchUar),
        "a UAR of another uid"
    );
    for vhca_id in [0, 2, 0xffff] {
        let unreachable = *wanted.clone().set_vhca_id(vhca_id);
        assert_eq!(extend(&mut rig, mine.uid, &unreachable), Err(Refusal::UarExtensionTo));
    }
    let other_card = *wanted.clone().set_process_serial(1 << 40 | 7);
    let refused = extend(&mut rig, mine.uid, &other_card);
    assert_eq!(refused, Err(Refusal::UarExtensionTo), "the same vhca_id of another card");
    let number = extend(&mut rig, mine.uid, &wanted).unwrap();
    let mut query = |uid| {
        let (output, _) = rig.call::<QueryGeneralObjectIn>(uid, kind.0, &[], 64, |input| {
            input.set_obj_id(number);
        })?;
        Ok(output.obj_id())
    };
    assert_eq!((query(mine.uid), query(other.uid)), (Ok(number), Err(Refusal::NoSuchUarExtension)));
    let extension = &rig.locked.functions[0].hca.objects.uar_extensions[&number].context;
    assert_eq!(extension.device_id(), 1 << 16 | number, "the device assigns device_id");
    let free = |rig: &mut Rig| {
        let freed = rig.send::<DeallocUarIn>(mine.uid, |input| {
            input.set_uar(mine.uar);
        });
        freed.err()
    };
    assert_eq!(free(&mut rig), Some(Refusal::UarInUse));
}
