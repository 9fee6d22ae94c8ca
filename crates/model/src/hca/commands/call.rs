//! The current command: its sender, its buffers, and the checks that all commands share.

use std::cell::OnceCell;

use verbless_prm as prm;
use verbless_prm::reflect::{FieldInfo, StructInfo, View};
use verbless_prm::{CommandInfo, CommandInput, IntoBytes, Structure};

use super::command::ObjectCommands;
use crate::hca::objects::{SHARED_UID, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, References};
use crate::hca::state::Hca;
use crate::profile::Side;

/// The result of a command.
pub(crate) type Outcome = Result<(), Refusal>;

/// Refuses a command for another function: `other_function` set, or any function_id but 0.
pub(super) fn own_function(other: bool, id: u16) -> Outcome {
    if other || id != 0 { Err(Refusal::NoSuchFunction) } else { Ok(()) }
}

/// Refuses a command for another function, by `id` or by the flag `embedded_cpu`, which only
/// drivers of the embedded CPU set.
pub(super) fn own_side(hca: &Hca, embedded_cpu: bool, id: u16) -> Outcome {
    own_function(embedded_cpu != (hca.profile.side() == Side::Dpu), id)
}

/// The current command.
pub(crate) struct Call<'a> {
    pub hca: &'a mut Hca,
    /// The uid of the sender's user context; 0 is the kernel.
    pub uid: Uid,
    pub op_mod: u16,
    pub input: &'a [u8],
    pub output: &'a mut [u8],
    /// The inbox after its fixed part.
    pub list: &'a [u8],
    /// Detail for the log, in addition to the reason of a refusal.
    pub detail: OnceCell<String>,
}

impl<'a> Call<'a> {
    pub(crate) fn hca(&self) -> &Hca {
        self.hca
    }

    pub(crate) fn hca_mut(&mut self) -> &mut Hca {
        self.hca
    }

    /// Attaches detail for the log to a refusal: the model logs only after the thread has released
    /// the function.
    pub(crate) fn with_detail(&self, refusal: Refusal, detail: impl Into<String>) -> Refusal {
        let _ = self.detail.set(detail.into());
        refusal
    }

    /// Whether the sender may use an object of `owner`.
    pub(crate) fn owns(&self, owner: Uid) -> bool {
        [0, SHARED_UID].contains(&self.uid) || [self.uid, SHARED_UID].contains(&owner)
    }

    /// An object of the sender.
    pub(crate) fn find<K: KindEntry>(
        &self,
        _: K,
        number: K::Number,
    ) -> Result<&K::Object, Refusal> {
        let object = K::map(&self.hca.objects).get(&number).ok_or(K::ABSENT)?;
        let ours = self.owns(K::owner(object)) && K::is_made(object);
        if ours { Ok(object) } else { Err(K::ABSENT) }
    }

    /// Adds a new object under the lowest free number.
    pub(crate) fn make<K: KindEntry>(
        &mut self,
        kind: K,
        object: K::Object,
    ) -> Result<K::Number, Refusal> {
        let numbers = K::numbers(&mut self.hca.numbers, K::owner(&object));
        let number = numbers.allocate().ok_or(Refusal::NoNumber)?;
        let number = K::Number::try_from(number).map_err(|_| Refusal::NoNumber)?;
        self.hca.objects.add(kind, number, object);
        Ok(number)
    }

    /// Changes an object that `find` found before.
    pub(crate) fn change<K: KindEntry, T>(
        &mut self,
        kind: K,
        number: K::Number,
        change: impl FnOnce(&mut K::Object) -> T,
    ) -> Result<T, Refusal> {
        self.hca.objects.change(kind, number, change).ok_or(K::ABSENT)
    }

    /// Changes parts of an object that `find` found before; they held the references `before`, and
    /// then hold `after`.
    pub(crate) fn change_parts<K: KindEntry, T>(
        &mut self,
        kind: K,
        number: K::Number,
        (before, after): (References<'_>, References<'_>),
        change: impl FnOnce(&mut K::Object) -> T,
    ) -> Result<T, Refusal> {
        let objects = &mut self.hca.objects;
        objects.change_parts(kind, number, (before, after), change).ok_or(K::ABSENT)
    }

    /// Destroys an object of the sender that no other object refers to.
    pub(crate) fn destroy<K: ObjectCommands>(&mut self, kind: K, number: K::Number) -> Outcome {
        self.find(kind, number)?;
        match K::IN_USE {
            Some(in_use) if self.hca.objects.is_used(K::KIND, number.into()) => Err(in_use),
            _ => {
                self.hca.remove(kind, number);
                Ok(())
            }
        }
    }

    /// Refuses the command if 2^`log_max` objects of a kind exist.
    pub(crate) fn check_count(&self, count: usize, log_max: u8) -> Outcome {
        let full = 1_usize.checked_shl(log_max.into()).is_some_and(|max| count >= max);
        if full { Err(Refusal::TooMany) } else { Ok(()) }
    }

    /// Refuses a structure with a field set that is not `known`: the model does not implement the
    /// field.
    pub(super) fn check_known_fields<S: Structure>(
        &self,
        structure: &S,
        known: &[&str],
    ) -> Outcome {
        let info = <S as Structure>::INFO;
        let bytes = structure.as_bytes();
        let set = |field: &&FieldInfo| {
            let mut bits = field.bit(0)..field.bit(field.elements(bytes.len()));
            bits.any(|bit| prm::bits::flag(bytes, bit))
        };
        let unknown = info
            .fields
            .iter()
            .find(|field| !field.overlay && !known.contains(&field.name) && set(field));
        match unknown {
            Some(field) => {
                let detail = format!("{}.{} is not modelled", info.name, field.name);
                Err(self.with_detail(Refusal::Unsupported, detail))
            }
            None => Ok(()),
        }
    }

    /// Checks lengths, op_mod and reserved fields, then runs `handler` on typed buffers. Some
    /// commands grew after their drivers were written: they accept an inbox of `min` bytes and
    /// take the rest as 0.
    pub(crate) fn run<I: CommandInput>(
        &mut self,
        min: usize,
        handler: impl FnOnce(&mut Call<'a>, &I, &mut I::Output) -> Outcome,
    ) -> Outcome {
        let mut typed = I::default();
        let layouts = (<I as CommandInput>::INFO, <I as Structure>::INFO);
        self.parse_inbox(layouts, min, typed.as_mut_bytes(), <I::Output as Structure>::BYTES)?;
        let mut answer = I::Output::default();
        handler(self, &typed, &mut answer)?;
        self.write_outbox(answer.as_bytes());
        Ok(())
    }

    /// Checks an inbox, copies its fixed part to `typed` and sets `list` to the rest. Not generic,
    /// so that it is compiled once for all commands.
    fn parse_inbox(
        &mut self,
        (command, layout): (&CommandInfo, &'static StructInfo),
        min: usize,
        typed: &mut [u8],
        output_bytes: usize,
    ) -> Outcome {
        let input = self.input;
        if input.len() < typed.len().min(min) {
            return Err(Refusal::InputTooShort);
        }
        let (fixed, list) = input.split_at(typed.len().min(input.len()));
        if self.output.len() < shortest_answer(command, output_bytes) {
            return Err(Refusal::OutputTooShort);
        }
        typed[..fixed.len()].copy_from_slice(fixed);
        // Every command may carry a uid, even if its layout has no field for it.
        typed[..4].fill(0);
        if let Some((bit, width)) = View::new(layout, typed).nonzero_reserved() {
            return Err(self.with_detail(
                Refusal::Reserved,
                format!("{width} reserved bits from bit {bit} on"),
            ));
        }
        typed[..4].copy_from_slice(&input[..4]);
        self.list = list;
        Ok(())
    }

    /// Writes the answer to the outbox, cut to its length.
    fn write_outbox(&mut self, answer: &[u8]) {
        let length = answer.len().min(self.output.len());
        self.output[..length].copy_from_slice(&answer[..length]);
    }
}

/// The shortest legal outbox. Capability pages grew over the years: an older driver's shorter
/// outbox gets the beginning of the page.
fn shortest_answer(command: &CommandInfo, whole: usize) -> usize {
    if command.opcode == prm::QUERY_HCA_CAP.opcode { 0x10 } else { whole }
}
