//! Code that the commands on general objects share: a context of the object type follows the head
//! of each.

use verbless_prm::reflect::View;
use verbless_prm::{CreateGeneralObjectIn, QueryGeneralObjectIn, QueryGeneralObjectOut, Structure};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;
use crate::hca::registry::KindEntry;

impl Call<'_> {
    /// The context that follows the head of CREATE_GENERAL_OBJECT.
    pub(super) fn context<S: Structure + Copy>(
        &self,
        input: &CreateGeneralObjectIn,
    ) -> Result<S, Refusal> {
        if input.alias_object() || input.log_obj_range() != 0 || input.obj_id() != 0 {
            return Err(Refusal::Unsupported);
        }
        self.body()
    }

    /// The context after the head of a command on a general object.
    pub(super) fn body<S: Structure + Copy>(&self) -> Result<S, Refusal> {
        let context = S::read(self.list).ok_or(Refusal::ListTooShort)?;
        if View::new(S::INFO, context.as_bytes()).nonzero_reserved().is_some() {
            return Err(Refusal::Reserved);
        }
        Ok(context)
    }

    /// Writes a context after the head of QUERY_GENERAL_OBJECT's output.
    pub(super) fn write_context<S: Structure>(&mut self, context: &S) -> Outcome {
        let at = QueryGeneralObjectOut::BYTES..QueryGeneralObjectOut::BYTES + S::BYTES;
        let room = self.output.get_mut(at).ok_or(Refusal::OutputTooShort)?;
        room.copy_from_slice(context.as_bytes());
        Ok(())
    }

    /// QUERY_GENERAL_OBJECT of a kind whose objects keep their whole context.
    pub(in crate::hca) fn query<K: KindEntry<Number = u32>, S: Structure>(
        &mut self,
        kind: K,
        input: &QueryGeneralObjectIn,
        output: &mut QueryGeneralObjectOut,
        context: fn(&K::Object) -> S,
    ) -> Outcome {
        let context = context(self.find(kind, input.obj_id())?);
        output.set_obj_id(input.obj_id());
        self.write_context(&context)
    }
}
