//! `prm book`: the PRM as a static site, by mdBook: chapters, and a page for each command,
//! structure, register and enum.
//!
//! - `reference`: references to entries in the chapters of `prm/book`, which `prm check` resolves.
//! - `place`: the page and anchor of an entry.
//! - `html`: text and tables as HTML.
//! - `diagram`: the bits of a structure, and the states of an object, as SVG.
//! - `example`: recorded bytes, each with its field.
//! - `code`: the files of this repository that use a structure.
//! - `page`: the page of an entry.
//! - `index`: names and numbers, with their pages.
//! - `site`: all pages, and the run of mdBook; `links`: follows their links.

pub(crate) mod reference;

#[cfg(feature = "book")]
mod code;
#[cfg(feature = "book")]
mod diagram;
#[cfg(feature = "book")]
mod example;
#[cfg(feature = "book")]
mod html;
#[cfg(feature = "book")]
mod index;
#[cfg(feature = "book")]
mod links;
#[cfg(feature = "book")]
mod page;
#[cfg(feature = "book")]
mod place;
#[cfg(feature = "book")]
pub mod site;

use std::path::Path;
use std::process::Command;

/// Builds the program that renders, which alone needs mdBook, and runs it.
pub(crate) fn render(root: &Path, arguments: &[String]) -> crate::repository::Result {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["run", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--features", "book"];
    let status = Command::new(cargo)
        .args(build)
        .args(["--bin", "prm-book", "--"])
        .args(arguments)
        .current_dir(root)
        .status()?;
    if !status.success() {
        return Err(format!("the book was not rendered ({status})").into());
    }
    Ok(())
}
