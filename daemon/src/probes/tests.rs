//! What is dialled, when, and what an answer means.

use tokio::net::TcpListener;

use super::*;

mod many;

#[tokio::test]
async fn a_listener_accepts_and_a_closed_port_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    assert_eq!(ask(address).await, Some(Answer::Accepted));
    drop(listener);
    assert_eq!(ask(address).await, Some(Answer::Refused));
}

/// Three of them would end a hold, and those of all services at once.
#[test]
fn what_has_never_left_this_node_proves_nothing() {
    let (soon, later) = (Duration::from_micros(50), Duration::from_millis(3));
    for (number, after, expected) in [
        (nix::libc::ENETUNREACH, later, true),
        (nix::libc::EMFILE, soon, true),
        (nix::libc::EADDRNOTAVAIL, soon, true),
        (nix::libc::ENOBUFS, soon, true),
        (nix::libc::EPERM, soon, true),
        (nix::libc::EHOSTUNREACH, soon, true),
        (nix::libc::EHOSTUNREACH, later, false),
        (nix::libc::ECONNREFUSED, soon, false),
        (nix::libc::ECONNRESET, soon, false),
        (nix::libc::ETIMEDOUT, later, false),
    ] {
        let error = io::Error::from_raw_os_error(number);
        assert_eq!(is_own(&error, after), expected, "{error}");
    }
}

#[test]
fn intervals_are_spread_by_a_fifth() {
    for _ in 0..100 {
        let millis = spread(Duration::from_secs(2)).as_millis();
        assert!((1_600..=2_400).contains(&millis), "{millis}");
    }
}

#[test]
fn each_answer_is_counted_for_itself() {
    let probes = Probes::default();
    [Answer::Silent, Answer::Accepted, Answer::Silent].into_iter().for_each(|answer| probes.count(answer));
    let totals: Vec<_> = probes.totals().map(|(answer, count)| (answer.as_str(), count)).collect();
    assert_eq!(totals, [("accepted", 1), ("refused", 0), ("silent", 2)]);
}
