//! The answers of `/explain`, to the letter: each query with its answer, one after another.

use std::sync::Arc;

use expect_test::expect_file;
use holdfast_datapath::Status;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::watch;

use super::fixture::{everything, serve, serve_with, status};

#[test]
fn each_question_has_one_sentence_first() {
    let served = serve(everything());
    let mut book = String::new();
    for question in [
        "",
        "?service=default/web",
        "?service=kube-system/kube-dns",
        "?endpoint=10.96.0.10:80",
        "?endpoint=10.96.0.20:80",
        "?endpoint=10.96.0.21:80",
        "?endpoint=10.96.0.1:443",
        "?endpoint=10.1.0.2:8080",
        "?endpoint=10.96.0.20:81",
        "?endpoint=10.96.0.22:80",
        "?endpoint=192.0.2.10",
        "?endpoint=10.1.0.2",
        "?endpoint=192.0.2.99",
        "?endpoint=192.0.2.10:80&from=203.0.113.9",
        "?endpoint=192.0.2.99:53/UDP&from=203.0.113.9",
        "?service=elsewhere/web",
        "?service=default/none",
        "?service=default/bad",
    ] {
        let got = served.get(&format!("/explain{question}"), "");
        let unknown =
            ["No service has", "No Service", "A UDP packet from 203.0.113.9 to 192.0.2.99:53 goes on"];
        let is_known = !unknown.iter().any(|begin| got.body.starts_with(begin));
        assert_eq!(got.status, if is_known { 200 } else { 404 }, "{question}");
        book.push_str(&format!("== {question}\n{}\n", got.body));
    }
    expect_file!["golden/explain.txt"].assert_eq(&book);
}

#[test]
fn an_explanation_begins_with_diverging_maps() {
    let served = serve_with(everything(), |readings| {
        let view = DatapathView::for_kernel(Status { waiting: true, ..status() });
        readings.datapath = watch::channel(Arc::new(view)).1;
    });
    for question in ["?service=default/web", "?endpoint=192.0.2.10:80&from=203.0.113.9", ""] {
        let got = served.get(&format!("/explain{question}"), "");
        let expected =
            "Clients may still meet something else, because another version's programs still serve. ";
        assert!(got.body.starts_with(expected), "{question}: {}", got.body);
    }
}
