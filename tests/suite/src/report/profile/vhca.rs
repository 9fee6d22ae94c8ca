//! Each function of a card has a vhca_id of its own: the host's functions count up from that of the
//! first, and the DPU's is none of them.

use toml::{Table, Value};

use super::section::section;

/// Moves the vhca_id of the side that a report does not know, if it collides with the other side's.
/// If both are known, the topology goes, which is the base's.
pub(super) fn separate(table: &mut Table, host_is_unknown: bool) {
    if !table.contains_key("dpu") || !collide(table) {
        return;
    }
    let host = number(table, &["caps"]).unwrap_or(0);
    let dpu = number(table, &["dpu", "caps"]).unwrap_or(host);
    if host_is_unknown {
        set(table, &["caps"], dpu + 1);
    } else if dpu == host {
        let hosts = hosts(table);
        set(table, &["dpu", "caps"], host + hosts);
    } else {
        table.remove("topology");
    }
}

fn collide(table: &Table) -> bool {
    let host = number(table, &["caps"]).unwrap_or(0);
    let dpu = number(table, &["dpu", "caps"]).unwrap_or(host);
    (host..host + hosts(table)).contains(&dpu)
}

/// The number of the host's functions.
fn hosts(table: &Table) -> i64 {
    let places = table.get("topology").and_then(Value::as_array);
    let of_host = |place: &&Value| place.get("side").and_then(Value::as_str) == Some("host");
    places.map_or(0, |places| places.iter().filter(of_host).count() as i64).max(1)
}

fn number(table: &Table, path: &[&str]) -> Option<i64> {
    let caps = path.iter().try_fold(table, |table, name| table.get(*name)?.as_table())?;
    caps.get("general")?.as_table()?.get("vhca_id")?.as_integer()
}

fn set(table: &mut Table, path: &[&str], number: i64) {
    let caps = section(table, path);
    section(caps, &["general"]).insert("vhca_id".into(), number.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn separated(text: &str, host_is_unknown: bool) -> (Option<i64>, Option<i64>, bool) {
        let mut table: Table = text.parse().expect("the text is TOML");
        separate(&mut table, host_is_unknown);
        assert!(!collide(&table), "{table}");
        let numbers = [&["caps"][..], &["dpu", "caps"]].map(|path| number(&table, path));
        (numbers[0], numbers[1], table.contains_key("topology"))
    }

    #[test]
    fn colliding_side_is_moved() {
        let with = |host: i64, dpu: i64| {
            format!(
                "topology = [{{side = \"host\"}}, {{side = \"host\"}}, {{side = \"dpu\"}}]\n\
                 caps.general.vhca_id = {host}\ndpu.caps.general.vhca_id = {dpu}\n"
            )
        };
        assert_eq!(separated(&with(4, 7), false), (Some(4), Some(7), true));
        assert_eq!(separated(&with(4, 4), false), (Some(4), Some(6), true));
        assert_eq!(separated(&with(4, 5), false), (Some(4), Some(5), false));
        assert_eq!(separated(&with(4, 5), true), (Some(6), Some(5), true));
    }
}
