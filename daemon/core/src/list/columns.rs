//! Rows in compact form: addresses apart from the rest, because an IPv4 address takes a quarter of an `IpAddr` and a
//! node may keep millions.
//!
//! Invariant: reading returns the rows as stored, in their order. Equal rows have equal forms.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::net::{IpAddr, Ipv4Addr};
use core::num::NonZeroU16;
use core::slice;

use super::Row;

#[derive(Clone, Debug, PartialEq, Eq)]
enum RowAddresses {
    V4(Box<[Ipv4Addr]>),
    Any(Box<[IpAddr]>),
}

impl RowAddresses {
    fn from_rows(rows: &[Row]) -> Self {
        let addresses = || rows.iter().map(|row| row.address);
        let v4 = |address| if let IpAddr::V4(address) = address { Some(address) } else { None };
        let mut all = Vec::with_capacity(rows.len());
        all.extend(addresses().map_while(v4));
        if all.len() == rows.len() { Self::V4(all.into()) } else { Self::Any(addresses().collect()) }
    }

    fn get(&self, place: usize) -> Option<IpAddr> {
        match self {
            Self::V4(addresses) => addresses.get(place).copied().map(IpAddr::V4),
            Self::Any(addresses) => addresses.get(place).copied(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::V4(addresses) => size_of_val(&**addresses),
            Self::Any(addresses) => size_of_val(&**addresses),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedRow {
    since: u32,
    slice: u16,
    endpoint: u16,
    port: NonZeroU16,
    bits: u8,
}

impl PackedRow {
    const fn to_row(self, address: IpAddr) -> Row {
        let Self { since, slice, endpoint, port, bits } = self;
        Row { address, port, bits, slice, endpoint, since }
    }
}

/// Rows in an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    addresses: RowAddresses,
    rest: Box<[PackedRow]>,
}

impl Default for Columns {
    fn default() -> Self {
        Self::from_rows(&[])
    }
}

impl Columns {
    pub(super) fn from_rows(rows: &[Row]) -> Self {
        let rest = |row: &Row| {
            let Row { port, slice, endpoint, since, bits, .. } = *row;
            PackedRow { since, slice, endpoint, port, bits }
        };
        Self { addresses: RowAddresses::from_rows(rows), rest: rows.iter().map(rest).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.addresses.bytes() + size_of_val(&*self.rest)
    }

    pub(super) fn get(&self, place: usize) -> Option<Row> {
        Some(self.rest.get(place)?.to_row(self.addresses.get(place)?))
    }

    pub(super) fn iter(&self) -> Iter<'_> {
        let addresses = match &self.addresses {
            RowAddresses::V4(addresses) => AddressIter::V4(addresses.iter()),
            RowAddresses::Any(addresses) => AddressIter::Any(addresses.iter()),
        };
        Iter { addresses, rest: self.rest.iter() }
    }

    /// The position of this address and port; the rows must be sorted by them.
    pub(super) fn find_position(&self, wanted: (IpAddr, u16)) -> Option<usize> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.get(middle)?.position().cmp(&wanted) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// How many rows have a lower address; the rows must be sorted.
    pub(super) fn partition_point(&self, address: IpAddr) -> usize {
        match &self.addresses {
            RowAddresses::V4(all) => all.partition_point(|it| IpAddr::V4(*it) < address),
            RowAddresses::Any(all) => all.partition_point(|it| *it < address),
        }
    }

    pub(super) fn set_bits(&mut self, place: usize, bits: u8) {
        self.rest.get_mut(place).into_iter().for_each(|rest| rest.bits = bits);
    }
}

#[derive(Clone, Debug)]
enum AddressIter<'a> {
    V4(slice::Iter<'a, Ipv4Addr>),
    Any(slice::Iter<'a, IpAddr>),
}

impl AddressIter<'_> {
    fn next(&mut self) -> Option<IpAddr> {
        match self {
            Self::V4(addresses) => addresses.next().copied().map(IpAddr::V4),
            Self::Any(addresses) => addresses.next().copied(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Iter<'a> {
    addresses: AddressIter<'a>,
    rest: slice::Iter<'a, PackedRow>,
}

impl Iterator for Iter<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        Some(self.rest.next()?.to_row(self.addresses.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::facts::Conditions;

    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (0_u32..9).prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
        prop_oneof![9 => v4, 1 => (0_u128..9).prop_map(|bits| IpAddr::V6(bits.into()))]
    }

    fn row() -> impl Strategy<Value = Row> {
        (address(), 1..9_u16, any::<(bool, bool, bool, u8, u16, u16, u32)>()).prop_map(
            |(address, port, it)| {
                let conditions = Conditions { ready: it.0, serving: it.1, terminating: it.2 };
                let port = NonZeroU16::new(port).unwrap();
                Row { bits: it.3, since: it.6, ..Row::new(address, port, conditions, it.4, it.5) }
            },
        )
    }

    proptest! {
        #[test]
        fn columns_return_the_given_rows(rows in proptest::collection::vec(row(), 0..20), bits in any::<u8>()) {
            let mut rows = rows;
            rows.sort_by_key(Row::position);
            rows.dedup_by_key(|row| row.position());
            let mut columns = Columns::from_rows(&rows);
            prop_assert_eq!(columns.iter().collect::<Vec<_>>(), rows.clone());
            prop_assert_eq!(columns.iter().len(), rows.len());
            for (place, row) in rows.iter_mut().enumerate() {
                prop_assert_eq!(columns.find_position(row.position()), Some(place));
                row.bits = bits;
                columns.set_bits(place, bits);
            }
            prop_assert_eq!(columns.find_position(("9.9.9.9".parse().unwrap(), 1)), None);
            prop_assert_eq!(columns, Columns::from_rows(&rows));
        }
    }

    #[test]
    fn a_row_of_ipv4_takes_sixteen_bytes() {
        let row = Row::new([192, 0, 2, 1].into(), NonZeroU16::MIN, Conditions::READY, 0, 0);
        assert_eq!(Columns::from_rows(&[row]).bytes(), 16);
    }
}
