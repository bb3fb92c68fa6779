//! `/events` over real sockets: that it says honestly why nothing was read, and ends by that.

use serde_json::Value;

use super::fixture::{everything, serve};

#[test]
fn by_tcp_nobody_is_asked_and_it_is_said() {
    let served = serve(everything());
    for question in ["", "?service=default/web"] {
        let got = served.get(&format!("/events{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (200, Some("5")), "{}", got.body);
        assert!(
            got.body.contains("Events were not read: an apiserver is asked only for those"),
            "{}",
            got.body
        );
    }
    let body = served.get("/events?service=default/web&format=json", "").body;
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&list["read"], &list["service"]), (&false.into(), &"default/web".into()), "{body}");
    assert_eq!(list["events"], Value::Array(Vec::new()));
}

#[test]
fn a_question_that_is_not_understood_is_told_what_is_legal() {
    let served = serve(everything());
    for question in ["?service=web", "?service=default/web&probe=none", "?since=1h"] {
        let got = served.get(&format!("/events{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (400, None), "{question}: {}", got.body);
    }
}

#[test]
fn what_is_wrong_in_the_files_about_events_is_shown_where_readiness_is() {
    let body = serve(everything()).get("/readyz?format=json", "").body;
    let fault = &serde_json::from_str::<Value>(&body).unwrap()["event_knowledge_faults"][0];
    assert_eq!(
        (&fault["file"], &fault["line"]),
        (&"/etc/holdfast/events.d/ours.toml".into(), &1.into()),
        "{body}"
    );
    assert!(fault["message"].as_str().unwrap().contains("the built-in entries apply"), "{body}");
}
