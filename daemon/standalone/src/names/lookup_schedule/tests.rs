//! The schedule without sockets.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use holdfast_core::keys::Family;
use holdfast_core::weights::Weight;

use super::*;
use crate::dns::Name;
use crate::names::BackendSet;
use crate::names::backend_set::LeftOutRecords;
use holdfast_config::Resolve;

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 53)), 53);

fn service(number: usize) -> ObjectName {
    ObjectName::new("static", &format!("s{number}")).unwrap()
}

fn wish(host: &str) -> Arc<NameQuery> {
    let resolve = Resolve::Addresses(Name::parse(host).unwrap(), NonZeroU16::new(80).unwrap());
    Arc::new(NameQuery { resolve, families: vec![Family::V4], servers: [SERVER].into() })
}

fn wanted(count: usize) -> NameQueries {
    (0..count).map(|number| (service(number), wish(&format!("h{number}.example.com")))).collect()
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn backends(lasts: &[u8]) -> NameAnswer {
    let backends =
        lasts.iter().map(|last| (SocketAddr::from(([192, 0, 2, *last], 80)), Weight::ONE)).collect();
    NameAnswer::Backends(BackendSet { backends, is_withdrawn: false })
}

fn answered(said: NameAnswer, seconds: u64) -> Result<LookupAnswer, LookupError> {
    Ok(LookupAnswer {
        answer: said,
        ttl_seconds: seconds,
        server: SERVER,
        left_out: LeftOutRecords::default(),
    })
}

fn failed(why: &str) -> Result<LookupAnswer, LookupError> {
    Err(LookupError { server: SERVER, reason: why.to_owned() })
}

/// A schedule with one name that is resolved at the given second.
struct Lab {
    course: LookupSchedule,
    asked: (ObjectName, Arc<NameQuery>),
}

impl Lab {
    fn new() -> Self {
        let mut course = LookupSchedule::new(1);
        course.update_queries(&wanted(1), s(0));
        let asked = course.start_due(s(0)).unwrap();
        Self { course, asked }
    }

    fn finish(&mut self, outcome: Result<LookupAnswer, LookupError>, now: Duration) -> LookupChange {
        let (service, wish) = &self.asked;
        let wall = Millis(i64::try_from(now.as_millis()).unwrap());
        self.course.finish_lookup((service, wish), outcome, (now, wall)).unwrap()
    }

    /// Finishes the look-up and starts the next one when due; returns the pause.
    fn again(
        &mut self,
        outcome: Result<LookupAnswer, LookupError>,
        now: Duration,
    ) -> (LookupChange, Duration) {
        let change = self.finish(outcome, now);
        let due = self.course.next_due().unwrap();
        assert!(self.course.start_due(due.saturating_sub(Duration::from_millis(1))).is_none());
        self.asked = self.course.start_due(due).unwrap();
        (change, due.saturating_sub(now))
    }
}

#[track_caller]
fn is_about(pause: Duration, expected: Duration) {
    assert!(pause >= expected && pause <= expected.saturating_mul(11) / 10, "{pause:?} {expected:?}");
}

#[test]
fn an_answer_is_reported_once_and_refreshed_after_its_ttl() {
    let mut lab = Lab::new();
    let (change, pause) = lab.again(answered(backends(&[1, 2]), 30), s(0));
    is_about(pause, s(30));
    assert_eq!(change.news.unwrap().result, Ok(Arc::new(backends(&[1, 2]))));
    assert_eq!(
        change.row.to_string(),
        "h0.example.com:80: 2 backends by 192.0.2.53:53 at 1970-01-01T00:00:00.000Z, TTL 30 s"
    );
    let (change, pause) = lab.again(answered(backends(&[1, 2]), 1), s(40));
    is_about(pause, s(1));
    assert_eq!(change.news, None, "nothing has changed");
    let (change, _) = lab.again(answered(backends(&[]), 5), s(50));
    assert_eq!(
        (change.news.unwrap().result, change.row.state.0),
        (Ok(Arc::new(backends(&[]))), NameState::Empty)
    );
    let (change, _) = lab.again(answered(NameAnswer::Withdrawn, 30), s(60));
    assert_eq!(
        (change.news.unwrap().result, change.row.state.0),
        (Ok(Arc::new(NameAnswer::Withdrawn)), NameState::Withdrawn)
    );
}

#[test]
fn a_failure_is_reported_at_its_start_and_end_with_growing_pauses() {
    let mut lab = Lab::new();
    lab.again(answered(backends(&[1]), 30), s(0));
    let (change, pause) = lab.again(failed("silent"), s(33));
    is_about(pause, s(1));
    let begun = change.news.unwrap().result.unwrap_err();
    let expected = "not resolved since 1970-01-01T00:00:33.000Z, and the backends known before stay: \
                    192.0.2.53:53: silent";
    assert_eq!(&*begun, expected);
    for (now, expected) in [(40, 2), (50, 4), (60, 8), (70, 16), (90, 30), (120, 30), (160, 30)] {
        let (change, pause) = lab.again(failed("REFUSED"), s(now));
        is_about(pause, s(expected));
        assert_eq!((change.news, change.is_recovered), (None, false), "{now}");
        let trouble = change.row.trouble.unwrap();
        assert_eq!((trouble.since, trouble.why.as_str()), (Millis(33_000), "REFUSED"));
        assert_eq!(change.row.answer.unwrap().backends, 1, "the last answer stays");
    }
    let (change, _) = lab.again(answered(backends(&[1]), 30), s(200));
    assert!(change.is_recovered);
    assert_eq!(
        change.news.unwrap().result,
        Ok(Arc::new(backends(&[1]))),
        "its end is news, though nothing else is"
    );
    let (_, pause) = lab.again(failed("silent"), s(300));
    is_about(pause, s(1));
}

#[test]
fn a_result_of_a_replaced_query_is_ignored() {
    let mut lab = Lab::new();
    let other = NameQueries::from([(service(0), wish("other.example.com"))]);
    let changed = lab.course.update_queries(&other, s(1));
    assert_eq!(changed[0].1.as_ref().unwrap().name, "other.example.com:80");
    let (old_service, old_wish) = lab.asked.clone();
    lab.asked = lab.course.start_due(s(1)).unwrap();
    let late =
        lab.course.finish_lookup((&old_service, &old_wish), answered(backends(&[9]), 30), (s(2), Millis(0)));
    assert!(late.is_none());
    assert!(lab.finish(answered(backends(&[1]), 30), s(2)).news.is_some());
    assert_eq!(lab.course.update_queries(&other, s(3)), [], "the same wish changes nothing");
    assert_eq!(lab.course.update_queries(&NameQueries::new(), s(3)), [(service(0), None)]);
    assert_eq!(lab.course.next_due(), None);
}

#[test]
fn concurrent_look_ups_are_bounded_and_fair() {
    let mut course = LookupSchedule::new(1);
    course.update_queries(&wanted(1_000), s(0));
    let mut running = Vec::new();
    while let Some(asked) = course.start_due(s(0)) {
        running.push(asked);
    }
    assert_eq!((running.len(), course.next_due()), (LOOKUPS_MAX, None));
    let mut done = 0;
    while let Some((service, wish)) = running.pop() {
        assert!(course.finish_lookup((&service, &wish), failed("silent"), (s(1), Millis(0))).is_some());
        done += 1;
        running.extend(course.start_due(s(1)));
        assert!(running.len() <= LOOKUPS_MAX);
    }
    assert_eq!(done, 1_000, "each has its turn before any has a second one");
}

#[test]
fn names_and_nodes_that_start_together_spread() {
    let dues = |seed| -> BTreeSet<Duration> {
        let mut course = LookupSchedule::new(seed);
        course.update_queries(&wanted(50), s(0));
        while let Some((service, wish)) = course.start_due(s(0)) {
            course.finish_lookup((&service, &wish), answered(backends(&[1]), 100), (s(0), Millis(0)));
        }
        course.due.iter().map(|(due, _)| *due).collect()
    };
    assert!(dues(1).len() > 40);
    assert_ne!(dues(1), dues(2));
}
