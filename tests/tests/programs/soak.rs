//! Some seconds of what `make soak` does for any time.

use std::time::Duration;

use holdfast_tests::soak::{ReplaceReport, SoakBed, kill_again_and_again, replace_again_and_again};

#[test]
fn invariant_09_no_connect_fails_however_often_the_daemon_is_killed() {
    let lives = kill_again_and_again(&SoakBed::new().unwrap(), 1, Duration::from_secs(5), 1_000).unwrap();
    println!("{lives:?}");
    assert!(lives.lives >= 1 && lives.kills >= 6 && lives.growths >= 1, "{lives:?}");
}

#[test]
fn invariant_04_no_connect_fails_however_fast_lists_are_replaced() {
    let least = ReplaceReport { replacements: 20_000, connects: 1_000 };
    let replaced = replace_again_and_again(&SoakBed::new().unwrap(), Duration::from_secs(3), least).unwrap();
    println!("{replaced:?}");
}
