//! `/events` over real sockets: it says why nothing was read, and its exit code follows.

use serde_json::Value;

use super::fixture::{everything, serve};

#[test]
fn over_tcp_no_apiserver_is_queried_and_the_answer_says_so() {
    let served = serve(everything());
    for question in ["", "?service=default/web"] {
        let got = served.get(&format!("/events{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (200, Some("5")), "{}", got.body);
        assert!(
            got.body.contains("Events were not read: the apiserver is queried only for clients"),
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
fn an_invalid_query_is_refused_with_legal_values() {
    let served = serve(everything());
    for question in ["?service=web", "?service=default/web&probe=none", "?since=1h"] {
        let got = served.get(&format!("/events{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (400, None), "{question}: {}", got.body);
    }
}

#[test]
fn faults_in_event_files_are_shown_with_readiness() {
    let body = serve(everything()).get("/readyz?format=json", "").body;
    let fault = &serde_json::from_str::<Value>(&body).unwrap()["event_knowledge_faults"][0];
    assert_eq!(
        (&fault["file"], &fault["line"]),
        (&"/etc/holdfast/events.d/ours.toml".into(), &1.into()),
        "{body}"
    );
    assert!(fault["message"].as_str().unwrap().contains("the built-in entries apply"), "{body}");
}
