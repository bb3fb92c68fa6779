//! What is dialled, when, and what an answer means.

use holdfast_core::keys::{Family, ObjectName, Source, Transport};
use tokio::net::TcpListener;

use super::*;

fn target(number: u8) -> Target {
    Target {
        service: ServiceKey { name: ObjectName::new("default", "web").unwrap(), source: Source::Manifests },
        port: PortKey { name: "".into(), transport: Transport::Tcp, family: Family::V4 },
        backend: SocketAddr::from(([127, 0, 0, number], 80)),
    }
}

#[test]
fn what_is_new_is_due_at_once_and_what_is_gone_is_forgotten() {
    let begin = Instant::now();
    let later = |seconds| begin + Duration::from_secs(seconds);
    let mut schedule = Schedule::default();
    schedule.follow([target(1), target(2)].into(), begin);
    let first = schedule.take_first(later(2)).unwrap();
    assert_eq!((first.backend, schedule.next()), (target(1).backend, Some(begin)));
    schedule.follow([target(1), target(2), target(3)].into(), later(1));
    assert_eq!(schedule.due.len(), 3);
    schedule.follow([target(1)].into(), later(1));
    assert_eq!((schedule.due.len(), schedule.known.len(), schedule.next()), (1, 1, Some(later(2))));
}

#[test]
fn each_has_its_turn_before_any_has_its_second() {
    let begin = Instant::now();
    let mut schedule = Schedule::default();
    schedule.follow((1..=9).map(target).collect(), begin);
    let turns: BTreeSet<_> =
        (1..=9).filter_map(|turn| schedule.take_first(begin + Duration::from_secs(turn))).collect();
    assert_eq!(turns.len(), 9);
}

async fn answer(backend: SocketAddr) -> Answer {
    probe(Some(Arc::new(Target { backend, ..target(1) }))).await.unwrap().answer
}

#[tokio::test]
async fn a_listener_accepts_and_a_closed_port_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    assert_eq!(answer(address).await, Answer::Accepted);
    drop(listener);
    assert_eq!(answer(address).await, Answer::Refused);
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
