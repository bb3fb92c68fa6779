//! Batches that the kernel accepts in part. Needs root.

use libbpf_rs::{MapType, libbpf_sys};

use super::*;

/// Fewer than the keys of these tests.
const ROOM: u32 = 8;

fn map() -> MapHandle {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    MapHandle::create(MapType::Hash, Some("holdfast_test"), 4, 4, ROOM, &options).unwrap()
}

fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// The existing keys, each with its value.
fn shown(map: &MapHandle) -> Vec<(u32, u32)> {
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    let entries = Table::new(MapHandle::try_from(map).unwrap()).entries().unwrap();
    let mut shown: Vec<_> = entries.iter().map(|(key, value)| (number(key), number(value))).collect();
    shown.sort_unstable();
    shown
}

#[test]
fn kernel_a_batch_that_fails_in_the_middle_reports_its_count() {
    let map = map();
    let mut table = Table::new(MapHandle::try_from(&map).unwrap());
    assert_eq!(table.put_new(&keys(0..20), &keys(100..120)), ROOM as usize);
    assert_eq!(table.used(), ROOM);
    assert_eq!(shown(&map), (0..ROOM).map(|key| (key, key + 100)).collect::<Vec<_>>());
    assert_eq!(table.put_new(&keys(8..20), &keys(8..20)), 0, "no space for the first");
    assert_eq!(table.put_new(&keys(0..4), &keys(0..5)), 0, "an extra value is refused before the call");
}

#[test]
fn kernel_a_refused_key_does_not_stop_others() {
    let map = map();
    put_many(&map, &keys([700]), &1_u32.to_ne_bytes());
    put_many(&map, &keys(0..1_000), &2_u32.to_ne_bytes());
    let there: Vec<_> = (0..ROOM - 1).chain([700]).map(|key| (key, 2)).collect();
    assert_eq!(shown(&map), there, "a key far behind the refused ones has the new value");
}

#[test]
fn kernel_missing_keys_do_not_stop_the_deletion_of_others() {
    let map = map();
    let mut table = Table::new(MapHandle::try_from(&map).unwrap());
    table.put_new(&keys([1, 3, 5, 7, 9]), &keys([0; 5]));
    assert_eq!(table.remove_many(&keys([0, 1, 2, 3, 3, 4])), 6);
    assert_eq!((table.used(), shown(&map)), (3, vec![(5, 0), (7, 0), (9, 0)]));
    assert_eq!(table.remove_many(&keys([])), 0);
    delete_many(&map, &keys([9, 8, 8, 7, 6]));
    assert_eq!(shown(&map), [(5, 0)]);
}
