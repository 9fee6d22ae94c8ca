//! Writes fields of capability pages into the sections of a profile.

use toml::map::Entry;
use toml::{Table, Value as Toml};
use verbless_prm::reflect::Kind;

use crate::report::document::Page;
use crate::report::fields::{self, Capability, Leaf, Value};

/// The section at a path, made where it does not exist.
pub(super) fn section<'a>(table: &'a mut Table, path: &[&str]) -> &'a mut Table {
    path.iter().fold(table, |table, name| {
        let value = match table.entry(*name) {
            Entry::Vacant(entry) => entry.insert(Toml::Table(Table::new())),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if !value.is_table() {
            *value = Toml::Table(Table::new());
        }
        value.as_table_mut().expect("the value is a table")
    })
}

/// The section at a path, if it exists.
fn find<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(table, |table, name| table.get(*name)?.as_table())
}

/// The value as a profile has it.
fn toml(leaf: &Leaf, value: &Value) -> Option<Toml> {
    Some(match value {
        Value::Enum(info, number) if info.name_of(*number).is_some() => {
            Toml::String(info.name_of(*number)?.into())
        }
        Value::Number(number) if leaf.field.width == 1 => Toml::Boolean(*number != 0),
        Value::Number(number) | Value::Enum(_, number) => match i64::try_from(*number) {
            Ok(number) => Toml::Integer(number),
            Err(_) => Toml::String(format!("{number:#x}")),
        },
        Value::Bytes(_) => return None,
    })
}

/// Writes the value of a field into a section. `path` is the field's path from there on, with the
/// index of an array's element at its end. A profile cannot name bytes, nor a second structure of
/// an array of them: returns whether the value has a place.
pub(super) fn put(table: &mut Table, leaf: &Leaf, path: &str, value: &Value) -> bool {
    let Some(value) = toml(leaf, value).filter(|_| is_nameable(leaf)) else { return false };
    let names: Vec<&str> = path.split('.').collect();
    let Some((last, parents)) = names.split_last() else { return false };
    let name = last.split('[').next().unwrap_or(last);
    let table = section(table, parents);
    if leaf.field.count == 1 {
        table.insert(name.into(), value);
        return true;
    }
    let count = leaf.index + 1;
    let slot = table.entry(name).or_insert_with(|| Toml::Array(Vec::new()));
    if let Toml::Array(values) = slot {
        let len = values.len().max(count);
        values.resize(len, Toml::Integer(0));
        values[leaf.index] = value;
    }
    true
}

/// Removes a field from a section.
fn remove(table: &mut Table, path: &[&str], field: &str) {
    let names: Vec<&str> = field.split('.').collect();
    let Some((last, parents)) = names.split_last() else { return };
    let mut table = Some(table);
    for name in path.iter().chain(parents) {
        table = table.and_then(|table| table.get_mut(*name)?.as_table_mut());
    }
    if let Some(table) = table {
        table.remove(last.split('[').next().unwrap_or(last));
    }
}

/// Whether a section has a field.
fn has(table: &Table, path: &[&str], field: &str) -> bool {
    let names: Vec<&str> = path.iter().copied().chain(field.split('.')).collect();
    let Some((last, parents)) = names.split_last() else { return false };
    let name = last.split('[').next().unwrap_or(last);
    find(table, parents).is_some_and(|table| table.contains_key(name))
}

/// Whether a section can name a field: no field of the second or a later structure of an array.
fn is_nameable(leaf: &Leaf) -> bool {
    let parents = leaf.path.rsplit_once('.').map_or("", |(parents, _)| parents);
    !parents.contains('[') && !matches!(leaf.field.kind, Kind::Bytes)
}

/// The sections of a profile that hold capabilities of the host's function.
pub(super) struct Layers<'a> {
    pub table: &'a mut Table,
    pub link: &'static str,
}

/// Writes a capability page of the host's function. A field goes into the section of the link
/// layer if the base has it there, or has the whole page only there.
pub(super) fn device_page(layers: &mut Layers<'_>, page: &Page, notes: &mut Vec<String>) {
    let name = page.title();
    if fields::layout(page.number).is_none() {
        notes.push(format!("Left out: {name}, whose layout the PRM does not have."));
        return;
    }
    let common = ["caps", &*name];
    let of_link = [layers.link, "caps", &*name];
    let page_of_link =
        find(layers.table, &of_link).is_some() && find(layers.table, &common).is_none();
    section(layers.table, if page_of_link { &of_link } else { &common });
    for Capability { leaf, current, maximum } in page.capabilities() {
        let field = leaf.path.clone();
        if !is_nameable(&leaf) {
            if !(current.is_zero() && maximum.is_zero()) {
                notes.push(format!("Left out: {name}.{field}, which a profile cannot name."));
            }
            continue;
        }
        let table = &mut *layers.table;
        let in_link = page_of_link || has(table, &of_link, &field);
        let array_has_values = leaf.field.count != 1 && !page_array_is_zero(page, &leaf);
        let path: &[&str] = if in_link { &of_link } else { &common };
        if current.is_zero() && !array_has_values && !has(table, &of_link, &field) {
            remove(table, path, &field);
        } else {
            put(section(table, path), &leaf, &field, &current);
        }
        let (common_max, link_max) = (["max", &*name], [layers.link, "max", &*name]);
        if has(table, &link_max, &field) {
            put(section(table, &link_max), &leaf, &field, &maximum);
        } else if current != maximum {
            put(section(table, &common_max), &leaf, &field, &maximum);
        } else if leaf.field.count == 1 {
            remove(table, &common_max, &field);
        } else if has(table, &common_max, &field) {
            put(section(table, &common_max), &leaf, &field, &maximum);
        }
    }
    let unnamed = page.unnamed_bits().len();
    if unnamed > 0 {
        notes.push(format!("Left out: {unnamed} bits of {name} that the PRM does not name."));
    }
}

/// Whether no element of the leaf's array has a current value.
fn page_array_is_zero(page: &Page, leaf: &Leaf) -> bool {
    let array = leaf.path.split('[').next().unwrap_or(&leaf.path);
    let of_array = |it: &Capability| it.leaf.path.split('[').next() == Some(array);
    page.capabilities().iter().filter(|it| of_array(it)).all(|it| it.current.is_zero())
}

/// Writes the values of a DPU capability page that differ from the host's.
pub(super) fn dpu_page(
    table: &mut Table,
    page: &Page,
    host: Option<&Page>,
    notes: &mut Vec<String>,
) {
    let name = page.title();
    let of_host = host.map(Page::capabilities);
    if of_host.is_none() && fields::layout(page.number).is_some() {
        section(table, &["dpu", "caps", &name]);
    }
    for (index, Capability { leaf, current, maximum }) in
        page.capabilities().into_iter().enumerate()
    {
        let host = of_host.as_ref().and_then(|all| all.get(index));
        let same = match host {
            Some(host) => host.current == current,
            None => current.is_zero(),
        };
        let field = leaf.path.clone();
        let path = ["dpu", "caps", &*name];
        let placed = same || put(section(table, &path), &leaf, &field, &current);
        // A profile has no maxima of the DPU: they are its values, or the maxima of the host.
        let is_max = match host {
            Some(host) if host.maximum != host.current => host.maximum == maximum,
            _ => maximum == current,
        };
        if !(placed && is_max) {
            notes.push(format!("Left out: the DPU's {name}.{field}, as no profile can have it."));
        }
    }
}
