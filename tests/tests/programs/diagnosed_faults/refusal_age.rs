//! The age of a refusal in `status`, and its line in the journal, while clients from outside are refused all the time.

use holdfast_fixtures::clock;
use holdfast_tests::bed::daemon::Daemon;

use super::cases::DEAD_POD;
use super::setup::{self, Datapath, Stage};

/// How many times of a refusal are awaited, each after the one before.
const TIMES: usize = 8;

/// When the last client was refused at the node port, as `status` says it.
fn last_refusal(daemon: &Daemon<'_>) -> Option<String> {
    let (_, said) = setup::answer(daemon, &["status"]);
    let line = said.lines().find(|it| it.contains("10.1.0.3:8080 refused clients of 192.0.2.1:30080/TCP"))?;
    line.split_whitespace().find(|word| word.ends_with('Z')).map(str::to_owned)
}

#[test]
fn kernel_the_time_of_the_last_refusal_stays_new_and_one_line_tells_of_all() {
    let stage = Stage::new();
    let mut daemon = stage.daemon(&DEAD_POD, Datapath::Kernel);
    let _held = stage.bring_about(&DEAD_POD, &mut daemon, Datapath::Kernel);
    let mut times = Vec::new();
    while times.len() < TIMES {
        let next =
            clock::wait_for("a later refusal", || last_refusal(&daemon).filter(|it| times.last() < Some(it)));
        times.push(next);
    }
    let logged = daemon.logged();
    let begun: Vec<_> = logged.lines().filter(|line| line.contains("WARN backends fail clients")).collect();
    let [line] = begun.as_slice() else { panic!("{logged}") };
    assert!(line.contains("service=shop/web backend=10.1.0.3:8080 how=\"refused clients\""), "{line}");
    daemon.stop().unwrap();
}
