//! The kernel series that the model is tested with, and the Debian suite of each.

use std::fmt;
use std::str::FromStr;

use super::arch::Arch;

/// A Linux series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Series {
    Linux5_10,
    Linux6_1,
    Linux6_12,
    Linux7_2,
}

impl Series {
    const ALL: [Self; 4] = [Self::Linux5_10, Self::Linux6_1, Self::Linux6_12, Self::Linux7_2];

    /// The profile of a device that its driver knows, if it does not know the model's default, a
    /// BlueField-3.
    pub(crate) const fn profile(self) -> Option<&'static str> {
        match self {
            Self::Linux5_10 => Some("connectx6dx"),
            Self::Linux6_1 | Self::Linux6_12 | Self::Linux7_2 => None,
        }
    }

    /// The Debian suite that carries kernels of this series.
    pub(crate) const fn suite(self) -> &'static str {
        match self {
            Self::Linux5_10 => "bullseye",
            Self::Linux6_1 => "bookworm",
            Self::Linux6_12 => "trixie",
            Self::Linux7_2 => "trixie-backports",
        }
    }
}

/// A flavour of Debian's kernels of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelFlavour {
    /// The small one for virtual machines.
    Cloud,
    /// The one for any machine. It alone has MLX5_ESWITCH, without which the drivers do not ask a
    /// function whether it is an embedded CPU's.
    Full,
    /// As `Full`, with pages of 16 KiB.
    Pages16K,
}

impl KernelFlavour {
    /// The suffix of the packages' names.
    pub(crate) fn suffix(self, arch: &Arch) -> String {
        let debian = arch.debian;
        match self {
            Self::Cloud => format!("-cloud-{debian}"),
            Self::Full => format!("-{debian}"),
            Self::Pages16K => format!("-{debian}-16k"),
        }
    }

    /// The suffix of the directory that the kernel is unpacked to.
    pub(crate) const fn mark(self) -> &'static str {
        match self {
            Self::Cloud => "",
            Self::Full => "-whole",
            Self::Pages16K => "-16k",
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux5_10 => "5.10",
            Self::Linux6_1 => "6.1",
            Self::Linux6_12 => "6.12",
            Self::Linux7_2 => "7.2",
        })
    }
}

/// The argument of `--kernel`: one series, `all` of them, or the `maintained` ones, whose suites
/// Debian keeps in its archive for years to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    One(Series),
    Maintained,
    All,
}

impl Selection {
    pub(crate) fn series(self) -> Vec<Series> {
        match self {
            Self::One(series) => vec![series],
            Self::Maintained => {
                Series::ALL.into_iter().filter(|it| *it != Series::Linux5_10).collect()
            }
            Self::All => Series::ALL.to_vec(),
        }
    }
}

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|series| series.to_string() == text);
        named.ok_or_else(|| format!("no kernel series {text}: choose 5.10, 6.1, 6.12, 7.2"))
    }
}

impl From<Series> for Selection {
    fn from(series: Series) -> Self {
        Self::One(series)
    }
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::All),
            "maintained" => return Ok(Self::Maintained),
            _ => {}
        }
        text.parse().map(Self::One).map_err(|why: String| format!("{why}, maintained or all"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Selection, Series};

    #[test]
    fn series_selection_accepts_known_series_and_all() {
        let chosen = |text: &str| text.parse::<Selection>().map(Selection::series);
        assert_eq!(chosen("6.12"), Ok(vec![Series::Linux6_12]));
        assert_eq!(chosen("all"), Ok(Series::ALL.to_vec()));
        assert_eq!(chosen("maintained"), Ok(Series::ALL[1..].to_vec()));
        assert!(chosen("6.10").is_err());
    }
}
