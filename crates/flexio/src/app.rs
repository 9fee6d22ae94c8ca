//! Programs.

use std::sync::Arc;

use verbless_riscv::Program;

use crate::error::Error;
use crate::function::{Arguments, Function, Handler, Word};

/// A program for a DPA, as a linker has written it (`flexio_app`).
#[derive(Debug, Clone)]
pub struct App {
    name: String,
    file: Arc<[u8]>,
    program: Arc<Program>,
}

/// A program in this binary: [`embed!`](crate::embed).
#[derive(Debug, Clone, Copy)]
pub struct Embedded {
    name: &'static str,
    file: &'static [u8],
}

impl Embedded {
    /// What [`embed!`](crate::embed) has read.
    #[doc(hidden)]
    pub const fn new(name: &'static str, file: &'static [u8]) -> Self {
        Self { name, file }
    }

    /// The file.
    pub const fn elf(&self) -> &'static [u8] {
        self.file
    }

    /// The program.
    ///
    /// # Errors
    /// The file is no program for a DPA. It was one when it was compiled in.
    pub fn app(&self) -> Result<App, Error> {
        App::new(self.name, self.file)
    }
}

/// What precedes the signatures of entry points in a program's symbols.
const SIGNATURES: &str = "dpa:";

impl App {
    /// A program of an ELF file (`flexio_app_create`).
    ///
    /// # Errors
    /// The file is no static ELF file for RV64IMAC; the error says what is wrong with it.
    pub fn new(name: &str, file: &[u8]) -> Result<Self, Error> {
        let program = Program::parse(file)
            .map_err(|error| Error::Failed(format!("{name} is no program for a DPA: {error}")))?;
        Ok(Self { name: name.into(), file: file.into(), program: Arc::new(program) })
    }

    /// Its name (`flexio_app_get_name`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file (`flexio_app_get_elf`).
    pub fn elf(&self) -> &[u8] {
        &self.file
    }

    /// Address of a function or an object in its processes.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.program.symbol(name).map(|symbol| symbol.address)
    }

    /// The function that has the instruction at an address in its processes, and how many bytes
    /// behind its begin that is.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let functions = self.program.symbols().filter(|(_, symbol)| symbol.function);
        let before = functions.filter(|(_, symbol)| symbol.address <= address);
        let (name, symbol) = before.max_by_key(|(_, symbol)| symbol.address)?;
        let offset = address - symbol.address;
        (symbol.length == 0 || offset < symbol.length).then_some((name, offset))
    }

    /// The signatures of its functions with `#[rpc]`, and the names of its event handlers.
    pub fn entry_points(&self) -> impl Iterator<Item = &str> {
        self.program.symbols().filter_map(|(name, _)| name.strip_prefix(SIGNATURES))
    }

    /// The function of this name, if it takes and returns these types.
    ///
    /// # Errors
    /// The program has no such function, or one of other types; the error says which.
    pub fn function<A: Arguments, R: Word>(&self, name: &str) -> Result<Function<A, R>, Error> {
        let function = Function::named(name);
        self.address_of(&function).map(|_| function)
    }

    /// Where an event handler begins.
    pub(crate) fn address_of_handler(&self, handler: &Handler) -> Result<u64, Error> {
        let name = handler.name();
        if self.entry_points().any(|there| there == name)
            && let Some(symbol) = self.program.symbol(name)
            && symbol.function
        {
            return Ok(symbol.address);
        }
        let mut all: Vec<_> = self.entry_points().filter(|it| !it.contains('(')).collect();
        all.sort_unstable();
        let instead = match all.is_empty() {
            true => "no function of it has #[event_handler]".into(),
            false => format!("it has {}", all.join(", ")),
        };
        Err(Error::Failed(format!("{} has no event handler {name}: {instead}", self.name)))
    }

    /// Where a function begins.
    pub(crate) fn address_of<A, R>(&self, function: &Function<A, R>) -> Result<u64, Error> {
        let signature = function.signature();
        if self.entry_points().any(|there| there == signature)
            && let Some(symbol) = self.program.symbol(function.name())
            && symbol.function
        {
            return Ok(symbol.address);
        }
        let named = |there: &&str| there.split('(').next() == Some(function.name());
        let instead = match self.entry_points().find(named) {
            Some(other) => format!("its {} is {other}", function.name()),
            None => {
                let mut all: Vec<_> = self.entry_points().collect();
                all.sort_unstable();
                match all.is_empty() {
                    true => "no function of it has #[rpc] or #[event_handler]".into(),
                    false => format!("it has {}", all.join(", ")),
                }
            }
        };
        Err(Error::Failed(format!("{} has no {signature}: {instead}", self.name)))
    }
}
