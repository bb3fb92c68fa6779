//! Blocks with DNS names over reloads and restarts, without sockets.

use std::time::Duration;

use expect_test::{Expect, expect};
use holdfast_core::weights::Weight;

use super::*;
use crate::blocks::schedule::ConcurrencyLimits;
use crate::blocks::tests::show;
use crate::blocks::{StaticService, checked_blocks::CheckedBlocks};
use holdfast_config::{Config, Resolve};

const RESOLVER: &str = "[resolver]\nservers = [\"192.0.2.53:53\"]\n";

const WEB: &str = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.10:80\"]\n\
                   resolve = { srv = \"_web._tcp.example.com\" }\n";

/// Another service, without a DNS name.
const API: &str =
    "[[service]]\nname = \"api\"\nfrontends = [\"10.96.0.11:80\"]\nbackends = [\"192.0.2.200:80\"]\n";

fn blocks(toml: &str) -> Arc<Blocks> {
    let (config, _) = Config::parse(toml, "holdfast.toml").unwrap();
    Arc::new(Blocks::from_config(&config, "holdfast.toml").unwrap())
}

fn web() -> ObjectName {
    ObjectName::new("static", "web").unwrap()
}

fn set(backends: &[(&str, u16)]) -> BackendSet {
    let each =
        backends.iter().map(|(backend, weight)| (backend.parse().unwrap(), Weight::new(*weight).unwrap()));
    BackendSet { backends: each.collect(), is_withdrawn: false }
}

/// The source's state without its task.
struct Lab {
    resolved: ResolvedBlocks,
    wanted: watch::Receiver<Arc<NameQueries>>,
    live: CheckedBlocks,
    blocks: Arc<Blocks>,
}

impl Lab {
    fn new(toml: &str, kept: &[(&str, u16)]) -> (Self, Vec<Event>) {
        let (sender, wanted) = watch::channel(Arc::default());
        let kept = (!kept.is_empty())
            .then(|| SavedSet { set: Arc::new(set(kept)), origin: Some("d/web.toml".into()) });
        let kept = kept.into_iter().map(|kept| (web(), kept)).collect();
        let resolved =
            ResolvedBlocks::new(NameChannels { queries: sender, news: mpsc::channel(1).1, saved: kept });
        let live = CheckedBlocks::new(1, Arc::default(), ConcurrencyLimits::for_sockets(10));
        let mut lab = Self { resolved, wanted, live, blocks: blocks(toml) };
        let group = lab.group();
        (lab, group)
    }

    fn group(&mut self) -> Vec<Event> {
        let (filled, told) = self.resolved.fill_blocks(&self.blocks, |name| self.live.backend_set(name));
        let mut group = self.live.apply_blocks(&filled, Duration::ZERO);
        group.extend(told);
        group
    }

    fn reload(&mut self, toml: &str) -> Vec<Event> {
        self.blocks = blocks(toml);
        self.group()
    }

    fn say(&mut self, said: Result<NameAnswer, &str>) -> Vec<Event> {
        let wish = Arc::clone(&self.wanted.borrow()[&web()]);
        let said = said.map(Arc::new).map_err(Arc::from);
        self.resolved.take_news(vec![NameNews { service: web(), query: wish, result: said }]);
        self.group()
    }

    fn backends(&mut self, backends: &[(&str, u16)]) -> Vec<Event> {
        self.say(Ok(NameAnswer::Backends(set(backends))))
    }
}

#[track_caller]
fn check(group: &[Event], expected: &Expect) {
    expected.assert_eq(&show(group));
}

fn file(parts: &[&str]) -> String {
    parts.concat()
}

#[test]
fn a_block_gets_the_resolved_backends_and_names_their_writer() {
    let (mut lab, first) = Lab::new(&file(&[RESOLVER, WEB, API]), &[]);
    check(
        &first,
        &expect![[r#"
        service static/api config Static  TCP 80: [10.96.0.11:80] affinity None on-empty None, holdfast.toml by file
        slice static/api-v4-80 of api V4  TCP 80: 192.0.2.200 ready, holdfast.toml by file
        service static/web config Static  TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
    "#]],
    );
    check(
        &lab.backends(&[("192.0.2.1:8080", 1), ("192.0.2.2:8081", 3), ("[2001:db8::1]:8080", 1)]),
        &expect![[r#"
            slice static/web-v4-8080 of web V4  TCP 8080: 192.0.2.1 ready, holdfast.toml by dns
            slice static/web-v4-8081 of web V4  TCP 8081: 192.0.2.2 ready, holdfast.toml by dns
        "#]],
    );
    assert_eq!(
        lab.backends(&[("192.0.2.1:8080", 1), ("192.0.2.2:8081", 3)]),
        [],
        "what no client can reach is left out"
    );
    check(
        &lab.backends(&[("192.0.2.1:8080", 1)]),
        &expect![[r#"
        slice static/web-v4-8081 deleted, holdfast.toml by dns
    "#]],
    );
}

#[test]
fn a_failed_look_up_changes_nothing_and_is_rejected_until_it_recovers() {
    let (mut lab, _) = Lab::new(&file(&[RESOLVER, WEB, API]), &[]);
    lab.backends(&[("192.0.2.1:8080", 1)]);
    check(
        &lab.say(Err("not resolved since noon: 192.0.2.53:53: SERVFAIL")),
        &expect![[r#"
        Rejected(Rejection { object: Unnamed(Config, "the DNS, _web._tcp.example.com (SRV) of static/web"), origin: None, reason: "not resolved since noon: 192.0.2.53:53: SERVFAIL", partial: false })
    "#]],
    );
    assert_eq!(lab.reload(&file(&[RESOLVER, WEB, API])), [], "a reload says nothing of it again");
    check(
        &lab.backends(&[("192.0.2.1:8080", 1)]),
        &expect![[r#"
        RejectionEnded(Unnamed(Config, "the DNS, _web._tcp.example.com (SRV) of static/web"))
    "#]],
    );
    lab.say(Err("again"));
    check(
        &lab.reload(&file(&[RESOLVER, API])),
        &expect![[r#"
        service static/web deleted, holdfast.toml by file
        slice static/web-v4-8080 deleted, holdfast.toml by dns
        RejectionEnded(Unnamed(Config, "the DNS, _web._tcp.example.com (SRV) of static/web"))
    "#]],
    );
}

#[test]
fn an_empty_answer_empties_the_list_and_its_service_alone() {
    let (mut lab, _) = Lab::new(&file(&[RESOLVER, WEB, API]), &[]);
    lab.backends(&[("192.0.2.1:8080", 1)]);
    check(
        &lab.backends(&[]),
        &expect![[r#"
        slice static/web-v4-8080 deleted, holdfast.toml by dns
    "#]],
    );
}

#[test]
fn a_withdrawn_service_keeps_its_last_backends_as_unusable() {
    let (mut lab, _) = Lab::new(&file(&[RESOLVER, WEB]), &[]);
    assert_eq!(lab.say(Ok(NameAnswer::Withdrawn)), [], "there is nothing to take back");
    lab.backends(&[("192.0.2.1:8080", 1)]);
    let conditions = |group: &[Event]| -> Vec<_> {
        let slices = group.iter().filter_map(|event| match event {
            Event::SliceApplied(facts) => Some(Arc::clone(facts)),
            _ => None,
        });
        slices.flat_map(|facts| facts.endpoints.iter_brief().map(|(_, it)| it).collect::<Vec<_>>()).collect()
    };
    let withdrawn = conditions(&lab.say(Ok(NameAnswer::Withdrawn)));
    assert!(matches!(withdrawn[..], [it] if !it.ready && !it.serving && it.terminating), "{withdrawn:?}");
    let back = conditions(&lab.backends(&[("192.0.2.1:8080", 1)]));
    assert!(matches!(back[..], [it] if it.ready && it.serving && !it.terminating), "{back:?}");
}

#[test]
fn a_service_keeps_its_earlier_backends_until_the_first_answer() {
    let renamed = WEB.replace("_web._tcp", "_www._tcp");
    let fixed =
        WEB.replace("resolve = { srv = \"_web._tcp.example.com\" }", "backends = [\"192.0.2.9:9090\"]");
    // After a restart.
    let (mut lab, first) = Lab::new(&file(&[RESOLVER, WEB]), &[("192.0.2.1:8080", 1), ("192.0.2.2:8080", 5)]);
    check(
        &first,
        &expect![[r#"
        service static/web config Static  TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
        slice static/web-v4-8080 of web V4  TCP 8080: 192.0.2.1 ready 192.0.2.2 ready, holdfast.toml by dns
    "#]],
    );
    assert_eq!(
        lab.backends(&[("192.0.2.1:8080", 1), ("192.0.2.2:8080", 5)]),
        [],
        "the same as before the restart"
    );
    // By another name, and from its own list.
    assert_eq!(lab.reload(&file(&[RESOLVER, &renamed])), []);
    let old = Arc::new(NameQuery {
        resolve: Resolve::Servers(crate::dns::Name::parse("_web._tcp.example.com").unwrap()),
        ..NameQuery::clone(&lab.wanted.borrow()[&web()])
    });
    lab.resolved.take_news(vec![NameNews {
        service: web(),
        query: old,
        result: Ok(Arc::new(NameAnswer::Backends(set(&[])))),
    }]);
    assert_eq!(lab.group(), [], "what was asked before says nothing");
    lab.reload(&file(&[RESOLVER, &fixed]));
    assert!(lab.wanted.borrow().is_empty());
    check(
        &lab.reload(&file(&[RESOLVER, WEB])),
        &expect![[r#"
        slice static/web-v4-9090 of web V4  TCP 9090: 192.0.2.9 ready, holdfast.toml by dns
    "#]],
    );
    check(
        &lab.backends(&[("192.0.2.3:8080", 1)]),
        &expect![[r#"
        slice static/web-v4-8080 of web V4  TCP 8080: 192.0.2.3 ready, holdfast.toml by dns
        slice static/web-v4-9090 deleted, holdfast.toml by dns
    "#]],
    );
}

#[test]
fn saved_backends_last_until_all_blocks_are_known_or_their_file_reads() {
    let forgotten = expect![[r#"
        service static/web config Static  TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
    "#]];
    let kept = expect![[r#"
        service static/web config Static  TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
        slice static/web-v4-8080 of web V4  TCP 8080: 192.0.2.1 ready, holdfast.toml by dns
    "#]];
    for (rejected, expected) in [("", &forgotten), ("d/other.toml", &forgotten), ("d/web.toml", &kept)] {
        let (mut lab, _) = Lab::new(&file(&[RESOLVER, API]), &[("192.0.2.1:8080", 1)]);
        lab.resolved.forget_saved(|path| path == rejected);
        check(&lab.reload(&file(&[RESOLVER, WEB, API])), expected);
    }
}

/// The resolver sees only the earlier query if an equal one replaces it in time.
#[test]
fn a_result_of_an_equal_query_counts() {
    let renamed = WEB.replace("_web._tcp", "_www._tcp");
    let (mut lab, _) = Lab::new(&file(&[RESOLVER, WEB]), &[]);
    let first = Arc::clone(&lab.wanted.borrow()[&web()]);
    lab.reload(&file(&[RESOLVER, &renamed]));
    lab.reload(&file(&[RESOLVER, WEB]));
    let said = Ok(Arc::new(NameAnswer::Backends(set(&[("192.0.2.1:8080", 1)]))));
    lab.resolved.take_news(vec![NameNews { service: web(), query: first, result: said }]);
    assert_eq!(lab.group().len(), 1);
}

#[test]
fn a_reload_changes_the_name_servers_of_queries() {
    let (mut lab, _) = Lab::new(&file(&[RESOLVER, WEB]), &[]);
    let of_web = |lab: &Lab| Arc::clone(&lab.wanted.borrow()[&web()]);
    let first = of_web(&lab);
    lab.reload(&file(&[RESOLVER, WEB, API]));
    assert!(Arc::ptr_eq(&first, &of_web(&lab)), "an equal query stays the same object");
    lab.reload(&file(&[&RESOLVER.replace(".53:53", ".54:53"), WEB]));
    assert_eq!(*of_web(&lab).servers, ["192.0.2.54:53".parse().unwrap()]);
}

/// A saved table yields sets for every kind of block.
#[test]
fn saved_sets_are_those_of_the_served_blocks() {
    let service = StaticService {
        backends: vec!["192.0.2.1:80".parse().unwrap(), "192.0.2.2:81".parse().unwrap()],
        weights: vec![("192.0.2.2:81".parse().unwrap(), Weight::new(7).unwrap())],
        ..crate::blocks::tests::block("web", &["10.96.0.10:80"], &[])
    };
    let block = Block::new(service, &"holdfast.toml".into()).unwrap();
    assert_eq!(block.backend_set(), set(&[("192.0.2.1:80", 1), ("192.0.2.2:81", 7)]));
}
