//! The age of a refusal in `status`, and its line in the journal, while clients from outside are refused all the time.

use std::time::{Duration, Instant};

use holdfast_tests::bed::daemon::Daemon;

use super::cases::DEAD_POD;
use super::setup::{self, Datapath, Stage};

const SOON: Duration = Duration::from_secs(30);

/// Longer than a pass of the flow table at its usual pace, which would show older and older times.
const WATCHED: Duration = Duration::from_secs(12);

/// The usual age in seconds: the sweep and the reading of it take a second each, and the time is in whole seconds. At
/// the sweep's usual pace it is five. A machine that is busy with other things makes some ages older.
const AGE_USUAL: u64 = 3;

/// How many seconds ago the last client was refused at the node port, as `status` says it.
fn refusal_age(daemon: &Daemon<'_>) -> Option<u64> {
    let (_, said) = setup::answer(daemon, &["status"]);
    let line = said.lines().find(|it| it.contains("10.1.0.3:8080 refused clients of 192.0.2.1:30080/TCP"))?;
    let (_, age) = line.split_once("Z (")?;
    let age = age.trim_end_matches(')');
    if age == "now" { Some(0) } else { age.strip_suffix(" s ago")?.parse().ok() }
}

#[test]
fn kernel_the_time_of_the_last_refusal_stays_new_and_one_line_tells_of_all() {
    let stage = Stage::new();
    let mut daemon = stage.daemon(&DEAD_POD, Datapath::Kernel);
    let _held = stage.bring_about(&DEAD_POD, &mut daemon, Datapath::Kernel);
    let begun = Instant::now();
    while refusal_age(&daemon).is_none() {
        assert!(begun.elapsed() < SOON, "{}", daemon.logged());
        std::thread::sleep(Duration::from_millis(100));
    }
    let begun = Instant::now();
    let mut ages = Vec::new();
    while begun.elapsed() < WATCHED {
        ages.extend(refusal_age(&daemon));
        std::thread::sleep(Duration::from_millis(200));
    }
    ages.sort_unstable();
    assert!(ages.get(ages.len() / 2).is_some_and(|median| *median <= AGE_USUAL), "{ages:?}");
    let logged = daemon.logged();
    let begun: Vec<_> = logged.lines().filter(|line| line.contains("WARN backends fail clients")).collect();
    let [line] = begun.as_slice() else { panic!("{logged}") };
    assert!(line.contains("service=shop/web backend=10.1.0.3:8080 how=\"refused clients\""), "{line}");
    daemon.stop().unwrap();
}
