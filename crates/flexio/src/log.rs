//! The library's log on stderr, and its level.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// The library's log level (`flexio_log_lvl_t`): it prints messages of this level and of more
/// severe ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogLevel {
    /// Failures that no caller gets otherwise.
    Error = 0,
    /// Losses, and runs that were terminated.
    Warn = 1,
    /// Creation and end of processes.
    Info = 2,
    /// Every object.
    Debug = 3,
}

impl LogLevel {
    const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];
}

/// The current level; warnings by default.
static LEVEL: AtomicU8 = AtomicU8::new(LogLevel::Warn as u8);

/// Sets the library's log level in this process, and returns the previous one
/// (`flexio_log_lvl_set`). The default is [`LogLevel::Warn`].
pub fn set_log_level(level: LogLevel) -> LogLevel {
    LogLevel::ALL[usize::from(LEVEL.swap(level as u8, Ordering::Relaxed))]
}

/// Whether messages of this level are printed.
pub(crate) fn prints(level: LogLevel) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// A line on stderr.
pub(crate) fn write(level: &str, text: fmt::Arguments<'_>) {
    eprintln!("verbless-flexio: {level}: {text}");
}

macro_rules! tell {
    ($level:ident, $name:literal, $($text:tt)*) => {
        if $crate::log::prints($crate::log::LogLevel::$level) {
            $crate::log::write($name, format_args!($($text)*));
        }
    };
}

macro_rules! error {
    ($($text:tt)*) => { $crate::log::tell!(Error, "error", $($text)*) };
}

macro_rules! warning {
    ($($text:tt)*) => { $crate::log::tell!(Warn, "warning", $($text)*) };
}

macro_rules! info {
    ($($text:tt)*) => { $crate::log::tell!(Info, "info", $($text)*) };
}

macro_rules! debug {
    ($($text:tt)*) => { $crate::log::tell!(Debug, "debug", $($text)*) };
}

pub(crate) use {debug, error, info, tell, warning};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_admits_lower_levels_and_set_returns_old() {
        assert_eq!(set_log_level(LogLevel::Info), LogLevel::Warn);
        assert!(prints(LogLevel::Error) && prints(LogLevel::Info) && !prints(LogLevel::Debug));
        assert_eq!(set_log_level(LogLevel::Error), LogLevel::Info);
        assert!(!prints(LogLevel::Warn));
        assert_eq!(set_log_level(LogLevel::Warn), LogLevel::Error);
    }

    #[test]
    fn log_lines_carry_level_prefix() {
        const NAME: &str = "log::tests::log_lines_carry_level_prefix";
        const LEVEL: &str = "VERBLESS_TEST_LOG_LEVEL";
        if let Ok(level) = std::env::var(LEVEL) {
            set_log_level(LogLevel::ALL[level.parse::<usize>().unwrap()]);
            error!("{}", 1);
            warning!("{}", 2);
            info!("{}", 3);
            debug!("{}", 4);
            return;
        }
        let all = ["error: 1", "warning: 2", "info: 3", "debug: 4"];
        for level in LogLevel::ALL {
            // A separate process, for its stderr.
            let mut program = std::process::Command::new(std::env::current_exe().unwrap());
            program.args([NAME, "--exact", "--nocapture"]).env(LEVEL, (level as u8).to_string());
            let said = program.output().unwrap();
            assert!(said.status.success(), "{said:?}");
            let said = String::from_utf8(said.stderr).unwrap();
            let said: Vec<_> =
                said.lines().filter_map(|line| line.strip_prefix("verbless-flexio: ")).collect();
            assert_eq!(said, all[..=level as usize], "{level:?}");
        }
    }
}
