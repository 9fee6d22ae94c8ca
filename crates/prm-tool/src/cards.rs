//! Capability pages of real cards in `tests/facts/cards.toml`, as the SET_HCA_CAP commands in which
//! Linux sent them.
//!
//! They count like the commands of the trace ([`super::trace`]): the card answered a page, Linux
//! changed a few fields, and the card accepted the result.

use std::path::Path;

use verbless_prm::dump::Dumped;

use super::runtime::Runtime;
use super::trace::{Replay, replay};

/// Path of the facts from the root of the repository.
const FACTS: &str = "tests/facts/cards.toml";
/// Opcode of SET_HCA_CAP, and bytes of its header and page.
const SET_HCA_CAP: u8 = 0x09;
const HEADER: usize = 0x10;
const PAGE: usize = 0x1000;
/// Page numbers by the names that profiles use.
const PAGES: [(&str, u16); 4] = [("general", 0), ("odp", 2), ("roce", 4), ("general_2", 0x20)];

/// Replays the pages of all cards.
pub(crate) fn check(root: &Path, runtime: &Runtime) -> crate::repository::Result<Replay> {
    let text = std::fs::read_to_string(root.join(FACTS))?;
    Ok(replay(runtime, commands(&text)?))
}

/// The command of each page.
fn commands(text: &str) -> crate::repository::Result<Vec<Dumped>> {
    let facts: toml::Table = text.parse().map_err(|error| format!("{FACTS}: {error}"))?;
    let cards = facts.get("card").and_then(toml::Value::as_array).into_iter().flatten();
    let pages = cards.filter_map(|card| card.get("pages")?.as_table()).flatten();
    let mut commands = Vec::new();
    for (name, digits) in pages {
        let number = PAGES.iter().find(|it| it.0 == name).map(|it| it.1);
        let number = number.ok_or_else(|| format!("{FACTS}: {name} is no page"))?;
        let digits = digits.as_str().unwrap_or_default().split_whitespace().collect::<String>();
        let pairs = digits.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair));
        let bytes: Result<Vec<u8>, _> = pairs.map(|pair| u8::from_str_radix(&pair, 16)).collect();
        let bytes = bytes.map_err(|error| format!("{FACTS}: {name}: {error}"))?;
        let mut input = vec![0; HEADER + PAGE];
        input[..2].copy_from_slice(&[0x01, SET_HCA_CAP]);
        input[6..8].copy_from_slice(&(number * 2).to_be_bytes());
        input[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
        commands.push(Dumped {
            title: format!("SET_HCA_CAP of page {name}"),
            origin: FACTS.into(),
            input_length: input.len(),
            input,
            output: Some(vec![0; HEADER]),
            output_length: HEADER,
        });
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::repository::root;
    use super::*;

    #[test]
    fn capability_pages_of_card_decode_and_confirm_fields() {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        let replay = check(&root(), &runtime).unwrap();
        assert_eq!((replay.commands.len(), replay.problems), (4, vec![]));
        for field in [
            ("hca_cap", "log_max_qp"),
            ("hca_cap", "steering_format_version"),
            ("hca_cap_2", "log_min_mkey_entity_size"),
            ("roce_cap", "r_roce_dest_udp_port"),
        ] {
            assert!(replay.confirmed.contains(&field), "{field:?}");
        }
        assert!(!replay.confirmed.contains(&("hca_cap", "log_max_dct")), "it is 0");
    }

    #[test]
    fn unknown_pages_and_digits_are_rejected() {
        let error = |page: &str| {
            let text = format!("[[card]]\n[card.pages]\n{page}\n");
            commands(&text).map(|it| it.len()).unwrap_err().to_string()
        };
        assert_eq!(error("tls = \"00\""), "tests/facts/cards.toml: tls is no page");
        assert!(error("odp = \"0x\"").starts_with("tests/facts/cards.toml: odp: invalid digit"));
    }
}
