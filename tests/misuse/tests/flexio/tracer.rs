//! A setter after `create`, which consumes the setup; and a call of a destroyed tracer.

use verbless_flexio::{Error, Process, Tracer};

fn setter(process: &Process) -> Result<(), Error> {
    let mut setup = Tracer::init(process)?;
    let tracer = setup.create()?;
    setup.set_batch_depth(32)?;
    tracer.destroy()
}

fn destroyed(process: &Process) -> Result<(), Error> {
    let tracer = Tracer::init(process)?.create()?;
    tracer.destroy()?;
    tracer.start()
}

fn main() {}
