//! WQEs and CQEs without the data that they carry: a recording has no bytes of messages.

/// Bytes of a segment's unit (`ds`), and of a datagram's address vector.
const UNIT: usize = 16;
const ADDRESS_VECTOR: usize = 48;
/// The data segment holds its data itself (`mlx5_wqe_inline_seg`).
const INLINE: u8 = 0x80;
/// Where the Ethernet segment of a WQE has the bytes of inline headers, which follow it
/// (`mlx5_wqe_eth_seg`).
const INLINE_SIZE: usize = UNIT + 12;

/// What a send queue's WQEs begin with, after the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing, or the segments of the opcode.
    Connected,
    /// An address vector.
    Datagrams,
    /// An Ethernet segment, which may hold headers of the frame.
    Frames,
}

/// How a WQE continues after its control segment.
enum Form {
    /// After this many bytes come segments of data.
    Data(usize),
    /// An Ethernet segment, then segments of data.
    Frame,
    /// A remote address, then this many bytes of operands of an atomic, then segments of data.
    Atomic(usize),
    /// It describes memory and has no data.
    Whole,
    /// Unknown, or its headers are part of a message.
    Control,
}

fn form(opcode: u8, class: Class) -> Form {
    match opcode {
        0x0a if class == Class::Frames => Form::Frame,
        // SEND_INVAL, SEND, SEND_IMM.
        0x01 | 0x0a | 0x0b => {
            Form::Data(if class == Class::Datagrams { ADDRESS_VECTOR } else { 0 })
        }
        // RDMA_WRITE, RDMA_WRITE_IMM, RDMA_READ: a remote address.
        0x08..=0x10 if !matches!(opcode, 0x0c..=0x0f) => Form::Data(UNIT),
        // ATOMIC_CS, ATOMIC_FA, ATOMIC_MASKED_FA.
        0x11 | 0x12 | 0x15 => Form::Atomic(UNIT),
        // ATOMIC_MASKED_CS.
        0x14 => Form::Atomic(2 * UNIT),
        // NOP, WAIT, UMR.
        0x00 | 0x0f | 0x25 => Form::Whole,
        _ => Form::Control,
    }
}

/// Zeroes inline data and the operands of atomics. Of a WQE whose opcode is not known, the control
/// segment remains.
pub(super) fn without_data_of_wqe(wqe: &mut [u8], class: Class) {
    let Some(&opcode) = wqe.get(3) else { return };
    match form(opcode, class) {
        Form::Whole => {}
        Form::Control => zero_from(wqe, UNIT),
        Form::Atomic(operands) => {
            wqe.iter_mut().skip(2 * UNIT).take(operands).for_each(|byte| *byte = 0);
            without_inline_data(wqe, 2 * UNIT + operands);
        }
        Form::Data(headers) => without_inline_data(wqe, UNIT + headers),
        Form::Frame => {
            let Some(size) = wqe.get(INLINE_SIZE..INLINE_SIZE + 2) else { return };
            let size = usize::from(u16::from_be_bytes([size[0], size[1]]));
            let begin = INLINE_SIZE + 2;
            wqe.iter_mut().skip(begin).take(size).for_each(|byte| *byte = 0);
            without_inline_data(wqe, (begin + size).next_multiple_of(UNIT).max(2 * UNIT));
        }
    }
}

/// Zeroes the data of an inline segment among the segments of data from `at` on.
fn without_inline_data(wqe: &mut [u8], mut at: usize) {
    while let Some(&first) = wqe.get(at) {
        if first & INLINE != 0 {
            zero_from(wqe, at + 4);
            return;
        }
        at += UNIT;
    }
}

/// Zeroes data that the device put into the CQE (`MLX5_INLINE_SCATTER_32`).
pub(super) fn without_data_of_cqe(cqe: &mut [u8]) {
    const SCATTERED: u8 = 0x4;
    if cqe.last().is_some_and(|owner| owner & SCATTERED != 0) {
        cqe.iter_mut().take(32).for_each(|byte| *byte = 0);
    }
}

fn zero_from(bytes: &mut [u8], at: usize) {
    bytes.iter_mut().skip(at).for_each(|byte| *byte = 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A WQE of 64 bytes, all of them 0x7f but the opcode.
    fn wqe(opcode: u8) -> Vec<u8> {
        let mut bytes = vec![0x7f; 64];
        bytes[3] = opcode;
        bytes
    }

    fn kept(mut bytes: Vec<u8>, class: Class) -> usize {
        without_data_of_wqe(&mut bytes, class);
        bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
    }

    #[test]
    fn inline_data_and_operands_are_zeroed() {
        assert_eq!(kept(wqe(0x0a), Class::Connected), 64, "pointers to data");
        let inline = |opcode, at: usize| {
            let mut bytes = wqe(opcode);
            bytes[at] = 0x80;
            bytes
        };
        assert_eq!(kept(inline(0x0a, 16), Class::Connected), 20);
        assert_eq!(kept(inline(0x08, 32), Class::Connected), 36);
        assert_eq!(kept(inline(0x08, 16), Class::Connected), 64, "a remote address is no data");
        assert_eq!(kept([inline(0x0a, 16), vec![0x80; 64]].concat(), Class::Datagrams), 68);
        let mut atomic = wqe(0x11);
        without_data_of_wqe(&mut atomic, Class::Connected);
        assert_eq!(
            atomic[32..],
            [[0; 16], [0x7f; 16]].concat(),
            "operands, then a pointer to data"
        );
        assert_eq!(kept(wqe(0x14), Class::Connected), 32, "operands and masks");
        assert_eq!(kept(wqe(0x25), Class::Connected), 64);
        assert_eq!(kept(wqe(0x77), Class::Connected), 16);
        without_data_of_wqe(&mut [], Class::Connected);
    }

    #[test]
    fn headers_of_a_frame_are_zeroed() {
        let mut bytes = wqe(0x0a);
        bytes[INLINE_SIZE..][..2].copy_from_slice(&18_u16.to_be_bytes());
        without_data_of_wqe(&mut bytes, Class::Frames);
        assert_eq!(bytes[INLINE_SIZE + 2..48], [0; 18]);
        assert_eq!(bytes[48..], [0x7f; 16], "a pointer to the rest of the frame");
    }

    #[test]
    fn data_in_a_cqe_is_zeroed() {
        let mut cqe = [0x11; 64];
        without_data_of_cqe(&mut cqe);
        assert_eq!(cqe, [0x11; 64]);
        cqe[63] = 0x24;
        without_data_of_cqe(&mut cqe);
        assert_eq!((cqe[..32].iter().max(), cqe[32]), (Some(&0), 0x11));
    }
}
