//! Programs.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use verbless_flexio::{App, Process, ProcessConfig};
//!
//! # let (elf, device) = (program(), device(false)?);
//! // `elf` is the file that `cargo xtask dpa build` has written.
//! let app = App::new("worker", &elf)?;
//! assert!(app.entry_points().any(|it| it == "add(u64,u32)->u64"));
//! let process = Process::create(&device, &app, &ProcessConfig::default())?;
//! let add = app.function::<(u64, u32), u64>("add")?;
//! assert_eq!(process.call(add, (40, 2))?, 42);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_riscv::Program;

use crate::error::Error;
use crate::function::{Arguments, Function, Handler, Word, packed_bytes};

/// Maximum bytes of the names of programs and of their functions (`FLEXIO_MAX_NAME_LEN`).
pub const MAX_NAME_LEN: usize = 256;

/// A program for a DPA, as a linker wrote it (`flexio_app`).
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
    /// A program that [`embed!`](crate::embed) has read.
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
    /// The file is not a program for a DPA. `embed!` has checked it at compile time.
    pub fn app(&self) -> Result<App, Error> {
        App::new(self.name, self.file)
    }
}

/// Description of a function or event handler of a program (`flexio_func_get_register_info`).
///
/// Registers hold up to 8 arguments; the host packs more into a buffer, and the function's stub
/// unpacks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionInfo<'a> {
    /// The function's name.
    pub name: &'a str,
    /// The name with the types of arguments and result; of an event handler, only the name.
    pub signature: &'a str,
    /// Whether it is an event handler instead of a function to call.
    pub event_handler: bool,
    /// The function's address in the program's processes.
    pub address: u64,
    /// Bytes of the buffer for packed arguments (`argbuf_size`); `None` if registers hold them
    /// (`pup` is 0).
    pub packed: Option<usize>,
}

/// Prefix of the signatures of entry points in a program's symbols.
const SIGNATURES: &str = "dpa:";

impl App {
    /// A program of an ELF file (`flexio_app_create`).
    ///
    /// # Errors
    /// The file is not a static ELF file for RV64IMAC (the error has the reason); the name, or that
    /// of a function, exceeds [`MAX_NAME_LEN`] bytes.
    pub fn new(name: &str, file: &[u8]) -> Result<Self, Error> {
        check_name("a program", name)?;
        let program = Program::parse(file).map_err(|error| {
            Error::Failed(format!("{name} is not a program for a DPA: {error}"))
        })?;
        let app = Self { name: name.into(), file: file.into(), program: Arc::new(program) };
        app.entry_points().try_for_each(|it| check_name("a function", name_of(it)))?;
        Ok(app)
    }

    /// The application's name (`flexio_app_get_name`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's ELF file (`flexio_app_get_elf`).
    pub fn elf(&self) -> &[u8] {
        &self.file
    }

    /// Address of a function or an object in the program's processes.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.program.symbol(name).map(|symbol| symbol.address)
    }

    /// The initial content of an object in the program's file (`flexio_app_extract_symbol`): a
    /// `static` with `#[unsafe(no_mangle)]`. Zeros that the file leaves out (`.bss`) are included.
    /// Empty if the file does not give the object's size; `None` if there is no such symbol.
    pub fn symbol_data(&self, name: &str) -> Option<Vec<u8>> {
        let symbol = self.program.symbol(name)?;
        let end = symbol.address.checked_add(symbol.length)?;
        let mut segments = self.program.segments.iter();
        let segment = segments
            .find(|it| it.address <= symbol.address && end <= it.address.wrapping_add(it.length))?;
        let mut data = vec![0; symbol.length as usize];
        let from = (symbol.address - segment.address) as usize;
        let there = segment.bytes.get(from..).unwrap_or_default();
        let count = there.len().min(data.len());
        data[..count].copy_from_slice(&there[..count]);
        Some(data)
    }

    /// Describes a function with `#[rpc]`, or an event handler (`flexio_func_get_register_info`);
    /// `None` if the program has no function of this name.
    pub fn function_info(&self, name: &str) -> Option<FunctionInfo<'_>> {
        let signature = self.entry_points().find(|it| name_of(it) == name)?;
        let symbol = self.program.symbol(name).filter(|symbol| symbol.function)?;
        let (name, event_handler) = (name_of(signature), !signature.contains('('));
        let types = signature.split_once('(').and_then(|(_, rest)| rest.split(')').next());
        let count = types.map_or(0, |types| types.split(',').filter(|it| !it.is_empty()).count());
        let packed = Some(packed_bytes(count)).filter(|&bytes| bytes > 0);
        Some(FunctionInfo { name, signature, event_handler, address: symbol.address, packed })
    }

    /// The function that contains an address in its processes, and the offset from the function's
    /// begin.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let functions = self.program.symbols().filter(|(_, symbol)| symbol.function);
        let before = functions.filter(|(_, symbol)| symbol.address <= address);
        let (name, symbol) = before.max_by_key(|(_, symbol)| symbol.address)?;
        let offset = address - symbol.address;
        (symbol.length == 0 || offset < symbol.length).then_some((name, offset))
    }

    /// The signatures of the program's functions with `#[rpc]`, and the names of its event
    /// handlers.
    pub fn entry_points(&self) -> impl Iterator<Item = &str> {
        self.program.symbols().filter_map(|(name, _)| name.strip_prefix(SIGNATURES))
    }

    /// The function of this name, if it takes and returns these types.
    ///
    /// # Errors
    /// The program has no such function, or its function has other types, which the error names.
    pub fn function<A: Arguments, R: Word>(&self, name: &str) -> Result<Function<A, R>, Error> {
        let function = Function::named(name);
        self.address_of(&function).map(|_| function)
    }

    /// Address of an event handler.
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

    /// Address of a function.
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

/// The name in a signature.
fn name_of(signature: &str) -> &str {
    signature.split('(').next().unwrap_or(signature)
}

fn check_name(of: &str, name: &str) -> Result<(), Error> {
    let length = name.len();
    if length <= MAX_NAME_LEN {
        return Ok(());
    }
    let begin: String = name.chars().take(20).collect();
    Err(Error::Failed(format!(
        "the name of {of}, {begin}..., has {length} bytes; the limit is {MAX_NAME_LEN}"
    )))
}
