//! Built-in profiles, and mistakes of every kind in profiles.

use std::path::Path;

use verbless_prm::reflect::{Kind, View};
use verbless_prm::{FlowTableCap, HcaCap, HcaCapPage, PmtuReg, RegisterId, bits};

use super::{Link, Profile, Role, Side};

const GOOD: &str = include_str!("../../profiles/connectx6dx.toml");

/// The error of the good profile in which `to` replaces `from`.
fn error_of(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the profile has no {from:?} to replace");
    match Profile::from_toml(&GOOD.replacen(from, to, 1)) {
        Ok(_) => panic!("{to:?} instead of {from:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_profile_loads_with_either_link() {
    for name in Profile::names() {
        let profile = Profile::load(name).expect(name);
        for link in [Link::Infiniband, Link::Ethernet] {
            let profile = profile.clone().with_link(link);
            assert_eq!(profile.link(), link);
            let page = &profile.pages()[&HcaCapPage::GENERAL.0];
            let general = HcaCap::from_prefix(&page.current).expect("a whole page");
            assert_eq!(general.port_type().0, u8::from(link == Link::Ethernet));
            assert_eq!(general.num_ports(), 1);
            assert!([17, 18].contains(&general.log_max_qp()), "{name}");
        }
    }
}

#[test]
fn max_capabilities_cover_current_ones() {
    for name in Profile::names() {
        let profile = Profile::load(name).expect(name);
        for (number, page) in profile.pages() {
            let mut fields = 0;
            View::new(page.info, &page.current).leaves(&mut |path, leaf| {
                if matches!(leaf.field.kind, Kind::Number | Kind::Enum(_)) {
                    let value = |values| bits::get(values, leaf.bit, leaf.width);
                    let (current, max) = (value(&page.current), value(&page.max));
                    assert!(current <= max, "page {number:#x} of {name}: {path}: {current} {max}");
                    fields += 1;
                }
            });
            assert!(fields > 0, "page {number:#x} of {name} has no field");
        }
    }
}

#[test]
fn profile_errors_name_field_and_reason() {
    for (from, to, said) in [
        (
            "log_max_qp = 17",
            "log_max_qpp = 18",
            "[caps.general] log_max_qpp: hca_cap has no such field; did you mean log_max_qp",
        ),
        (
            "log_max_qp = 17",
            "log_max_qp = 32",
            "[caps.general] log_max_qp is 32, which does not fit its 5 bits",
        ),
        (
            "log_max_qp = 17",
            "log_max_qp = -1",
            "[caps.general] log_max_qp is -1: it cannot be negative",
        ),
        (
            "log_max_qp = 17",
            "log_max_qp = 1.5",
            "log_max_qp is of type float, but must be a number",
        ),
        (
            "log_max_qp = 17",
            "log_max_qp = true",
            "log_max_qp is of type boolean, but must be a number",
        ),
        (
            "log_max_qp = 17",
            "log_max_qp = [18]",
            "log_max_qp is of type array, but must be a number",
        ),
        ("log_max_qp = 17", "log_max_qp = \"0x1g\"", "which is not a hexadecimal number"),
        ("log_max_qp = 17", "log_max_qp =", "TOML parse error"),
        ("log_max_qp = 17", "log_max_qp = 17\nlog_max_qp = 17", "duplicate key"),
        (
            "\"ENTRIES_8\"",
            "\"ENTRIES_9\"",
            "gid_table_size is \"ENTRIES_9\", which is not a value of gid_table_size; did you mean \
             ENTRIES_8?",
        ),
        (
            "[caps.general]",
            "[caps.genral]",
            "[caps.genral]: there is no capability page of that name; did you mean GENERAL?",
        ),
        (
            "[registers.pmtu]",
            "[registers.pmtuu]",
            "[registers.pmtuu]: there is no register of that name with a known layout; did you \
             mean PMTU?",
        ),
        ("[max.general]", "[maximum.general]", "[profile] maximum is not a section of a profile"),
        (
            "link = \"ethernet\"",
            "link = \"token ring\"",
            "[profile] link is \"token ring\"; a link is \"infiniband\" or \"ethernet\"",
        ),
        ("name =", "nam =", "[profile] name is missing"),
        ("device_id = 0x101d", "", "[device] device_id is missing"),
        (
            "device_id = 0x101d",
            "device_id = 0x1101d",
            "[device] device_id is 69661, not from 0 to 65535",
        ),
        ("VBL0000000001", "VBL00000000000001", "[device] board_id has more than 16 characters"),
        ("uar_pages = 8192", "uar_pages = 512", "[first] user_uar leaves no page"),
        ("uar_pages = 8192", "uar_pages = 8000", "[device] uar_pages is not a power of two"),
        ("user_uar = 0x400", "user_uar = 0x10", "[first] user_uar leaves no page"),
        ("contexts_per_page = 8", "contexts_per_page = 0", "[device] contexts_per_page is 0"),
        ("page_batch = 32", "page_batch = 0", "[device] page_batch is 0"),
        ("vectors = 64", "vectors = 0", "[device] vectors is 0"),
        ("uid = 1", "uid = 0", "[first] uid is 0"),
        ("active_mtu = 1024", "active_mtu = 1000", "[ethernet.port] active_mtu is 1000"),
        ("max_mtu = 4096", "max_mtu = 2048", "[infiniband.port] active_mtu is 4096"),
        (
            "user_affiliated_events = [",
            "user_affiliated_events = [1, 2, 3, 4, ",
            "user_affiliated_events has more than 4 values",
        ),
        (
            "cap_mask1 = 0xa651e848",
            "cap_mask_1 = 1",
            "[infiniband.hca_vport] cap_mask_1: hca_vport_context has no such field; did you mean \
             cap_mask1?",
        ),
        ("cap_mask1 = 0xa651e848", "lmc = 1", "[infiniband.hca_vport] lmc is not 0"),
        (
            "[nic_vport]",
            "[nic_vport]\npermanent_address = 1",
            "[nic_vport] permanent_address is a structure",
        ),
    ] {
        let error = error_of(from, to);
        assert!(error.contains(said), "{to:?} says {error:?}, not {said:?}");
    }
}

#[test]
fn side_and_link_are_independent() {
    let profile = Profile::load("bluefield3").expect("the profile is built in");
    let host = profile.clone().vhca_id();
    for link in [Link::Infiniband, Link::Ethernet] {
        let dpu =
            profile.clone().with_link(link).on(Side::Dpu).expect("the profile has a DPU side");
        let other =
            profile.clone().on(Side::Dpu).expect("the profile has a DPU side").with_link(link);
        for profile in [dpu, other] {
            assert_eq!((profile.side(), profile.link()), (Side::Dpu, link));
            assert_ne!(profile.vhca_id(), host);
            assert_eq!(profile.on(Side::Host).expect("all have one").vhca_id(), host);
        }
    }
    let profile = Profile::load("connectx6dx").expect("the profile is built in");
    assert_eq!(profile.side(), Side::Host);
    assert!(profile.on(Side::Dpu).is_none());
}

#[test]
fn dpu_side_mistakes_are_reported_on_both_links() {
    let with = |section: &str| match Profile::from_toml(&format!("{GOOD}\n{section}\n")) {
        Ok(_) => panic!("{section:?} was accepted"),
        Err(error) => error.to_string(),
    };
    for (section, said) in [
        ("[dpu]", "[dpu] caps is missing"),
        ("[dpu.caps.general]\nvhca_ip = 2", "[dpu.caps.general] vhca_ip: hca_cap has no such"),
        ("[dpu.caps.general]", "[dpu.caps.general] vhca_id is 1, as a host's"),
        ("[dpu.port]\n[dpu.caps]", "[dpu] port is not a section of a profile"),
    ] {
        let error = with(section);
        assert!(error.contains(said), "{section:?} says {error:?}, not {said:?}");
    }
}

#[test]
fn profile_without_general_page_is_rejected() {
    let text = GOOD.replace("[caps.general]", "[caps.qos]").replace("[max.general]", "[max.qos]");
    let error = Profile::from_toml(&text).expect_err("no general page").to_string();
    assert!(error.contains("qos"), "{error}");
}

#[test]
fn unknown_profile_name_and_missing_file_differ() {
    let error = Profile::load("connectx9").expect_err("no such profile").to_string();
    assert!(error.contains("connectx6dx, ") && error.contains("bluefield3"), "{error}");
    let error = Profile::load("/nowhere/at/all.toml").expect_err("no such file").to_string();
    assert!(error.contains("/nowhere/at/all.toml"), "{error}");
}

#[test]
fn builtin_profiles_match_their_files() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut names: Vec<_> = Profile::names().collect();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Profile::builtin(name).unwrap(), Profile::read(&text).unwrap(), "{name}");
        Profile::from_toml(&text).expect("the profile is valid");
        names.retain(|it| *it != name);
    }
    assert!(names.is_empty(), "{names:?} have no file");
}

#[test]
fn profile_with_base_overrides_only_its_fields() {
    let text = "base = \"connectx6dx\"\nname = \"small\"\n[caps.general]\nlog_max_qp = 4\n";
    let profile = Profile::from_toml(text).expect("a good profile");
    let page = &profile.pages()[&HcaCapPage::GENERAL.0];
    let general = HcaCap::from_prefix(&page.current).expect("a whole page");
    assert_eq!((profile.name(), general.log_max_qp(), general.log_max_cq()), ("small", 4, 24));

    for (spoilt, said) in [
        (text.replace("connectx6dx", "connectx9"), "there is no profile \"connectx9\""),
        (text.replace("\"connectx6dx\"", "6"), "base is not the name"),
        (text.replace("log_max_qp", "log_max_qpp"), "log_max_qpp: hca_cap has no such field"),
    ] {
        let error = Profile::from_toml(&spoilt).expect_err(&spoilt).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn common_value_of_file_stays_below_link_value_of_base() {
    let text = "base = \"connectx6dx\"\n[registers.pmtu]\nmax_mtu = 512\nadmin_mtu = 256\n\
                [infiniband.registers.pmtu]\nadmin_mtu = 1024\n";
    let profile = Profile::from_toml(text).expect("a good profile");
    for (link, max, admin, oper) in
        [(Link::Infiniband, 4096, 1024, 4096), (Link::Ethernet, 512, 256, 1522)]
    {
        let profile = profile.clone().with_link(link);
        let pmtu = PmtuReg::from_prefix(&profile.registers()[&RegisterId::PMTU.0].bytes).unwrap();
        assert_eq!((pmtu.max_mtu(), pmtu.admin_mtu(), pmtu.oper_mtu()), (max, admin, oper));
    }
}

#[test]
fn file_merges_sections_of_base_field_by_field() {
    let text = "base = \"bluefield3\"\n[device]\nboard_id = \"OTHER\"\n[dpa]\ncores = 2\n\
                [dpu.caps.general]\nlog_max_qp = 5\n\
                [ethernet.caps.flow_table.flow_table_properties_nic_receive]\nmax_ft_level = 9\n";
    let profile = Profile::from_toml(text).expect("a good profile").with_link(Link::Ethernet);
    let base = Profile::load("bluefield3").expect("the profile is built in");
    assert_eq!((&*profile.device().board_id, profile.device().device_id), ("OTHER", 0xa2dc));
    let dpa = profile.dpa().expect("the base has one");
    assert_eq!((dpa.cores, dpa.units_per_core), (2, 16));
    assert_eq!(profile.topology(), base.topology());
    let page = &profile.pages()[&HcaCapPage::FLOW_TABLE.0].current;
    let nic = *FlowTableCap::from_prefix(page).unwrap().flow_table_properties_nic_receive();
    assert_eq!((nic.max_ft_level(), nic.log_max_ft_size()), (9, 16));
    let qps = |profile: &Profile| {
        HcaCap::from_prefix(&profile.pages()[&HcaCapPage::GENERAL.0].current).unwrap().log_max_qp()
    };
    let dpu = profile.clone().on(Side::Dpu).expect("the base has one");
    assert_eq!((qps(&profile), qps(&dpu), dpu.vhca_id()), (18, 5, 0x11));
}

#[test]
fn topology_accepts_only_possible_functions() {
    let (host_pf, vf) = (
        "{ side = \"host\", role = \"pf\", pf = 0, address = \"0b:00.0\" }",
        "{ side = \"host\", role = \"vf\", pf = 0, number = 3, address = \"0b:00.5\" }",
    );
    let with = |functions: &str| Profile::from_toml(&format!("topology = [{functions}]\n{GOOD}"));
    let good = with(&format!("{host_pf}, {vf}")).expect("a good one");
    let places = good.topology();
    assert_eq!((places[0].role, places[0].number, places[1].role), (Role::Pf, None, Role::Vf));
    assert_eq!((places[1].number, places[1].address.as_deref()), (Some(3), Some("0b:00.5")));
    for (functions, said) in [
        (vf.to_string(), "whose PF does not precede it"),
        (format!("{host_pf}, {host_pf}"), "which is listed twice"),
        (host_pf.replace("pf = 0,", "pf = 0, number = 1,"), "a PF has none"),
        (format!("{host_pf}, {}", vf.replace("number = 3, ", "")), "a VF and an SF have a number"),
        (host_pf.replace(", address = \"0b:00.0\"", ""), "which has no address"),
        (host_pf.replace("host", "dpu"), "the profile has no section dpu"),
        (host_pf.replace("host", "moon"), "a side is"),
        (host_pf.replace("\"pf\"", "\"xf\""), "a role is"),
        (host_pf.replace("pf = 0", "pf = 0, speed = 1"), "speed is not a field of a profile"),
        ("1".into(), "must be a section"),
    ] {
        let error = with(&functions).expect_err(&functions).to_string();
        assert!(error.contains(said), "{functions}: {error}");
    }
    // The DPU's numbers must come after those of all functions of the host.
    let dpu = "[dpu.caps.general]\nvhca_id = 2";
    let text = format!("topology = [{host_pf}, {vf}]\n{GOOD}\n{dpu}\n");
    let error = Profile::from_toml(&text).expect_err("the VF's number").to_string();
    assert!(error.contains("vhca_id is 2, as a host's"), "{error}");
    let card = Profile::load("bluefield3").expect("the profile is built in");
    let of = |role| card.topology().iter().filter(|it| it.role == role).count();
    assert_eq!([Role::Pf, Role::Vf, Role::Sf].map(of), [4, 3, 2]);
}
