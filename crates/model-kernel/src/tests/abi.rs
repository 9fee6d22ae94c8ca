//! Compares the ids of objects, methods and attributes with the system's own Linux headers.

use std::io::Write as _;

use crate::abi::{AttrSpec, DRIVER, DRIVER_ID, MANDATORY, VALID_OUTPUT, methods, object};

/// The paths of the headers on a system with `linux-libc-dev` or its like.
const HEADERS: [&str; 4] = [
    "/usr/include/rdma/rdma_user_ioctl_cmds.h",
    "/usr/include/rdma/ib_user_ioctl_verbs.h",
    "/usr/include/rdma/ib_user_ioctl_cmds.h",
    "/usr/include/rdma/mlx5_user_ioctl_cmds.h",
];

/// An enum of C: names and values.
type Enum = Vec<(String, u64)>;

/// The enums of these headers, in their order; prints a line and returns `None` if one is missing.
fn enums() -> Option<Vec<Enum>> {
    let mut text = String::new();
    for header in HEADERS {
        match std::fs::read_to_string(header) {
            Ok(more) => text += &more,
            Err(error) => {
                let line = format!("skipped: ids of Linux's headers: {header}: {error}\n");
                std::io::stderr().write_all(line.as_bytes()).expect("standard error");
                return None;
            }
        }
    }
    let text = without_comments(&text);
    let mut known = Vec::new();
    for macro_ in text.lines().filter_map(|line| line.strip_prefix("#define ")) {
        let Some((name, value)) = macro_.split_once(char::is_whitespace) else { continue };
        known.extend(number(value, &known).map(|value| (name.to_owned(), value)));
    }
    let mut enums = Vec::new();
    for part in text.split("enum ").skip(1) {
        let Some((_, rest)) = part.split_once('{') else { continue };
        let Some((body, _)) = rest.split_once('}') else { continue };
        let mut next = 0;
        let mut all = Enum::new();
        for entry in body.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) = match entry.split_once('=') {
                Some((name, value)) => (name.trim(), number(value, &known)),
                None => (entry, Some(next)),
            };
            // Ids never have this form.
            let Some(value) = value else { break };
            next = value + 1;
            known.push((name.to_owned(), value));
            all.push((name.to_owned(), value));
        }
        enums.push(all);
    }
    Some(enums)
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.filter_map(|part| part.split_once("*/").map(|it| it.1));
    rest.fold(first, |all, part| all + part)
}

/// A value in the headers' forms for ids: a number, a name, or one shifted by another.
fn number(text: &str, known: &[(String, u64)]) -> Option<u64> {
    let text = text.trim().trim_matches(['(', ')']);
    if let Some((one, by)) = text.split_once("<<") {
        return Some(number(one, known)? << number(by, known)?);
    }
    let digits = text.trim().trim_end_matches(['U', 'L']);
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let named = || known.iter().find(|(name, _)| name == digits).map(|it| it.1);
    digits.parse().ok().or_else(named)
}

/// The value of the enumerator of this name.
fn value(enums: &[Enum], name: &str) -> Option<u64> {
    enums.iter().flatten().find(|(known, _)| known == name).map(|it| it.1)
}

#[test]
fn objects_and_methods_have_the_ids_of_linux() {
    let Some(enums) = enums() else { return };
    for (name, id) in [
        ("UVERBS_OBJECT_DEVICE", object::DEVICE),
        ("UVERBS_OBJECT_PD", object::PD),
        ("UVERBS_OBJECT_COMP_CHANNEL", object::COMP_CHANNEL),
        ("UVERBS_OBJECT_CQ", object::CQ),
        ("UVERBS_OBJECT_QP", object::QP),
        ("UVERBS_OBJECT_SRQ", object::SRQ),
        ("UVERBS_OBJECT_AH", object::AH),
        ("UVERBS_OBJECT_MR", object::MR),
        ("UVERBS_OBJECT_MW", object::MW),
        ("UVERBS_OBJECT_FLOW", object::FLOW),
        ("UVERBS_OBJECT_ASYNC_EVENT", object::ASYNC_EVENT),
        ("MLX5_IB_OBJECT_DEVX", object::DEVX),
        ("MLX5_IB_OBJECT_DEVX_OBJ", object::DEVX_OBJ),
        ("MLX5_IB_OBJECT_DEVX_UMEM", object::DEVX_UMEM),
        ("MLX5_IB_OBJECT_FLOW_MATCHER", object::FLOW_MATCHER),
        ("MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD", object::DEVX_ASYNC_CMD_FD),
        ("MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD", object::DEVX_ASYNC_EVENT_FD),
        ("MLX5_IB_OBJECT_UAR", object::UAR),
    ] {
        assert_eq!(value(&enums, name), Some(id.into()), "{name}");
    }
    for (name, flag) in
        [("UVERBS_ATTR_F_MANDATORY", MANDATORY), ("UVERBS_ATTR_F_VALID_OUTPUT", VALID_OUTPUT)]
    {
        assert_eq!(value(&enums, name), Some(flag.into()), "{name}");
    }
    assert_eq!(value(&enums, "RDMA_DRIVER_MLX5"), Some(DRIVER_ID.into()));
    for method in methods() {
        let of_core = value(&enums, &format!("UVERBS_METHOD_{}", method.name));
        let found = of_core.or(value(&enums, &format!("MLX5_IB_METHOD_{}", method.name)));
        assert_eq!(found, Some(method.id.into()), "{}", method.name);
    }
}

/// One enum holds a method's core attributes and another its driver attributes; their names contain
/// the model's.
#[test]
fn attributes_have_the_ids_of_linux() {
    let Some(enums) = enums() else { return };
    let mut missing = Vec::new();
    for method in methods() {
        let (common, own): (Vec<&AttrSpec>, Vec<_>) =
            method.attrs.iter().partition(|attr| attr.name.starts_with("uhw_"));
        for attr in common {
            let name = format!("UVERBS_ATTR_{}", attr.name.to_uppercase());
            assert_eq!(value(&enums, &name), Some(attr.id.into()), "{}: {name}", method.name);
        }
        let (core, driver): (Vec<&AttrSpec>, Vec<_>) =
            own.into_iter().partition(|attr| attr.id < DRIVER);
        for attrs in [core, driver] {
            let has = |all: &Enum, name: &str, id: u16| {
                let word = format!("_{}_", name.to_uppercase());
                let named = |known: &str| format!("{known}_").contains(&word);
                all.iter().any(|(known, value)| named(known) && *value == u64::from(id))
            };
            let attrs: Vec<_> = attrs.iter().map(|attr| (attr.name, attr.id)).collect();
            let found = enums.iter().any(|all| attrs.iter().all(|&(name, id)| has(all, name, id)));
            missing.extend((!found).then(|| format!("{}: {attrs:?}", method.name)));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
