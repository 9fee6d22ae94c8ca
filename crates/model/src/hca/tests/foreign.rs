//! Keys opened to other functions, aliases, and UARs extended to processes of other functions: the
//! refusals of each command.

use verbless_prm::{
    AllowOtherVhcaAccessIn, CreateGeneralObjectIn, DeallocUarIn, DestroyGeneralObjectIn,
    DestroyMkeyIn, DpaUarExtension, GeneralObjectType, QueryGeneralObjectIn,
};

use super::rig::Rig;
use crate::hca::Refusal;
use crate::profile::{Link, Profile};

const LINK: Link = Link::Infiniband;
const SECRET: [u8; 32] = [7; 32];

#[test]
fn only_mkeys_are_shared_and_only_by_their_owner() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    assert_eq!(rig.offer(other.uid, mkey, SECRET), Err(Refusal::NoSuchMkey));
    assert_eq!(rig.offer(mine.uid, mkey + 1, SECRET), Err(Refusal::NoSuchMkey));
    let queue = rig.send::<AllowOtherVhcaAccessIn>(mine.uid, |input| {
        input.set_object_type_to_be_accessed(GeneralObjectType::CQ);
        input.set_object_id_to_be_accessed(mine.cq);
    });
    assert_eq!(queue.err(), Some(Refusal::NotToBeShared));
    // None of these opened the key to another function.
    assert_eq!(rig.alias(other, (1, mkey), SECRET), Err(Refusal::NoOffer));
    rig.offer(mine.uid, mkey, SECRET).unwrap();
    rig.alias(other, (1, mkey), SECRET).unwrap();
}

#[test]
fn alias_belongs_to_its_creator_and_is_no_mkey() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    rig.offer(mine.uid, mkey, SECRET).unwrap();
    let thief = super::rig::User { pd: mine.pd, ..other };
    assert_eq!(rig.alias(thief, (1, mkey), SECRET), Err(Refusal::NoSuchPd));
    assert_eq!(rig.alias(other, (2, mkey), SECRET), Err(Refusal::NoOffer), "no such function");
    let alias = rig.alias(other, (1, mkey), SECRET).unwrap();
    assert_ne!(alias, mkey, "aliases and keys have indexes of one range");
    let mut destroy = |uid, number| {
        let kind = GeneralObjectType::MKEY.0;
        rig.call::<DestroyGeneralObjectIn>(uid, kind, &[], 0, |input| {
            input.set_obj_id(number);
        })
        .err()
    };
    assert_eq!(destroy(mine.uid, alias), Some(Refusal::NoSuchAlias));
    assert_eq!(destroy(mine.uid, mkey), Some(Refusal::NoSuchAlias), "a key is not an alias");
    assert_eq!(destroy(other.uid, alias), None);
    let again = rig.alias(other, (1, mkey), SECRET).unwrap();
    assert_eq!(rig.offer(other.uid, again, SECRET), Err(Refusal::NoSuchMkey), "nor the reverse");
    let key = rig.send::<DestroyMkeyIn>(other.uid, |input| {
        input.set_mkey_index(again);
    });
    assert_eq!(key.err(), Some(Refusal::NoSuchMkey));
    // The key is destroyed; the alias stays until its creator destroys it.
    rig.send::<DestroyMkeyIn>(mine.uid, |input| {
        input.set_mkey_index(mkey);
    })
    .unwrap();
    assert_eq!((rig.counts().aliases, rig.counts().mkeys), (1, 0));
}

#[test]
fn alias_output_context_is_optional() {
    let mut rig = Rig::up(LINK);
    let (mine, other) = (rig.user(), rig.user());
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    rig.offer(mine.uid, mkey, SECRET).unwrap();
    for room in [0, 63, 64] {
        let (number, context) = rig.alias_with(room, other, (1, mkey), SECRET).unwrap();
        assert_ne!(number, 0);
        let shown = context.get(4..8) == Some(&mkey.to_be_bytes()[..]);
        assert_eq!(shown, room == 64, "{room} bytes");
    }
    assert_eq!(rig.counts().aliases, 3);
}

#[test]
fn general_mkey_object_must_be_a_whole_alias() {
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
fn device_without_sharing_rejects_offer_and_alias() {
    let mut rig = Rig::up_of(Profile::load("connectx6dx").unwrap());
    let user = rig.user();
    let mkey = rig.mkey(user, |_| {}).unwrap();
    assert_eq!(rig.offer(user.uid, mkey, SECRET), Err(Refusal::NotToBeShared));
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
    assert_eq!(extend(&mut rig, other.uid, &wanted), Err(Refusal::NoSuchUar), "another's page");
    for vhca_id in [0, 2, 0xffff] {
        let away = *wanted.clone().set_vhca_id(vhca_id);
        assert_eq!(extend(&mut rig, mine.uid, &away), Err(Refusal::UarExtensionTo));
    }
    let elsewhere = *wanted.clone().set_process_serial(1 << 40 | 7);
    let refused = extend(&mut rig, mine.uid, &elsewhere);
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
    assert_eq!(extension.device_id(), 1 << 16 | number, "the device's to say");
    let free = |rig: &mut Rig| {
        let freed = rig.send::<DeallocUarIn>(mine.uid, |input| {
            input.set_uar(mine.uar);
        });
        freed.err()
    };
    assert_eq!(free(&mut rig), Some(Refusal::UarInUse));
}
