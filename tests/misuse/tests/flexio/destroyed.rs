//! Freed or destroyed objects, and values that are not objects.

use verbless_flexio::{Buffer, Error, Mkey};

fn twice(buffer: Buffer) -> Result<(), Error> {
    buffer.free()?;
    buffer.free()
}

fn used(key: Mkey) -> Result<u32, Error> {
    key.destroy()?;
    Ok(key.id().0)
}

fn nothing() -> Result<(), Error> {
    Mkey::destroy(None)
}

fn main() {}
