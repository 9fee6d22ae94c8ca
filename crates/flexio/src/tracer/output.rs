//! Destinations of reports: a file that never exceeds its limit, or a function.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::stream::Record;

use super::config::{Callback, OutputMode};
use super::trace_file;

/// The first line of a file of lines.
pub(super) const CSV_HEAD: &str = "number,point,thread,arg0,arg1,arg2,arg3,arg4,arg5\n";

/// The destination of reports.
pub(super) enum Output {
    File(FileOutput),
    Callback(CallbackOutput),
}

/// A file for each start.
#[derive(Debug)]
pub(super) struct FileOutput {
    path: PathBuf,
    mode: OutputMode,
    limit: u64,
    open: Option<(BufWriter<File>, u64)>,
    /// Reports beyond the limit, and those that could not be written.
    dropped: u64,
    failed: Option<String>,
}

/// A function, and the reports that it has not accepted yet.
pub(super) struct CallbackOutput {
    callback: Callback,
    batch: usize,
    pending: VecDeque<Record>,
    dropped: u64,
}

impl Output {
    /// Writes reports to a file of this name, to which a suffix is added.
    pub(super) fn file(path: &Path, mode: OutputMode, limit: u64) -> Self {
        let suffix = if mode == OutputMode::Bin { ".bin" } else { ".csv" };
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let path = name.into();
        Self::File(FileOutput { path, mode, limit, open: None, dropped: 0, failed: None })
    }

    /// Gives reports to a function, `batch` at a time.
    pub(super) fn callback(callback: Callback, batch: usize) -> Self {
        Self::Callback(CallbackOutput { callback, batch, pending: VecDeque::new(), dropped: 0 })
    }

    /// The path of the file, if reports go to one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(files) => Some(&files.path),
            Self::Callback(_) => None,
        }
    }

    /// Restarts the output: empties a file.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        match self {
            Self::File(files) => files.begin(),
            Self::Callback(_) => Ok(()),
        }
    }

    pub(super) fn put(&mut self, record: Record) {
        match self {
            Self::File(files) => files.put(&record),
            Self::Callback(calls) => calls.pending.push_back(record),
        }
    }

    /// Delivers buffered reports; if `all`, also an incomplete batch.
    pub(super) fn deliver(&mut self, all: bool) {
        if let Self::Callback(calls) = self {
            calls.deliver(all);
        }
    }

    /// Reports that wait for the function.
    pub(super) fn pending(&self) -> usize {
        match self {
            Self::File(_) => 0,
            Self::Callback(calls) => calls.pending.len(),
        }
    }

    /// Ends the output: closes the file, drops reports that the function does not accept.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        match self {
            Self::File(files) => files.end(),
            Self::Callback(calls) => match std::mem::take(&mut calls.pending).len() {
                0 => Ok(()),
                left => {
                    calls.dropped += left as u64;
                    Err(Error::Failed(format!(
                        "the tracer's callback accepted none of the last {left} reports; they are \
                         lost"
                    )))
                }
            },
        }
    }

    /// The number of reports that arrived but could not be delivered.
    pub(super) fn dropped(&self) -> u64 {
        match self {
            Self::File(files) => files.dropped,
            Self::Callback(calls) => calls.dropped,
        }
    }
}

impl FileOutput {
    fn begin(&mut self) -> Result<(), Error> {
        // Unwritten data belong to the old file.
        self.open = None;
        let file = crate::file::create(&self.path).map_err(|error| {
            let path = self.path.display();
            Error::Failed(format!("the tracer's file {path} cannot be opened: {error}"))
        })?;
        self.failed = None;
        self.open = Some((BufWriter::new(file), 0));
        match self.mode {
            OutputMode::Bin => self.write(&trace_file::head()),
            _ => self.write(CSV_HEAD.as_bytes()),
        };
        Ok(())
    }

    /// Writes bytes if there is room for all of them; returns whether it did.
    fn write(&mut self, bytes: &[u8]) -> bool {
        let Some((file, length)) = &mut self.open else { return false };
        if self.failed.is_some() || *length + bytes.len() as u64 > self.limit {
            return false;
        }
        match file.write_all(bytes) {
            Ok(()) => {
                *length += bytes.len() as u64;
                true
            }
            Err(error) => {
                self.failed = Some(error.to_string());
                false
            }
        }
    }

    fn put(&mut self, record: &Record) {
        let written = match self.mode {
            OutputMode::Bin => self.write(&record.to_bytes()),
            _ => self.write(csv(record).as_bytes()),
        };
        self.dropped += u64::from(!written);
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some((file, _)) = self.open.take() else { return Ok(()) };
        let flushed = file.into_inner().err().map(|error| error.error().to_string());
        match self.failed.take().or(flushed) {
            None => Ok(()),
            Some(why) => {
                let path = self.path.display();
                Err(Error::Failed(format!("writing the tracer's file {path}: {why}")))
            }
        }
    }
}

/// A line of a file.
fn csv(record: &Record) -> String {
    let Record { number, id, thread, arguments: [a, b, c, d, e, f] } = record;
    format!("{number},{id},{thread},{a:#x},{b:#x},{c:#x},{d:#x},{e:#x},{f:#x}\n")
}

impl CallbackOutput {
    fn deliver(&mut self, all: bool) {
        while self.pending.len() >= self.batch || all && !self.pending.is_empty() {
            let length = self.pending.len().min(self.batch);
            let records = &self.pending.make_contiguous()[..length];
            match (self.callback)(records) {
                Ok(0) => return,
                Ok(taken) => drop(self.pending.drain(..taken.min(length))),
                Err(why) => {
                    crate::log::error!(
                        "the tracer's callback: {why}; {length} reports are dropped"
                    );
                    self.pending.drain(..length);
                    self.dropped += length as u64;
                }
            }
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(files) => files.fmt(f),
            Self::Callback(calls) => write!(f, "Callback({} pending)", calls.pending.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::tracer::trace_file::TraceFile;

    fn record(number: u64) -> Record {
        Record { number, id: 7, thread: 1, arguments: [number, 2, 3, 4, 5, u64::MAX] }
    }

    fn directory(name: &str) -> PathBuf {
        let name = format!("verbless-tracer-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn output_file_is_truncated_at_start_and_limited() {
        let directory = directory("limit");
        for (mode, name, limit, room) in [
            (OutputMode::Bin, "trace.bin", 64 + 10 * 64 + 63, 10),
            (OutputMode::Csv, "trace.csv", 600, 15),
        ] {
            let mut output = Output::file(&directory.join("trace"), mode, limit);
            let path = directory.join(name);
            assert_eq!(output.path(), Some(&*path));
            for start in 1..=2 {
                output.begin().unwrap();
                (0..20).for_each(|number| output.put(record(number)));
                output.end().unwrap();
                let length = std::fs::metadata(&path).unwrap().len();
                assert!(length <= limit && length > limit - 100, "{length} of {limit}");
                let written = match mode {
                    OutputMode::Bin => {
                        let file = File::open(&path).unwrap();
                        let all: Result<Vec<_>, _> = TraceFile::new(file).unwrap().collect();
                        let all = all.unwrap();
                        assert_eq!(all, (0..10).map(record).collect::<Vec<_>>());
                        all.len()
                    }
                    _ => {
                        let text = std::fs::read_to_string(&path).unwrap();
                        let mut lines = text.lines();
                        assert_eq!(lines.next(), Some(CSV_HEAD.trim_end()));
                        let first = "0,7,1,0x0,0x2,0x3,0x4,0x5,0xffffffffffffffff";
                        assert_eq!(lines.next(), Some(first));
                        1 + lines.count()
                    }
                };
                assert!(written >= room - 3 && written <= room, "{written} records");
                assert_eq!(output.dropped(), start * (20 - written as u64));
            }
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn symlinked_output_file_is_rejected() {
        let directory = directory("link");
        let target = directory.join("precious");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, directory.join("trace.csv")).unwrap();
        let mut output = Output::file(&directory.join("trace"), OutputMode::Csv, 1 << 20);
        let error = output.begin().unwrap_err().to_string();
        assert!(error.contains("trace.csv cannot be opened"), "{error}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn callback_gets_whole_batches_and_rest_again() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let answers = [Ok(4), Ok(1), Ok(0), Ok(4), Err("no".into()), Ok(99), Ok(99)];
        let mut answers = answers.into_iter();
        let callback = move |records: &[Record]| {
            let numbers: Vec<u64> = records.iter().map(|it| it.number).collect();
            log.lock().unwrap().push(numbers);
            answers.next().unwrap()
        };
        let mut output = Output::callback(Box::new(callback), 4);
        (0..3).for_each(|number| output.put(record(number)));
        output.deliver(false);
        assert!(seen.lock().unwrap().is_empty(), "no whole batch");
        (3..15).for_each(|number| output.put(record(number)));
        output.deliver(false);
        assert_eq!(output.pending(), 10);
        output.deliver(true);
        let calls = seen.lock().unwrap().clone();
        let numbers = |from: u64, to: u64| (from..to).collect::<Vec<_>>();
        let expected = [
            numbers(0, 4),
            numbers(4, 8),
            numbers(5, 9),
            numbers(5, 9),
            numbers(9, 13),
            numbers(13, 15),
        ];
        assert_eq!(calls, expected);
        assert_eq!((output.pending(), output.dropped()), (0, 4));
        output.end().unwrap();
        let mut never = Output::callback(Box::new(|_| Ok(0)), 1);
        never.put(record(0));
        never.deliver(true);
        assert!(
            never.end().unwrap_err().to_string().contains("accepted none of the last 1 reports")
        );
        assert_eq!(never.dropped(), 1);
    }

    #[test]
    fn callback_error_is_logged_at_level_error() {
        const NAME: &str = "tracer::output::tests::callback_error_is_logged_at_level_error";
        const CHILD: &str = "VERBLESS_TEST_TRACER_CALLBACK";
        if std::env::var_os(CHILD).is_some() {
            crate::log::set_log_level(crate::log::LogLevel::Error);
            let mut output = Output::callback(Box::new(|_| Err("no room".into())), 2);
            (0..2).for_each(|number| output.put(record(number)));
            return output.deliver(false);
        }
        // A separate process, for its stderr.
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        let said = program.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(said.status.success(), "{said:?}");
        let said = String::from_utf8(said.stderr).unwrap();
        let line = "error: the tracer's callback: no room; 2 reports are dropped";
        assert!(said.lines().any(|it| it == format!("verbless-flexio: {line}")), "{said}");
    }
}
