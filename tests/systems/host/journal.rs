//! The journal: the history of a service, with fields, numbers and a catalog.

use holdfast_host::logging::messages::{
    BACKENDS_CHANGED, FRONTEND_ADDED, FRONTEND_REMOVED, MESSAGES, STARTED,
};
use holdfast_tests::host::Host;
use serde_json::Value;

use super::{CONFIG, address, config, serving};

/// The matching lines, as journald returns them.
pub(crate) fn lines(host: &Host, matches: &[&str]) -> Vec<Value> {
    let words = [&["journalctl", "--unit", "holdfast", "--output", "json", "--all"], matches].concat();
    let out = host.run(&words).unwrap().out;
    out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn one_services_log_lines_show_its_history() {
    let (mut host, _server) = serving();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8082")).unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
    host.write(CONFIG, "").unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
    let mut story = Vec::new();
    host.wait_for("the whole story", |host| {
        story = lines(host, &["HOLDFAST_SERVICE=static/web"]);
        story.len() >= 3
    })
    .unwrap();
    let texts: Vec<&str> = story.iter().map(|line| line["MESSAGE"].as_str().unwrap()).collect();
    let begins = [FRONTEND_ADDED, BACKENDS_CHANGED, FRONTEND_REMOVED];
    assert!(texts.iter().zip(begins).all(|(text, begin)| text.starts_with(begin.text)), "{texts:#?}");
    let added = &story[0];
    assert_eq!(added["MESSAGE_ID"], FRONTEND_ADDED.id);
    assert_eq!(added["HOLDFAST_FRONTEND"], "10.96.0.10:80/TCP");
    assert_eq!(added["HOLDFAST_VERDICT"], "serving");
    assert_eq!(added["SYSLOG_IDENTIFIER"], "holdfast");
    assert_eq!(added["PRIORITY"], "6");
    assert_eq!(added["_SYSTEMD_UNIT"], "holdfast.service");
    assert!(added["CODE_FILE"].as_str().unwrap().ends_with(".rs"));
}

#[test]
fn the_catalog_explains_the_lines() {
    let (host, _server) = serving();
    let listed = host.run(&["journalctl", "--list-catalog"]).unwrap().expect_success();
    let ours = listed.lines().filter(|line| line.contains(" holdfast: ")).count();
    assert_eq!(ours, MESSAGES.len());
    let explained =
        host.run(&["journalctl", "--catalog", "--unit", "holdfast", "HOLDFAST_SERVICE=static/web"]).unwrap();
    let text = explained.expect_success();
    assert!(text.contains("Subject: Clients can dial 10.96.0.10:80/TCP of static/web"), "{text}");
}

#[test]
fn no_log_line_is_repeated() {
    let (host, _server) = serving();
    let started = lines(&host, &[&format!("MESSAGE_ID={}", STARTED.id)]);
    assert_eq!(started.len(), 1, "{started:#?}");
    let all = lines(&host, &["_COMM=holdfast"]);
    let twice = all
        .iter()
        .filter(|line| line["MESSAGE"].as_str().is_some_and(|it| it.starts_with(STARTED.text)))
        .count();
    assert_eq!(twice, 1);
}
