//! Reloads and verdicts in made-up time.

use expect_test::expect;
use holdfast_core::keys::Source;
use proptest::prelude::*;

use super::super::tests::{block, blocks, show};
use super::super::{CheckKind, StaticService};
use super::*;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn tcp(interval: Duration, rise: u32, fall: u32) -> HealthCheck {
    HealthCheck { kind: CheckKind::Tcp, interval, timeout: ms(500), rise, fall }
}

fn checked(name: &str, backends: &[&str], check: HealthCheck) -> StaticService {
    StaticService { health_check: Some(check), ..block(name, &["10.96.0.10:80"], backends) }
}

/// A [`Live`] with the backends around it: those in `dead` fail every check, at once.
struct Lab {
    live: Live,
    now: Duration,
    dead: BTreeSet<SocketAddr>,
}

impl Lab {
    fn new() -> Self {
        Self { live: Live::new(7), now: Duration::ZERO, dead: BTreeSet::new() }
    }

    fn kill(&mut self, backend: &str) {
        self.dead.insert(backend.parse().unwrap());
    }

    fn apply(&mut self, services: &[StaticService]) -> String {
        show(&self.live.apply(&blocks(services), self.now))
    }

    /// Runs every check until `end`; gives each group with its time.
    fn run_until(&mut self, end: Duration) -> Vec<(Duration, Vec<Event>)> {
        let mut groups = Vec::new();
        while let Some(due) = self.live.next_due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            while let Some(due) = self.live.start_due(self.now) {
                self.live.finished(due.id, !self.dead.contains(&due.backend), self.now);
            }
            groups.push((self.now, self.live.take_changes()));
        }
        self.now = end;
        groups.retain(|(_, group)| !group.is_empty());
        groups
    }

    fn shown_until(&mut self, end: Duration) -> String {
        self.run_until(end).iter().map(|(_, group)| show(group)).collect()
    }
}

#[test]
fn a_dead_backend_is_found_soon_however_long_the_interval() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.2:80");
    lab.apply(&[checked("web", &["192.0.2.1:80", "192.0.2.2:80"], tcp(Duration::from_secs(600), 2, 3))]);
    let groups = lab.run_until(Duration::from_secs(599));
    let [(at, group)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(180)..=ms(220)).contains(at), "three checks, a tenth of a second apart: {at:?}");
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 ready 192.0.2.2 unready, holdfast.toml by health-check
    "#]].assert_eq(&show(group));
}

#[test]
fn an_unready_backend_is_checked_at_its_interval() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(Duration::from_secs(60), 2, 1))]);
    lab.run_until(ms(1));
    lab.dead.clear();
    let groups = lab.run_until(Duration::from_secs(600));
    let [(at, _)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(108_000)..=ms(132_000)).contains(at), "two successes, a minute apart: {at:?}");
}

#[test]
fn backends_that_turn_together_re_apply_their_slice_once() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.kill("192.0.2.3:80");
    let backends = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "192.0.2.4:81"];
    lab.apply(&[checked("web", &backends, tcp(ms(100), 1, 1))]);
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 unready 192.0.2.2 ready 192.0.2.3 unready, holdfast.toml by health-check
    "#]].assert_eq(&lab.shown_until(ms(1)));
}

#[test]
fn an_unchanged_reload_sends_nothing_and_moves_no_check() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    let web = checked("web", &["192.0.2.1:80", "192.0.2.2:80"], tcp(ms(1_000), 1, 1));
    lab.apply(std::slice::from_ref(&web));
    lab.run_until(ms(10));
    let due = lab.live.next_due();
    assert_eq!(lab.apply(std::slice::from_ref(&web)), "");
    assert_eq!(lab.live.next_due(), due);
    assert_eq!(lab.shown_until(ms(5_000)), "");
}

#[test]
fn a_changed_block_keeps_the_verdicts_of_the_backends_that_stay() {
    let mut lab = Lab::new();
    let check = tcp(ms(1_000), 1, 2);
    lab.kill("192.0.2.1:80");
    lab.apply(&[checked("web", &["192.0.2.1:80", "192.0.2.2:80"], check.clone())]);
    lab.run_until(ms(1_500));
    let due = lab.live.next_due();

    let more = ["192.0.2.3:80", "192.0.2.1:80", "192.0.2.1:81"];
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.3 ready 192.0.2.1 unready, holdfast.toml by file
        slice static/web-v4-81 of web V4 http TCP 81: 192.0.2.1 ready, holdfast.toml by file
    "#]]
    .assert_eq(&lab.apply(&[checked("web", &more, check)]));
    assert_eq!(lab.live.next_due(), Some(lab.now), "new backends are checked at once");
    lab.run_until(lab.now);
    assert!(lab.live.next_due() >= due, "known ones at their time");
}

#[test]
fn another_check_keeps_the_verdict_and_asks_at_once() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1))]);
    lab.run_until(ms(100));
    assert_eq!(lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(60_000), 2, 1))]), "");
    assert_eq!(lab.live.next_due(), Some(lab.now));
    lab.dead.clear();
    assert_eq!(lab.run_until(ms(1_000)), [], "one success is not enough any more");
}

#[test]
fn without_its_check_a_backend_is_ready() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    let web = checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1));
    lab.apply(std::slice::from_ref(&web));
    lab.run_until(ms(100));
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 ready, holdfast.toml by file
    "#]]
    .assert_eq(&lab.apply(&[StaticService { health_check: None, ..web }]));
    assert_eq!(lab.live.next_due(), None);
}

#[test]
fn a_block_that_goes_takes_its_slices_and_its_checks_along() {
    let mut lab = Lab::new();
    let check = tcp(ms(1_000), 1, 1);
    lab.apply(&[checked("web", &["192.0.2.1:80", "[2001:db8::1]:80"], check)]);
    expect![[r#"
        service static/web deleted, holdfast.toml by file
        slice static/web-v4-80 deleted, holdfast.toml by file
        slice static/web-v6-80 deleted, holdfast.toml by file
    "#]]
    .assert_eq(&lab.apply(&[]));
    assert_eq!(lab.live.next_due(), None);
    assert_eq!(lab.apply(&[]), "");
}

#[test]
fn a_result_that_comes_after_its_check_is_gone_changes_nothing() {
    let mut lab = Lab::new();
    let web = checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1));
    lab.apply(std::slice::from_ref(&web));
    let late = lab.live.start_due(lab.now).unwrap();
    lab.apply(&[]);
    lab.apply(std::slice::from_ref(&web));
    assert_eq!(lab.live.finished(late.id, false, lab.now), None);
    assert_eq!(lab.live.take_changes(), []);
    assert_eq!(lab.live.next_due(), Some(lab.now), "the new check is not the old one");
}

#[test]
fn a_change_names_what_the_log_needs() {
    let mut live = Live::new(0);
    let http = HealthCheck { kind: CheckKind::Http { path: "/".into() }, ..tcp(ms(10), 1, 2) };
    live.apply(&blocks(&[checked("web", &["192.0.2.1:80"], http)]), ms(0));
    let mut results = [false, false, false, true].into_iter().zip(1..).filter_map(|(success, step)| {
        let due = live.start_due(ms(step * 100)).unwrap();
        live.finished(due.id, success, ms(step * 100))
    });
    let change = |transition, failures| Change {
        service: ServiceKey { name: ObjectName::new("static", "web").unwrap(), source: Source::Config },
        backend: "192.0.2.1:80".parse().unwrap(),
        transition,
        check: "http",
        failures,
    };
    assert_eq!(results.next(), Some(change(Transition::Unready, 2)));
    assert_eq!(results.next(), Some(change(Transition::Ready, 3)));
    assert_eq!(results.next(), None);
}

/// What may happen to three services of up to four backends.
#[derive(Clone, Debug)]
enum Step {
    Reload(Vec<(u8, Vec<u8>, u8, u8)>),
    Turn(u8),
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let service = (0..3_u8, prop::collection::vec(0..4_u8, 0..5), 0..3_u8, 0..2_u8);
    prop_oneof![
        2 => prop::collection::vec(service, 0..4).prop_map(Step::Reload),
        2 => (0..4_u8).prop_map(Step::Turn),
        4 => (0..3_000_u64).prop_map(Step::Pass),
    ]
}

fn address(backend: u8) -> SocketAddr {
    // Two ports and two families, so that backends move between slices of one service.
    ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.1:81", "[2001:db8::1]:80"][usize::from(backend)]
        .parse()
        .unwrap()
}

fn services(rows: &[(u8, Vec<u8>, u8, u8)]) -> Vec<StaticService> {
    let by_name: BTreeMap<_, _> = rows.iter().map(|row| (row.0, row)).collect();
    let service = |(name, backends, check, frontend): &(u8, Vec<u8>, u8, u8)| StaticService {
        backends: backends.iter().copied().map(address).collect(),
        health_check: match check {
            0 => None,
            1 => Some(tcp(ms(500), 1, 2)),
            _ => Some(tcp(ms(300), 2, 1)),
        },
        ..block(&format!("s{name}"), &[&format!("10.96.0.{frontend}:80")], &[])
    };
    by_name.into_values().map(service).collect()
}

/// What a reader knows that has applied every event.
#[derive(Default)]
struct Reader {
    services: BTreeMap<ServiceKey, Event>,
    slices: BTreeMap<SliceKey, Arc<SliceFacts>>,
}

impl Reader {
    fn read(&mut self, group: Vec<Event>) {
        for event in group {
            match event {
                Event::ServiceApplied(ref facts) => drop(self.services.insert(facts.key.clone(), event)),
                Event::SliceApplied(facts) => drop(self.slices.insert(facts.key.clone(), facts)),
                Event::ServiceDeleted(key, _) => assert!(self.services.remove(&key).is_some()),
                Event::SliceDeleted(key, _) => assert!(self.slices.remove(&key).is_some()),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Services and slices as a fresh start with the same verdicts would send them.
    fn check(&self, live: &Live, last: &Blocks) {
        let services: Vec<_> =
            last.iter().map(|(_, block)| Event::ServiceApplied(Arc::clone(&block.service))).collect();
        assert_eq!(self.services.values().cloned().collect::<Vec<_>>(), services);
        let slices = live.standing.values().flat_map(|standing| standing.slices(&live.checks));
        let slices: BTreeMap<_, _> = slices.collect();
        assert!(slices.keys().eq(self.slices.keys()));
        assert!(slices.iter().all(|(key, facts)| same_but_meta(facts, &self.slices[key])));
        let checked = last.iter().filter(|(_, block)| block.check.is_some());
        assert_eq!(live.checks.len(), checked.map(|(_, block)| block.backends().count()).sum::<usize>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_row_of_reloads_and_verdicts_leaves_the_reader_with_the_truth(
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let (mut lab, mut reader, mut last) = (Lab::new(), Reader::default(), Blocks::default());
        for step in steps {
            match step {
                Step::Reload(rows) => {
                    last = blocks(&services(&rows));
                    reader.read(lab.live.apply(&last, lab.now));
                }
                Step::Turn(backend) => {
                    let backend = address(backend);
                    if !lab.dead.remove(&backend) {
                        lab.dead.insert(backend);
                    }
                }
                Step::Pass(time) => {
                    let end = lab.now + ms(time);
                    lab.run_until(end).into_iter().for_each(|(_, group)| reader.read(group));
                }
            }
            reader.check(&lab.live, &last);
        }
        let end = lab.now + ms(10_000);
        lab.run_until(end).into_iter().for_each(|(_, group)| reader.read(group));
        reader.check(&lab.live, &last);
        for checked in lab.live.checks.values() {
            prop_assert_eq!(checked.health.ready(), !lab.dead.contains(&checked.backend));
        }
    }
}
