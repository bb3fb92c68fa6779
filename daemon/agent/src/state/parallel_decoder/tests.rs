//! The result equals that of one thread, whatever the number of batches and threads.

use super::*;
use crate::state::codec;
use crate::state::form::ServiceForm;
use crate::state::tests::snapshot;

/// The records of all services of a snapshot, repeated, with an invalid one in between.
fn records(count: usize, bad: Option<usize>) -> Vec<Vec<u8>> {
    let snapshot = snapshot();
    let record = |view| postcard::to_extend(&ServiceForm::new(view, snapshot.clock()), Vec::new()).unwrap();
    let all: Vec<_> = snapshot.services.iter().map(|view| record(view)).collect();
    let mut records: Vec<_> = all.into_iter().cycle().take(count).collect();
    bad.and_then(|at| records.get_mut(at)).into_iter().for_each(|record| record.truncate(3));
    records
}

#[track_caller]
fn check(count: usize, bad: Option<usize>) {
    let records = records(count, bad);
    let bytes: usize = records.iter().map(Vec::len).sum();
    assert!(count < 100 || bytes > 5 * BATCH_BYTES, "several batches: {bytes}");
    let decoded = std::thread::scope(|scope| {
        let mut decoding = DecoderPool::new(scope);
        records.iter().for_each(|record| decoding.push(record));
        decoding.finish()
    });
    let name = |it: &Option<Arc<ServiceView>>| it.as_ref().map(|view| view.key.clone());
    let alone: Vec<_> = records.iter().map(|record| name(&codec::decode_service(record))).collect();
    assert_eq!(decoded.iter().map(name).collect::<Vec<_>>(), alone);
    assert_eq!(decoded.iter().position(Option::is_none), bad);
}

#[test]
fn services_come_in_the_order_of_their_records_however_many_there_are() {
    check(0, None);
    check(7, None);
    check(8_000, None);
}

#[test]
fn an_invalid_record_affects_no_other() {
    check(7, Some(3));
    check(8_000, Some(5_000));
}
