//! Recorded bytes of a structure, each with the field that it belongs to.
//!
//! A real ConnectX-4's bring-up comes first, then what mlx5_ib of Linux writes, and the bytes of
//! libmlx5. The answers of the model's recordings are left out: they are no evidence.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use verbless_prm::bits;
use verbless_prm::dump::{Dumped, parse_hex};
use verbless_prm::reflect::{Kind, StructInfo, View};

use super::html::escape;
use crate::runtime::Runtime;

/// The largest example in bytes.
const MAX_BYTES: usize = 0x200;

/// A recording.
pub(super) struct Example {
    /// Who wrote the bytes.
    pub(super) source: String,
    bytes: Vec<u8>,
}

/// One example for each structure that a recording has.
#[derive(Default)]
pub(super) struct Examples {
    of: BTreeMap<String, Example>,
}

impl Examples {
    /// Reads the recordings in the repository at `root`.
    pub(super) fn read(root: &Path, runtime: &Runtime) -> crate::repository::Result<Self> {
        let mut examples = Self::default();
        for dumped in crate::trace::read(root)? {
            examples.command(runtime, &dumped, "a ConnectX-4 and Linux's mlx5_core", true);
        }
        for (kernel, commands) in crate::mailbox::read(root)? {
            let source = format!("Linux's mlx5_ib ({kernel})");
            commands.iter().for_each(|it| examples.command(runtime, it, &source, false));
        }
        examples.golden(&crate::golden::read(root)?);
        Ok(examples)
    }

    pub(super) fn of(&self, structure: &str) -> Option<&Example> {
        self.of.get(structure)
    }

    fn add(&mut self, structure: &str, source: &str, bytes: &[u8]) {
        if !bytes.is_empty() && bytes.len() <= MAX_BYTES {
            let example = Example { source: source.to_owned(), bytes: bytes.to_vec() };
            self.of.entry(structure.to_owned()).or_insert(example);
        }
    }

    /// A command's input, its output if a device wrote it, and the structures within them.
    fn command(&mut self, runtime: &Runtime, dumped: &Dumped, source: &str, is_device: bool) {
        let Some(command) = runtime.command_of(&dumped.input) else { return };
        let output = dumped.output.as_deref().unwrap_or_default();
        if output.first() != Some(&0) {
            return;
        }
        let mut views = vec![command.view_input(&dumped.input)];
        if is_device {
            views.push(command.view_output(&dumped.input, output));
        }
        for view in views {
            self.add(view.info.name, source, view.bytes);
            for field in view.info.fields {
                if let Some(nested) = view.nested(field, 0) {
                    self.add(nested.info.name, source, nested.bytes);
                }
            }
        }
    }

    /// The CQEs and the receives of libmlx5. Of a send WQE, only the control segment is known by
    /// its place.
    fn golden(&mut self, golden: &Value) {
        let list = |name: &str| golden[name].as_array().into_iter().flatten();
        let source = "libmlx5";
        let mut add = |structure: &str, hex: &Value, bytes: usize| {
            let bytes =
                hex.as_str().and_then(|hex| parse_hex(hex).ok()?.get(..bytes).map(Vec::from));
            self.add(structure, source, &bytes.unwrap_or_default());
        };
        for wqe in list("post").flat_map(|post| post["wqes"].as_array().into_iter().flatten()) {
            add("ctrl_segment", &wqe["hex"], 16);
        }
        for receive in list("recv").filter(|receive| receive["sge"][0].is_object()) {
            add("data_segment", &receive["hex"], 16);
        }
        for cqe in list("cqe").filter(|cqe| cqe["cqe_hex"].as_str().is_some_and(is_64_bytes)) {
            add("cqe", &cqe["cqe_hex"], 64);
        }
    }
}

fn is_64_bytes(hex: &str) -> bool {
    hex.len() == 128
}

impl Example {
    /// Rows of sixteen bytes; a pointer over a byte shows its fields, which a table lists with
    /// their values.
    pub(super) fn html(&self, info: &'static StructInfo) -> String {
        let view = View::new(info, &self.bytes);
        let mut titles = vec![String::new(); self.bytes.len()];
        let mut values = String::new();
        view.leaves(&mut |path, leaf| {
            let mut name = leaf.field.name.to_owned();
            let mut parent = path.parent;
            while let Some(outer) = parent {
                name = format!("{}.{name}", outer.field.name);
                parent = outer.parent;
            }
            let (first, last) = (leaf.bit / 8, (leaf.bit + leaf.width).div_ceil(8));
            let value = match leaf.field.kind {
                Kind::Number | Kind::Enum(_) if leaf.width <= 64 => {
                    let value = bits::get(&self.bytes, leaf.bit, leaf.width);
                    let known = match leaf.field.kind {
                        Kind::Enum(e) => e.name_of(value).map(|name| format!(" {name}")),
                        _ => None,
                    };
                    (value != 0).then(|| format!("{value:#x}{}", known.unwrap_or_default()))
                }
                _ => {
                    let bytes = self.bytes.get(first..last).unwrap_or_default();
                    bytes.iter().any(|byte| *byte != 0).then(|| format!("{} bytes", last - first))
                }
            };
            let text = match &value {
                Some(value) => format!("{name} = {value}"),
                None => format!("{name} = 0"),
            };
            for title in titles.get_mut(first..last).unwrap_or_default() {
                *title += if title.is_empty() { "" } else { ", " };
                *title += &text;
            }
            if let Some(value) = value {
                values += &format!("<li><code>{}</code> {}</li>\n", escape(&name), escape(&value));
            }
        });
        let mut rows = String::new();
        for (row, bytes) in self.bytes.chunks(16).enumerate() {
            rows += &format!("<span class=\"offset\">{:03x}</span>", row * 16);
            for (at, byte) in bytes.iter().enumerate() {
                let title = &titles[row * 16 + at];
                let title = if title.is_empty() { "reserved" } else { title };
                let gap = if at % 4 == 0 { " " } else { "" };
                rows += &format!("{gap}<span title=\"{}\">{byte:02x}</span>", escape(title));
            }
            rows.push('\n');
        }
        let source = escape(&self.source);
        format!(
            "<p>Written by {source}. A pointer over a byte shows its field; below are the fields \
             that are not 0.</p>\n<pre class=\"hex\">{rows}</pre>\n<ul class=\"values\">\n\
             {values}</ul>\n"
        )
    }
}
