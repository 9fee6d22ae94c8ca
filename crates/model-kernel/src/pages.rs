//! The size of the modelled kernel's pages.
//!
//! A device's own pages, in mailboxes, EQs and UARs, have 4 KiB on every machine
//! (`MLX5_ADAPTER_PAGE_SIZE`). A kernel whose pages are larger maps several UARs in one page, pins
//! and counts memory in its pages, and lists them in UMEMs.

use std::fmt;
use std::str::FromStr;

use verbless_devx::page_size;

use super::page::PAGE;

/// The size of a page of the modelled kernel: a power of two from 4 KiB to 64 KiB, and not below
/// that of this process's pages. The default is this process's.
///
/// With larger pages than the process has, the model's kernel counts, maps and lists as a kernel of
/// such pages does. The process does not: its mappings begin and end at its own pages, so memory
/// beside a registered range, within the same page of the modelled kernel, may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemPage(u64);

impl SystemPage {
    /// A page of `kibibytes` KiB.
    ///
    /// # Errors
    /// The size is not 4, 16 or 64 KiB, or is less than that of this process's pages.
    pub fn new(kibibytes: u32) -> Result<Self, String> {
        let (bytes, own) = (u64::from(kibibytes) << 10, page_size() as u64);
        match kibibytes {
            4 | 16 | 64 if bytes >= own => Ok(Self(bytes)),
            4 | 16 | 64 => Err(format!(
                "pages of {kibibytes}k are smaller than this process's, of {}k: choose those or \
                 larger ones",
                own >> 10
            )),
            _ => Err(format!("no kernel has pages of {kibibytes}k: choose 4k, 16k or 64k")),
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// UARs of 4 KiB in a page.
    pub(super) const fn uars(self) -> u32 {
        (self.0 / PAGE) as u32
    }

    /// log2 of that: `log_uar_page_sz`.
    pub(super) const fn log_uars(self) -> u8 {
        self.uars().trailing_zeros() as u8
    }

    /// The start of the page of an address.
    pub(super) const fn start_of(self, address: u64) -> u64 {
        address & !(self.0 - 1)
    }
}

impl Default for SystemPage {
    fn default() -> Self {
        Self(page_size() as u64)
    }
}

/// As [`FromStr`] takes it: `64k`.
impl fmt::Display for SystemPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}k", self.0 >> 10)
    }
}

/// `4k`, `16k` or `64k`.
impl FromStr for SystemPage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('k').and_then(|number| number.parse().ok());
        Self::new(number.ok_or_else(|| format!("{text} is no size of a page, such as 64k"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_page_parses_as_it_prints() {
        for text in ["16k", "64k"] {
            let page: SystemPage = text.parse().unwrap();
            assert_eq!(page.to_string(), text);
        }
        let page: SystemPage = "64k".parse().unwrap();
        assert_eq!((page.bytes(), page.uars(), page.log_uars()), (0x1_0000, 16, 4));
        assert_eq!(page.start_of(0x7001_f123), 0x7001_0000);
        assert_eq!(SystemPage::default().bytes(), page_size() as u64);
        for text in ["64", "8k", "0k", "128k", "k", ""] {
            assert!(text.parse::<SystemPage>().is_err(), "{text}");
        }
    }
}
