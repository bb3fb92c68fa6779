//! Which blocks count when files and the configuration conflict.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::ObjectName;
use holdfast_core::list::Scope;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::{Snapshot, Verdict};
use holdfast_core::time::ClockReading;
use holdfast_core::weights::Weight;
use holdfast_objects::manifests::FolderScan;
use holdfast_status::rfc3339::Millis;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::blocks::block::Block;
use crate::blocks::check::CheckError;
use crate::blocks::check_table::CheckOutcome;
use crate::blocks::checked_blocks::{CheckedBlocks, DueCheck};
use crate::blocks::dns_backends::{self, NameChannels, ResolvedBlocks};
use crate::blocks::folder::BlockFiles;
use crate::blocks::schedule::ConcurrencyLimits;
use crate::blocks::{FolderInput, fill_resolved};
use crate::folder::FileFormat as _;
use crate::names::{BackendSet, NameAnswer, NameNews, NameQueries};
use holdfast_config::{Config, FileAuthor};

fn block(name: &str, frontend: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"192.0.2.1:80\"]\n")
}

fn configured(text: &str) -> Arc<Blocks> {
    let (config, _) = Config::parse(text, "holdfast.toml").unwrap();
    Arc::new(Blocks::from_config(&config, "holdfast.toml").unwrap())
}

pub(crate) fn files(texts: &[(&str, &str)]) -> FileTable {
    let mut known = BlockFiles::for_folder(Path::new("d"));
    let read = |(file, text): &(&str, &str)| {
        let file: Arc<str> = (*file).into();
        (
            Arc::clone(&file),
            BlockFiles::decode(Path::new("d"), &file, text.as_bytes(), FileAuthor::Administrator),
        )
    };
    let present = Ok(texts.iter().map(|(file, _)| (*file).into()).collect());
    known.take_scan(FolderScan { present, files: texts.iter().map(read).collect() });
    known.files().clone()
}

/// Checks which blocks count, with their files, and the rejections.
#[track_caller]
fn check(config: &str, texts: &[(&str, &str)], counts: &[&str], said: &[&str]) {
    let joined = merge_blocks(&configured(config), &files(texts));
    let origin = |block: &Block| block.service.meta.origin.clone().unwrap();
    let found: Vec<_> =
        joined.blocks.iter().map(|(name, block)| format!("{} {}", name.name(), origin(block))).collect();
    assert_eq!(found, counts);
    let told: Vec<_> = joined.rejection_reasons().map(|(file, why)| format!("{file}: {why}")).collect();
    assert_eq!(told, said);
    let partial: Vec<_> = joined.rejections.values().map(|it| it.partial).collect();
    assert_eq!(partial, vec![false; said.len()], "the whole block");
}

#[test]
fn names_and_frontends_belong_to_the_first_block() {
    let own = block("web", "10.96.0.1:80");
    let check = |texts: &[(&str, &str)], counts: &[&str], said: &[&str]| check(&own, texts, counts, said);
    check(&[], &["web holdfast.toml"], &[]);
    check(&[("a.toml", &block("db", "10.96.0.2:80"))], &["db d/a.toml", "web holdfast.toml"], &[]);
    check(
        &[("a.toml", &block("web", "10.96.0.2:80"))],
        &["web holdfast.toml"],
        &["d/a.toml: static/web is left out: holdfast.toml has a block of this name already"],
    );
    check(
        &[("a.toml", &(block("aaa", "10.96.0.1:80") + &block("db", "10.96.0.2:80")))],
        &["db d/a.toml", "web holdfast.toml"],
        &["d/a.toml: static/aaa is left out: 10.96.0.1:80 is claimed by static/web (holdfast.toml) already"],
    );
    check(
        &[("b.toml", &block("db", "10.96.0.2:80")), ("a.toml", &block("db", "10.96.0.3:80"))],
        &["db d/a.toml", "web holdfast.toml"],
        &["d/b.toml: static/db is left out: d/a.toml has a block of this name already"],
    );
    let twice = block("db", "10.96.0.2:80") + &block("db", "10.96.0.3:80");
    check(
        &[("a.toml", &twice)],
        &["db d/a.toml", "web holdfast.toml"],
        &["d/a.toml: static/db is left out: d/a.toml has a block of this name already"],
    );
}

#[test]
fn no_file_claims_an_address_of_the_daemon() {
    let admin = "[admin]\nlisten = \"127.0.0.1:9890\"\n[packets]\nenabled = false\n";
    let sctp = block("s", "10.96.0.9:80") + "protocol = \"SCTP\"\n";
    let announced = block("r", "10.96.0.8:80") + "announce = \"route\"\n";
    let texts = [("a.toml", block("x", "127.0.0.1:9890")), ("b.toml", sctp), ("c.toml", announced)];
    let texts = texts.each_ref().map(|(file, text)| (*file, text.as_str()));
    check(
        admin,
        &texts,
        &[],
        &[
            "d/a.toml: static/x is left out: 127.0.0.1:9890 is where the admin API listens (admin.listen)",
            "d/b.toml: static/s is left out: SCTP is translated by packets alone: set `enabled = true` under [packets]",
            "d/c.toml: static/r is left out: announce: other hosts reach the address only if packets are translated: \
             set `enabled = true` under [packets]",
        ],
    );
}

#[test]
fn a_rejection_is_reported_once_and_so_is_its_end() {
    let own = configured(&block("web", "10.96.0.1:80"));
    let mut folder = FolderBlocks::new("d".into());
    let told = |folder: &mut FolderBlocks| -> Vec<String> {
        let (_, events) = folder.merge_with(&own);
        let line = |event: &Event| match event {
            Event::Rejected(it) => format!("{} {}", it.object, it.partial),
            Event::RejectionEnded(object) => format!("{object} is well"),
            other => format!("{other:?}"),
        };
        events.iter().map(line).collect()
    };
    assert!(!folder.take_news(vec![FolderNews::Files(Arc::new(files(&[("a.toml", "=")])))]));
    assert_eq!(told(&mut folder), ["file d/a.toml false"]);
    assert_eq!(told(&mut folder), [""; 0]);
    assert!(folder.take_news(vec![FolderNews::Unreadable(Some("gone".into())), FolderNews::Whole]));
    assert_eq!(told(&mut folder), ["file d false"]);
    folder.take_news(vec![FolderNews::Unreadable(None), FolderNews::Files(Arc::default())]);
    assert_eq!(told(&mut folder), ["file d is well", "file d/a.toml is well"]);
}

/// A simulated process: the source's state without tasks, with its engine.
struct Process {
    engine: Engine<MemoryMaps>,
    seconds: u64,
    configured: Arc<Blocks>,
    beside: FolderInput,
    wanted: watch::Receiver<Arc<NameQueries>>,
    names: ResolvedBlocks,
    is_told: bool,
    live: CheckedBlocks,
}

impl Process {
    /// Starts from a former process's table.
    fn new(kept: Option<&Snapshot>) -> Self {
        let (engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Config]).unwrap();
        let (wishes, wanted) = watch::channel(Arc::default());
        let remembered = kept.map(SavedSnapshot::from);
        let kept = remembered.as_ref().map(|it| dns_backends::saved_sets(&it.services)).unwrap_or_default();
        let names =
            ResolvedBlocks::new(NameChannels { queries: wishes, news: mpsc::channel(1).1, saved: kept });
        let beside = FolderInput::new(("d".into(), mpsc::channel(1).1, watch::channel(Arc::default()).0));
        let live = CheckedBlocks::new(0, Arc::default(), ConcurrencyLimits::MAX);
        let configured = configured("[resolver]\nservers = [\"192.0.2.53:53\"]\n");
        let mut process =
            Self { engine, seconds: 0, configured, beside, wanted, names, is_told: false, live };
        let now = process.now();
        remembered.into_iter().for_each(|it| process.engine.restore(it, now));
        process
    }

    fn now(&self) -> ClockReading {
        ClockReading { wall: Timestamp(1_767_870_715), mono: Duration::from_secs(self.seconds) }
    }

    /// The table some seconds after these files were delivered.
    fn tell(&mut self, texts: &[(&str, &str)]) -> Arc<Snapshot> {
        let news = [FolderNews::Files(Arc::new(files(texts))), FolderNews::Whole];
        self.beside.folder.take_news(news.into_iter().take(if self.is_told { 1 } else { 2 }).collect());
        let synced = (!self.is_told).then_some(Event::Synced(Source::Config));
        self.is_told = true;
        self.turn(synced)
    }

    /// The table after DNS returned these backends.
    fn say(&mut self, service: &str, backends: &[(&str, u16)]) -> Arc<Snapshot> {
        let service = ObjectName::new("static", service).unwrap();
        let wish = Arc::clone(&self.wanted.borrow()[&service]);
        let weight = |number| Weight::new(number).unwrap();
        let backends = backends.iter().map(|(backend, number)| (backend.parse().unwrap(), weight(*number)));
        let said = NameAnswer::Backends(BackendSet { backends: backends.collect(), is_withdrawn: false });
        self.names.take_news(vec![NameNews { service, query: wish, result: Ok(Arc::new(said)) }]);
        self.turn(None)
    }

    /// The table after all checks until then, one of which has this result.
    fn check(&mut self, backend: &str, is_well: bool, until: Duration) -> Arc<Snapshot> {
        let backend: SocketAddr = backend.parse().unwrap();
        let mut group = Vec::new();
        while let Some(due) = self.live.next_due().filter(|due| *due <= until) {
            while let Some(DueCheck { id, backend: asked, .. }) = self.live.start_due(due) {
                let result = if is_well || asked != backend { Ok(()) } else { Err(CheckError::Closed) };
                self.live.finish_check(id, CheckOutcome::new(&result, Millis(0), Duration::ZERO), due);
            }
            group.extend(self.live.take_changes(due));
        }
        self.take(group.into_iter())
    }

    fn turn(&mut self, synced: Option<Event>) -> Arc<Snapshot> {
        let (joined, rejected) = self.beside.folder.merge_with(&self.configured);
        let (blocks, told) = fill_resolved(
            &joined.blocks,
            (Some(&mut self.names), &self.live),
            (Some(&self.beside), self.is_told),
        );
        let group = self.live.apply_blocks(&blocks, Duration::ZERO).into_iter().chain(rejected).chain(told);
        self.take(group.chain(synced))
    }

    fn take(&mut self, group: impl Iterator<Item = Event>) -> Arc<Snapshot> {
        group.for_each(|event| self.engine.apply(event));
        let step = |_| {
            self.seconds += 1;
            self.engine.step(self.now(), &mut |_| ())
        };
        (1..10).map(step).last().unwrap()
    }
}

/// The table of a process that resumed and then received these files.
fn started(kept: Option<&Snapshot>, texts: &[(&str, &str)]) -> Arc<Snapshot> {
    Process::new(kept).tell(texts)
}

/// The backends of a service with their weights.
fn backends(snapshot: &Snapshot, service: &str) -> Vec<(String, u16)> {
    let views = snapshot.services.iter().filter(|view| view.key.name.name() == service);
    let each = views.flat_map(|view| view.ports.iter()).flat_map(|port| {
        port.rows
            .list(Scope::Cluster)
            .map(|row| (row.backend().to_string(), port.rows.weight(row.backend()).number()))
    });
    each.collect()
}

fn verdicts(snapshot: &Snapshot) -> Vec<(String, Verdict)> {
    let rows = snapshot.services.iter().flat_map(|view| view.frontends.iter());
    rows.map(|row| (row.address.to_string(), row.verdict)).collect()
}

#[test]
fn invariant_06_a_file_broken_at_a_start_keeps_its_saved_blocks() {
    let (db, web) = (block("db", "10.96.0.2:80"), block("web", "10.96.0.3:80"));
    let both = [("10.96.0.2".to_owned(), Verdict::Serving), ("10.96.0.3".to_owned(), Verdict::Serving)];
    let before = started(None, &[("a.toml", &db), ("b.toml", &web)]);
    assert_eq!(verdicts(&before), both);
    for broken in ["=", "[[service]]\nname = \"db\"\n", "[[service]]\nnmae = \"db\"\n", "[node]\n"] {
        assert_eq!(
            verdicts(&started(Some(&before), &[("a.toml", broken), ("b.toml", &web)])),
            both,
            "{broken}"
        );
    }
    let gone = started(Some(&before), &[("a.toml", ""), ("b.toml", &web)]);
    assert_eq!(verdicts(&gone), both[1..], "an empty file has no services");
}

/// The saved DNS backends of a block belong to its file.
#[test]
fn invariant_06_a_file_broken_at_a_start_keeps_its_saved_dns_backends() {
    let web = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.3:80\"]\n\
               resolve = { srv = \"_web._tcp.example.com\" }\n";
    let mut former = Process::new(None);
    former.tell(&[("b.toml", web)]);
    let before = former.say("web", &[("192.0.2.7:80", 5), ("192.0.2.8:80", 1)]);
    let both = [("192.0.2.7:80".to_owned(), 5), ("192.0.2.8:80".to_owned(), 1)];
    let serving = [("10.96.0.3".to_owned(), Verdict::Serving)];
    assert_eq!((backends(&before, "web"), verdicts(&before)), (both.to_vec(), serving.to_vec()));
    for broken in ["=", "[[service]]\nname = \"web\"\n", "[[service]]\nnmae = \"web\"\n"] {
        let mut process = Process::new(Some(&before));
        // The name server is unreachable.
        for (what, text) in [("broken", broken), ("still broken", "="), ("mended", web)] {
            let table = process.tell(&[("b.toml", text)]);
            let found = (backends(&table, "web"), verdicts(&table));
            assert_eq!(found, (both.to_vec(), serving.to_vec()), "{broken}: {what}");
        }
        let gone = process.tell(&[]);
        assert_eq!(verdicts(&gone), []);
    }
    let mut process = Process::new(Some(&before));
    process.tell(&[("b.toml", "=")]);
    process.tell(&[("b.toml", "")]);
    let anew = process.tell(&[("b.toml", web)]);
    assert_eq!(backends(&anew, "web"), [], "blocks removed from the file are forgotten");
}

/// Weights of a slow start were never returned by DNS.
#[test]
fn a_start_restores_dns_weights_and_not_those_of_a_slow_start() {
    let web = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.3:80\"]\n\
               resolve = { srv = \"_web._tcp.example.com\" }\n\
               health_check = { kind = \"tcp\", interval = \"1s\", timeout = \"500ms\", rise = 1, fall = 1, \
               slow_start = \"30s\" }\n";
    let weighed = |weights: [u16; 2]| {
        let each = ["192.0.2.7:80", "192.0.2.8:80"].into_iter().zip(weights);
        each.map(|(backend, weight)| (backend.to_owned(), weight)).collect::<Vec<_>>()
    };
    for (said, growing) in [([5, 1], [5, 10]), ([1, 1], [1, 10])] {
        let mut former = Process::new(None);
        former.tell(&[("b.toml", web)]);
        former.say("web", &[("192.0.2.7:80", said[0]), ("192.0.2.8:80", said[1])]);
        let fallen = former.check("192.0.2.7:80", false, Duration::from_millis(200));
        let risen = former.check("192.0.2.7:80", true, Duration::from_millis(1_500));
        assert_eq!(backends(&fallen, "web"), weighed(said)[1..], "one is out");
        assert_eq!(backends(&risen, "web"), weighed(growing), "it has a tenth of its weight at first");
        let mut process = Process::new(Some(&risen));
        // The name server is unreachable.
        assert_eq!(backends(&process.tell(&[("b.toml", web)]), "web"), weighed(said));
    }
}

/// A registry without instances of a service does not tell why.
#[test]
fn a_list_that_a_file_empties_is_held() {
    let db = block("db", "10.96.0.2:80");
    let empty = db.replace("\"192.0.2.1:80\"", "");
    let before = started(None, &[("a.toml", &db)]);
    let after = started(Some(&before), &[("a.toml", &empty)]);
    assert_eq!(verdicts(&after), [("10.96.0.2".to_owned(), Verdict::Held)]);
}
