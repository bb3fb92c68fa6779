//! Which blocks count where files and the configuration meet.

use std::path::Path;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::{Snapshot, Verdict};
use holdfast_core::time::Now;
use holdfast_objects::manifests::FolderLook;

use super::*;
use crate::config::Config;
use crate::sources::config::block::Block;
use crate::sources::config::folder::BlockFiles;
use crate::sources::config::live::Live;
use crate::sources::config::schedule::Places;
use crate::sources::folder::Files as _;

fn block(name: &str, frontend: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"192.0.2.1:80\"]\n")
}

fn configured(text: &str) -> Arc<Blocks> {
    let (config, _) = Config::parse(text, "holdfast.toml").unwrap();
    Arc::new(Blocks::of(&config, "holdfast.toml").unwrap())
}

fn files(texts: &[(&str, &str)]) -> Listed {
    let mut known = BlockFiles::of(Path::new("d"));
    let read = |(file, text): &(&str, &str)| {
        let file: Arc<str> = (*file).into();
        (Arc::clone(&file), BlockFiles::decode(Path::new("d"), &file, text.as_bytes()))
    };
    let present = Ok(texts.iter().map(|(file, _)| (*file).into()).collect());
    known.take(FolderLook { present, files: texts.iter().map(read).collect() });
    known.files().clone()
}

/// Who counts with which file, and what is said of files.
#[track_caller]
fn check(config: &str, texts: &[(&str, &str)], counts: &[&str], said: &[&str]) {
    let joined = join(&configured(config), &files(texts));
    let origin = |block: &Block| block.service.meta.origin.clone().unwrap();
    let found: Vec<_> =
        joined.blocks.iter().map(|(name, block)| format!("{} {}", name.name(), origin(block))).collect();
    assert_eq!(found, counts);
    let told: Vec<_> = joined.rejected().map(|(file, why)| format!("{file}: {why}")).collect();
    assert_eq!(told, said);
    let partial: Vec<_> = joined.rejections.values().map(|it| it.partial).collect();
    assert_eq!(partial, vec![false; said.len()], "the whole block");
}

#[test]
fn names_and_frontends_belong_to_who_comes_first_and_the_other_is_named() {
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
fn no_file_takes_what_is_the_daemons_own() {
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
            "d/c.toml: static/r is left out: announce: others reach the address by packets alone: set `enabled = \
             true` under [packets]",
        ],
    );
}

#[test]
fn what_lasts_is_told_once_and_its_end_too() {
    let own = configured(&block("web", "10.96.0.1:80"));
    let mut folder = Folder::new("d".into());
    let told = |folder: &mut Folder| -> Vec<String> {
        let (_, events) = folder.join(&own);
        let line = |event: &Event| match event {
            Event::Rejected(it) => format!("{} {}", it.object, it.partial),
            Event::RejectionEnded(object) => format!("{object} is well"),
            other => format!("{other:?}"),
        };
        events.iter().map(line).collect()
    };
    assert!(!folder.take(vec![FolderNews::Files(Arc::new(files(&[("a.toml", "=")])))]));
    assert_eq!(told(&mut folder), ["file d/a.toml false"]);
    assert_eq!(told(&mut folder), [""; 0]);
    assert!(folder.take(vec![FolderNews::Unreadable(Some("gone".into())), FolderNews::Whole]));
    assert_eq!(told(&mut folder), ["file d false"]);
    folder.take(vec![FolderNews::Unreadable(None), FolderNews::Files(Arc::default())]);
    assert_eq!(told(&mut folder), ["file d is well", "file d/a.toml is well"]);
}

/// A process that begins with what a former one knew, and its table once these files have been told.
fn started(kept: Option<&Snapshot>, texts: &[(&str, &str)]) -> Arc<Snapshot> {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed::default(), &[Source::Config]).unwrap();
    let now = |second| Now { wall: Timestamp(1_767_870_715), mono: Duration::from_secs(second) };
    if let Some(kept) = kept {
        engine.remember(kept.into(), now(0));
    }
    let mut folder = Folder::new("d".into());
    folder.take(vec![FolderNews::Files(Arc::new(files(texts)))]);
    let (joined, rejected) = folder.join(&configured(""));
    let blocks = Live::new(0, Arc::default(), Places::MOST).apply(&joined.blocks, Duration::ZERO);
    let group = blocks.into_iter().chain(rejected).chain([Event::Synced(Source::Config)]);
    group.for_each(|event| engine.apply(event));
    (1..10).map(|second| engine.step(now(second), &mut |_| ())).last().unwrap()
}

fn verdicts(snapshot: &Snapshot) -> Vec<(String, Verdict)> {
    let rows = snapshot.services.iter().flat_map(|view| view.frontends.iter());
    rows.map(|row| (row.address.to_string(), row.verdict)).collect()
}

#[test]
fn invariant_06_a_file_that_is_broken_at_a_start_keeps_what_it_said_to_a_former_process() {
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

/// A registry that knows no instance of a service any more has said nothing of why.
#[test]
fn a_list_that_a_file_empties_is_held() {
    let db = block("db", "10.96.0.2:80");
    let empty = db.replace("\"192.0.2.1:80\"", "");
    let before = started(None, &[("a.toml", &db)]);
    let after = started(Some(&before), &[("a.toml", &empty)]);
    assert_eq!(verdicts(&after), [("10.96.0.2".to_owned(), Verdict::Held)]);
}
