//! What `/verify` calls equal: clients reach the compared maps, and nothing was refused.

use std::sync::Arc;

use holdfast_core::engine::{CheckError, Drift};
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{PacketStatus, Status};
use holdfast_status::views::datapath::DatapathView;
use serde_json::Value;
use tokio::sync::watch;

use super::fixture::{everything, many, serve_with, status};
use holdfast_agent::engine::query::{self, EngineQuery};

/// The comparison of this name, if the maps themselves compare like that.
fn verified(name: &str, snapshot: Snapshot, status: Status, found: Result<Vec<Drift>, CheckError>) -> Value {
    let (asker, mut heard) = query::channel();
    let engine = std::thread::spawn(move || {
        while let Some(asked) = heard.blocking_recv() {
            if let EngineQuery::Check(answer) = asked {
                let _ = answer.send(found.clone());
            }
        }
    });
    let served = serve_with(snapshot, |readings| {
        readings.engine = asker;
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let all: Value = serde_json::from_str(&served.get("/verify?format=json", "").body).unwrap();
    drop(served);
    engine.join().unwrap();
    let comparisons = all["comparisons"].as_array().unwrap();
    let found = comparisons.iter().find(|it| it["what"] == name).unwrap().clone();
    assert!(found["equal"] == true || all["equal"] == false, "{all}");
    found
}

#[test]
fn programs_that_read_other_maps_than_those_that_were_compared_are_a_difference() {
    let behind = status().packets.map(|it| PacketStatus { behind: true, ..it });
    for (status, expected) in [
        (status(), None),
        (Status { waiting: true, ..status() }, Some("another version's programs still serve")),
        (
            Status { detached_hooks: vec!["connect4"], ..status() },
            Some("no program of ours is attached at connect4"),
        ),
        (
            Status { behind_hooks: vec!["connect6"], ..status() },
            Some("the programs at connect6 read maps that are no longer written"),
        ),
        (
            Status { packets: behind, ..status() },
            Some("programs at devices follow no change: they are being replaced"),
        ),
    ] {
        let found = verified("programs with maps", many(1, 1), status, Ok(Vec::new()));
        assert_eq!(
            (&found["equal"], found["differences"][0].as_str()),
            (&expected.is_none().into(), expected)
        );
    }
}

#[test]
fn a_refused_map_write_is_a_difference() {
    let of_maps = |snapshot| verified("memory with kernel", snapshot, status(), Ok(Vec::new()));
    assert_eq!(of_maps(many(1, 1))["equal"], true);
    let refused = of_maps(everything());
    let expected = "default/web is incomplete in the maps: the map of frontends is full";
    assert_eq!((&refused["equal"], &refused["differences"]), (&false.into(), &serde_json::json!([expected])));
    let mut gone = many(1, 1);
    gone.fill.failing = 2;
    assert_eq!(of_maps(gone)["differences"][0], "the maps refused writes of 2 services");
}

#[test]
fn a_failed_comparison_is_not_equal() {
    let found = verified("memory with kernel", many(1, 1), status(), Err(CheckError::NotYet));
    assert_eq!((&found["equal"], &found["compared_at"]), (&Value::Null, &Value::Null));
    let why = "the sources have not sent their first lists, or the maps do not hold them yet";
    assert_eq!(found["error"], why);
}
