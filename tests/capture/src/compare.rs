//! Two sides' commands of the same case, field by field.
//!
//! The device and the kernel choose some numbers (of queues, keys, protection domains). They need
//! only be equal up to renaming: each of our numbers corresponds to one of the other driver's
//! throughout a case. All else must be equal, or have its reason in a table of [`Explanation`]s. A
//! reason names the values of its difference, and must match at least one difference.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use verbless_prm::bits;
use verbless_prm::reflect::{Kind, View};

use crate::recording::{Command, Section};

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A number, or one of an enum.
    Number(u64),
    /// A byte string.
    Bytes(Vec<u8>),
    /// Elements of an array without a fixed length.
    Elements(usize),
}

impl Value {
    /// The value as a number; bytes and arrays are 1 if they are nonempty, else 0.
    fn number(&self) -> u64 {
        match self {
            Self::Number(value) => *value,
            Self::Bytes(bytes) => bytes.iter().any(|&byte| byte != 0).into(),
            Self::Elements(count) => *count as u64,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value:#x}"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Elements(count) => write!(f, "{count} elements"),
        }
    }
}

/// A field that the two sides fill differently; `field` is `(sent)` if the sides send a different
/// number of commands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The case.
    pub case: String,
    /// The command.
    pub command: &'static str,
    /// The path of the field in it.
    pub field: String,
    /// The value of the other driver.
    pub theirs: Value,
    /// Our value.
    pub ours: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, command, field, theirs, ours } = self;
        write!(f, "{case}: {command} {field}: theirs {theirs}, ours {ours}")
    }
}

/// The values that an explanation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// Only this value.
    Just(u64),
    /// Everything but 0.
    Set,
    /// Any value.
    Any,
}

impl Is {
    fn allows(self, value: &Value) -> bool {
        match self {
            Self::Just(expected) => value.number() == expected,
            Self::Set => value.number() != 0,
            Self::Any => true,
        }
    }
}

/// Why a field differs.
#[derive(Debug, Clone, Copy)]
pub struct Explanation {
    /// The commands; a `*` at either end matches anything.
    pub command: &'static str,
    /// The path of the field; a `*` at either end matches anything.
    pub field: &'static str,
    /// The other driver's value must be this.
    pub theirs: Is,
    /// Our value must be this.
    pub ours: Is,
    /// The reason.
    pub why: &'static str,
}

fn is_like(pattern: &str, text: &str) -> bool {
    let (open_start, rest) = match pattern.strip_prefix('*') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    match (open_start, rest.strip_suffix('*')) {
        (true, Some(part)) => text.contains(part),
        (true, None) => text.ends_with(rest),
        (false, Some(start)) => text.starts_with(start),
        (false, None) => text == pattern,
    }
}

impl Explanation {
    /// Whether it explains this difference.
    #[must_use]
    pub fn covers(&self, difference: &Difference) -> bool {
        is_like(self.command, difference.command)
            && is_like(self.field, &difference.field)
            && self.theirs.allows(&difference.theirs)
            && self.ours.allows(&difference.ours)
    }
}

/// How to compare two sides' commands.
pub struct Rules {
    /// Which commands count.
    pub compared: fn(&Command) -> bool,
    /// Which part of a field must be equal; `None`: all of it.
    pub identity: fn(&str) -> Option<Identity>,
}

/// A number that the device, the kernel or a counter chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A name of this kind: in a case, each name in their commands corresponds to one in ours.
    Name(&'static str),
    /// An address: only its offset in its page counts.
    Address,
    /// A counter or a random number: any value, including 0, is valid.
    Any,
}

/// Names of the other driver and ours for the same object, by kind.
#[derive(Default)]
struct Names(BTreeMap<(&'static str, bool, u64), u64>);

impl Names {
    /// Records that two names denote the same object; false if either already denotes another one.
    /// 0 denotes no object.
    fn pair(&mut self, kind: &'static str, theirs: u64, ours: u64) -> bool {
        if theirs == 0 || ours == 0 {
            return theirs == ours;
        }
        *self.0.entry((kind, false, theirs)).or_insert(ours) == ours
            && *self.0.entry((kind, true, ours)).or_insert(theirs) == theirs
    }
}

/// The differences between two sides of a case, in the order of the commands.
#[must_use]
pub fn differences(theirs: &Section, ours: &Section, rules: &Rules) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut names = Names::default();
    let (theirs, ours) = (by_name(theirs, rules), by_name(ours, rules));
    let mut commands: Vec<_> = theirs.keys().chain(ours.keys()).copied().collect();
    commands.sort_unstable();
    commands.dedup();
    // Commands that make objects come before commands that use them.
    commands.sort_by_key(|(_, name)| !(name.starts_with("ALLOC") || name.starts_with("CREATE")));
    let case = |command, field: String, theirs, ours| Difference {
        case: String::new(),
        command,
        field,
        theirs,
        ours,
    };
    for key in commands {
        let none = Vec::new();
        let (theirs, ours) = (theirs.get(&key).unwrap_or(&none), ours.get(&key).unwrap_or(&none));
        if theirs.len() != ours.len() {
            let (theirs, ours) = (Value::Elements(theirs.len()), Value::Elements(ours.len()));
            found.push(case(key.1, "(sent)".into(), theirs, ours));
        }
        for (theirs, ours) in theirs.iter().zip(ours) {
            for (field, (theirs, ours)) in both(fields(theirs), fields(ours)) {
                let same = match (rules.identity)(&field) {
                    Some(Identity::Name(kind)) => names.pair(kind, theirs.number(), ours.number()),
                    Some(Identity::Address) => theirs.number() % 4096 == ours.number() % 4096,
                    Some(Identity::Any) => true,
                    None => theirs == ours,
                };
                if !same {
                    found.push(case(key.1, field, theirs, ours));
                }
            }
        }
    }
    found
}

/// A side's compared commands, by name and by the first use of their name.
fn by_name<'s>(
    section: &'s Section,
    rules: &Rules,
) -> BTreeMap<(u16, &'static str), Vec<&'s Command>> {
    let mut commands: BTreeMap<_, Vec<&Command>> = BTreeMap::new();
    for command in section.commands.iter().filter(|command| (rules.compared)(command)) {
        commands.entry((command.info.opcode, command.info.name)).or_default().push(command);
    }
    commands
}

/// Every field of a command's input, and the object numbers of its output.
#[must_use]
pub fn fields(command: &Command) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::new();
    add(&mut fields, "", command.info.view_input(&command.input));
    add(&mut fields, "out ", command.info.view_output(&command.input, &command.output));
    fields
}

fn add(fields: &mut BTreeMap<String, Value>, prefix: &str, view: View<'_>) {
    view.leaves(&mut |path, leaf| {
        // An overlay: another name for the bits of another field.
        if leaf.field.overlay {
            return;
        }
        let mut name = String::new();
        let _ = write!(name, "{prefix}{path}");
        // A tail has as many elements as the memory needs: only their number counts.
        let mut tail = None;
        let mut part = Some(path);
        while let Some(at) = part {
            if at.field.is_tail() {
                tail = Some(format!("{prefix}{}", at.field.name));
            }
            part = at.parent;
        }
        if let Some(tail) = tail {
            let entry = fields.entry(tail).or_insert(Value::Elements(0));
            if let Value::Elements(count) = entry {
                *count += 1;
            }
            return;
        }
        let value = match leaf.field.kind {
            Kind::Number | Kind::Enum(_) => {
                Value::Number(bits::get(view.bytes, leaf.bit, leaf.width))
            }
            _ => Value::Bytes(view.bytes[leaf.bit / 8..][..leaf.width / 8].to_vec()),
        };
        fields.insert(name, value);
    });
}

/// The fields of both sides; a field of only one side is empty in the other.
fn both(
    theirs: BTreeMap<String, Value>,
    mut ours: BTreeMap<String, Value>,
) -> Vec<(String, (Value, Value))> {
    let empty = |value: &Value| match value {
        Value::Number(_) => Value::Number(0),
        Value::Bytes(bytes) => Value::Bytes(vec![0; bytes.len()]),
        Value::Elements(_) => Value::Elements(0),
    };
    let mut all: Vec<_> = theirs
        .into_iter()
        .map(|(name, theirs)| {
            let ours = ours.remove(&name).unwrap_or_else(|| empty(&theirs));
            (name, (theirs, ours))
        })
        .collect();
    all.extend(ours.into_iter().map(|(name, ours)| (name, (empty(&ours), ours))));
    all
}

/// The result of a comparison: unexplained differences and unused reasons.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Differences without a reason.
    pub unexplained: Vec<Difference>,
    /// How often each reason matched.
    pub used: Vec<usize>,
}

impl Verdict {
    /// An empty comparison, with this many reasons.
    #[must_use]
    pub fn new(reasons: &[Explanation]) -> Self {
        Self { unexplained: Vec::new(), used: vec![0; reasons.len()] }
    }

    /// Adds the differences of a case.
    pub fn record(&mut self, case: &str, found: Vec<Difference>, reasons: &[Explanation]) {
        for difference in found {
            match reasons.iter().position(|reason| reason.covers(&difference)) {
                Some(at) => self.used[at] += 1,
                None => self.unexplained.push(Difference { case: case.to_owned(), ..difference }),
            }
        }
    }

    /// A report of all mistakes: differences without a reason, reasons without a difference.
    #[must_use]
    pub fn problems(&self, reasons: &[Explanation]) -> Vec<String> {
        let mut all: Vec<String> =
            self.unexplained.iter().map(|it| format!("no reason is known for: {it}")).collect();
        let idle = reasons.iter().zip(&self.used).filter(|&(_, &used)| used == 0);
        all.extend(idle.map(|(reason, _)| {
            format!(
                "this reason explains no difference, remove it: {} {}",
                reason.command, reason.field
            )
        }));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbless_prm::{CreateCqIn, CreateCqOut};

    fn section(change: impl FnOnce(&mut CreateCqIn)) -> Section {
        let mut input = CreateCqIn::new();
        input.cq_context_mut().set_log_cq_size(7).set_uar_page(5).set_c_eqn_or_apu_element(3);
        change(&mut input);
        let command = Command::new(input.as_bytes(), CreateCqOut::zeroed().as_bytes()).unwrap();
        Section { side: String::new(), case: String::new(), commands: vec![command] }
    }

    const RULES: Rules = Rules {
        compared: |_| true,
        identity: |field| match field {
            "cq_context.uar_page" => Some(Identity::Name("uar")),
            "cq_context.dbr_addr" => Some(Identity::Address),
            "cq_context.c_eqn_or_apu_element" => Some(Identity::Any),
            _ => None,
        },
    };

    fn found(change: impl FnOnce(&mut CreateCqIn)) -> Vec<String> {
        let found = differences(&section(|_| ()), &section(change), &RULES);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn differing_field_is_found_with_both_values() {
        assert_eq!(found(|_| ()), Vec::<String>::new());
        let found = found(|input| {
            input.cq_context_mut().set_log_cq_size(6);
        });
        assert_eq!(found, [": CREATE_CQ cq_context.log_cq_size: theirs 0x7, ours 0x6"]);
    }

    #[test]
    fn names_and_addresses_match_up_to_renaming() {
        let same = found(|input| {
            input.cq_context_mut().set_uar_page(9).set_dbr_addr(0x7000);
        });
        assert_eq!(same, Vec::<String>::new());
        let free = found(|input| _ = input.cq_context_mut().set_c_eqn_or_apu_element(0));
        assert_eq!(free, Vec::<String>::new());
        assert_eq!(found(|input| _ = input.cq_context_mut().set_dbr_addr(0x7040)).len(), 1);
        assert_eq!(found(|input| _ = input.cq_context_mut().set_uar_page(0)).len(), 1);
        let mut names = Names::default();
        assert!(names.pair("uar", 1, 10) && names.pair("uar", 2, 20) && names.pair("pd", 1, 30));
        assert!(!names.pair("uar", 1, 20) && !names.pair("uar", 3, 10) && names.pair("uar", 2, 20));
    }

    #[test]
    fn unmatched_command_is_difference() {
        let mut twice = section(|_| ());
        twice.commands.push(twice.commands[0].clone());
        let found = differences(&twice, &section(|_| ()), &RULES);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].field.as_str(), &found[0].theirs), ("(sent)", &Value::Elements(2)));
    }

    #[test]
    fn verdict_reports_unexplained_and_stale_reasons() {
        let reasons = [
            Explanation {
                command: "CREATE_*",
                field: "cq_context.*",
                theirs: Is::Just(7),
                ours: Is::Set,
                why: "",
            },
            Explanation {
                command: "CREATE_CQ",
                field: "x",
                theirs: Is::Any,
                ours: Is::Any,
                why: "",
            },
        ];
        let mut verdict = Verdict::new(&reasons);
        for size in [6, 0] {
            let ours = section(|input| _ = input.cq_context_mut().set_log_cq_size(size));
            verdict.record("cq", differences(&section(|_| ()), &ours, &RULES), &reasons);
        }
        let problems = verdict.problems(&reasons);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("cq: CREATE_CQ cq_context.log_cq_size"), "{problems:?}");
        assert!(problems[1].contains("CREATE_CQ x"), "{problems:?}");
    }
}
