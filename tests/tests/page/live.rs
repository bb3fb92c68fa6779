//! That the page follows what happens, and says when it cannot.

use crate::browser::{BOTH, Browser};
use crate::node::Node;

fn service(backends: &[&str]) -> String {
    let endpoints: Vec<String> =
        backends.iter().map(|backend| format!("{{addresses: [{backend}]}}")).collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{}]\n",
        endpoints.join(", ")
    )
}

#[test]
fn a_change_is_on_the_page_without_a_question() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for (kind, more) in BOTH.into_iter().zip(["10.1.0.2", "10.1.0.3"]) {
        node.write("web.yaml", &service(&["10.1.0.1"]));
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("#alive", "live");
        browser.until_text(".window tbody td:nth-of-type(4)", "1");
        node.write("web.yaml", &service(&["10.1.0.1", more]));
        browser.until_text(".window tbody td:nth-of-type(4)", "2");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn a_daemon_that_stops_is_said_and_what_happened_meanwhile_is_filled_in() {
    let mut node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for kind in BOTH {
        node.write("web.yaml", &service(&["10.1.0.1"]));
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("#alive", "live");
        node.stop();
        browser.until_text("#alive", "the daemon does not answer since");
        browser.until("document.body.classList.contains('old')");
        browser.until_text(".window tbody th", "10.96.0.10:80/TCP");
        node.write("web.yaml", &service(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]));
        node.run();
        browser.until_text("#alive", "live");
        browser.until_text(".window tbody td:nth-of-type(4)", "3");
        browser.until("!document.body.classList.contains('old')");
    }
}
