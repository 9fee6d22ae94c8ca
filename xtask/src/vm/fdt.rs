//! Adds a device to a flattened device tree (Devicetree Specification 0.4, chapter 5).

use crate::workspace::Result;

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const END: u32 = 9;

/// Byte offsets of the header's words.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const TOTAL_SIZE: usize = 4;
    pub(super) const OFF_STRUCT: usize = 8;
    pub(super) const OFF_STRINGS: usize = 12;
    pub(super) const SIZE_STRINGS: usize = 32;
    pub(super) const SIZE_STRUCT: usize = 36;
}

/// The tree with a child `name` of the root whose only property is `compatible`: Linux makes a
/// platform device of this name. Room after the last block is left out: arm64's Linux takes trees
/// below 2 MiB, and QEMU doubles the size of those that it is given.
pub(crate) fn with_device(tree: &[u8], name: &str, compatible: &str) -> Result<Vec<u8>> {
    let word = |at: usize| -> Result<u32> {
        let bytes = tree.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        Ok(u32::from_be_bytes(bytes.ok_or("the device tree is cut off")?))
    };
    let at = |field: usize| word(field).map(|value| value as usize);
    if word(header::MAGIC)? != MAGIC {
        return Err("this is no flattened device tree".into());
    }
    let (structure, strings) = (at(header::OFF_STRUCT)?, at(header::OFF_STRINGS)?);
    let end = structure + at(header::SIZE_STRUCT)?;
    // The structure ends with the end of the root and that of the tree.
    if end < 8 || word(end - 8)? != END_NODE || word(end - 4)? != END {
        return Err("the device tree's structure does not end with its root".into());
    }
    let names = tree.get(strings..strings + at(header::SIZE_STRINGS)?).ok_or("no strings")?;
    let key = b"compatible\0";
    let offset = names
        .windows(key.len())
        .enumerate()
        .position(|(at, window)| window == key && (at == 0 || names[at - 1] == 0));
    let offset = offset.ok_or("no node of the device tree has the property `compatible`")?;

    let mut node = BEGIN_NODE.to_be_bytes().to_vec();
    push_text(&mut node, name);
    node.extend(PROP.to_be_bytes());
    node.extend((compatible.len() as u32 + 1).to_be_bytes());
    node.extend((offset as u32).to_be_bytes());
    push_text(&mut node, compatible);
    node.extend(END_NODE.to_be_bytes());

    let used = tree.get(..end.max(strings + names.len())).ok_or("the device tree is cut off")?;
    let mut whole = [&used[..end - 8], &node, &used[end - 8..]].concat();
    let mut grow = |field: usize| {
        let value = u32::from_be_bytes(whole[field..field + 4].try_into().unwrap_or_default());
        whole[field..field + 4].copy_from_slice(&(value + node.len() as u32).to_be_bytes());
    };
    grow(header::SIZE_STRUCT);
    if strings >= end {
        grow(header::OFF_STRINGS);
    }
    let total = whole.len() as u32;
    whole[header::TOTAL_SIZE..header::TOTAL_SIZE + 4].copy_from_slice(&total.to_be_bytes());
    Ok(whole)
}

/// Adds a text with its terminator, up to a multiple of four bytes.
fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree whose root has the property `compatible = "a"`, and no child.
    fn tree() -> Vec<u8> {
        let words =
            |words: &[u32]| words.iter().flat_map(|it| it.to_be_bytes()).collect::<Vec<_>>();
        let structure =
            [words(&[BEGIN_NODE, 0, PROP, 2, 6]), b"a\0\0\0".to_vec(), words(&[END_NODE, END])]
                .concat();
        let strings = b"model\0compatible\0";
        let (at, size) = (56, structure.len() as u32);
        let total = at + size + strings.len() as u32;
        let head = [MAGIC, total, at, at + size, 40, 17, 16, 0, strings.len() as u32, size];
        [words(&head), vec![0; 16], structure, strings.to_vec()].concat()
    }

    #[test]
    fn device_is_last_child_of_root() {
        let old = tree();
        let roomy = [&old[..], &[0; 100]].concat();
        let new = with_device(&roomy, "MLNXBF04", "b").expect("a tree");
        let added = new.len() - old.len();
        // Begin, a name of nine bytes, the property with its value, end.
        assert_eq!(added, 4 + 12 + 12 + 4 + 4);
        assert_eq!(new[80..84], BEGIN_NODE.to_be_bytes());
        assert_eq!(new[84..93], *b"MLNXBF04\0");
        assert_eq!(new[96..112], [0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 6, b'b', 0, 0, 0]);
        assert_eq!(new[112..124], [0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 9]);
        let word =
            |tree: &[u8], at: usize| u32::from_be_bytes(tree[at..at + 4].try_into().unwrap());
        for field in [header::TOTAL_SIZE, header::OFF_STRINGS, header::SIZE_STRUCT] {
            assert_eq!(word(&new, field), word(&old, field) + added as u32);
        }
        assert_eq!(new[124..], *b"model\0compatible\0");
        with_device(&new, "another", "c").expect("a tree with two");
        assert!(with_device(&old[..50], "x", "y").is_err() && with_device(&[], "x", "y").is_err());
    }
}
