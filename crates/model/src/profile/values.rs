//! Values of some fields of a structure, as one layer of a profile gives them.
//!
//! A layer is kept as two copies of the structure: its values written over zeros, and over ones. A
//! bit has a value if it is the same in both, so a layer is applied without a list of its fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;

use verbless_prm::reflect::{Kind, StructInfo};
use verbless_prm::{HcaCapPage, Layout, Packed, RegisterId, Structure};

/// Values of a structure whose type is known at run time only.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sparse {
    pub(super) info: &'static StructInfo,
    over_zeros: Cow<'static, [u8]>,
    over_ones: Cow<'static, [u8]>,
}

impl Sparse {
    /// No value.
    pub(super) fn none(info: &'static StructInfo) -> Self {
        let (zeros, ones) = (vec![0; info.bytes], vec![0xff; info.bytes]);
        Self { info, over_zeros: zeros.into(), over_ones: ones.into() }
    }

    /// The structure's bytes; bits without a value are 0.
    pub(super) fn over_zeros(&self) -> Box<[u8]> {
        self.over_zeros.as_ref().into()
    }

    /// Writes the values into `bytes`.
    pub(super) fn apply(&self, bytes: &mut [u8]) {
        for ((byte, zeros), ones) in bytes.iter_mut().zip(&*self.over_zeros).zip(&*self.over_ones) {
            *byte = *byte & ones | zeros;
        }
    }

    /// Replaces values by those of `above`.
    fn put(&mut self, above: &Self) {
        above.apply(self.over_zeros.to_mut());
        above.apply(self.over_ones.to_mut());
    }

    /// Gives a value to `width` bits from bit `offset`.
    #[cfg(feature = "toml")]
    pub(super) fn set(&mut self, offset: usize, width: usize, value: u64) {
        for bytes in [self.over_zeros.to_mut(), self.over_ones.to_mut()] {
            verbless_prm::bits::set(bytes, offset, width, value);
        }
    }
}

/// Values of a structure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Values<T>(pub(super) Sparse, PhantomData<T>);

impl<T: Structure> Values<T> {
    /// No value.
    pub(super) fn none() -> Self {
        Self(Sparse::none(T::INFO), PhantomData)
    }

    /// The values that were written over zeros and over ones; [`values!`] makes both.
    pub(super) fn new(over_zeros: &'static T, over_ones: &'static T) -> Self {
        let (over_zeros, over_ones) = (over_zeros.as_bytes().into(), over_ones.as_bytes().into());
        Self(Sparse { info: T::INFO, over_zeros, over_ones }, PhantomData)
    }

    /// These values, replaced by those of `above` where it has any.
    pub(super) fn with(mut self, above: Self) -> Self {
        self.0.put(&above.0);
        self
    }

    /// The structure; bits without a value are 0.
    pub(super) fn over_zeros(&self) -> T {
        T::read(&self.0.over_zeros).expect("the layer has the structure's bytes")
    }
}

/// The number of a capability page or register in a layer.
pub(super) trait Key {
    fn number(self) -> u16;
}

impl Key for HcaCapPage {
    fn number(self) -> u16 {
        self.0
    }
}

impl Key for RegisterId {
    fn number(self) -> u16 {
        self.0
    }
}

/// Values of capability pages or of registers, by number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layer<K>(pub(super) BTreeMap<u16, Sparse>, PhantomData<K>);

impl<K: Key> Layer<K> {
    /// No structure.
    pub(super) fn new() -> Self {
        Self(BTreeMap::new(), PhantomData)
    }

    /// This layer with `values` of a structure, which replace its own.
    pub(super) fn with<T: Structure>(mut self, key: K, Values(values, _): Values<T>) -> Self {
        match self.0.entry(key.number()) {
            Entry::Vacant(entry) => _ = entry.insert(values),
            Entry::Occupied(entry) => entry.into_mut().put(&values),
        }
        self
    }

    /// The values of a structure; a new entry has none.
    #[cfg(feature = "toml")]
    pub(super) fn entry(&mut self, number: u16, info: &'static StructInfo) -> &mut Sparse {
        self.0.entry(number).or_insert_with(|| Sparse::none(info))
    }
}

/// The [`Values`] that the block's setters write. They are written when the model is compiled, so
/// that a wrong field, and a value that does not fit it, are errors of the compiler.
macro_rules! values {
    (|$it:ident: $type:ty| $set:block) => {{
        const fn set($it: &mut $type) $set
        const OVER_ZEROS: $type = {
            let mut it = $crate::profile::values::filled(0);
            set(&mut it);
            it
        };
        const OVER_ONES: $type = {
            let mut it = $crate::profile::values::filled(0xff);
            set(&mut it);
            it
        };
        $crate::profile::values::Values::new(&OVER_ZEROS, &OVER_ONES)
    }};
}

/// Runs the block's setters on the structure in a field of another one, within [`values!`].
macro_rules! nested {
    ($outer:ident.$field:ident, |$it:ident: $type:ty| $set:block) => {{
        const fn set($it: &mut $type) $set
        let mut it: $type = $crate::profile::values::part($outer, stringify!($field));
        set(&mut it);
        $crate::profile::values::set_part($outer, stringify!($field), &it);
    }};
}

pub(super) use {nested, values};

/// A structure of which all bytes are `byte`.
pub(super) const fn filled<L: Layout, const N: usize>(byte: u8) -> Packed<L, N> {
    let mut structure = Packed::zeroed();
    *structure.as_bytes_mut() = [byte; N];
    structure
}

/// The structure in a field of another one. Panics if there is no such field of that type.
pub(super) const fn part<L: Layout, const N: usize, M: Layout, const K: usize>(
    outer: &Packed<L, N>,
    field: &str,
) -> Packed<M, K> {
    let start = start(L::INFO, field, M::INFO);
    let mut inner = Packed::zeroed();
    inner.as_bytes_mut().copy_from_slice(outer.as_bytes().split_at(start).1.split_at(K).0);
    inner
}

/// Writes the structure in a field of another one. Panics if there is no such field of that type.
pub(super) const fn set_part<L: Layout, const N: usize, M: Layout, const K: usize>(
    outer: &mut Packed<L, N>,
    field: &str,
    inner: &Packed<M, K>,
) {
    let start = start(L::INFO, field, M::INFO);
    let bytes = outer.as_bytes_mut().split_at_mut(start).1.split_at_mut(K).0;
    bytes.copy_from_slice(inner.as_bytes());
}

/// The first byte of a field that holds one structure of this type.
const fn start(outer: &StructInfo, field: &str, inner: &StructInfo) -> usize {
    let mut i = 0;
    while i < outer.fields.len() {
        let found = &outer.fields[i];
        if is_same(found.name, field) {
            match found.kind {
                Kind::Struct(info) if found.count == 1 && is_same(info.name, inner.name) => {
                    return found.offset as usize / 8;
                }
                _ => panic!("the field does not hold one structure of this type"),
            }
        }
        i += 1;
    }
    panic!("the structure has no such field")
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

#[cfg(test)]
mod tests {
    use verbless_prm::{FlowTableCap, FlowTableFieldsSupported, FlowTablePropLayout, PmtuReg};

    use super::*;

    #[test]
    fn only_given_bits_are_applied() {
        let values = values!(|it: PmtuReg| {
            it.set_max_mtu(0x0f0f);
            it.set_oper_mtu(0);
        });
        for fill in [0, 0xa5, 0xff] {
            let mut expected: PmtuReg = filled(fill);
            expected.set_max_mtu(0x0f0f).set_oper_mtu(0);
            let mut found: PmtuReg = filled(fill);
            values.0.apply(found.as_bytes_mut());
            assert_eq!(found, expected);
        }
        assert_eq!(values.over_zeros().max_mtu(), 0x0f0f);
        assert_eq!(*values.0.over_zeros(), *values.over_zeros().as_bytes());
    }

    #[test]
    fn upper_layer_wins_and_lower_one_shows_through() {
        let lower = values!(|it: PmtuReg| {
            it.set_max_mtu(1);
            it.set_admin_mtu(2);
        });
        let upper = values!(|it: PmtuReg| {
            it.set_max_mtu(0);
            it.set_oper_mtu(3);
        });
        let both = lower.with(upper);
        for fill in [0, 0xff] {
            let mut found: PmtuReg = filled(fill);
            both.0.apply(found.as_bytes_mut());
            assert_eq!((found.max_mtu(), found.admin_mtu(), found.oper_mtu()), (0, 2, 3));
        }
        let empty = Values::<PmtuReg>::none();
        let mut found: PmtuReg = filled(0xa5);
        empty.0.apply(found.as_bytes_mut());
        assert_eq!((found, empty.over_zeros()), (filled(0xa5), PmtuReg::zeroed()));
    }

    #[test]
    fn nested_values_lie_in_their_field() {
        let values = values!(|it: FlowTableCap| {
            nested!(it.flow_table_properties_nic_transmit, |it: FlowTablePropLayout| {
                it.set_ft_support(true);
                nested!(it.ft_field_support, |it: FlowTableFieldsSupported| {
                    it.set_outer_dmac(true);
                });
            });
        });
        let mut expected = FlowTableCap::zeroed();
        let nic = expected.flow_table_properties_nic_transmit_mut();
        nic.set_ft_support(true);
        nic.ft_field_support_mut().set_outer_dmac(true);
        assert_eq!(values.over_zeros(), expected);
    }

    #[test]
    #[should_panic(expected = "no such field")]
    fn nested_field_must_exist() {
        let _: FlowTablePropLayout = part(&FlowTableCap::zeroed(), "flow_table_properties_nic");
    }

    #[test]
    #[should_panic(expected = "does not hold one structure of this type")]
    fn nested_field_must_be_of_its_type() {
        let outer = FlowTableCap::zeroed();
        let _: FlowTableFieldsSupported = part(&outer, "flow_table_properties_nic_receive");
    }
}
