//! Finds entries, fields and values by their names in `prm/` and in drivers.
//!
//! Names in drivers come from the tables: every identifier in `sources`, the `aliases` of an entry,
//! and `linux` of a field. A source `MLX5_CQC_ST_*` gives each value of its enum a name with that
//! prefix.

use std::collections::BTreeSet;

use super::description::{Command, Description, Enum, EnumValue, Field, Structure};

/// An entry that a name can refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    Command(&'a Command),
    Structure(&'a Structure),
    Enum(&'a Enum),
    Field(&'a Structure, &'a Field),
    Value(&'a Enum, &'a EnumValue),
}

/// The result of looking up a name.
#[derive(Debug, Default)]
pub(crate) struct Found<'a> {
    /// The most direct matches.
    pub(crate) targets: Vec<Target<'a>>,
    /// Less direct matches.
    pub(crate) others: Vec<Target<'a>>,
}

/// How directly a name refers to its target; smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The name of the entry, its opcode or register id, or STRUCTURE.FIELD.
    Own,
    /// The entry's first source, or an alias.
    Source,
    /// Another source of the entry.
    LaterSource,
    /// The name of a field or a value.
    Part,
}

impl Target<'_> {
    /// A name that refers only to it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Command(command) => command.name.to_uppercase(),
            Self::Structure(structure) => structure.name.clone(),
            Self::Enum(e) => e.name.clone(),
            Self::Field(structure, field) => format!("{}.{}", structure.name, field.name),
            Self::Value(e, value) => format!("{}.{}", e.name, value.name),
        }
    }

    /// The type of the entry, and its position.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Command(command) => format!("command {:#x}", command.opcode),
            Self::Structure(structure) => format!("structure of {:#x} bytes", structure.bytes),
            Self::Enum(e) => format!("enum of {} values", e.values.len()),
            Self::Field(_, field) => format!("field at {}", field.position()),
            Self::Value(_, value) => format!("value {:#x}", value.value),
        }
    }

    /// The entry's doc text.
    pub(crate) fn doc(&self) -> &str {
        match self {
            Self::Command(command) => &command.doc,
            Self::Structure(structure) => &structure.doc,
            Self::Enum(e) => &e.doc,
            Self::Field(_, field) => &field.doc,
            Self::Value(_, value) => &value.doc,
        }
    }
}

/// Everything with this name, the most direct first.
pub(crate) fn find<'a>(description: &'a Description, query: &str) -> Found<'a> {
    let query = query.trim().to_lowercase();
    // UCX adds this prefix to names that it shares with Linux.
    let query = query.strip_prefix("uct_ib_").unwrap_or(&query).to_owned();
    let mut found: Vec<(Rank, Target<'a>)> = Vec::new();
    if let Some(number) = number(&query) {
        let commands = description.commands.iter().filter(|it| u64::from(it.opcode) == number);
        found.extend(commands.map(|it| (Rank::Own, Target::Command(it))));
        for e in description.enums.iter().filter(|e| e.name == "register_id") {
            let values = e.values.iter().filter(|value| value.value == number);
            found.extend(values.map(|value| (Rank::Own, Target::Value(e, value))));
        }
    } else if let Some((outer, part)) = query.rsplit_once('.') {
        for target in find(description, outer).targets {
            match target {
                Target::Structure(it) => found.extend(
                    (it.fields.iter().filter(|field| field_is(field, part)))
                        .map(|field| (Rank::Own, Target::Field(it, field))),
                ),
                Target::Enum(e) => found.extend(
                    (e.values.iter().filter(|value| value.name.to_lowercase() == part))
                        .map(|value| (Rank::Own, Target::Value(e, value))),
                ),
                _ => {}
            }
        }
    } else {
        entries(description, &mut |target, name, rank| {
            if name == query {
                found.push((rank, target));
            }
        });
        parts(description, &query, &mut found);
    }
    found.sort_by_key(|(rank, _)| *rank);
    let mut seen = BTreeSet::new();
    found.retain(|(_, target)| seen.insert(target.name()));
    let best = found.first().map(|(rank, _)| *rank);
    let (targets, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(rank, _)| Some(*rank) == best);
    let bare = |list: Vec<(Rank, Target<'a>)>| list.into_iter().map(|(_, target)| target).collect();
    Found { targets: bare(targets), others: bare(others) }
}

fn number(query: &str) -> Option<u64> {
    match query.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => query.parse().ok(),
    }
}

fn field_is(field: &Field, name: &str) -> bool {
    field.name == name || field.linux.as_ref().is_some_and(|linux| linux.to_lowercase() == name)
}

/// Calls `f` for every entry and each of its names, in lower case.
fn entries<'a>(description: &'a Description, f: &mut dyn FnMut(Target<'a>, &str, Rank)) {
    let mut entry = |target: Target<'a>, name: &str, sources: &[String], aliases: &[String]| {
        f(target, name, Rank::Own);
        for alias in aliases {
            f(target, &alias.to_lowercase(), Rank::Source);
        }
        for (i, source) in sources.iter().enumerate() {
            let rank = if i == 0 { Rank::Source } else { Rank::LaterSource };
            for name in identifiers(source).filter(|name| !name.ends_with('*')) {
                for name in spellings(&name.to_lowercase()) {
                    f(target, &name, rank);
                }
            }
        }
    };
    for it in &description.commands {
        entry(Target::Command(it), &it.name, &it.sources, &it.aliases);
    }
    for it in &description.structures {
        entry(Target::Structure(it), &it.name, &it.sources, &it.aliases);
    }
    for it in &description.enums {
        entry(Target::Enum(it), &it.name, &it.sources, &it.aliases);
    }
}

/// Calls `f` for every entry and value, and each of their names, those in drivers included, in
/// lower case.
pub(crate) fn each_name<'a>(description: &'a Description, f: &mut dyn FnMut(Target<'a>, &str)) {
    entries(description, &mut |target, name, _| f(target, &name.to_lowercase()));
    for e in &description.enums {
        for prefix in prefixes(e) {
            for value in &e.values {
                f(Target::Value(e, value), &format!("{prefix}{}", value.name).to_lowercase());
            }
        }
    }
}

/// The prefixes of an enum's values in drivers: the patterns among its sources.
pub(crate) fn prefixes(e: &Enum) -> Vec<String> {
    let names = e.sources.iter().flat_map(|source| identifiers(source));
    let mut prefixes: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix('*')?.to_owned())).collect();
    prefixes.dedup();
    prefixes
}

fn parts<'a>(description: &'a Description, query: &str, found: &mut Vec<(Rank, Target<'a>)>) {
    for structure in &description.structures {
        let fields = structure.fields.iter().filter(|field| field_is(field, query));
        found.extend(fields.map(|field| (Rank::Part, Target::Field(structure, field))));
    }
    // Most values of the enum `opcode` repeat a command.
    let described = |e: &Enum, value: &EnumValue| {
        e.name == "opcode"
            && description.commands.iter().any(|it| u64::from(it.opcode) == value.value)
    };
    for e in &description.enums {
        let prefixes: Vec<String> = prefixes(e).iter().map(|it| it.to_lowercase()).collect();
        for value in e.values.iter().filter(|value| !described(e, value)) {
            let name = value.name.to_lowercase();
            let suffixes = prefixes.iter().filter_map(|prefix| query.strip_prefix(prefix));
            // Many values end with _ERR only in Linux.
            let mut suffixes = suffixes.map(|rest| rest.strip_suffix("_err").unwrap_or(rest));
            if name == query || suffixes.any(|rest| rest == name) {
                found.push((Rank::Part, Target::Value(e, value)));
            }
        }
    }
}

/// The C identifiers in a source: `linux: include/linux/mlx5/cq.h MLX5_CQ_MODIFY_*` has one. A
/// pattern keeps its `*`; paths and plain words are not identifiers.
pub(crate) fn identifiers(source: &str) -> impl Iterator<Item = &str> {
    source.split([' ', ',', '(', ')', ':', ';']).filter(|word| !word.contains(['/', '.'])).filter(
        |word| {
            let bare = word.trim_end_matches('*');
            bare.contains('_')
                && bare.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
                && (*word == bare || word.len() == bare.len() + 1)
        },
    )
}

/// An identifier and its other forms: `mlx5_ifc_cqc_bits` is also `cqc`, `mlx5_cqe64` also `cqe64`;
/// UCX's `uct_ib_mlx5_cqc_bits` loses `uct_ib_`.
fn spellings(name: &str) -> Vec<String> {
    let name = name.strip_prefix("uct_ib_").unwrap_or(name);
    let mut all = vec![name.to_owned()];
    let short = match name.strip_suffix("_bits") {
        Some(core) => {
            let core = core.strip_prefix("mlx5_ifc_").or_else(|| core.strip_prefix("mlx5_"));
            all.extend(core.map(|core| format!("mlx5_ifc_{core}_bits")));
            all.extend(core.map(|core| format!("mlx5_{core}_bits")));
            core
        }
        None => name.strip_prefix("mlx5_cmd_op_").or_else(|| name.strip_prefix("mlx5_")),
    };
    all.extend(short.map(str::to_owned));
    all
}

/// Existing names that resemble an unknown one, the nearest first.
pub(crate) fn near(description: &Description, query: &str, max: usize) -> Vec<String> {
    let query = query.trim().to_lowercase();
    let query = spellings(&query).pop().unwrap_or(query);
    let mut near: Vec<(usize, String)> = Vec::new();
    let mut consider = |name: &str, shown: String| {
        let distance = if name.contains(&query) || query.contains(name) {
            name.len().abs_diff(query.len()).min(2)
        } else {
            distance(name, &query)
        };
        if name.len() > 2 && distance <= 1 + query.len() / 5 {
            near.push((distance, shown));
        }
    };
    entries(description, &mut |target, name, _| consider(name, target.name()));
    for structure in &description.structures {
        for field in &structure.fields {
            consider(&field.name, field.name.clone());
        }
    }
    for value in description.enums.iter().flat_map(|e| &e.values) {
        consider(&value.name.to_lowercase(), value.name.clone());
    }
    near.sort();
    let mut seen = BTreeSet::new();
    near.retain(|(_, name)| seen.insert(name.to_lowercase()));
    near.into_iter().take(max).map(|(_, name)| name).collect()
}

/// Edit distance: the number of letters to change, add or remove.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::repository::root;
    use super::*;

    fn names(targets: &[Target<'_>]) -> Vec<String> {
        targets.iter().map(Target::name).collect()
    }

    #[test]
    fn find_accepts_own_and_driver_names() {
        let description = load_sound(&root()).unwrap();
        for (query, wanted) in [
            ("cq_context", "cq_context"),
            ("cqc", "cq_context"),
            ("mlx5_ifc_cqc_bits", "cq_context"),
            ("uct_ib_mlx5_cqc_bits", "cq_context"),
            ("CREATE_CQ", "CREATE_CQ"),
            ("MLX5_CMD_OP_CREATE_CQ", "CREATE_CQ"),
            ("UCT_IB_MLX5_CMD_OP_CREATE_CQ", "CREATE_CQ"),
            ("mlx5_ifc_create_cq_in_bits", "create_cq_in"),
            ("MLX5_CMD_OP_2ERR_QP", "QP_2ERR"),
            ("MLX5_CMD_OP_QUERY_RATE_LIMIT", "opcode.QUERY_RATE_LIMIT"),
            ("0x400", "CREATE_CQ"),
            ("1024", "CREATE_CQ"),
            ("0x5003", "register_id.PMTU"),
            ("MLX5_REG_PMTU", "register_id.PMTU"),
            ("mlx5_cqe64", "cqe"),
            ("cqe64", "cqe"),
            ("mlx5_wqe_ctrl_seg", "ctrl_segment"),
            ("mlx5_wqe_cseg", "ctrl_segment"),
            ("cmd_hca_cap", "hca_cap"),
            ("cqc.oi", "cq_context.oi"),
            ("cq_context.oi", "cq_context.oi"),
            ("atomic_req_8B_endianness_mode", "atomic_cap.atomic_req_8b_endianness_mode"),
            ("num_of_diagnostic_counters", "hca_cap.num_of_diagnostic_counters"),
            ("MLX5_CMD_STAT_BAD_QP_STATE_ERR", "command_status.BAD_QP_STATE"),
            ("command_status.LIM", "command_status.LIM"),
        ] {
            let found = find(&description, query);
            assert_eq!(names(&found.targets), [wanted], "{query}");
        }
    }

    #[test]
    fn ambiguous_name_lists_all_matches() {
        let description = load_sound(&root()).unwrap();
        let found = find(&description, "dbr_umem_valid");
        let names = names(&found.targets);
        for wanted in ["cq_context.dbr_umem_valid", "qp_context.dbr_umem_valid"] {
            assert!(names.iter().any(|name| name == wanted), "{wanted} in {names:?}");
        }
        let status = find(&description, "opcode");
        assert!(
            matches!(status.targets.as_slice(), [Target::Enum(_)]) && !status.others.is_empty()
        );
    }

    #[test]
    fn near_suggests_intended_name() {
        let description = load_sound(&root()).unwrap();
        for (query, wanted) in [
            ("cq_contex", "cq_context"),
            ("mlx5_ifc_cqx_bits", "cq_context"),
            ("create_cqq", "CREATE_CQ"),
            ("dbr_umem_vaild", "dbr_umem_valid"),
        ] {
            let near = near(&description, query, 8);
            assert!(near.iter().any(|name| name == wanted), "{query}: {near:?}");
        }
        assert_eq!(near(&description, "zzzzqqqqzzzz", 8), Vec::<String>::new());
    }

    #[test]
    fn near_needs_containment_or_small_distance() {
        let near = |name: &str, query: &str| {
            let text = format!("[s]\nbytes = 4\nfields.{name} = {{ at = \"0x00\" }}");
            let description = Description::parse([("prm/x.toml", text.as_str())]);
            !near(&description, query, 8).is_empty()
        };
        for (name, query, is_near) in [
            ("thing_of_many_words", "thing", true),
            ("thing_of_many_words", "thin", false),
            ("thing", "a_thing_of_many", true),
            ("abc", "abd", true),
            ("abc", "add", false),
            ("ab", "abc", false),
            ("abcdefghij", "xxxdefghij", true),
            ("abcdefghij", "xxxxefghij", false),
            ("abcdefghi", "xxxdefghi", false),
        ] {
            assert_eq!(near(name, query), is_near, "{name} for {query}");
        }
    }

    #[test]
    fn distance_is_levenshtein() {
        for (one, other, letters) in
            [("", "ab", 2), ("ab", "", 2), ("same", "same", 0), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(one, other), letters, "{one}, {other}");
            assert_eq!(distance(other, one), letters, "{other}, {one}");
        }
    }

    #[test]
    fn identifiers_skips_paths_and_plain_words() {
        let all = |source| identifiers(source).collect::<Vec<_>>();
        assert_eq!(all("linux: include/linux/mlx5/cq.h MLX5_CQ_MODIFY_*"), ["MLX5_CQ_MODIFY_*"]);
        assert_eq!(all("rdma-core: struct mlx5_cqe64"), ["mlx5_cqe64"]);
        assert_eq!(all("linux: a.c CMD_OWNER_SW, CMD_OWNER_HW"), ["CMD_OWNER_SW", "CMD_OWNER_HW"]);
        assert_eq!(all("model"), Vec::<&str>::new());
    }
}
