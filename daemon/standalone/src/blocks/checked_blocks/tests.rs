//! Reloads and verdicts in simulated time.

use expect_test::expect;
use holdfast_core::keys::{Source, Transport};
use holdfast_core::weights::Weight;
use holdfast_status::rfc3339::Millis;
use holdfast_status::views::checks::{CheckResult, CheckStatus};
use proptest::prelude::*;

use super::super::check::CheckError;
use super::super::tests::{block, blocks, show};
use super::super::{CheckKind, HttpCheck, StaticService};
use super::*;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn tcp(interval: Duration, rise: u32, fall: u32) -> HealthCheck {
    HealthCheck { interval, timeout: ms(500), rise, fall, ..HealthCheck::default() }
}

fn http(path: &str, check: &HealthCheck) -> HealthCheck {
    HealthCheck {
        kind: CheckKind::Http(HttpCheck { path: path.into(), ..HttpCheck::default() }),
        ..check.clone()
    }
}

fn checked(name: &str, backends: &[&str], check: HealthCheck) -> StaticService {
    StaticService { health_check: Some(check), ..block(name, &["10.96.0.10:80"], backends) }
}

/// The outcome of a check by the backend's health.
fn of(is_well: Option<bool>) -> CheckOutcome {
    let result = match is_well {
        Some(true) => Ok(()),
        Some(false) => Err(CheckError::Closed),
        None => Err(CheckError::NotAsked),
    };
    CheckOutcome::new(&result, Millis(1_000), ms(1))
}

/// A [`CheckedBlocks`] with simulated backends: those in `dead` fail every check at once.
struct Lab {
    live: CheckedBlocks,
    now: Duration,
    dead: BTreeSet<SocketAddr>,
    /// The checks with their times.
    asked: Vec<(SocketAddr, Duration)>,
}

impl Lab {
    fn new() -> Self {
        Self {
            live: CheckedBlocks::new(7, Arc::default(), ConcurrencyLimits::MAX),
            now: Duration::ZERO,
            dead: BTreeSet::new(),
            asked: Vec::new(),
        }
    }

    fn kill(&mut self, backend: &str) {
        self.dead.insert(backend.parse().unwrap());
    }

    fn apply(&mut self, services: &[StaticService]) -> String {
        show(&self.live.apply_blocks(&blocks(services), self.now))
    }

    /// Runs every check until `end`; returns each group with its time.
    fn run_until(&mut self, end: Duration) -> Vec<(Duration, Vec<Event>)> {
        let mut groups = Vec::new();
        while let Some(due) = self.live.next_due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            while let Some(due) = self.live.start_due(self.now) {
                self.asked.push((due.backend, self.now));
                self.live.finish_check(due.id, of(Some(!self.dead.contains(&due.backend))), self.now);
            }
            groups.push((self.now, self.live.take_changes(self.now)));
        }
        self.now = end;
        groups.retain(|(_, group)| !group.is_empty());
        groups
    }

    /// When this backend was checked after some time.
    fn asked_after(&self, backend: &str, time: Duration) -> Vec<Duration> {
        let backend = backend.parse().unwrap();
        let asked = self.asked.iter().filter(|(asked, at)| *asked == backend && *at >= time);
        asked.map(|(_, at)| *at).collect()
    }

    /// Whether the next check is a new one.
    fn asks_soon(&self) -> bool {
        self.live.next_due().is_some_and(|due| due < self.now + FIRST_INTERVAL_MAX)
    }

    fn shown_until(&mut self, end: Duration) -> String {
        self.run_until(end).iter().map(|(_, group)| show(group)).collect()
    }
}

#[test]
fn readers_see_the_last_check_of_each_backend() {
    let mut lab = Lab::new();
    let shown = Arc::clone(&lab.live.stats);
    let seen = |name| -> Vec<_> {
        let seen = shown.service_checks(&ObjectName::new("static", name).unwrap());
        let told = |(backend, it): (SocketAddr, CheckStatus)| {
            let last = it.last.map(|last| (last.result.0, last.error, last.in_a_row));
            (backend.port(), it.kind, it.usable, last)
        };
        seen.into_iter().map(told).collect()
    };
    let check = tcp(ms(60_000), 2, 3);
    lab.kill("192.0.2.1:82");
    lab.apply(&[checked("web", &["192.0.2.1:81", "192.0.2.1:82"], check.clone())]);
    assert_eq!(seen("web"), [(81, "tcp", true, None), (82, "tcp", true, None)]);
    lab.run_until(ms(1_000));
    let bad = Some((CheckResult::Bad, Some(CheckError::Closed.to_string()), 3));
    let good = Some((CheckResult::Good, None, 1));
    assert_eq!(seen("web"), [(81, "tcp", true, good), (82, "tcp", false, bad.clone())]);
    lab.apply(&[checked("web", &["192.0.2.1:82"], http("/", &check))]);
    assert_eq!(seen("web"), [(82, "http", false, bad)], "a reload forgets what left, and nothing else");
    lab.apply(&[block("web", &["10.96.0.10:80"], &["192.0.2.1:82"])]);
    assert_eq!(seen("web"), []);
    lab.apply(&[checked("web", &["192.0.2.1:82"], check)]);
    lab.apply(&[]);
    assert_eq!(seen("web"), []);
}

#[test]
fn a_dead_backend_is_found_soon_however_long_the_interval() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.2:80");
    lab.apply(&[checked("web", &["192.0.2.1:80", "192.0.2.2:80"], tcp(Duration::from_secs(600), 2, 3))]);
    let groups = lab.run_until(Duration::from_secs(599));
    let [(at, group)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(180)..=ms(320)).contains(at), "three checks, a tenth of a second apart: {at:?}");
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 ready 192.0.2.2 unready, holdfast.toml by health-check
    "#]].assert_eq(&show(group));
}

#[test]
fn an_unready_backend_is_checked_at_its_interval() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(Duration::from_secs(60), 2, 1))]);
    lab.run_until(ms(100));
    lab.dead.clear();
    let groups = lab.run_until(Duration::from_secs(600));
    let [(at, _)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(54_000)..=ms(126_100)).contains(at), "two successes, a minute apart: {at:?}");
}

#[test]
fn backends_that_turn_together_re_apply_their_slice_once() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.kill("192.0.2.3:80");
    let backends = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "192.0.2.4:81"];
    lab.apply(&[checked("web", &backends, tcp(ms(100), 1, 1))]);
    lab.now = ms(100);
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 unready 192.0.2.2 ready 192.0.2.3 unready, holdfast.toml by health-check
    "#]].assert_eq(&lab.shown_until(ms(100)));
}

#[test]
fn an_unchanged_reload_sends_nothing_and_moves_no_check() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    let web = checked("web", &["192.0.2.1:80", "192.0.2.2:80"], tcp(ms(1_000), 1, 1));
    lab.apply(std::slice::from_ref(&web));
    lab.run_until(ms(100));
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
    let before = lab.live.next_due();

    let more = ["192.0.2.3:80", "192.0.2.1:80", "192.0.2.1:81"];
    expect![[r#"
        slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.3 ready 192.0.2.1 unready, holdfast.toml by file
        slice static/web-v4-81 of web V4 http TCP 81: 192.0.2.1 ready, holdfast.toml by file
    "#]]
    .assert_eq(&lab.apply(&[checked("web", &more, check)]));
    assert!(lab.asks_soon(), "new backends are checked soon");
    lab.run_until(ms(10_000));
    let known = lab.asked_after("192.0.2.1:80", ms(1_500))[0];
    assert!(Some(known) >= before && known <= ms(1_500) + ms(1_100), "known ones at their time");
}

#[test]
fn a_changed_check_keeps_the_verdict_and_runs_soon() {
    let mut lab = Lab::new();
    lab.kill("192.0.2.1:80");
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1))]);
    lab.run_until(ms(100));
    assert_eq!(lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(60_000), 2, 1))]), "");
    assert!(lab.asks_soon());
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
fn a_removed_block_removes_its_slices_and_checks() {
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
fn a_result_of_a_removed_check_changes_nothing() {
    let mut lab = Lab::new();
    let web = checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1));
    lab.apply(std::slice::from_ref(&web));
    lab.now = ms(100);
    let late = lab.live.start_due(lab.now).unwrap();
    lab.apply(&[]);
    lab.apply(std::slice::from_ref(&web));
    assert_eq!(lab.live.finish_check(late.id, of(Some(false)), lab.now), None);
    assert_eq!(lab.live.take_changes(lab.now), []);
    assert!(lab.asks_soon(), "the new check is not the old one");
}

/// A reload that fixes the check must not apply results of the old one.
#[test]
fn a_check_that_a_reload_changes_while_it_runs_proves_nothing() {
    let mut lab = Lab::new();
    let web = |path| checked("web", &["192.0.2.1:80"], http(path, &tcp(ms(60_000), 1, 1)));
    lab.apply(&[web("/old")]);
    lab.now = ms(100);
    let old = lab.live.start_due(lab.now).unwrap();
    lab.apply(&[web("/new")]);
    assert_eq!(lab.live.start_due(lab.now).map(|due| due.id), None, "it still runs");
    assert_eq!(lab.live.finish_check(old.id, of(Some(false)), lab.now), None);
    assert_eq!(lab.live.take_changes(lab.now), []);
    let new = lab.live.start_due(lab.now).expect("checked again at once");
    assert!(matches!(&new.check.kind, CheckKind::Http(asked) if asked.path == "/new"));
    assert_eq!(
        lab.live.finish_check(new.id, of(Some(false)), lab.now).unwrap().transition,
        Transition::Unready
    );
}

/// Unreadable files say nothing about a backend, and must not speed up its checks.
#[test]
fn a_check_that_could_not_run_proves_nothing() {
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 1))]);
    let mut asked = 0;
    while let Some(due) = lab.live.next_due().filter(|due| *due < ms(20_000)) {
        let started = lab.live.start_due(due).unwrap();
        assert_eq!(lab.live.finish_check(started.id, of(None), due), None);
        asked += 1;
    }
    assert!((17..=24).contains(&asked), "{asked} times in 20 s");
    assert_eq!(lab.live.take_changes(lab.now), []);
}

/// Any user of this node can exhaust its ports and files.
#[test]
fn a_local_error_changes_no_count_of_checks() {
    let error = |number| std::io::Error::from_raw_os_error(number);
    let bad = || CheckOutcome::new(&Err(CheckError::Closed), Millis(1_000), ms(1));
    let unable = |number| CheckOutcome::new(&Err(CheckError::Unable(error(number))), Millis(1_000), ms(1));
    let no_route =
        || CheckOutcome::new(&Err(CheckError::NoRoute(error(nix::libc::ENETUNREACH))), Millis(1_000), ms(1));
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 3))]);
    let outcomes = [
        (bad(), false),
        (bad(), false),
        (unable(nix::libc::EMFILE), false),
        (unable(nix::libc::EADDRNOTAVAIL), false),
        (no_route(), false),
        (bad(), true),
    ];
    for (position, (outcome, turns)) in outcomes.into_iter().enumerate() {
        let due = lab.live.next_due().unwrap();
        let started = lab.live.start_due(due).unwrap();
        assert_eq!(lab.live.finish_check(started.id, outcome, due).is_some(), turns, "{position}");
    }
    let totals: Vec<_> = lab.live.stats.totals().map(|(_, count)| count).collect();
    assert_eq!(totals, [0, 3, 3]);
}

/// A node without a route to any backend should not get clients.
#[test]
fn a_lasting_route_loss_makes_a_backend_unusable() {
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(1_000), 1, 3))]);
    loop {
        let due = lab.live.next_due().unwrap();
        let started = lab.live.start_due(due).unwrap();
        let error = std::io::Error::from_raw_os_error(nix::libc::ENETUNREACH);
        let outcome = CheckOutcome::new(&Err(CheckError::NoRoute(error)), Millis(1_000), ms(1));
        if lab.live.finish_check(started.id, outcome, due).is_some() {
            assert!((ms(10_000)..ms(13_000)).contains(&due), "{due:?}");
            return;
        }
        assert!(due < ms(20_000), "it stays usable");
    }
}

/// The backend that is down below.
const DOWN: &str = "192.0.2.1:80";

/// Runs checks until a backend turns, or up to a limit.
fn ask_until_it_turns(lab: &mut Lab, most: usize) -> (usize, bool) {
    let asked_before = lab.asked_after(DOWN, Duration::ZERO).len();
    loop {
        let due = lab.live.next_due().unwrap();
        let has_turned = !lab.run_until(due).is_empty();
        let asked = lab.asked_after(DOWN, Duration::ZERO).len() - asked_before;
        if has_turned || asked == most {
            return (asked, has_turned);
        }
    }
}

/// Checks how many failed checks take a backend down after the last of these reloads; before each other one it had two.
#[track_caller]
fn check_falls(rule: &str, reloads: &[StaticService], expected: usize) {
    let mut lab = Lab::new();
    lab.kill(DOWN);
    let (last, before) = reloads.split_last().unwrap();
    for service in before {
        lab.apply(std::slice::from_ref(service));
        assert_eq!(ask_until_it_turns(&mut lab, 2), (2, false), "{rule}");
    }
    lab.apply(std::slice::from_ref(last));
    assert_eq!(ask_until_it_turns(&mut lab, 9), (expected, true), "{rule}");
}

#[test]
fn nothing_marks_a_backend_down_before_fall_bad_checks() {
    let down = [DOWN];
    let both = ["192.0.2.9:80", DOWN];
    let web = |backends: &[&str], path| checked("web", backends, http(path, &tcp(ms(1_000), 1, 3)));
    check_falls("a start", &[web(&down, "/")], 3);
    check_falls("a start beside others", &[web(&both, "/")], 3);
    check_falls("a reload that changes nothing", &[web(&down, "/"), web(&down, "/")], 1);
    check_falls("a reload with another backend", &[web(&down, "/"), web(&both, "/")], 1);
    check_falls("a reload with another check", &[web(&down, "/"), web(&down, "/healthz")], 3);
}

/// However many backends turn at once, each turn sends their slice once, with the right readiness.
#[test]
fn flapping_backends_are_reported_once_per_turn() {
    let backends: Vec<String> = (1..=200).map(|n| format!("192.0.2.{n}:80")).collect();
    let names: Vec<&str> = backends.iter().map(String::as_str).collect();
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &names, tcp(ms(100), 1, 1))]);
    for turn in 0..20 {
        lab.dead.clear();
        if turn % 2 == 0 {
            names.iter().for_each(|backend| lab.kill(backend));
        }
        let until = lab.now + ms(250);
        let groups = lab.run_until(until);
        assert!(groups.iter().all(|(_, group)| group.len() == 1), "{turn}");
        let last = show(&groups.last().unwrap().1);
        assert_eq!(last.matches(" unready").count(), lab.dead.len(), "{turn}: {last}");
    }
}

/// Of many checks that start together, no moment gets more than its share, neither at first nor later.
#[test]
fn checks_that_start_together_spread() {
    let backends: Vec<String> =
        (0..1_000).map(|n| format!("192.0.{}.{}:80", 2 + n / 250, 1 + n % 250)).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &backends, tcp(ms(5_000), 2, 3))]);
    lab.run_until(ms(15_000));
    let most = |from: u64, to: u64, width: u64| {
        let within =
            |begin: u64| move |at: &&(SocketAddr, Duration)| (ms(begin)..ms(begin + width)).contains(&at.1);
        (from..to).step_by(10).map(|begin| lab.asked.iter().filter(within(begin)).count()).max().unwrap()
    };
    assert!(most(0, 100, 10) < 150, "{} in 10 ms of the first 100", most(0, 100, 10));
    assert!(most(100, 15_000, 500) < 180, "{} in half a second", most(100, 15_000, 500));
}

/// A backend's weights in the groups, one per sent service.
fn weights_in(groups: &[(Duration, Vec<Event>)], backend: &str) -> Vec<u16> {
    let services = groups.iter().flat_map(|(_, group)| group).filter_map(|event| match event {
        Event::ServiceApplied(facts) => Some(facts),
        _ => None,
    });
    let backend = backend.parse().unwrap();
    let weight = |facts: &Arc<ServiceFacts>| facts.weights.as_ref()?.weights.find_weight(backend, None);
    services.map(|facts| weight(facts).unwrap_or(Weight::ONE).number()).collect()
}

fn slowly(names: &[&str]) -> StaticService {
    let check = HealthCheck { slow_start: Some(ms(30_000)), ..tcp(ms(1_000), 1, 1) };
    checked("web", names, check)
}

#[test]
fn a_backend_that_returns_gets_its_weight_in_ten_steps() {
    let mut lab = Lab::new();
    lab.kill(DOWN);
    lab.apply(&[slowly(&[DOWN, "192.0.2.2:80"])]);
    assert_eq!(weights_in(&lab.run_until(ms(20_000)), DOWN), [0; 0], "a start is no return");
    lab.dead.clear();
    let groups = lab.run_until(ms(60_000));
    assert_eq!(weights_in(&groups, DOWN), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]);
    assert_eq!(weights_in(&groups, "192.0.2.2:80"), [10, 10, 10, 10, 10, 10, 10, 10, 10, 1]);
    let [(first, events), .., (last, end)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(24_000)..=ms(30_000)).contains(&(*last - *first)), "{:?}", *last - *first);
    assert!(
        matches!(&events[..], [Event::ServiceApplied(_), Event::SliceApplied(_)]),
        "weights come first: {events:?}"
    );
    let [Event::ServiceApplied(whole)] = &end[..] else { panic!("{end:?}") };
    assert_eq!(whole.weights, None, "as the block says");
    assert_eq!(lab.run_until(ms(90_000)), []);
    assert_eq!(lab.apply(&[slowly(&[DOWN, "192.0.2.2:80"])]), "", "an unchanged reload sends nothing");
}

/// However many backends return, and whenever, the service is sent at most once per step.
#[test]
fn backends_that_return_at_different_times_step_together() {
    let backends: Vec<String> = (1..=200).map(|n| format!("192.0.2.{n}:80")).collect();
    let names: Vec<&str> = backends.iter().map(String::as_str).collect();
    let mut lab = Lab::new();
    names.iter().for_each(|backend| lab.kill(backend));
    lab.apply(&[slowly(&names)]);
    lab.run_until(ms(10_000));
    lab.dead.clear();
    let groups = lab.run_until(ms(10_000 + 60_000));
    let services =
        |group: &&(Duration, Vec<Event>)| matches!(group.1.first(), Some(Event::ServiceApplied(_)));
    let steps = groups.iter().filter(services).filter(|(_, group)| group.len() == 1).count();
    assert!((9..=11).contains(&steps), "{steps}");
    let turned =
        groups.iter().filter(|(_, group)| group.iter().any(|it| matches!(it, Event::SliceApplied(_))));
    assert!(turned.count() > 20, "they return one by one");
}

#[test]
fn a_slow_start_ends_with_its_backend_check_or_service() {
    let names = [DOWN, "192.0.2.2:80"];
    let returned = || {
        let mut lab = Lab::new();
        lab.kill(DOWN);
        lab.apply(&[slowly(&names)]);
        lab.run_until(ms(10_000));
        lab.dead.clear();
        assert_eq!(weights_in(&lab.run_until(ms(20_000)), DOWN).first(), Some(&1));
        lab
    };
    let mut lab = returned();
    lab.kill(DOWN);
    let groups = lab.run_until(ms(40_000));
    assert_eq!(weights_in(&groups, "192.0.2.2:80").last(), Some(&1), "it is gone again: {groups:?}");
    lab.dead.clear();
    assert_eq!(weights_in(&lab.run_until(ms(45_000)), DOWN).first(), Some(&1), "and starts over");

    let mut lab = returned();
    let at_once = checked("web", &names, tcp(ms(1_000), 1, 1));
    assert!(lab.apply(std::slice::from_ref(&at_once)).starts_with("service static/web "));
    assert_eq!(weights_in(&lab.run_until(ms(60_000)), DOWN), [0; 0], "no slow start is asked for any more");

    let mut lab = returned();
    assert_eq!(lab.apply(&[slowly(&names)]), "", "a reload does not end it");
    assert_eq!(weights_in(&lab.run_until(ms(60_000)), DOWN).last(), Some(&1));

    let mut lab = returned();
    lab.apply(&[]);
    assert_eq!(lab.run_until(ms(60_000)), [], "its service is gone");
    assert_eq!(lab.live.next_due(), None);
}

#[test]
fn a_change_has_the_fields_for_the_log() {
    let mut live = CheckedBlocks::new(0, Arc::default(), ConcurrencyLimits::MAX);
    live.apply_blocks(&blocks(&[checked("web", &["192.0.2.1:80"], http("/", &tcp(ms(10), 1, 2)))]), ms(0));
    let mut results = [false, false, false, true].into_iter().zip(1..).filter_map(|(success, step)| {
        let due = live.start_due(ms(step * 100)).unwrap();
        live.finish_check(due.id, of(Some(success)), ms(step * 100))
    });
    let change = |transition, failures, error: Option<CheckError>| HealthChange {
        service: ServiceKey { name: ObjectName::new("static", "web").unwrap(), source: Source::Config },
        backend: "192.0.2.1:80".parse().unwrap(),
        transition,
        check: "http",
        failures,
        error: error.map(|error| error.to_string()),
    };
    assert_eq!(results.next(), Some(change(Transition::Unready, 2, Some(CheckError::Closed))));
    assert_eq!(results.next(), Some(change(Transition::Ready, 3, None)));
    assert_eq!(results.next(), None);
}

/// A refusal by this backend of a client of this frontend, last seen at this second.
fn refusing(frontend: &str, backend: &str, second: u32) -> BackendRefusals {
    let (frontend, backend) = (frontend.parse().unwrap(), backend.parse().unwrap());
    let (share, transport) = (holdfast_core::op::QuotaId::default(), Transport::Tcp);
    BackendRefusals::from([(
        holdfast_status::datapath::BackendRefusal { quota: share, frontend, transport, backend },
        second,
    )])
}

const FRONTEND: &str = "10.96.0.10:80";

#[test]
fn a_backend_that_refuses_clients_is_rechecked_at_once() {
    let mut lab = Lab::new();
    let check = tcp(ms(600_000), 2, 3);
    lab.apply(&[checked("web", &["192.0.2.1:80", "192.0.2.2:80"], check)]);
    assert_eq!(lab.run_until(ms(10_000)), []);
    lab.kill("192.0.2.1:80");
    assert_eq!(lab.live.recheck_refused(&refusing(FRONTEND, "192.0.2.1:80", 1), lab.now), 1);
    let groups = lab.run_until(ms(11_000));
    let [(at, group)] = &groups[..] else { panic!("{groups:?}") };
    assert!((ms(10_180)..=ms(10_230)).contains(at), "three checks, a tenth of a second apart: {at:?}");
    assert!(show(group).contains("192.0.2.1 unready 192.0.2.2 ready"), "{}", show(group));
    assert!(lab.asked_after("192.0.2.2:80", ms(10_000)).is_empty(), "the other one has refused no client");

    lab.dead.clear();
    assert_eq!(
        lab.live.recheck_refused(&refusing(FRONTEND, "192.0.2.1:80", 2), lab.now),
        0,
        "it is for the checks to raise it"
    );
    assert_eq!(lab.run_until(ms(12_000)), []);
}

#[test]
fn clients_cause_at_most_one_recheck_per_interval() {
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(10_000), 2, 3))]);
    lab.run_until(ms(20_000));
    let in_turn = lab.asked_after("192.0.2.1:80", ms(10_000)).len();
    for second in 20..120 {
        lab.live.recheck_refused(&refusing(FRONTEND, "192.0.2.1:80", second), lab.now);
        assert_eq!(lab.run_until(ms(u64::from(second + 1) * 1_000)), []);
    }
    let asked = lab.asked_after("192.0.2.1:80", ms(20_000)).len();
    assert!((19..=22).contains(&asked) && in_turn <= 2, "{asked}");
}

#[test]
fn a_refusal_rechecks_no_backend_of_another_service() {
    let mut lab = Lab::new();
    let other = StaticService {
        frontends: vec!["10.96.0.11:80".parse().unwrap()],
        ..checked("web-", &["192.0.2.1:80"], tcp(ms(600_000), 2, 3))
    };
    lab.apply(&[other]);
    lab.run_until(ms(10_000));
    for (frontend, backend) in
        [(FRONTEND, "192.0.2.1:80"), ("10.96.0.11:81", "192.0.2.1:80"), ("10.96.0.11:80", "192.0.2.2:80")]
    {
        assert_eq!(
            lab.live.recheck_refused(&refusing(frontend, backend, 1), lab.now),
            0,
            "{frontend} {backend}"
        );
    }
    assert_eq!(lab.live.recheck_refused(&refusing("10.96.0.11:80", "192.0.2.1:80", 2), lab.now), 1);
}

/// Two regular failures make it unready, despite a good recheck in between.
#[test]
fn a_good_recheck_raises_nothing() {
    let mut lab = Lab::new();
    lab.apply(&[checked("web", &["192.0.2.1:80"], tcp(ms(10_000), 1, 2))]);
    lab.run_until(ms(20_000));
    lab.kill("192.0.2.1:80");
    let before = lab.asked.len();
    while lab.asked.len() == before {
        let next = lab.now + ms(100);
        assert_eq!(lab.run_until(next), []);
    }
    lab.dead.clear();
    assert_eq!(lab.live.recheck_refused(&refusing(FRONTEND, "192.0.2.1:80", 1), lab.now), 1);
    let next = lab.now + ms(1_000);
    lab.run_until(next);
    assert_eq!(lab.asked.len(), before + 2);
    lab.kill("192.0.2.1:80");
    let next = lab.now + ms(11_000);
    assert!(lab.shown_until(next).contains("192.0.2.1 unready"));
}

/// The steps of three services with up to four backends.
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

/// The state of a reader that has applied every event.
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

    /// The services and slices that a fresh start with the same verdicts would send.
    fn check(&self, live: &CheckedBlocks, last: &Blocks) {
        let services: Vec<_> =
            last.iter().map(|(_, block)| Event::ServiceApplied(Arc::clone(&block.service))).collect();
        assert_eq!(self.services.values().cloned().collect::<Vec<_>>(), services);
        let slices = live.blocks.values().flat_map(|standing| standing.build_slices(&live.checks));
        let slices: BTreeMap<_, _> = slices.collect();
        assert!(slices.keys().eq(self.slices.keys()));
        assert!(slices.iter().all(|(key, facts)| is_same_slice(facts, &self.slices[key])));
        let unusable = live.checks.values().filter(|checked| !checked.health.is_ready()).count();
        assert_eq!((live.usable(), live.unusable()), (live.checks.len() - unusable, unusable));
        let checked = last.iter().filter(|(_, block)| block.check.is_some());
        assert_eq!(live.checks.len(), checked.map(|(_, block)| block.backends().count()).sum::<usize>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn reloads_and_verdicts_in_any_order_leave_readers_consistent(
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let (mut lab, mut reader, mut last) = (Lab::new(), Reader::default(), Blocks::default());
        for step in steps {
            match step {
                Step::Reload(rows) => {
                    last = blocks(&services(&rows));
                    reader.read(lab.live.apply_blocks(&last, lab.now));
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
            prop_assert_eq!(checked.health.is_ready(), !lab.dead.contains(&checked.backend));
        }
    }
}
