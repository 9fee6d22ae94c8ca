//! Processes of programs.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{
    Device, DpaCallState, DpaEntry, DpaProcess, DpaProcessAttr, DpaProcessInfo, ErrorKind,
};
use verbless_queue::Memory;

use crate::app::App;
use crate::error::Error;
use crate::function::{Arguments, Function, Word};

/// How a process is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Bytes of heap, rounded up to 4 KiB.
    pub heap: u32,
    /// Instructions that one run may take; 0: as many as the device allows.
    pub watchdog: u64,
    /// How long a call may take before [`Process::call`] ends it.
    pub timeout: Duration,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self { heap: 1 << 20, watchdog: 0, timeout: Duration::from_secs(10) }
    }
}

/// A process of a program on the DPA of a device (`flexio_process`).
#[derive(Debug)]
pub struct Process {
    device: Device,
    app: App,
    process: Arc<DpaProcess>,
    timeout: Duration,
}

/// Looks at a call before the first pause, and the pause.
const EAGER: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

impl Process {
    /// Makes a process of `app` (`flexio_process_create`).
    ///
    /// # Errors
    /// The device is not verbless's model, has no DPA, or has no room left.
    pub fn create(device: &Device, app: &App, config: &ProcessConfig) -> Result<Self, Error> {
        let token = device.as_model().ok_or_else(|| {
            Error::Failed(
                "processes of a DPA exist on verbless's model only: how hardware makes one is not \
                 published, and no layout of the model's own is sent to hardware"
                    .into(),
            )
        })?;
        let file = Memory::allocate(app.elf().len())?;
        file.write_at(0, app.elf()).map_err(verbless_command::Error::from)?;
        let attr = DpaProcessAttr {
            file: file.register(device)?,
            offset: 0,
            length: app.elf().len() as u64,
            heap: config.heap,
            watchdog: config.watchdog,
        };
        let process = device.create_dpa_process(&token, &attr)?;
        let (device, app) = (device.clone(), app.clone());
        Ok(Self { device, app, process, timeout: config.timeout })
    }

    /// The program.
    pub const fn app(&self) -> &App {
        &self.app
    }

    /// The object of the device.
    pub const fn object(&self) -> &Arc<DpaProcess> {
        &self.process
    }

    /// Its status, and how it ended if it did (`flexio_err_status_get`).
    ///
    /// # Errors
    /// The device does not answer.
    pub fn status(&self) -> Result<DpaProcessInfo, Error> {
        Ok(self.process.query()?)
    }

    /// Calls a function and waits for its result (`flexio_process_call`). Arguments of other types
    /// than the function's do not compile.
    ///
    /// # Errors
    /// [`Error::Fatal`]: the process has ended, by this call or before. [`Error::Timeout`]: the
    /// call did not return within the configured time; it was ended where it was, and the process
    /// goes on with whatever the call has left in its memory. [`Error::Failed`]: the program has
    /// no function of this name and these types.
    pub fn call<A: Arguments, R: Word>(
        &self,
        function: Function<A, R>,
        arguments: A,
    ) -> Result<R, Error> {
        let entry = DpaEntry::at(self.app.address_of(&function)?);
        let words = arguments.to_words();
        let call = match self.device.begin_dpa_call(&self.process, &entry, words) {
            Ok(call) => call,
            Err(error) => return Err(self.fatal_or(error)),
        };
        let begun = Instant::now();
        for look in 0.. {
            match call.state()? {
                DpaCallState::Returned(word) => return Ok(R::from_word(word)),
                DpaCallState::ProcessEnded(status) => return Err(Error::Fatal(status)),
                DpaCallState::Running if begun.elapsed() > self.timeout => break,
                DpaCallState::Running if look < EAGER => thread::yield_now(),
                DpaCallState::Running => thread::sleep(PAUSE),
            }
        }
        // Dropping a call ends it; here a failure counts.
        call.destroy()?;
        Err(Error::Timeout(self.timeout))
    }

    /// That the process has ended, if that is why a command was refused.
    fn fatal_or(&self, error: verbless_command::Error) -> Error {
        match self.process.query() {
            Ok(info) if error.kind() == ErrorKind::Command && !info.status.runs() => {
                Error::Fatal(info.status)
            }
            _ => Error::Device(error),
        }
    }
}
