//! Hostile text from a tenant's objects on an operator's screen.

use holdfast_fixtures::clock::pause;
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use serde_json::{Value, json};

use crate::browser::{BOTH, Browser};
use crate::node::Node;
use crate::tunnel::Tunnel;

/// A manager's name is any text of up to 128 characters, and appears in causes.
const MANAGER: &str =
    "<img src=x onerror='document.title=1'><script>document.title=2</script>\u{202e}gpj.exe\u{200f}";

/// Characters that change the direction of writing.
const TURNING: [char; 3] = ['\u{202e}', '\u{200f}', '\u{61c}'];

/// Short enough for a name.
const NAME: &str = "<b id=zone>\u{202e}gpj.exe";

/// As in a document, with non-keyboard characters unescaped.
fn quoted() -> String {
    json!(MANAGER).to_string()
}

fn objects(zone: &str) -> String {
    let (text, zone) = (quoted(), json!(zone));
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  name: web-1\n  namespace: shop\n  labels: {{kubernetes.io/service-name: web}}\n  \
         managedFields: [{{manager: {text}, operation: Update, time: '2026-01-08T11:11:55Z'}}]\n\
         addressType: IPv4\nports: [{{port: 8080}}]\n\
         endpoints: [{{addresses: [10.1.0.1], nodeName: {text}, zone: {zone}}}]\n"
    )
}

#[test]
fn object_text_is_escaped_and_keeps_its_direction() {
    let node = Node::start(&[("web.yaml", &objects("a"))]);
    node.write("web.yaml", &objects("</td><b id=zone>b"));
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        for view in ["service/shop/web", "time?services=shop/web", "history", "frontends", ""] {
            browser.open("about:blank");
            browser.open(&node.url(view));
            browser.until_text("#alive", "live");
            // A record keeps the beginning of a writer's name.
            match view {
                "service/shop/web" => browser.until_text("main", "\\u{202e}gpj.exe\\u{200f}"),
                "history" => browser.until_text("main", "written by <img src=x onerror="),
                _ => {}
            }
            pause(std::time::Duration::from_millis(500));
            let made = browser.value("document.querySelectorAll('main img, main script, #zone, u').length");
            assert_eq!(made, 0, "{kind:?} {view}");
            assert!(
                browser.value("document.title").as_str().unwrap().ends_with("holdfast"),
                "{kind:?} {view}"
            );
            let text = browser.text("main");
            assert!(!text.contains(['\u{202e}', '\u{200f}']), "{kind:?} {view}: {text}");
        }
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

/// Other fields of an object with any text, and names that are rejected and shown.
fn more_objects() -> String {
    let (text, own) = (quoted(), json!(NAME));
    format!(
        "apiVersion: v1\nkind: Service\n\
         metadata: {{name: web, namespace: shop, annotations: {{holdfast.io/on-empty: {text}}}}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: balanced, namespace: shop, finalizers: [{text}]}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.11, loadBalancerClass: {text}, ports: [{{port: 80}}]}}\n\
         status: {{loadBalancer: {{ingress: [{{hostname: {text}}}]}}}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: ported, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.0.12, ports: [{{port: 80, name: {own}}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: {own}, namespace: {own}}}\n\
         spec: {{clusterIP: 10.96.0.13, ports: [{{port: 80}}]}}\n"
    )
}

/// Checks that the text created no element and did not change the direction of writing.
#[track_caller]
pub(crate) fn is_text(browser: &mut Browser, view: &str) {
    let made = browser.value("document.querySelectorAll('main img, main script, #zone, u').length");
    assert_eq!(made, 0, "{view}");
    let text = browser.text("body");
    assert!(!text.contains(TURNING), "{view}: {text}");
    let spoken =
        "[...document.querySelectorAll('[title], [aria-label]')].map(it => it.title + it.ariaLabel).join()";
    let spoken = browser.value(spoken);
    assert!(!spoken.as_str().unwrap().contains(TURNING), "{view}: {spoken}");
    let title = browser.value("document.title");
    let title = title.as_str().unwrap();
    assert!(title.ends_with("holdfast") && !title.contains(TURNING), "{view}: {title}");
}

#[test]
fn invalid_names_and_settings_are_shown_as_such() {
    let node = Node::start(&[("more.yaml", &more_objects())]);
    let mut browser = Browser::start(BOTH[0]);
    for (view, words) in [
        ("service/shop/web", "?gpj.exe? (service, rejected)"),
        ("service/shop/balanced", "Load balancer"),
        ("service/shop/ported", "shop/ported"),
        ("rejected", "has the character '<'"),
        ("frontends", "shop/web"),
        ("diagnose/shop/balanced", "Diagnosis of"),
        ("", "rejected"),
    ] {
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until_text("main", words);
        is_text(&mut browser, view);
    }
}

/// A cluster whose components and writers of Events have hostile names.
fn cluster() -> Cluster {
    let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-000000000001");
    let apply = |object: Value| assert!(cluster.apply(object).is_ok());
    apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
        "ports": [{"protocol": "TCP", "port": 80}]}}));
    apply(json!({"kind": "Event", "metadata": {"namespace": "shop", "name": "web.1"}, "type": "Warning",
        "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web", "fieldPath": MANAGER},
        "reason": "SyncLoadBalancerFailed", "message": format!("RequestLimitExceeded {MANAGER}"), "count": 3,
        "lastTimestamp": "2026-11-20T13:58:02Z", "source": {"component": "service-controller", "host": MANAGER}}));
    apply(json!({"kind": "Event", "metadata": {"namespace": "shop", "name": "web.2"}, "type": MANAGER,
        "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web"}, "reason": MANAGER,
        "message": MANAGER, "action": MANAGER, "lastTimestamp": "2026-11-20T13:58:03Z",
        "source": {"component": MANAGER}}));
    cluster
}

#[test]
fn event_text_is_escaped() {
    let (cluster, authority) = (cluster(), Authority::new().unwrap());
    let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
    let node = Node::with(|folder| {
        let path = folder.join("ca.crt");
        std::fs::write(&path, authority.pem()).unwrap();
        format!(
            "[apiserver]\nendpoints = [\"{}\"]\ntls_server_name = \"kubernetes.default.svc\"\nca_file = {path:?}\n\
             discover = []\n",
            server.url()
        )
    });
    // A page over TCP cannot query the apiserver.
    let tunnel = Tunnel::to(&node.socket());
    let mut browser = Browser::start(BOTH[0]);
    for (view, words) in [
        ("service/shop/web", "What happened"),
        ("events/shop/web", "RequestLimitExceeded <img src=x"),
        ("diagnose/shop/web", "Diagnosis of"),
        ("apiserver", "in use"),
    ] {
        browser.open("about:blank");
        browser.open(&tunnel.url(view));
        browser.until_text("#alive", "live");
        browser.until_text("main", words);
        is_text(&mut browser, view);
    }
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn another_origin_can_neither_read_nor_frame_the_page() {
    let (node, other) = (Node::demo(), Node::demo());
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&other.url(""));
    browser.until_text("#alive", "live");
    // The other daemon's page stands for a foreign page: the browser separates the two by their ports.
    let there = node.url("").replace("/#/", "");
    let read = format!("fetch('{there}/frontends', {{mode: 'no-cors'}}).then(it => it.type, it => it.name)");
    assert_eq!(browser.value(&read), "TypeError", "its own policy lets it ask nobody else");
    browser.open("about:blank");
    let read = format!("fetch('{there}/frontends').then(it => it.status, it => it.name)");
    assert_eq!(browser.value(&read), "TypeError");
}
