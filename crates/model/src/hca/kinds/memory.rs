//! Memory that the device may access: keys, and the registered memory behind them.

use verbless_prm::{
    AllowOtherVhcaAccessIn, CreateGeneralObjectIn, CreateMkeyIn, CreateUmemIn,
    DestroyGeneralObjectIn, DestroyMkeyIn, DestroyUmemIn, GeneralObjectType, QueryMkeyIn,
};

use crate::hca::allocators::NumberAllocators;
use crate::hca::commands::command::{Command, ObjectCommands, Run, user};
use crate::hca::commands::{alias, mkey, umem};
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::{Alias, Mkey, Uid, Umem};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, ObjectKind, Reference, kind};
use crate::hca::state::Hca;

impl KindEntry for kind::Mkey {
    const ABSENT: Refusal = Refusal::NoSuchMkey;
    // UMR on a queue of the kernel moves a key to another PD.
    const DATA_PATH_REFERENCE: Option<Reference<Mkey>> = Some((ObjectKind::Pd, |mkey| mkey.pd));

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.mkey
    }

    fn owner(mkey: &Mkey) -> Uid {
        mkey.uid
    }

    fn is_made(mkey: &Mkey) -> bool {
        !mkey.is_null()
    }

    fn refers(mkey: &Mkey, to: &mut dyn FnMut(ObjectKind, u32)) {
        mkey.umem.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
    }
}

impl ObjectCommands for kind::Mkey {
    const COMMANDS: &'static [Command] = &[
        user::<CreateMkeyIn>(&Run(mkey::create)),
        user::<QueryMkeyIn>(&Run(mkey::query)),
        user::<AllowOtherVhcaAccessIn>(&Run(alias::allow)),
        user::<DestroyMkeyIn>(&Run(|call, input, _| call.destroy(kind::Mkey, input.mkey_index()))),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Mkey) {
        mkey::removed(hca, number, object);
    }
}

impl KindEntry for kind::Alias {
    const ABSENT: Refusal = Refusal::NoSuchAlias;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.mkey
    }

    fn owner(alias: &Alias) -> Uid {
        alias.uid
    }

    fn refers(alias: &Alias, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Pd, alias.pd);
    }
}

impl ObjectCommands for kind::Alias {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(alias::create)).of(GeneralObjectType::MKEY),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::Alias, input.obj_id())
        }))
        .of(GeneralObjectType::MKEY),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Alias) {
        alias::removed(hca, number, object);
    }
}

impl KindEntry for kind::Umem {
    const ABSENT: Refusal = Refusal::NoSuchUmem;
    const IN_USE: Option<Refusal> = Some(Refusal::UmemInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.umem
    }

    fn owner(umem: &Umem) -> Uid {
        umem.uid
    }
}

impl ObjectCommands for kind::Umem {
    const COMMANDS: &'static [Command] =
        &[user::<CreateUmemIn>(&Run(umem::create)), user::<DestroyUmemIn>(&Run(umem::destroy))];
}
