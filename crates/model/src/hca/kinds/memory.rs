//! Memory that the device may access: keys, and the registered memory behind them.

macro_rules! memory {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
            /// Memory keys, by their index (key >> 8).
            mkeys: Mkey(u32) => objects::Mkey {
                numbers: [mkey: |profile| profile.first().mkey..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.mkey,
                    owner: |mkey| mkey.uid,
                    made: [|mkey| !mkey.is_null()],
                    refers: |mkey, to| {
                        mkey.umem.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    // UMR on a queue of the kernel moves a key to another PD.
                    moving: [Pd: |mkey| mkey.pd],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchMkey = 0x50, "No such mkey for this uid.",
                    in_use: [],
                    others: {
                        MkeyMode = 0x51, BAD_PARAM, "The access mode is not supported here.";
                        MkeyLength = 0x52, BAD_PARAM, "The length is 0, or the range overflows.";
                        MkeyPageSize = 0x53, BAD_PARAM,
                            "The page or block size does not fit the key.";
                        MkeyTranslations = 0x54, BAD_PARAM,
                            "The translation entries do not cover the length.";
                        MkeyOffset = 0x55, BAD_PARAM,
                            "The start address has another offset within the UMEM's page than the \
                             memory has (on a card syndrome 0x317175).";
                        MkeyEntries = 0x56, LIM,
                            "The entry list is longer than log_max_klm_list_size.";
                        MkeyAtomic = 0x58, BAD_PARAM,
                            "An indirect mkey for atomics is not aligned to the largest atomic, in \
                             its start or its length.";
                        MkeyLength64 = 0x57, BAD_PARAM,
                            "An mkey with length64 has neither pages nor a UMEM.";
                    },
                },
                removed: [mkey::removed],
                commands: {
                    user CreateMkeyIn => mkey::create;
                    user QueryMkeyIn => mkey::query;
                    user AllowOtherVhcaAccessIn => alias::allow;
                    user DestroyMkeyIn =>
                        |call, input, _| call.destroy(kind::Mkey, input.mkey_index());
                }
            }
            /// Aliases of memory keys of other functions. Aliases and keys share one range of
            /// indexes.
            aliases: Alias(u32) => objects::Alias {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.mkey,
                    owner: |alias| alias.uid,
                    made: [],
                    refers: |alias, to| to(ObjectKind::Pd, alias.pd),
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchAlias = 0x5a, "No such alias for this uid.",
                    in_use: [],
                    others: {
                        NoOffer = 0x5b, BAD_RES,
                            "There is no such object of a function that this one may reach, or the \
                             access key is wrong.";
                        NotToBeShared = 0x5c, BAD_PARAM, "Objects of this type cannot be shared.";
                    },
                },
                removed: [alias::removed],
                commands: {
                    user CreateGeneralObjectIn of MKEY => alias::create;
                    user DestroyGeneralObjectIn of MKEY =>
                        |call, input, _| call.destroy(kind::Alias, input.obj_id());
                }
            }
            /// Registered user memory.
            umems: Umem(u32) => objects::Umem {
                numbers: [umem: |profile| profile.first().umem..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.umem,
                    owner: |umem| umem.uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchUmem = 0x40, "No such UMEM for this uid.",
                    in_use: [UmemInUse = 0x41,
                        "Mkeys or queues still use the UMEM: destroy them first."],
                    others: {
                        UmemPages = 0x42, BAD_PARAM,
                            "The UMEM's pages, page size or offset are out of range.";
                        UmemBounds = 0x43, BAD_PARAM, "The range is not within the UMEM.";
                        UmemReadOnly = 0x44, BAD_PARAM,
                            "The device must write there, but the UMEM's pages are read-only.";
                    },
                },
                removed: [],
                commands: {
                    user CreateUmemIn => umem::create;
                    user DestroyUmemIn => umem::destroy;
                }
            }
        } }
    };
}

pub(in crate::hca) use memory;
