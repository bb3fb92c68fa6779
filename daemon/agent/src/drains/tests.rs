//! Orders, their state after a restart, and files that differ from what was written. The clock is paused, so a slow
//! disk delays no answer: that clock stands while the disk writes.

use std::fs;
use std::net::Ipv4Addr;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::limits::DRAINS_MAX;
use holdfast_fixtures::clock::wait_until_async;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;

fn drain(last: u8, port: u16, service: Option<&str>) -> Drain {
    let service = service.map(|name| ObjectName::new("default", name).unwrap());
    Drain::new(Ipv4Addr::new(10, 0, 0, last).into(), port.try_into().ok(), service)
}

fn by(uid: u32) -> DrainOrder {
    DrainOrder { uid, user: Some("root".into()), at: Timestamp(1_767_870_715) }
}

fn three() -> Drains {
    let mut drains = Drains::default();
    for each in [drain(5, 0, None), drain(5, 80, Some("web")), drain(6, 443, None)] {
        drains.add(each, by(0)).unwrap();
    }
    drains
        .add(Drain::new("fd00::5".parse().unwrap(), None, None), DrainOrder { user: None, ..by(7) })
        .unwrap();
    drains
}

fn written() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    file::store(folder.path(), &three()).unwrap();
    folder
}

/// A controller that takes orders, with its events.
struct OrderHarness {
    orders: mpsc::Sender<Order>,
    events: mpsc::Receiver<Vec<Event>>,
    running: JoinHandle<()>,
}

impl OrderHarness {
    fn begin(folder: &Path) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS_WAITING_MAX);
        let (events_out, events) = mpsc::channel(64);
        let kept = load_drains(folder);
        let last_write = watch::channel(DrainsWrite::from_restored(&kept)).0;
        let running = tokio::spawn(run(folder.to_owned(), kept, ordered, events_out, last_write));
        Self { orders, events, running }
    }

    async fn order(&self, drain: Drain, is_on: bool) -> OrderOutcome {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order { uid: 0, pid: None, drain, is_on, answer }).await.unwrap();
        answered.await.unwrap()
    }

    fn last_applied(&mut self) -> Option<Arc<Drains>> {
        let mut group = self.events.try_recv().ok()?;
        let Some(Event::DrainsApplied(drains, by)) = group.pop() else { panic!("{group:?}") };
        assert_eq!(by.uid, 0);
        Some(drains)
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = written();
    assert_eq!(*load_drains(folder.path()).drains, three());
    assert_eq!(*load_drains(tempfile::tempdir().unwrap().path()).drains, Drains::default(), "a new node");
}

/// Files of this version must stay readable.
#[test]
fn the_form_of_the_file_stays() {
    let folder = written();
    let content = fs::read_to_string(folder.path().join(file::FILE)).unwrap();
    expect_test::expect_file!["tests/drains.v1.json"].assert_eq(&content);
}

/// A later minor version may add a field; this one goes on draining.
#[test]
fn a_further_field_of_a_later_version_is_ignored() {
    let folder = written();
    let path = folder.path().join("drains.json");
    let content = fs::read_to_string(&path).unwrap();
    let body = content.split_once('\n').unwrap().1.replace("\"uid\":", "\"until\": 7, \"uid\":");
    let body = body.strip_suffix('\n').unwrap();
    let head = format!("holdfast drains, version 1, crc32 {:08x}", crc32fast::hash(body.as_bytes()));
    fs::write(&path, format!("{head}\n{body}\n")).unwrap();
    let loaded = file::load(folder.path());
    assert!(loaded.faults.is_empty(), "{:?}", loaded.faults);
    assert_eq!(loaded.drains, three());
}

#[test]
fn as_many_drains_as_may_be_with_the_longest_names_fit_the_file() {
    let mut drains = Drains::default();
    let name = ObjectName::new(&"n".repeat(63), &"s".repeat(253)).unwrap();
    let user = Some("u".repeat(32).into());
    for number in 0..DRAINS_MAX {
        let address = std::net::Ipv6Addr::from_bits(u128::MAX / 3 + number as u128);
        let each = Drain::new(address.into(), 65_535_u16.try_into().ok(), Some(name.clone()));
        drains.add(each, DrainOrder { uid: u32::MAX, user: Option::clone(&user), at: Timestamp(1) }).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    file::store(folder.path(), &drains).unwrap();
    assert_eq!(*load_drains(folder.path()).drains, drains);
}

#[track_caller]
fn check_damaged(what: &str, damage: impl Fn(&Path)) {
    let folder = written();
    damage(&folder.path().join(file::FILE));
    let file::LoadedDrains { drains: found, faults: wrong, .. } = file::load(folder.path());
    assert_eq!((found, wrong.len()), (three(), 1), "{what}: the copy counts, and the file is named");
    assert!(!folder.path().join(file::FILE).exists(), "{what}: it is put aside");
    let folder = written();
    damage(&folder.path().join(file::FILE));
    damage(&folder.path().join(file::COPY));
    let file::LoadedDrains { drains: found, faults: wrong, .. } = file::load(folder.path());
    assert_eq!((found, wrong.len()), (Drains::default(), 2), "{what}");
    file::store(folder.path(), &three()).unwrap();
    assert_eq!(*load_drains(folder.path()).drains, three(), "{what}: the next order is written");
}

#[test]
fn a_damaged_file_hangs_nothing_and_loses_no_drain() {
    let with = |change: fn(&mut Vec<u8>)| {
        move |path: &Path| {
            let mut content = fs::read(path).unwrap();
            change(&mut content);
            fs::write(path, content).unwrap();
        }
    };
    check_damaged("empty", with(Vec::clear));
    check_damaged("cut short", with(|it| it.truncate(it.len() / 2)));
    check_damaged("its last byte is gone", with(|it| it.truncate(it.len() - 1)));
    check_damaged("a flipped bit", with(|it| it[120] ^= 1));
    check_damaged("longer", with(|it| it.push(b'\n')));
    check_damaged("no text", with(|it| it.fill(0xff)));
    check_damaged("far too large", |path| fs::write(path, vec![b' '; 4 << 20]).unwrap());
    check_damaged("a pipe", |path| {
        fs::remove_file(path).unwrap();
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    });
    check_damaged("a later version", |path| {
        let content = fs::read_to_string(path).unwrap();
        fs::write(path, content.replacen("version 1", "version 2", 1)).unwrap();
    });
}

/// A valid head does not prove a valid body.
#[test]
fn drains_that_no_daemon_would_write_are_not_used() {
    for body in [
        "[]x",
        r#"[{"address": "10.0.0.5", "port": 0, "uid": 0, "at": "2026-01-08T11:11:55Z"}]"#,
        r#"[{"address": "10.0.0.5", "service": "web", "uid": 0, "at": "2026-01-08T11:11:55Z"}]"#,
        r#"[{"address": "10.0.0.5", "namespace": "a/b", "service": "web", "uid": 0, "at": "2026-01-08T11:11:55Z"}]"#,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let sum = crc32fast::hash(body.as_bytes());
        let content = format!("holdfast drains, version 1, crc32 {sum:08x}\n{body}\n");
        fs::write(folder.path().join(file::FILE), content).unwrap();
        let file::LoadedDrains { drains: found, faults: wrong, .. } = file::load(folder.path());
        assert_eq!((found, wrong.len()), (Drains::default(), 1), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_is_sent_written_and_kept_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = OrderHarness::begin(folder.path());
    let taken = harness.order(drain(5, 0, None), true).await.unwrap();
    assert_eq!((taken.before, taken.problem, taken.drains.len()), (None, None, 1));
    assert_eq!(harness.last_applied(), Some(taken.drains));
    let first = load_drains(folder.path()).drains;
    let known = first.get(&drain(5, 0, None)).cloned();
    assert!(known.is_some());
    let again = harness.order(drain(5, 0, None), true).await.unwrap();
    assert_eq!((again.before, harness.last_applied()), (known.clone(), None), "nothing has changed");
    harness.running.abort();
    let mut next = OrderHarness::begin(folder.path());
    let taken = next.order(drain(5, 0, None), false).await.unwrap();
    assert_eq!((taken.before, taken.drains.len()), (known, 0));
    assert!(next.last_applied().unwrap().is_empty());
    assert_eq!(next.order(drain(5, 0, None), false).await.unwrap().before, None);
    assert!(next.last_applied().is_none() && load_drains(folder.path()).drains.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_drains_file_is_rewritten_at_once() {
    let folder = written();
    fs::write(folder.path().join(file::FILE), "").unwrap();
    let _harness = OrderHarness::begin(folder.path());
    let is_whole =
        || fs::read(folder.path().join(file::FILE)).ok() == fs::read(folder.path().join(file::COPY)).ok();
    wait_until_async("both files are equal", is_whole).await;
    assert_eq!(*load_drains(folder.path()).drains, three());
}

/// Makes the system refuse to open the files, even for root, until [`allow_open`].
fn deny_open(folder: &Path) {
    for name in [file::FILE, file::COPY] {
        let path = folder.join(name);
        fs::rename(&path, path.with_extension("kept")).unwrap();
        std::os::unix::fs::symlink(name, &path).unwrap();
    }
}

fn allow_open(folder: &Path) {
    for path in [file::FILE, file::COPY].map(|name| folder.join(name)) {
        fs::rename(path.with_extension("kept"), &path).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_files_stay_and_take_effect_once_readable() {
    let folder = written();
    deny_open(folder.path());
    let mut harness = OrderHarness::begin(folder.path());
    let taken = harness.order(drain(9, 0, None), true).await.unwrap();
    assert!(
        taken.problem.unwrap().contains("drains.json"),
        "the outcome reports that the order is not on disk"
    );
    assert_eq!(harness.last_applied().unwrap().len(), 1, "it counts");
    let is_link = |name| fs::symlink_metadata(folder.path().join(name)).unwrap().is_symlink();
    assert!(is_link(file::FILE) && is_link(file::COPY), "no file is set aside or overwritten");
    allow_open(folder.path());
    let mut all = three();
    all.add(drain(9, 0, None), by(0)).unwrap();
    let keys =
        |drains: &Drains| drains.iter().map(|(drain, _)| drain).collect::<std::collections::BTreeSet<_>>();
    wait_until_async("they are in force", || keys(&load_drains(folder.path()).drains) == keys(&all)).await;
    assert_eq!(keys(&harness.last_applied().unwrap()), keys(&all));
}

#[tokio::test(start_paused = true)]
async fn two_orders_at_once_both_count() {
    let folder = tempfile::tempdir().unwrap();
    let harness = OrderHarness::begin(folder.path());
    let (one, other) =
        tokio::join!(harness.order(drain(5, 0, None), true), harness.order(drain(6, 0, None), true));
    assert!(one.is_ok() && other.is_ok());
    let found = load_drains(folder.path()).drains;
    assert!(found.get(&drain(5, 0, None)).is_some() && found.get(&drain(6, 0, None)).is_some());
}

#[tokio::test(start_paused = true)]
async fn invariant_10_drains_beyond_the_limit_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let mut drains = Drains::default();
    for number in 0..u32::try_from(DRAINS_MAX).unwrap() {
        drains.add(Drain::new(Ipv4Addr::from_bits(number).into(), None, None), by(0)).unwrap();
    }
    file::store(folder.path(), &drains).unwrap();
    let mut harness = OrderHarness::begin(folder.path());
    assert_eq!(harness.order(drain(5, 0, None), true).await, Err(TooManyDrains));
    assert!(harness.last_applied().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_order_counts_on_a_failing_disk_and_the_write_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::write(&state, "").unwrap();
    let mut harness = OrderHarness::begin(&state);
    let taken = harness.order(drain(5, 0, None), true).await.unwrap();
    assert!(taken.problem.unwrap().contains("state"));
    assert_eq!(harness.last_applied().unwrap().len(), 1);
    fs::remove_file(&state).unwrap();
    // The next order writes all of them.
    assert_eq!(harness.order(drain(6, 0, None), true).await.unwrap().problem, None);
    assert_eq!(load_drains(&state).drains.len(), 2);
}

/// Its only thread for blocking work is busy, so a write hangs.
#[test]
fn while_the_disk_does_not_answer_nobody_knows_what_a_restart_would_restore() {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let (release, released) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || released.recv());
        let folder = tempfile::tempdir().unwrap();
        let (mut desired, unread) = (watch::channel(Arc::new(three())).1, watch::channel(None).1);
        let last_write = watch::channel(DrainsWrite::default()).0;
        let mut write = std::pin::pin!(write_once(folder.path(), (&mut desired, &unread), &last_write));
        assert!(futures_util::poll!(&mut write).is_pending());
        assert_eq!(last_write.borrow().problem(), Some(NO_ANSWER));
        release.send(()).unwrap();
        assert_eq!((write.await, last_write.borrow().problem()), (None, None));
    });
}

#[test]
fn a_user_is_named_by_the_nodes_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("passwd");
    fs::write(&users, "# none\nroot:x:0:0::/root:/bin/sh\nodd name:x:6::\n:x:7::\nada:x:1000:\n").unwrap();
    let names = [0, 1000, 6, 7, 8].map(|uid| user::user_name(&users, uid));
    assert_eq!(names, [Some("root".into()), Some("ada".into()), None, None, None]);
    assert_eq!(user::user_name(&folder.path().join("none"), 0), None);
}
