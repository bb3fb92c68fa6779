//! The schedule in simulated time.

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(2);

/// Few enough to fill quickly.
const PLACES: ConcurrencyLimits = ConcurrencyLimits { prompt: 16, slow: 112 };

/// A simulated backend: its wait, and the duration of each check.
#[derive(Clone, Debug)]
struct Backend {
    wait: Duration,
    takes: Duration,
}

#[derive(Debug, Default)]
struct Trace {
    starts: BTreeMap<CheckId, Vec<Duration>>,
    at_once_max: usize,
}

impl Trace {
    /// The longest time between two starts of one of these checks, after `from`.
    fn longest_gap(&self, ids: std::ops::Range<u64>, from: Duration) -> Duration {
        let gaps = ids.flat_map(|id| self.starts[&CheckId(id)].windows(2).map(|pair| (pair[0], pair[1])));
        gaps.filter(|(before, _)| *before >= from).map(|(before, after)| after - before).max().unwrap()
    }
}

fn index(id: CheckId) -> usize {
    usize::try_from(id.0).unwrap()
}

/// Runs all backends from a common start, like a starting daemon.
fn simulate(backends: &[Backend], end: Duration) -> Trace {
    simulate_in(PLACES, backends, end)
}

fn simulate_in(places: ConcurrencyLimits, backends: &[Backend], end: Duration) -> Trace {
    let (mut schedule, mut trace) = (Schedule::new(places), Trace::default());
    let mut running = BTreeSet::new();
    let mut now = Duration::ZERO;
    (0..backends.len()).for_each(|id| schedule.set_due(CheckId(id as u64), now));
    while now <= end {
        while let Some(id) = schedule.start_due(now) {
            trace.starts.entry(id).or_default().push(now);
            assert!(running.insert((now + backends[index(id)].takes, id)), "{id:?} runs twice");
        }
        trace.at_once_max = trace.at_once_max.max(running.len());
        let finish = running.first().map(|(finish, _)| *finish);
        now = finish.into_iter().chain(schedule.next_due()).min().unwrap();
        while let Some((_, id)) = running.first().copied().filter(|(finish, _)| *finish <= now) {
            running.pop_first();
            schedule.finish_check(id, now, backends[index(id)].wait);
        }
    }
    trace
}

fn backends(count: usize, takes: Duration) -> impl Iterator<Item = Backend> {
    (0..count).map(move |id| Backend { wait: jitter_interval(INTERVAL, id as u64 * 7), takes })
}

#[track_caller]
fn check_hung(rule: &str, well: usize, hung: usize) {
    let answer = Duration::from_millis(5);
    let mut all: Vec<_> = backends(hung, Duration::from_secs(1)).collect();
    all.extend(backends(well, answer));
    let trace = simulate(&all, Duration::from_secs(60));
    let settled = Duration::from_secs(20);
    let queue = answer * u32::try_from(well.div_ceil(PLACES.prompt)).unwrap();
    let bound = INTERVAL * 11 / 10 + queue;
    let ids = hung as u64..(hung + well) as u64;
    let longest = trace.longest_gap(ids, settled);
    assert!(longest <= bound, "{rule}: {longest:?} > {bound:?}");
    assert!(trace.at_once_max <= PLACES.total(), "{rule}");
}

#[test]
fn a_hung_backend_delays_no_other() {
    check_hung("none hangs", 500, 0);
    check_hung("one hangs", 500, 1);
    check_hung("as many hang as there are slow places", 500, PLACES.slow);
    check_hung("as many hang as there are places", 500, PLACES.total());
    check_hung("far more hang than there are places", 500, 1000);
    check_hung("one is well", 1, 1000);
}

/// 10,000 backends that hang at once, checked every 5 s with a timeout of 1 s.
#[test]
fn ten_thousand_hung_backends_delay_checks_by_at_most_a_tenth() {
    let (interval, takes) = (Duration::from_secs(5), Duration::from_secs(1));
    let all = (0..10_000).map(|id| Backend { wait: jitter_interval(interval, id * 7), takes });
    let trace = simulate_in(ConcurrencyLimits::MAX, &all.collect::<Vec<_>>(), Duration::from_secs(40));
    let longest = trace.longest_gap(0..10_000, Duration::from_secs(10));
    assert!(longest <= interval * 12 / 10, "{longest:?}");
    let third = trace.starts.values().map(|starts| starts[2]).max().unwrap();
    // All start together, and move to slow slots by 512 per quarter second.
    assert!(third <= interval * 2 * 12 / 10 + takes + Duration::from_secs(5), "{third:?}");
    assert!(trace.at_once_max <= ConcurrencyLimits::MAX.total());
}

/// A check that hangs for the first time holds a prompt slot, and leaves it while it runs.
#[test]
fn a_hanging_check_leaves_its_prompt_slot() {
    let mut schedule = Schedule::new(PLACES);
    (0..=PLACES.prompt as u64).for_each(|id| schedule.set_due(CheckId(id), ms(0)));
    while schedule.start_due(ms(10)).is_some() {}
    let freed = ms(10) + PROMPT_MAX;
    assert_eq!(schedule.next_due(), Some(freed));
    assert_eq!(schedule.start_due(freed - ms(1)), None);
    assert_eq!(schedule.start_due(freed), Some(CheckId(PLACES.prompt as u64)));
    assert_eq!(schedule.next_due(), None);
}

#[test]
fn slots_are_bounded_by_files_and_never_zero() {
    assert_eq!(ConcurrencyLimits::for_sockets(0), PLACES);
    assert_eq!(ConcurrencyLimits::for_sockets(1_000), ConcurrencyLimits { prompt: 125, slow: 875 });
    assert_eq!(ConcurrencyLimits::for_sockets(usize::MAX), ConcurrencyLimits::MAX);
    assert_eq!(ConcurrencyLimits::for_sockets(ConcurrencyLimits::MAX.total()), ConcurrencyLimits::MAX);
}

#[test]
fn hung_backends_share_slots_evenly() {
    let all: Vec<_> = backends(1000, Duration::from_secs(1)).collect();
    let trace = simulate(&all, Duration::from_secs(100));
    // After all of them have hung.
    let settled = Duration::from_secs(20);
    let counts = trace.starts.values().map(|starts| starts.iter().filter(|at| **at >= settled).count());
    let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
    assert!(least >= 6 && most - least <= 2, "from {least} to {most} checks");
}

fn any_backend() -> impl Strategy<Value = Backend> {
    let takes = prop_oneof![5 => 1..50_u64, 1 => 50..400_u64, 1 => 1_000..3_000_u64];
    (100..5_000_u64, takes).prop_map(|(wait, takes)| Backend {
        wait: Duration::from_millis(wait),
        takes: Duration::from_millis(takes),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_check_is_early_or_waits_longer_than_the_queue(
        all in prop::collection::vec(any_backend(), 1..400),
    ) {
        let trace = simulate(&all, Duration::from_secs(30));
        prop_assert!(trace.at_once_max <= PLACES.total());
        let longest = all.iter().map(|backend| backend.takes).max().unwrap();
        let turns = |places: usize| u32::try_from(all.len().div_ceil(places) + 2).unwrap();
        let queue = longest * turns(PLACES.slow) + longest.min(PROMPT_MAX) * turns(PLACES.prompt);
        for (id, starts) in &trace.starts {
            let Backend { wait, takes } = all[index(*id)];
            for gap in starts.windows(2).map(|pair| pair[1] - pair[0]) {
                prop_assert!(gap >= wait.max(takes), "{:?} is early: {:?}", id, gap);
                prop_assert!(gap <= wait.max(takes) + queue, "{:?} is late: {:?}", id, gap);
            }
        }
        prop_assert_eq!(trace.starts.len(), all.len(), "somebody never ran");
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn the_one_due_for_longest_starts_first() {
    let mut schedule = Schedule::new(PLACES);
    for (id, due) in [(1, 30), (2, 10), (3, 20), (4, 99)] {
        schedule.set_due(CheckId(id), ms(due));
    }
    assert_eq!(schedule.next_due(), Some(ms(10)));
    let started: Vec<_> = std::iter::from_fn(|| schedule.start_due(ms(50))).collect();
    assert_eq!(started, [2, 3, 1].map(CheckId));
    assert_eq!(schedule.next_due(), Some(ms(99)));
}

#[test]
fn an_earlier_due_time_replaces_the_one_before() {
    let mut schedule = Schedule::new(PLACES);
    schedule.set_due(CheckId(1), ms(900));
    schedule.set_due(CheckId(1), ms(10));
    assert_eq!(schedule.start_due(ms(10)), Some(CheckId(1)));
    assert_eq!(schedule.start_due(ms(1000)), None, "it waits only once");
}

#[test]
fn a_removed_check_keeps_its_slot_until_it_has_finished() {
    let mut schedule = Schedule::new(PLACES);
    (0..=PLACES.prompt as u64).for_each(|id| schedule.set_due(CheckId(id), ms(0)));
    while schedule.start_due(ms(0)).is_some() {}
    assert_eq!(schedule.next_due(), Some(PROMPT_MAX), "all places are taken until one hangs");
    schedule.remove(CheckId(0));
    assert_eq!(schedule.start_due(ms(1)), None, "its socket is still there");
    schedule.finish_check(CheckId(0), ms(2), ms(10));
    assert_eq!(schedule.start_due(ms(2)), Some(CheckId(PLACES.prompt as u64)));
    schedule.finish_check(CheckId(1), ms(3), ms(1_000));
    assert_eq!(schedule.next_due(), Some(ms(1_000)), "the removed one does not come back");
}

#[test]
fn a_removed_check_that_waits_never_starts() {
    let mut schedule = Schedule::new(PLACES);
    schedule.set_due(CheckId(1), ms(0));
    schedule.remove(CheckId(1));
    assert_eq!((schedule.next_due(), schedule.start_due(ms(9))), (None, None));
}

#[track_caller]
fn check_next(rule: &str, takes: u64, wait: u64, expected: u64) {
    let mut schedule = Schedule::new(PLACES);
    schedule.set_due(CheckId(1), ms(0));
    // Started late, as behind a queue: the delay is not made up for.
    assert_eq!(schedule.start_due(ms(100)), Some(CheckId(1)), "{rule}");
    schedule.finish_check(CheckId(1), ms(100 + takes), ms(wait));
    assert_eq!(schedule.next_due(), Some(ms(expected)), "{rule}");
}

#[test]
fn the_interval_counts_from_start_to_start() {
    check_next("prompt", 5, 1_000, 1_100);
    check_next("slow", 900, 1_000, 1_100);
    check_next("slower than the interval", 1_500, 1_000, 1_600);
}

#[test]
fn a_backend_that_replies_again_leaves_the_slow_lane() {
    let mut schedule = Schedule::new(PLACES);
    (0..=PLACES.slow as u64).for_each(|id| schedule.set_due(CheckId(id), ms(0)));
    let mut now = ms(0);
    while let Some(due) = schedule.next_due() {
        now = due;
        while schedule.start_due(now).is_some() {}
    }
    now += ms(500);
    (0..=PLACES.slow as u64).for_each(|id| schedule.finish_check(CheckId(id), now, ms(500)));
    let started: Vec<_> = std::iter::from_fn(|| schedule.start_due(now)).collect();
    assert_eq!(started.len(), PLACES.slow, "one of the slow must wait");
    let then = now + ms(1);
    schedule.finish_check(CheckId(0), then, ms(1));
    assert_eq!(schedule.start_due(then), Some(CheckId(PLACES.slow as u64)));
    assert_eq!(schedule.start_due(then), Some(CheckId(0)), "it was prompt, so it needs no slow place");
}

#[test]
fn the_jitter_is_within_ten_percent_and_always_the_same() {
    let second = Duration::from_secs(1);
    let all: BTreeSet<_> = (0..10_000).map(|hash| jitter_interval(second, hash)).collect();
    assert_eq!(all.first(), Some(&ms(900)));
    assert_eq!(all.last(), Some(&ms(1_100)));
    assert_eq!(all.len(), 201);
    assert_eq!(jitter_interval(second, u64::MAX), jitter_interval(second, u64::MAX));
}
