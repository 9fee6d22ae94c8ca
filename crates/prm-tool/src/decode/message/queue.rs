//! Lines about the error of one queue, from old UCX releases and mlx5_ib.

use super::super::entry::wc_status;
use super::super::known::Known;
use super::scan::{after, number};

/// Explains such a line; `None` for any other line.
pub(super) fn explain(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    ucx_error(known, line)
        .or_else(|| ucx_send_completion(known, line))
        .or_else(|| kernel_error(known, line))
}

/// UCX before 1.6: `Error on mlx5_3:1 QP 0xe6d7 wqe[7821]: Transport retry count exceeded (synd
/// 0x15 vend 0x81) opcode SEND`.
fn ucx_error(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let start = line.find("Error on ")? + "Error on ".len();
    let at = line[start..].find("QP 0x")? + start;
    let device = line[start..at].trim();
    let qp = number(&line[at + "QP".len()..])?;
    let index = number(qp.rest.strip_prefix(" wqe[")?)?;
    let rest = index.rest.strip_prefix("]:")?;
    let syndrome = after(rest, &["synd"])?;
    let vendor = after(rest, &["vend"])?;
    let mut lines = vec![
        known.code("CQE syndrome", syndrome.value),
        known.code_name("ibv_wc_status", wc_status(u8::try_from(syndrome.value).ok()?)),
        known.vendor_syndrome(vendor.value),
    ];
    lines.extend(hardware_syndrome(rest));
    let mut of = format!("queue {:#x} ({}), WQE {}", qp.value, qp.value, index.value);
    if let Some((_, opcode)) = rest.split_once(" opcode ")
        && let Some(opcode) = opcode.split_whitespace().next()
    {
        of += &format!(", {opcode}");
    }
    if !device.is_empty() {
        of += &format!(", on {device}");
    }
    lines.push(of);
    Some(lines)
}

/// `hw_synd 0/147` of UCX: type and hardware syndrome, in decimal.
pub(super) fn hardware_syndrome(line: &str) -> Option<String> {
    let kind = after(line, &["hw_synd"])?;
    let syndrome = number(kind.rest.strip_prefix('/')?)?;
    Some(hardware(kind.value, syndrome.value))
}

fn hardware(kind: u64, syndrome: u64) -> String {
    format!(
        "hw_syndrome_type {kind:#x}, hw_error_syndrome {syndrome:#x} ({syndrome}): not published"
    )
}

/// UCX with verbs: `Send completion with error on qp 0x2a8af: remote invalid request error syndrome
/// 0x8a`. The words are those of `ibv_wc_status`, the number is `vendor_err`.
fn ucx_send_completion(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    const MARK: &str = "completion with error on qp";
    let rest = &line[line.to_ascii_lowercase().find(MARK)? + MARK.len()..];
    let qp = number(rest)?;
    let (words, vendor) = qp.rest.split_once(" syndrome")?;
    let vendor = number(vendor)?;
    let status = status_of(known, words.trim_start_matches(':').trim());
    let status = status.map_or_else(
        || format!("a status with the words \"{}\"", words.trim_start_matches(':').trim()),
        |status| known.code("ibv_wc_status", status),
    );
    let queue = format!("queue {:#x} ({})", qp.value, qp.value);
    Some(vec![status, known.vendor_syndrome(vendor.value), queue])
}

/// The `ibv_wc_status` with these words.
fn status_of(known: &Known<'_>, words: &str) -> Option<u64> {
    let values = known.table("ibv_wc_status")?.codes;
    let is_it = |says: &&str| says.eq_ignore_ascii_case(words);
    values.iter().find(|value| value.texts.iter().any(is_it)).map(|value| value.value)
}

/// mlx5_ib's line about a QP event: `mlx5_13/1: QP 4938 error: local protection error (0x3a 0x0
/// 0x93)`. The kernel prints the CQE syndrome with the words of the ibv_wc_status of that number,
/// so the words are wrong.
fn kernel_error(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let at = line.find(": QP ")?;
    let device = line[..at].rsplit(' ').next()?;
    let qp = number(&line[at + ": QP ".len()..])?;
    let rest = qp.rest.strip_prefix(" error: ")?;
    let (words, numbers) = rest.rsplit_once(" (")?;
    let numbers = numbers.split_once(')')?.0.split_whitespace();
    let numbers: Option<Vec<u64>> =
        numbers.map(|text| number(text).map(|found| found.value)).collect();
    let &[vendor, kind, hardware] = numbers?.as_slice() else { return None };
    let mut lines = Vec::new();
    match status_of(known, words) {
        Some(0) => lines.push("no CQE syndrome: the error is not that of a WQE".to_owned()),
        Some(syndrome) => {
            lines.push(known.code("CQE syndrome", syndrome));
            let status = u8::try_from(syndrome).map_or(21, wc_status);
            lines.push(known.code_name("ibv_wc_status", status));
            if status != syndrome {
                lines.push(format!(
                    "\"{words}\" is status {syndrome}: mlx5_ib looks up the CQE syndrome as a \
                     status, but the two differ above 6"
                ));
            }
        }
        None => {
            lines.push(format!(
                "\"{words}\": the CQE syndrome is not a status number; for example 0x16 or 0x22:"
            ));
            lines.extend([0x16, 0x22].map(|value| known.code("CQE syndrome", value)));
        }
    }
    lines.push(known.vendor_syndrome(vendor));
    lines.push(self::hardware(kind, hardware));
    lines.push(format!("queue {:#x} ({}), on {device}", qp.value, qp.value));
    Some(lines)
}
