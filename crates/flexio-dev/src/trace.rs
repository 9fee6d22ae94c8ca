//! Cheap records for the host: a number and up to six words, stored in the process's memory and
//! sent in batches. The host can format them as text.
//!
//! - [`trace!`](crate::trace!) writes a record to a stream that the host has created with the mode
//!   TRACER: the number is that of a format of the host (`flexio_dev_trace_0` to
//!   `flexio_dev_trace_6`).
//! - [`tp!`](crate::tp!) passes a trace point of the process's tracer, which the host starts and
//!   stops: the number is the program's own. NVIDIA's macro for trace points is not published: this
//!   one is verbless's own, and its records have the version of streams
//!   ([`control::VERSION`](crate::stream::control::VERSION)).
//!
//! A trace point costs a load while no tracer runs. No clock of the DPA is published, so a record
//! has no time; its number gives the order.

use crate::context::ThreadContext;
use crate::message::{Level, Stream};
use crate::stream::control::Control;
pub use crate::stream::entry::{ARGUMENTS, RECORD_BYTES};
use crate::stream::entry::{LOG_RECORD_BYTES, record_head};
use crate::stream::table::{TRACER, with};
use crate::word::Word;

/// Words of a record.
pub trait Arguments {
    /// The words in order; 0 for omitted ones.
    fn words(self) -> [u64; ARGUMENTS];
}

macro_rules! arguments {
    ($($word:ident $at:tt),*) => {
        impl<$($word: Word),*> Arguments for ($($word,)*) {
            #[inline(always)]
            fn words(self) -> [u64; ARGUMENTS] {
                #[allow(unused_mut, reason = "without arguments nothing is stored")]
                let mut words = [0; ARGUMENTS];
                $(words[$at] = self.$at.to_word();)*
                words
            }
        }
    };
}

arguments!();
arguments!(A 0);
arguments!(A 0, B 1);
arguments!(A 0, B 1, C 2);
arguments!(A 0, B 1, C 2, D 3);
arguments!(A 0, B 1, C 2, D 3, E 4);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5);

/// Writes a record to a stream of the mode TRACER; returns whether it was written. It is not
/// written if the host has no such stream, its level is lower, or there is no room (which the
/// stream counts).
pub fn record(
    stream: Stream,
    context: &ThreadContext,
    level: Level,
    format: u32,
    arguments: impl Arguments,
) -> bool {
    let written = with(stream.number().into(), |control| {
        Stream::shows(control, level) && write(control, context, format, arguments.words())
    });
    written == Some(true)
}

/// Passes a trace point; returns whether its record was written. It is not written if no tracer
/// runs, or if there is no room (which the tracer counts).
pub fn pass(context: &ThreadContext, point: u32, arguments: impl Arguments) -> bool {
    let written = with(TRACER, |control| {
        control.level().0 != 0 && write(control, context, point, arguments.words())
    });
    written == Some(true)
}

fn write(control: &Control, context: &ThreadContext, id: u32, words: [u64; ARGUMENTS]) -> bool {
    if control.setup.log_entry_bytes != LOG_RECORD_BYTES {
        return false;
    }
    let Some(index) = control.claim(context, 1) else { return false };
    let thread = context.metadata().map_or(0, |it| it.id);
    let written = control.fill(index, record_head(id, thread), words.into_iter());
    let batch = u64::from(control.setup.batch);
    if written.is_multiple_of(batch) {
        control.hand_over(context, batch);
    }
    true
}

/// Sends the records of a stream of the mode TRACER, even if they fill no whole batch
/// (`flexio_dev_tracer_flush`, `flexio_dev_tracer_notify_host`). Other threads may continue to
/// trace.
pub fn flush(stream: Stream, context: &ThreadContext) {
    with(stream.number().into(), |control| control.hand_over(context, 1));
}

/// Sends the records of the process's tracer, even if they fill no whole batch. Other threads may
/// continue to trace.
pub fn flush_tracer(context: &ThreadContext) {
    with(TRACER, |control| control.hand_over(context, 1));
}

/// Writes a record to a stream of the mode TRACER: `trace!(stream, level, format, a, b)`, with up
/// to six words (`flexio_dev_trace_0` to `flexio_dev_trace_6`). Returns whether it was written.
#[macro_export]
macro_rules! trace {
    ($stream:expr, $level:expr, $format:expr $(, $argument:expr)* $(,)?) => {
        $crate::trace::record(
            $stream, $crate::ThreadContext::current(), $level, $format, ($($argument,)*),
        )
    };
}

/// Passes a trace point of the process's tracer: `tp!(point, a, b)`, with up to six words. Returns
/// whether its record was written.
///
/// FlexIO's macro for trace points is not published; this one is verbless's own. Its record is an
/// entry of a stream ([`entry`](crate::stream::entry)), of the version that host and program agree
/// on at the tracer's creation ([`control::VERSION`](crate::stream::control::VERSION)).
#[macro_export]
macro_rules! tp {
    ($point:expr $(, $argument:expr)* $(,)?) => {
        $crate::trace::pass($crate::ThreadContext::current(), $point, ($($argument,)*))
    };
}
