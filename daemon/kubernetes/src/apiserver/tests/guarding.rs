//! The virtual address's target over real connections to servers that stop, hang and return.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::super::Access;
use super::super::limits::GUARD_RETRY_MIN;
use super::access;
use super::server::{Authority, Manner, Script, Server, answer, create_authority, namespace, ours, plain};
use holdfast_fixtures::clock::{await_event, pause_async, wait_until_async};

/// How many endpoints are silent or down.
const DEAD: usize = 4;

const NAMESPACE: &str = "/api/v1/namespaces/kube-system";
const READYZ: &str = "/readyz";

/// An access with a running guard.
struct Guarded {
    access: Access,
    led: watch::Receiver<Option<SocketAddr>>,
    patrol: JoinHandle<()>,
}

impl Guarded {
    fn start(folder: &Path, endpoints: &[String]) -> Self {
        Self::from_access(guarding(folder, endpoints))
    }

    fn from_access(access: Access) -> Self {
        let (led, patrol) = (access.vip_target(), tokio::spawn(access.clone().run_maintenance()));
        Self { access, led, patrol }
    }

    #[track_caller]
    fn leads_to(&self, server: &Server) {
        assert_eq!(*self.led.borrow(), Some(server.address));
    }

    async fn comes_to(&mut self, server: &Server) {
        let led = self.led.wait_for(|led| *led == Some(server.address));
        await_event("the target", led).await.unwrap();
    }

    /// How many endpoints have failed.
    fn failures(&self) -> usize {
        self.access.view().endpoints.iter().filter(|row| row.last_error.is_some()).count()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.patrol.abort();
    }
}

fn guarding(folder: &Path, endpoints: &[String]) -> Access {
    access(folder, &keys(endpoints))
}

fn keys(endpoints: &[String]) -> String {
    format!(
        "endpoints = [{}]\nvip = \"169.254.20.1:6443\"\nca_file = \"ca.crt\"\ntls_server_name = \"kubernetes\"",
        endpoints.join(", ")
    )
}

/// Waits until a server has had this many more requests for a path.
async fn asked_again(server: &Server, path: &str, count: usize) {
    let enough = server.count(path) + count;
    wait_until_async("more requests", || server.count(path) >= enough).await;
}

/// Waits as long as 16 attempts take whose pauses do not grow.
async fn sixteen_short_pauses() {
    for _ in 0..16 {
        pause_async(GUARD_RETRY_MIN).await;
    }
}

async fn serving(authority: &Authority, script: Script) -> Server {
    Server::start(&authority.leaf("kubernetes"), Manner::Serve, script).await
}

#[tokio::test]
async fn only_a_proven_server_becomes_the_target() {
    let (folder, authority) = create_authority();
    let strangers = [
        serving(&Authority::new(), plain()).await,
        Server::start(&authority.leaf("another"), Manner::Serve, plain()).await,
        Server::start(&authority.leaf("kubernetes"), Manner::SilentHttp, plain()).await,
        Server::start(&authority.leaf("kubernetes"), Manner::Close, plain()).await,
        serving(&authority, ours(|_| answer("503 Service Unavailable", "{}"))).await,
        serving(&authority, Arc::new(|_| answer("429 Too Many Requests", "{}"))).await,
        serving(&authority, Arc::new(|_| answer("401 Unauthorized", "{}"))).await,
    ];
    let good = serving(&authority, plain()).await;
    let urls: Vec<String> = strangers.iter().chain([&good]).map(Server::url).collect();
    let mut guarded = Guarded::start(folder.path(), &urls);
    assert_eq!(*guarded.led.borrow(), None, "before any has");
    guarded.comes_to(&good).await;
}

#[tokio::test]
async fn another_clusters_server_does_not_become_the_target() {
    let (folder, authority) = create_authority();
    let good = serving(&authority, plain()).await;
    let access = guarding(folder.path(), &[good.url()]);
    access.get("/", None).await.unwrap();
    let other = serving(&authority, Arc::new(|_| namespace("another"))).await;
    assert!(access.get("/", None).await.is_ok(), "our cluster is known");
    let config = super::settings(folder.path(), &keys(&[other.url()]));
    access.reload(&config.sources).unwrap();
    let guarded = Guarded::from_access(access);
    asked_again(&other, NAMESPACE, 2).await;
    assert_eq!(*guarded.led.borrow(), None, "not after the first attempt either");
}

#[tokio::test]
async fn a_server_that_goes_is_left_and_comes_back() {
    let (folder, authority) = create_authority();
    let (first, second) = (serving(&authority, plain()).await, serving(&authority, plain()).await);
    let mut guarded = Guarded::start(folder.path(), &[first.url(), second.url()]);
    guarded.comes_to(&first).await;
    let address = first.address;
    drop(first);
    guarded.comes_to(&second).await;
    let first = Server::start_at(address, &authority.leaf("kubernetes"), plain()).await;
    guarded.comes_to(&first).await;
}

#[tokio::test]
async fn silent_endpoints_before_a_good_one_do_not_add_up() {
    let (folder, authority) = create_authority();
    let (first, last) = (serving(&authority, plain()).await, serving(&authority, plain()).await);
    let mut silent = Vec::new();
    for manner in [Manner::SilentTcp, Manner::SilentHttp].into_iter().cycle().take(DEAD) {
        silent.push(Server::start(&authority.leaf("kubernetes"), manner, plain()).await);
    }
    let urls: Vec<String> = [&first].into_iter().chain(&silent).chain([&last]).map(Server::url).collect();
    let mut guarded = Guarded::start(folder.path(), &urls);
    guarded.comes_to(&first).await;
    drop(first);
    guarded.comes_to(&last).await;
    assert!(guarded.failures() < 1 + DEAD, "not all silent ones have used up their time");
    drop(guarded);
    let folder = tempfile::tempdir().unwrap();
    authority.write(&folder.path().join("ca.crt"));
    let mut anew = Guarded::start(folder.path(), &urls);
    anew.comes_to(&last).await;
}

/// For example, an apiserver that runs out of memory as soon as all nodes have returned.
#[tokio::test]
async fn a_server_that_keeps_dying_after_its_return_is_left_each_time() {
    let (folder, authority) = create_authority();
    let second = serving(&authority, plain()).await;
    let mut first = serving(&authority, plain()).await;
    let address = first.address;
    let mut guarded = Guarded::start(folder.path(), &[first.url(), second.url()]);
    for _ in 0..4 {
        guarded.comes_to(&first).await;
        drop(first);
        guarded.comes_to(&second).await;
        first = Server::start_at(address, &authority.leaf("kubernetes"), plain()).await;
    }
}

#[tokio::test]
async fn a_guard_with_dead_endpoints_takes_the_first_that_returns() {
    let (folder, authority) = create_authority();
    let mut addresses = Vec::new();
    for _ in 0..DEAD {
        addresses.push(serving(&authority, plain()).await.address);
    }
    let urls: Vec<String> = addresses.iter().map(|address| format!("\"https://{address}\"")).collect();
    let mut guarded = Guarded::start(folder.path(), &urls);
    wait_until_async("a failure of each", || guarded.failures() == DEAD).await;
    assert_eq!(*guarded.led.borrow(), None);
    let last = Server::start_at(*addresses.last().unwrap(), &authority.leaf("kubernetes"), plain()).await;
    guarded.comes_to(&last).await;
}

#[tokio::test]
async fn another_order_of_the_endpoints_is_followed() {
    let (folder, authority) = create_authority();
    let (first, second) = (serving(&authority, plain()).await, serving(&authority, plain()).await);
    let mut guarded = Guarded::start(folder.path(), &[first.url(), second.url()]);
    guarded.comes_to(&first).await;
    let access = guarded.access.clone();
    let reload = |endpoints: &[String]| {
        access.reload(&super::settings(folder.path(), &keys(endpoints)).sources).unwrap();
    };
    reload(&[second.url(), first.url()]);
    guarded.comes_to(&second).await;
    reload(&[first.url()]);
    guarded.comes_to(&first).await;
}

#[tokio::test]
async fn a_server_that_hangs_is_left() {
    let (folder, authority) = create_authority();
    let answered = AtomicBool::new(false);
    let once = ours(move |_| match answered.swap(true, Ordering::Relaxed) {
        false => answer("200 OK", "ok"),
        true => String::new(),
    });
    let stuck = serving(&authority, once).await;
    let good = serving(&authority, plain()).await;
    let mut guarded = Guarded::start(folder.path(), &[stuck.url(), good.url()]);
    guarded.comes_to(&stuck).await;
    guarded.comes_to(&good).await;
}

#[tokio::test]
async fn an_unready_server_is_left() {
    let (folder, authority) = create_authority();
    let failed = || answer("500 Internal Server Error", "etcd failed");
    let unready = serving(&authority, ours(move |_| failed())).await;
    let answered = AtomicBool::new(false);
    let ends =
        ours(move |_| if answered.swap(true, Ordering::Relaxed) { failed() } else { answer("200 OK", "ok") });
    let ending = serving(&authority, ends).await;
    let good = serving(&authority, plain()).await;
    let mut guarded = Guarded::start(folder.path(), &[unready.url(), ending.url(), good.url()]);
    let first = *await_event("a target", guarded.led.wait_for(Option::is_some)).await.unwrap();
    assert_eq!(first, Some(ending.address), "never to a server that is not ready");
    guarded.comes_to(&good).await;
}

/// For example, the key store of all servers fails, and then a host dies.
#[tokio::test]
async fn without_a_ready_server_an_unready_one_replaces_a_dead_target() {
    let (folder, authority) = create_authority();
    let is_ready = Arc::new(AtomicBool::new(true));
    let script = || {
        let is_ready = Arc::clone(&is_ready);
        ours(move |_| match is_ready.load(Ordering::Relaxed) {
            true => answer("200 OK", "ok"),
            false => answer("500 Internal Server Error", "kms failed"),
        })
    };
    let (first, second) = (serving(&authority, script()).await, serving(&authority, script()).await);
    let mut guarded = Guarded::start(folder.path(), &[first.url(), second.url()]);
    guarded.comes_to(&first).await;
    is_ready.store(false, Ordering::Relaxed);
    for server in [&first, &second] {
        asked_again(server, READYZ, 3).await;
    }
    guarded.leads_to(&first);
    first.set(Manner::Close);
    guarded.comes_to(&second).await;
    first.set(Manner::Serve);
    is_ready.store(true, Ordering::Relaxed);
    guarded.comes_to(&first).await;
}

#[tokio::test]
async fn the_target_stays_while_no_endpoint_serves_and_over_a_restart() {
    let (folder, authority) = create_authority();
    let server = serving(&authority, plain()).await;
    let (address, urls) = (Some(server.address), [server.url()]);
    let mut guarded = Guarded::start(folder.path(), &urls);
    guarded.comes_to(&server).await;
    drop(server);
    wait_until_async("a failure", || guarded.failures() == 1).await;
    assert_eq!(*guarded.led.borrow(), address);
    let file = folder.path().join("apiserver.json");
    let is_kept = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"led\": \"127"));
    wait_until_async("the target on disk", is_kept).await;
    drop(guarded);
    let again = guarding(folder.path(), &urls);
    assert_eq!(*again.vip_target().borrow(), address, "before anything is dialled");
    let elsewhere = guarding(folder.path(), &["\"https://127.0.0.1:1\"".to_owned()]);
    assert_eq!(*elsewhere.vip_target().borrow(), None, "what is no endpoint any more");
}

#[tokio::test]
async fn a_server_without_a_known_cluster_is_a_target_only_if_configured() {
    let (folder, authority) = create_authority();
    let silent = serving(&authority, Arc::new(|_| answer("403 Forbidden", "{}"))).await;
    let mut guarded = Guarded::start(folder.path(), &[silent.url()]);
    guarded.comes_to(&silent).await;
    let access = guarding(folder.path(), &["\"https://127.0.0.1:1\"".to_owned()]);
    let listed = super::super::ListedEndpoint { slice: "kubernetes".into(), address: silent.address };
    access.learn_endpoints(&[listed]);
    drop(guarded);
    let guarded = Guarded::from_access(access);
    asked_again(&silent, NAMESPACE, 2).await;
    assert_eq!(*guarded.led.borrow(), None, "not after the first attempt either");
}

#[tokio::test]
async fn servers_that_never_prove_themselves_are_asked_less_and_less() {
    let (folder, authority) = create_authority();
    let refusing = serving(&authority, Arc::new(|_| answer("401 Unauthorized", "{}"))).await;
    let guarded = Guarded::start(folder.path(), &[refusing.url()]);
    wait_until_async("a first request", || !refusing.paths().is_empty()).await;
    sixteen_short_pauses().await;
    let asked = refusing.paths().len();
    assert!(asked <= 12, "{asked} times");
    wait_until_async("another request", || refusing.paths().len() > 1).await;
    assert_eq!(*guarded.led.borrow(), None);
}

#[tokio::test]
async fn a_proxy_that_closes_after_each_reply_is_backed_off_and_kept() {
    let (folder, authority) = create_authority();
    let closing = Arc::new(|asked: &super::server::Asked| {
        let body = if asked.path.ends_with("/readyz") { "connection: close\r\n" } else { "" };
        let text = r#"{"kind":"Namespace","metadata":{"name":"kube-system","uid":"2f6d6a52-0001"}}"#;
        format!("HTTP/1.1 200 OK\r\n{body}content-length: {}\r\n\r\n{text}", text.len())
    });
    let closes = serving(&authority, closing).await;
    let other = serving(&authority, plain()).await;
    let mut guarded = Guarded::start(folder.path(), &[closes.url(), other.url()]);
    guarded.comes_to(&closes).await;
    sixteen_short_pauses().await;
    guarded.leads_to(&closes);
    let asked = closes.count(READYZ);
    assert!(asked <= 10, "{asked} times");
    asked_again(&closes, READYZ, 1).await;
    guarded.leads_to(&closes);
    assert!(other.paths().is_empty(), "the other one is not dialled for that");
}

#[tokio::test]
async fn a_throttling_server_stays_the_target() {
    let (folder, authority) = create_authority();
    let busy = serving(&authority, ours(|_| answer("429 Too Many Requests", "{}"))).await;
    let other = serving(&authority, plain()).await;
    let mut guarded = Guarded::start(folder.path(), &[busy.url(), other.url()]);
    guarded.comes_to(&busy).await;
    asked_again(&busy, READYZ, 1).await;
    guarded.leads_to(&busy);
    assert!(other.paths().is_empty(), "{:?}", other.paths());
}

/// The guide makes kubelet's kubeconfig name the virtual address.
#[tokio::test]
async fn the_virtual_address_is_no_endpoint_whatever_names_it() {
    let (folder, authority) = create_authority();
    let server = serving(&authority, plain()).await;
    let vip: SocketAddr = "169.254.20.1:6443".parse().unwrap();
    let config = format!(
        "clusters: [{{name: c, cluster: {{server: \"https://{vip}\", certificate-authority: {}/ca.crt, \
         tls-server-name: kubernetes}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n\
         apiVersion: v1\nkind: Config\n",
        folder.path().display()
    );
    std::fs::write(folder.path().join("kubelet.conf"), config).unwrap();
    let mut settings = super::settings(
        folder.path(),
        &format!(
            "endpoints = [{}]\nvip = \"{vip}\"\nca_file = \"ca.crt\"\ntls_server_name = \"kubernetes\"",
            server.url()
        ),
    );
    settings.sources.kubelet = Some(folder.path().join("kubelet.conf"));
    let access = Access::new(&settings).unwrap();
    access.learn_endpoints(&[super::super::ListedEndpoint { slice: "kubernetes".into(), address: vip }]);
    let (mut led, addresses, views) = (access.vip_target(), access.addresses(), access.views());
    let patrol = tokio::spawn(access.run_maintenance());
    await_event("the target", led.wait_for(|led| *led == Some(server.address))).await.unwrap();
    assert!(!addresses.borrow().contains(&vip), "or its own frontend would be left out");
    assert!(views.borrow().endpoints.iter().all(|row| row.address != vip), "{:?}", views.borrow());
    patrol.abort();
}
