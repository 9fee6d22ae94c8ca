//! Removal of an object of any kind: frees its number, releases the objects that it used, and
//! notifies the engine and the doorbell pages.

use crate::hca::commands::command::ObjectCommands;
use crate::hca::doorbell::PageDoorbell;
use crate::hca::effect::Effect;
use crate::hca::state::Hca;

impl Hca {
    /// Removes an object, frees its number and releases the objects that it uses.
    pub(super) fn remove<K: ObjectCommands>(&mut self, kind: K, number: K::Number) {
        let Some(object) = self.objects.remove(kind, number) else {
            tracing::error!(number = number.into(), "an object was removed before its destroy");
            return;
        };
        if K::is_made(&object) {
            K::numbers(&mut self.numbers, K::owner(&object)).release(number.into());
        }
        if let Some((doorbell, page)) = K::doorbell(&object) {
            self.forget_doorbells(doorbell, page, number.into());
        }
        K::removed(self, number.into(), object);
    }

    /// Clears the unread doorbells of a destroyed queue: a device reads doorbells before it
    /// executes the command. A register that held one may have held another queue's before.
    fn forget_doorbells(&mut self, doorbell: PageDoorbell, page: u32, number: u32) {
        for register in doorbell.registers() {
            if self.bar.clear64_if(page, register, |word| doorbell.queue_number(word) == number) {
                self.effects.push(Effect::DoorbellForgotten(doorbell, page));
            }
        }
    }
}
