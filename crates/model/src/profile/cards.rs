//! Profiles against public reports of cards: `tests/facts/cards.toml` has what `ibv_devinfo -v` and
//! capability pages of named cards show. Every profile has the value of at least one card that it
//! claims to be, or the file says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::de::{DeTable, DeValue};
use verbless_prm::reflect::{Kind, View};
use verbless_prm::{HcaCap, HcaCapPage, RoceCap, bits};

use super::{Link, Profile};

const FACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/facts/cards.toml");

/// Attributes that the model has no value for: raw packets, segmentation, receive side scaling,
/// pacing, tag matching, memory of the device, on-demand paging. Others that the kernel makes up,
/// whatever the device: `max_sge_rd`, `max_ah`, moderation.
const NOT_OF_A_PROFILE: [&str; 14] = [
    "device_cap_flags",
    "max_sge_rd",
    "max_ah",
    "max_cq_count",
    "max_cq_period",
    "max_tso",
    "max_rwq_indirection_tables",
    "max_rwq_indirection_table_size",
    "max_wq_type_rq",
    "qp_rate_limit_min",
    "qp_rate_limit_max",
    "tm_max_num_tags",
    "device_memory",
    "odp",
];

/// A card, as the file has it.
struct Card {
    title: String,
    part: u64,
    link: Link,
    profiles: Vec<String>,
    verbs: BTreeMap<String, Option<u64>>,
    pages: BTreeMap<String, Vec<u8>>,
}

/// Values by name: an attribute of verbs, or page and field (`general.log_max_qp`).
type Values = BTreeMap<String, BTreeSet<u64>>;

fn number(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn text<'a>(table: &'a DeTable<'_>, key: &str) -> Option<&'a str> {
    table.get(key)?.get_ref().as_str()
}

fn tables<'a>(of: &'a DeTable<'_>, key: &str) -> Vec<&'a DeTable<'a>> {
    let all = of.get(key).and_then(|it| it.get_ref().as_array());
    all.into_iter().flatten().filter_map(|it| it.get_ref().as_table()).collect()
}

fn card(table: &DeTable<'_>) -> Card {
    let name = text(table, "name").expect("a name");
    let board = text(table, "board").unwrap_or("an unnamed board");
    assert!(!text(table, "source").expect("a source").is_empty());
    let numbers = |key: &str| {
        let of = table.get(key).and_then(|it| it.get_ref().as_table());
        of.into_iter().flat_map(|it| it.iter()).map(|(key, value)| (key.to_string(), value))
    };
    let hex = |text: &str| {
        let digits: String = text.split_whitespace().collect();
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hex")).collect()
    };
    let profiles = table["profiles"].get_ref().as_array().expect("a list");
    Card {
        title: format!("{name} ({board})"),
        part: number(table["part"].get_ref()).expect("a number"),
        link: match text(table, "link") {
            Some("ethernet") => Link::Ethernet,
            Some("infiniband") => Link::Infiniband,
            other => panic!("{name}: link {other:?}"),
        },
        profiles: profiles.iter().map(|it| it.get_ref().as_str().unwrap().to_owned()).collect(),
        verbs: numbers("verbs").map(|(key, value)| (key, number(value.get_ref()))).collect(),
        pages: numbers("pages")
            .map(|(key, value)| (key, hex(value.get_ref().as_str().expect("hex"))))
            .collect(),
    }
}

fn page_number(name: &str) -> u16 {
    match name {
        "general" => HcaCapPage::GENERAL.0,
        "general_2" => HcaCapPage::GENERAL_2.0,
        "atomic" => HcaCapPage::ATOMIC.0,
        "odp" => HcaCapPage::ODP.0,
        "roce" => HcaCapPage::ROCE.0,
        _ => panic!("{name} is no capability page of the facts"),
    }
}

/// An attribute as Linux's mlx5_ib makes it of the capabilities (`mlx5_ib_query_device`,
/// `mlx5_ib_query_port`); `None` for one that the profile has no value for.
fn verb(name: &str, profile: &Profile) -> Option<u64> {
    let page = |page: HcaCapPage| &*profile.pages()[&page.0].current;
    let general = HcaCap::from_prefix(page(HcaCapPage::GENERAL)).expect("a whole page");
    let log = |log: u8| 1_u64 << log;
    let send_sges = (u64::from(general.max_wqe_sz_sq()).min(512) - 32) / 16;
    let receive_sges = u64::from(general.max_wqe_sz_rq()) / 16;
    Some(match name {
        "max_qp" => log(general.log_max_qp()),
        // Until Linux counted the WQEBBs of its largest request (`max_requests` in the modelled
        // kernel).
        "max_qp_wr" => log(general.log_max_qp_sz()),
        "max_sge" => send_sges.min(receive_sges),
        "max_cq" => log(general.log_max_cq()),
        "max_cqe" => log(general.log_max_cq_sz()) - 1,
        "max_mr" => log(general.log_max_mkey()),
        "max_mw" => u64::from(general.imaicl()) * log(general.log_max_mkey()),
        "max_pd" => log(general.log_max_pd()),
        "max_qp_rd_atom" => log(general.log_max_ra_req_qp()),
        "max_qp_init_rd_atom" => log(general.log_max_ra_res_qp()),
        "max_res_rd_atom" => log(general.log_max_ra_req_qp()) * log(general.log_max_qp()),
        "atomic_cap" => u64::from(general.atomic()),
        "max_mcast_grp" => log(general.log_max_mcg()),
        "max_mcast_qp_attach" => u64::from(general.max_qp_mcg()),
        "max_srq" => log(general.log_max_srq()),
        "max_srq_wr" => log(general.log_max_srq_sz()) - 1,
        "max_srq_sge" => receive_sges - 1,
        "max_pkeys" => 128 << general.pkey_table_size().0,
        "local_ca_ack_delay" => general.local_ca_ack_delay().into(),
        "hca_core_clock" => general.device_frequency_khz().into(),
        "gid_tbl_len" if profile.link() == Link::Ethernet => {
            let roce = RoceCap::from_prefix(page(HcaCapPage::ROCE)).expect("a whole page");
            roce.roce_address_table_size().into()
        }
        "gid_tbl_len" => 8 << general.gid_table_size().0,
        _ => return None,
    })
}

/// What a profile claims of the card: its attributes, and the fields of its pages that are not 0.
fn claims(profile: &Profile, card: &Card) -> BTreeMap<String, (u64, u64)> {
    let mut claims = BTreeMap::new();
    for (name, reported) in &card.verbs {
        match (verb(name, profile), reported) {
            (Some(ours), Some(theirs)) => {
                claims.insert(name.clone(), (ours, *theirs));
            }
            _ => assert!(NOT_OF_A_PROFILE.contains(&&**name), "{}: {name}", card.title),
        }
    }
    for (name, bytes) in &card.pages {
        let Some(page) = profile.pages().get(&page_number(name)) else { continue };
        let mut theirs = bytes.clone();
        theirs.resize(page.current.len(), 0);
        View::new(page.info, &page.current).leaves(&mut |path, leaf| {
            let one = matches!(leaf.field.kind, Kind::Number | Kind::Enum(_));
            if one && leaf.width <= 64 {
                let value = |values: &[u8]| bits::get(values, leaf.bit, leaf.width);
                let (ours, theirs) = (value(&page.current), value(&theirs));
                if ours != 0 {
                    claims.insert(format!("{name}.{path}"), (ours, theirs));
                }
            }
        });
    }
    claims
}

#[test]
fn profiles_have_values_of_reported_cards() {
    let facts = std::fs::read_to_string(Path::new(FACTS)).expect("the facts");
    let facts = DeTable::parse(&facts).unwrap_or_else(|error| panic!("{error}")).into_inner();
    let cards: Vec<Card> = tables(&facts, "card").into_iter().map(card).collect();
    assert!(cards.len() > 10, "the facts are read");
    let mut faults = Vec::new();
    let mut compared = 0;
    let mut used = BTreeSet::new();
    let differs: BTreeMap<(String, String), &str> = tables(&facts, "differs")
        .into_iter()
        .flat_map(|it| {
            let [profile, why] = ["profile", "why"].map(|key| text(it, key).expect(key));
            let values = it["values"].get_ref().as_array().expect("a list");
            let values = values.iter().map(|value| value.get_ref().as_str().expect("a name"));
            values.map(move |value| ((profile.to_owned(), value.to_owned()), why))
        })
        .collect();
    for name in Profile::names() {
        let of = cards.iter().filter(|card| card.profiles.iter().any(|it| it == name));
        let (mut ours, mut theirs) = (BTreeMap::new(), Values::new());
        for card in of {
            let profile = Profile::load(name).expect(name).with_link(card.link);
            let device = u64::from(profile.device().device_id);
            if device != card.part && !card.title.contains("virtual function") {
                faults.push(format!("{name} has device id {device}, {} {}", card.title, card.part));
            }
            for (value, (of_profile, of_card)) in claims(&profile, card) {
                ours.insert(value.clone(), of_profile);
                theirs.entry(value).or_default().insert(of_card);
            }
        }
        for (value, of_profile) in ours {
            compared += 1;
            let agrees = theirs[&value].contains(&of_profile);
            let key = (name.to_owned(), value.clone());
            let explained = differs.get(&key).is_some_and(|why| !why.is_empty());
            if explained {
                used.insert(key);
            }
            let of_cards = &theirs[&value];
            match (agrees, explained) {
                (false, false) => faults.push(format!(
                    "{name}: {value} is {of_profile:#x}, cards have {of_cards:x?}, and no reason"
                )),
                (true, true) => faults.push(format!("{name}: {value} agrees, and has a reason")),
                _ => {}
            }
        }
    }
    let known: BTreeSet<&str> = Profile::names().collect();
    for it in cards.iter().flat_map(|card| &card.profiles).filter(|it| !known.contains(&***it)) {
        faults.push(format!("there is no profile {it}"));
    }
    for (profile, value) in differs.keys().filter(|it| !used.contains(it)) {
        faults.push(format!("{profile}: {value} has a reason, and no card a value"));
    }
    assert!(compared > 100, "{compared} values compared");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
