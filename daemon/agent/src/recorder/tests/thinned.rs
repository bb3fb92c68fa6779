//! Which records the files keep when a tenant fills them, over restarts, stops and damage.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use holdfast_status::record::{Gap, GapCause, NamespaceShare};
use tempfile::TempDir;

use super::*;

/// Small segments: the files may take eight of them.
const SEGMENT: u64 = 64 << 10;

/// Services of a tenant that come and go, and how many of them with each start.
const CHURN: u32 = 15_000;
const AT_ONCE: u32 = 1_000;

fn disk() -> Disk {
    Disk { segment_bytes_max: SEGMENT, ..Disk::default() }
}

fn of(namespace: &str, number: u32) -> ObjectName {
    ObjectName::new(namespace, &format!("s-{number}")).unwrap()
}

fn service_added(of: ObjectName, number: u32) -> Event {
    let key = ServiceKey { name: of, source: SOURCE };
    let port = ServicePort { name: "".into(), protocol: Protocol::TCP, port: port(443), node_port: None };
    let address = std::net::Ipv4Addr::from_bits(0x0a60_0000 + number);
    Event::ServiceApplied(Arc::new(ServiceFacts {
        meta: meta("1", "kubectl"),
        cluster_ips: vec![address.into()],
        ports: vec![port],
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn service_removed(of: ObjectName) -> Event {
    Event::ServiceDeleted(ServiceKey { name: of, source: SOURCE }, None)
}

/// Ten services of another tenant that does nothing else.
fn prod(folder: &TempDir) {
    let come = (0..10).map(|number| service_added(of("prod", number), 0x0f_0000 + number));
    recorded_on(Rig::new().batch(come.collect::<Vec<_>>()), Some(folder.path()), disk());
}

/// Some that come and go, and a restart.
fn churn(folder: &TempDir, first: u32) -> Arc<History> {
    let mut rig = Rig::new();
    let numbers = || first..first + AT_ONCE;
    let come = numbers().map(|number| service_added(of("noisy", number), number)).collect::<Vec<_>>();
    let mut told = rig.batch(come);
    told.extend(rig.batch(numbers().map(|number| service_removed(of("noisy", number))).collect::<Vec<_>>()));
    recorded_on(told, Some(folder.path()), disk())
}

/// The next process's history.
fn restarted(folder: &TempDir) -> Arc<History> {
    recorded_on(Vec::new(), Some(folder.path()), disk())
}

fn of_prod(history: &History) -> usize {
    all(history).iter().filter(|it| it.service.as_deref().is_some_and(|it| it.starts_with("prod/"))).count()
}

fn gaps(history: &History, cause: GapCause) -> Vec<Gap> {
    all(history).into_iter().filter_map(|it| it.gap).filter(|gap| gap.cause == cause).collect()
}

fn files(folder: &TempDir) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path());
    let of_ours = paths.filter(|path| path.extension().is_some_and(|it| it == "history"));
    of_ours.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn bytes(folder: &TempDir) -> u64 {
    files(folder).values().map(|file| file.len() as u64).sum()
}

#[test]
fn a_namespaces_churn_takes_no_others_records_from_the_disk() {
    let folder = TempDir::new().unwrap();
    prod(&folder);
    for first in (0..CHURN).step_by(AT_ONCE as usize) {
        churn(&folder, first);
        assert!(bytes(&folder) < 10 * SEGMENT, "{first}: {} bytes", bytes(&folder));
    }
    let history = restarted(&folder);
    assert_eq!(of_prod(&history), 10);
    let told = gaps(&history, GapCause::MadeRoom);
    let [Gap { records: Some(records), namespaces, .. }] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(namespaces, &[NamespaceShare { namespace: "noisy".to_owned(), records: *records }]);
    assert!((20_000..30_000).contains(records), "{records}");
    let gap = history
        .select(&RecordQuery::default())
        .into_iter()
        .find_map(|it| it.record().filter(|it| it.gap.is_some()));
    let sentence = gap.unwrap().sentence();
    let expected =
        format!("GAP: {records} records are missing, because they were evicted: {records} of noisy");
    assert!(sentence.ends_with(&expected), "{sentence}");
    assert_eq!(gaps(&history, GapCause::Damaged), [], "dropped records are no damage");
}

/// At every merge of two segments, the daemon stops before it removes the second.
#[test]
fn a_stop_before_the_second_file_is_removed_loses_and_repeats_nothing() {
    let folder = TempDir::new().unwrap();
    prod(&folder);
    let mut stops = 0;
    for first in (0..3 * AT_ONCE).step_by(AT_ONCE as usize) {
        let before = files(&folder);
        churn(&folder, first);
        let (after, known) = (files(&folder), seqs(&restarted(&folder)));
        let thinned = after.keys().next().unwrap();
        let gone: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
        for path in gone.iter().filter(|path| **path > thinned) {
            fs::write(path, &before[*path]).unwrap();
            let history = restarted(&folder);
            assert_eq!((seqs(&history), of_prod(&history)), (known.clone(), 10), "{path:?}");
            assert!(!path.exists(), "it is removed");
            stops += 1;
        }
    }
    assert!(stops > 3, "{stops}");
}

#[test]
fn a_whole_file_is_removed_if_compaction_fails() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("thinned.new")).unwrap();
    prod(&folder);
    for first in (0..2 * AT_ONCE).step_by(AT_ONCE as usize) {
        churn(&folder, first);
        assert!(bytes(&folder) < 10 * SEGMENT, "{}", bytes(&folder));
    }
    let history = restarted(&folder);
    assert_eq!(history.status().file.failures, 0);
    assert_eq!(history.status().seq, 10 + 4 * u64::from(AT_ONCE));
}

#[test]
fn earlier_damage_is_still_reported_after_compaction() {
    let folder = TempDir::new().unwrap();
    prod(&folder);
    let (path, mut content) = files(&folder).pop_first().unwrap();
    let third = content.windows(7).position(|it| it == b"\"seq\":3").unwrap();
    content[third + 3] ^= 4;
    fs::write(&path, &content).unwrap();
    for first in (0..2 * AT_ONCE).step_by(AT_ONCE as usize) {
        churn(&folder, first);
    }
    assert_ne!(files(&folder)[&path][..20], content[..20], "the file was compacted");
    let history = restarted(&folder);
    assert_eq!(of_prod(&history), 9);
    assert_eq!(gaps(&history, GapCause::Damaged).len(), 1);
}
