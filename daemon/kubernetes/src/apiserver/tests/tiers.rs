//! The sources of endpoints: the configuration, kubeconfigs, the cluster, and a former daemon's memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::wait_until_async;
use holdfast_status::views::apiserver::Tier;

use super::super::{Access, AccessError, AccessSources, ForgetError, ListedEndpoint};
use super::server::{Asked, Authority, Manner, Script, Server, answer, create_authority, ours, plain};
use super::{access, settings};

/// A kubeconfig for this server, next to `ca.crt`.
fn kubeconfig(server: &Server, token: &str) -> String {
    format!(
        "kind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: {}, certificate-authority: ca.crt}}}}]\n\
         users: [{{name: u, user: {{token: {token}}}}}]\n",
        server.url()
    )
}

fn rows(access: &Access) -> Vec<(Tier, String)> {
    access.view().endpoints.iter().map(|row| (row.tier, row.address.to_string())).collect()
}

fn of(tier: Tier, server: &Server) -> (Tier, String) {
    (tier, server.address.to_string())
}

/// A server that accepts only this token.
fn knows(token: &'static str) -> Script {
    let all = plain();
    Arc::new(move |asked: &Asked| match asked.header("authorization") {
        Some(shown) if shown == format!("Bearer {token}") => all(asked),
        _ => answer("401 Unauthorized", "{}"),
    })
}

fn listed(address: SocketAddr) -> ListedEndpoint {
    ListedEndpoint { slice: "kubernetes".into(), address }
}

struct AccessHarness {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl AccessHarness {
    fn new() -> Self {
        let (folder, authority) = create_authority();
        Self { folder, authority }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path().join("beside"), content).unwrap();
        std::fs::rename(self.path().join("beside"), self.path().join(name)).unwrap();
    }

    async fn server(&self, script: Script) -> Server {
        let names = ["127.0.0.1".to_owned(), "kubernetes.default.svc".to_owned()];
        let leaf = self.authority.leaf_with(&rcgen::CertificateParams::new(names).unwrap());
        Server::start(&leaf, Manner::Serve, script).await
    }
}

#[tokio::test]
async fn a_kubeconfig_alone_is_enough_and_its_server_is_followed() {
    let fixture = AccessHarness::new();
    let (old, new) = (fixture.server(knows("t1")).await, fixture.server(knows("t2")).await);
    fixture.write("kubeconfig", &kubeconfig(&old, "t1"));
    let access = access(fixture.path(), "kubeconfig = \"kubeconfig\"");
    access.get("/", None).await.unwrap();
    assert_eq!(rows(&access), [of(Tier::Configured, &old)]);
    fixture.write("kubeconfig", &kubeconfig(&new, "t2"));
    access.get("/", None).await.unwrap();
    assert_eq!(rows(&access), [of(Tier::Configured, &new)]);
    assert_eq!(*access.addresses().borrow(), [new.address].into());
}

#[tokio::test]
async fn kubelets_kubeconfig_is_a_tier_as_soon_as_it_is_there() {
    let fixture = AccessHarness::new();
    let (own, kubelet) = (fixture.server(knows("t1")).await, fixture.server(knows("kubelet")).await);
    fixture.write("token", "t1");
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"\ntoken_file = \"token\"", own.url());
    let mut settings = settings(fixture.path(), &keys);
    settings.sources.kubelet = Some(fixture.path().join("kubelet.conf"));
    let access = Access::new(&settings).unwrap();
    access.get("/", None).await.unwrap();
    assert_eq!(rows(&access), [of(Tier::Configured, &own)]);
    fixture.write("kubelet.conf", &kubeconfig(&kubelet, "kubelet"));
    own.set(Manner::Close);
    // Each tier gets its own credentials.
    assert_eq!(*access.get("/", None).await.unwrap().endpoint, kubelet.address.to_string());
    assert_eq!(rows(&access), [of(Tier::Configured, &own), of(Tier::Kubelet, &kubelet)]);
    settings.sources.kubelet = None;
    access.reload(&settings.sources).unwrap();
    assert_eq!(rows(&access), [of(Tier::Configured, &own)]);
}

/// For example, after a cut cable: both failed, kubelet's endpoint replies first, and kubelet may not list slices.
#[tokio::test]
async fn kubelets_refusal_does_not_count_once_our_own_endpoint_serves() {
    let fixture = AccessHarness::new();
    let own = fixture.server(knows("t1")).await;
    let kubelet = fixture.server(ours(|_| answer("403 Forbidden", "{}"))).await;
    fixture.write("token", "t1");
    fixture.write("kubelet.conf", &kubeconfig(&kubelet, "kubelet"));
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"\ntoken_file = \"token\"", own.url());
    let mut settings = settings(fixture.path(), &keys);
    settings.sources.kubelet = Some(fixture.path().join("kubelet.conf"));
    let access = Access::new(&settings).unwrap();
    own.set(Manner::Close);
    // While no other endpoint replies, the refusal counts; the penalty of our own endpoint grows meanwhile.
    for _ in 0..6 {
        assert_eq!(access.get("/slices", None).await.unwrap().status, 403);
    }
    own.set(Manner::Serve);
    let reply = access.get("/slices", None).await.unwrap();
    assert_eq!((reply.status, &*reply.endpoint), (200, &*own.address.to_string()));
}

#[tokio::test]
async fn learned_endpoints_survive_a_restart() {
    let fixture = AccessHarness::new();
    let (own, learned) = (fixture.server(plain()).await, fixture.server(plain()).await);
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"", own.url());
    let first = access(fixture.path(), &keys);
    first.get("/", None).await.unwrap();
    let patrol = tokio::spawn(first.clone().run_maintenance());
    first.learn_endpoints(&[listed(learned.address), listed(own.address)]);
    first.learn_endpoints(&[]);
    let expected = [of(Tier::Configured, &own), of(Tier::Learned, &learned)];
    assert_eq!(rows(&first), expected);
    assert_eq!(*first.addresses().borrow(), [own.address, learned.address].into());
    let file = fixture.path().join("apiserver.json");
    let address = learned.address.to_string();
    let is_saved = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&address));
    wait_until_async("the address on disk", is_saved).await;
    patrol.abort();
    drop((first, own));
    let second = access(fixture.path(), &keys);
    assert_eq!(rows(&second), expected);
    assert_eq!(*second.get("/", None).await.unwrap().endpoint, learned.address.to_string());
    assert!(second.view().endpoints[1].last_named.is_some());
    // The cluster is remembered too.
    assert!(second.cluster().is_some());
    let stranger = fixture.server(Arc::new(|_: &Asked| super::server::namespace("uid-b"))).await;
    let third = access(fixture.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", stranger.url()));
    drop(learned);
    assert!(third.get("/", None).await.unwrap_err().to_string().contains("another cluster (uid uid-b"));
}

#[tokio::test]
async fn nothing_is_learned_unless_configured() {
    let fixture = AccessHarness::new();
    let server = fixture.server(plain()).await;
    let mut settings =
        settings(fixture.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    settings.sources.learns = false;
    let access = Access::new(&settings).unwrap();
    access.learn_endpoints(&[listed("10.0.0.1:443".parse().unwrap())]);
    assert_eq!(rows(&access), [of(Tier::Configured, &server)]);
}

#[tokio::test]
async fn a_token_that_was_rotated_in_use_is_followed() {
    let fixture = AccessHarness::new();
    let server = fixture.server(knows("t2")).await;
    fixture.write("token", "t1");
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"\ntoken_file = \"token\"", server.url());
    let access = access(fixture.path(), &keys);
    let AccessError::Failed(failures) = access.get("/", None).await.unwrap_err() else { panic!() };
    assert_eq!(failures[0].trouble.to_string(), "401: token rejected");
    fixture.write("token", "t2");
    let (_, kept) = access.get("/", None).await.unwrap().read_body(10, TEST_TIMEOUT).await.unwrap();
    fixture.write("token", "t3");
    // The kept connection is replaced, and the new one is rejected.
    assert!(access.get("/", Some(kept)).await.is_err());
}

#[tokio::test]
async fn a_reload_changes_the_endpoints_and_a_bad_one_changes_nothing() {
    let fixture = AccessHarness::new();
    let (old, new) = (fixture.server(plain()).await, fixture.server(plain()).await);
    let keys = |server: &Server| format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url());
    let access = access(fixture.path(), &keys(&old));
    access.get("/", None).await.unwrap();
    let bad = AccessSources { apiserver: holdfast_config::Apiserver::default(), kubelet: None, learns: true };
    assert!(access.reload(&bad).is_err());
    assert_eq!(rows(&access), [of(Tier::Configured, &old)]);
    access.reload(&settings(fixture.path(), &keys(&new)).sources).unwrap();
    assert_eq!(*access.get("/", None).await.unwrap().endpoint, new.address.to_string());
    assert_eq!(*access.addresses().borrow(), [new.address].into());
}

#[tokio::test]
async fn without_any_endpoint_the_error_says_so() {
    let fixture = AccessHarness::new();
    let access = access(fixture.path(), "kubeconfig = \"missing\"");
    assert_eq!(access.get("/", None).await.unwrap_err(), AccessError::NoEndpoint);
    assert!(access.view().credentials[0].problem.as_ref().unwrap().0.ends_with("missing: does not exist"));
}

#[tokio::test]
async fn without_credentials_nothing_fails_over() {
    let fixture = AccessHarness::new();
    let keys = "endpoints = [\"https://127.0.0.1:1\", \"https://127.0.0.1:2\"]\nkubeconfig = \"missing\"";
    let access = access(fixture.path(), keys);
    access.get("/", None).await.unwrap_err();
    assert_eq!(access.view().failovers, 0, "no endpoint was asked");
    let keys = "endpoints = [\"https://127.0.0.1:1\", \"https://127.0.0.1:2\"]\nca_file = \"ca.crt\"";
    access.reload(&settings(fixture.path(), keys).sources).unwrap();
    access.get("/", None).await.unwrap_err();
    assert_eq!(access.view().failovers, 1);
}

#[tokio::test]
async fn retry_after_comes_with_the_reply() {
    let fixture = AccessHarness::new();
    let script =
        ours(|_| "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n".to_owned());
    let server = fixture.server(script).await;
    let access = access(fixture.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let reply = access.get("/", None).await.unwrap();
    assert_eq!((reply.status, reply.retry_after), (429, Some(Duration::from_secs(7))));
}

#[tokio::test]
async fn a_forgotten_endpoint_is_gone_from_the_disk_too() {
    let fixture = AccessHarness::new();
    let own = fixture.server(plain()).await;
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"", own.url());
    let access = access(fixture.path(), &keys);
    access.get("/", None).await.unwrap();
    let [old, new]: [SocketAddr; 2] = ["10.0.0.1:443", "10.0.0.2:443"].map(|it| it.parse().unwrap());
    access.learn_endpoints(&[listed(old), listed(new)]);
    let configured = access.forget_endpoint(own.address).await.unwrap_err();
    assert_eq!(configured, ForgetError::Configured { address: own.address, tier: Tier::Configured });
    assert!(matches!(access.forget_endpoint(old).await, Err(ForgetError::Listed { .. })));
    access.learn_endpoints(&[listed(new)]);
    assert_eq!(access.forget_endpoint(old).await, Ok(None));
    assert!(access.view().endpoints.iter().all(|row| row.address != old));
    let file = std::fs::read_to_string(fixture.path().join("apiserver.json")).unwrap();
    assert!(file.contains("10.0.0.2:443") && !file.contains("10.0.0.1:443"), "{file}");
    assert_eq!(access.forget_endpoint(old).await, Err(ForgetError::Unknown(old)));
    // A write error is reported; the address is forgotten while the daemon runs.
    access.learn_endpoints(&[listed(old)]);
    access.learn_endpoints(&[]);
    access.learn_endpoints(&[listed(new)]);
    std::fs::remove_file(fixture.path().join("apiserver.json")).unwrap();
    std::fs::create_dir(fixture.path().join("apiserver.json")).unwrap();
    assert!(access.forget_endpoint(old).await.unwrap().unwrap().contains("apiserver.json"));
    assert!(access.view().endpoints.iter().all(|row| row.address != old));
}
