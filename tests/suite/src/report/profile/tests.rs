//! Model, report, profile, model: both models must say the same of themselves.

use super::closest::facts_of;
use super::*;
use crate::profiles::PROFILES;
use crate::report::tests::report;

/// What the model says with a profile that is given as text.
fn facts_of_text(text: &str, link: &str, name: &str) -> Vec<DeviceFacts> {
    let file = std::env::temp_dir().join(format!("{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).expect("the profile can be written");
    let facts = facts_of(&file.display().to_string(), link);
    std::fs::remove_file(&file).expect("the file was written");
    facts.unwrap_or_else(|Stop(why)| panic!("{name}: {why}"))
}

#[test]
fn model_from_report_equals_reported_model() {
    for (profile, _) in PROFILES {
        for link in ["infiniband", "ethernet"] {
            let report = report(profile, Some(link), false);
            let text = report.profile().unwrap_or_else(|Stop(why)| panic!("{profile}: {why}"));
            // Some profiles differ on one link only: there, the base may be another.
            let (_, base) = text.split_once("built-in profile ").expect("a base");
            let base = base.split(':').next().unwrap_or_default();
            let of_base = facts_of(base, link).unwrap_or_else(|Stop(why)| panic!("{why}"));
            assert_eq!(of_base, report.devices, "{profile} {link}");
            let facts = facts_of_text(&text, link, &format!("exact-{profile}-{link}"));
            assert_eq!(facts, report.devices, "{profile} {link}");
        }
    }
}

/// The closest profile has most of the values by chance: another one has few.
#[test]
fn model_equals_reported_model_over_any_base() {
    for (profile, _) in PROFILES {
        for link in ["infiniband", "ethernet"] {
            let report = report(profile, Some(link), false);
            for base in ["bluefield3", "connectx6dx-bond", "connectx6vf"] {
                let card = Card::of(&report).unwrap_or_else(|Stop(why)| panic!("{why}"));
                let text =
                    report.profile_over(base).unwrap_or_else(|Stop(why)| panic!("{base}: {why}"));
                let facts = facts_of_text(&text, link, &format!("over-{profile}-{link}-{base}"));
                assert_eq!(facts[0], report.devices[0], "{profile} {link} over {base}");
                if card.dpu.is_some() {
                    assert_eq!(facts, report.devices, "{profile} {link} over {base}");
                }
            }
        }
    }
}

#[test]
fn profile_of_dpu_side_keeps_its_host() {
    let mut report = report("bluefield3", None, false);
    let dpu = report.devices.remove(1);
    report.devices = vec![dpu.clone()];
    let text = report.profile().unwrap_or_else(|Stop(why)| panic!("{why}"));
    assert!(text.contains("and the host's side"), "{text:.400}");
    let facts = facts_of_text(&text, "infiniband", "dpu-side");
    assert_eq!((facts.len(), &facts[1]), (2, &dpu));
}

#[test]
fn identifiers_of_a_card_do_not_enter_its_profile() {
    let card = report("connectx6dx", Some("infiniband"), true);
    let quiet = report("connectx6dx", Some("infiniband"), false);
    let text = |report: &Report| report.profile().unwrap_or_else(|Stop(why)| panic!("{why}"));
    assert_eq!(text(&card), text(&quiet));
}

#[test]
fn unsuitable_report_is_refused_with_reason() {
    let good = report("connectx6dx", None, false);
    let refused = |change: &dyn Fn(&mut Report)| {
        let mut changed = good.clone();
        change(&mut changed);
        let Err(Stop(why)) = changed.profile() else { panic!("the changed report was accepted") };
        why
    };
    for (why, change) in [
        ("has no device", (&|it: &mut Report| it.devices.clear()) as &dyn Fn(&mut Report)),
        ("has no port", &|it| it.devices[0].ports.clear()),
        ("no general capability page", &|it| it.devices[0].pages.clear()),
        ("is incomplete: gone", &|it| it.devices[0].incomplete = Some("gone".into())),
        ("gone\\u{1b}]0", &|it| it.devices[0].incomplete = Some("gone\u{1b}]0".into())),
        ("link layer", &|it| it.devices[0].ports[0].link_layer = FactLink::Unspecified),
        ("is not three numbers", &|it| it.devices[0].firmware = "22.40".into()),
        ("makes no sound profile", &|it| it.devices[0].ports[0].max_mtu = Some(300)),
    ] {
        assert!(refused(change).contains(why), "{why}: {}", refused(change));
    }
    let quoted = {
        let mut changed = good.clone();
        changed.devices[0].psid = "a\nname = 1".into();
        changed.profile().unwrap_or_else(|Stop(why)| panic!("{why}"))
    };
    assert!(quoted.contains("PSID a\\nname = 1 and firmware"), "{quoted:.200}");
}
