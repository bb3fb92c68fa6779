//! What a tenant may write into objects, on the screen of an operator.

use crate::browser::{BOTH, Browser};
use crate::node::Node;

/// A manager's name is any text of up to 128 characters, and stands in causes.
const MANAGER: &str =
    "<img src=x onerror='document.title=1'><script>document.title=2</script>\u{202e}gpj.exe\u{200f}";

fn objects(zone: &str) -> String {
    // As YAML quotes: what Rust makes of such characters is no YAML, and the file would be left out.
    let [manager, zone] = [MANAGER, zone].map(|text| serde_json::json!(text));
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  name: web-1\n  namespace: shop\n  labels: {{kubernetes.io/service-name: web}}\n  \
         managedFields: [{{manager: {manager}, operation: Update, time: '2026-01-08T11:11:55Z'}}]\n\
         addressType: IPv4\nports: [{{port: 8080}}]\n\
         endpoints: [{{addresses: [10.1.0.1], nodeName: {manager}, zone: {zone}}}]\n"
    )
}

#[test]
fn what_an_object_says_is_text_and_turns_nothing_around() {
    let node = Node::start(&[("web.yaml", &objects("a"))]);
    node.write("web.yaml", &objects("</td><b id=zone>b"));
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        let mut shown = String::new();
        for view in ["service/shop/web", "time?services=shop/web", "history", "frontends", ""] {
            browser.open("about:blank");
            browser.open(&node.url(view));
            browser.until_text("#alive", "live");
            std::thread::sleep(std::time::Duration::from_millis(500));
            let made = browser.value("document.querySelectorAll('main img, main script, #zone').length");
            assert_eq!(made, 0, "{kind:?} {view}");
            assert!(
                browser.value("document.title").as_str().unwrap().ends_with("holdfast"),
                "{kind:?} {view}"
            );
            let text = browser.text("main");
            assert!(!text.contains(['\u{202e}', '\u{200f}']), "{kind:?} {view}: {text}");
            shown.push_str(&text);
        }
        for mark in ["\\u{202e}gpj.exe", "\\u{200f}"] {
            assert!(shown.contains(mark), "{kind:?}: {mark} is nowhere: it may be left out as well\n{shown}");
        }
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn another_origin_neither_reads_nor_frames_it() {
    let (node, other) = (Node::demo(), Node::demo());
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&other.url(""));
    browser.until_text("#alive", "live");
    // The other daemon's page stands for somebody else's: the browser keeps the two apart by their ports.
    let there = node.url("").replace("/#/", "");
    let read = format!("fetch('{there}/frontends', {{mode: 'no-cors'}}).then(it => it.type, it => it.name)");
    assert_eq!(browser.value(&read), "TypeError", "its own policy lets it ask nobody else");
    browser.open("about:blank");
    let read = format!("fetch('{there}/frontends').then(it => it.status, it => it.name)");
    assert_eq!(browser.value(&read), "TypeError");
}
