//! The whole source over real sockets on 127.0.0.1, and helpers for the tests of its modules.

use holdfast_core::facts::{AddressType, ServiceFacts};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use holdfast_config::FileAuthor;
use holdfast_fixtures::TEST_TIMEOUT;

/// A block of namespace `static` with the port `http`.
pub(super) fn block(name: &str, frontends: &[&str], backends: &[&str]) -> StaticService {
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    StaticService {
        name: name.into(),
        namespace: "static".into(),
        port_name: "http".into(),
        transport: Transport::Tcp,
        frontends: addresses(frontends),
        backends: addresses(backends),
        health_check: None,
        affinity_timeout: None,
        affinity_prefix: None,
        on_empty: None,
        weights: Vec::new(),
        resolve: None,
        maglev: None,
    }
}

pub(super) fn blocks(services: &[StaticService]) -> Blocks {
    Blocks::new(services.to_vec(), "holdfast.toml").unwrap()
}

/// One line per event.
pub(super) fn show(group: &[Event]) -> String {
    group.iter().map(|event| show_event(event) + "\n").collect()
}

fn show_event(event: &Event) -> String {
    match event {
        Event::ServiceApplied(facts) => show_service(facts),
        Event::ServiceDeleted(key, meta) => format!("service {key} deleted, {}", show_meta(meta.as_deref())),
        Event::SliceApplied(facts) => {
            let endpoint = |endpoint: holdfast_core::facts::Endpoint<'_>| {
                let conditions = endpoint.conditions;
                assert_eq!((conditions.serving, conditions.terminating), (conditions.ready, false));
                format!(" {} {}", endpoint.address, if conditions.ready { "ready" } else { "unready" })
            };
            let endpoints: String = facts.endpoints.iter().map(endpoint).collect();
            let ports: Vec<_> = facts
                .ports
                .iter()
                .map(|port| format!("{} {} {}", port.name, port.protocol, port.port))
                .collect();
            let AddressType::Ip(family) = facts.address_type else { panic!("{facts:?}") };
            assert!(!facts.headless && !facts.endpoints_null);
            let service = facts.service.as_deref().unwrap();
            let meta = show_meta(Some(&facts.meta));
            format!("slice {} of {service} {family:?} {}:{endpoints}, {meta}", facts.key, ports.join(" "))
        }
        Event::SliceDeleted(key, meta) => format!("slice {key} deleted, {}", show_meta(meta.as_deref())),
        other => format!("{other:?}"),
    }
}

fn show_service(facts: &ServiceFacts) -> String {
    let ports: Vec<_> =
        facts.ports.iter().map(|port| format!("{} {} {}", port.name, port.protocol, port.port)).collect();
    format!(
        "service {} {} {} {}: {:?} affinity {:?}{} on-empty {:?}, {}",
        facts.key,
        facts.key.source,
        facts.kind.as_str(),
        ports.join(" "),
        facts.static_frontends,
        facts.affinity_timeout,
        facts.affinity_prefix.as_deref().map(|prefix| format!(" by {prefix}")).unwrap_or_default(),
        facts.on_empty,
        show_meta(Some(&facts.meta)),
    )
}

fn show_meta(meta: Option<&holdfast_core::facts::Meta>) -> String {
    let meta = meta.unwrap();
    let writer = meta.writer.as_ref().map_or("file", |writer| &*writer.manager);
    format!("{} by {writer}", meta.origin.as_deref().unwrap())
}

/// The readiness of every endpoint in a group of slices, in order.
fn readiness(group: &[Event]) -> Vec<bool> {
    let slices = group.iter().filter_map(|event| match event {
        Event::SliceApplied(facts) => Some(facts),
        _ => None,
    });
    slices.flat_map(|facts| facts.endpoints.iter_brief().map(|(_, conditions)| conditions.ready)).collect()
}

/// A backend that can stop and start again at one address.
struct Backend {
    address: SocketAddr,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl Backend {
    /// Uses its own loopback address, so that no other process takes the port while it is down.
    async fn up(last_octet: u8) -> Self {
        let mut backend = Self { address: SocketAddr::from(([127, 77, 3, last_octet], 0)), serving: None };
        backend.start().await;
        backend
    }

    async fn start(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        self.serving = Some(tokio::spawn(async move { while listener.accept().await.is_ok() {} }));
    }

    async fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
    }
}

/// A running source.
struct Running {
    blocks: watch::Sender<Arc<Blocks>>,
    led: watch::Sender<Option<SocketAddr>>,
    events: mpsc::Receiver<Vec<Event>>,
    task: tokio::task::JoinHandle<()>,
    counts: Arc<CheckStats>,
    _datapath: watch::Sender<Arc<DatapathView>>,
}

impl Running {
    fn start(first: &[StaticService]) -> Self {
        let (blocks, reloads) = watch::channel(Arc::new(blocks(first)));
        let (sender, events) = mpsc::channel(8);
        let (led, leads) = watch::channel(None);
        let counts = Arc::default();
        let (datapath, view) = watch::channel(Arc::new(DatapathView::for_memory()));
        let task = tokio::spawn(run(reloads, leads, (None, None), sender, view, (1, Arc::clone(&counts))));
        Self { blocks, led, events, task, counts, _datapath: datapath }
    }

    async fn group(&mut self) -> Vec<Event> {
        timeout(TEST_TIMEOUT, self.events.recv()).await.expect("a group in time").expect("a running source")
    }

    fn reload(&self, next: &[StaticService]) {
        self.blocks.send(Arc::new(blocks(next))).unwrap();
    }

    async fn nothing_for(&mut self, time: Duration) {
        let group = timeout(time, self.events.recv()).await;
        assert!(group.is_err(), "{}", show(&group.unwrap().unwrap_or_default()));
    }
}

fn checked(name: &str, frontend: &str, backends: &[SocketAddr]) -> StaticService {
    let fast = HealthCheck {
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
        ..HealthCheck::default()
    };
    StaticService { backends: backends.to_vec(), health_check: Some(fast), ..block(name, &[frontend], &[]) }
}

#[tokio::test]
async fn the_first_group_is_everything_and_ends_with_synced() {
    let web = block("web", &["10.96.0.10:80"], &["192.0.2.1:8080"]);
    let mut running = Running::start(&[web, block("alone", &["10.96.0.11:80"], &[])]);
    expect_test::expect![[r#"
        service static/alone config Static http TCP 80: [10.96.0.11:80] affinity None on-empty None, holdfast.toml by file
        service static/web config Static http TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
        slice static/web-v4-8080 of web V4 http TCP 8080: 192.0.2.1 ready, holdfast.toml by file
        Synced(Config)
    "#]]
    .assert_eq(&show(&running.group().await));
    running.nothing_for(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn the_virtual_address_follows_its_target() {
    let mut running = Running::start(&[]);
    running.group().await;
    running.led.send("192.0.2.1:6443".parse().ok()).unwrap();
    running.nothing_for(Duration::from_millis(50)).await;
    let vip = "169.254.20.1:6443".parse().ok();
    running.blocks.send(Arc::new(Blocks::default().with_vip(vip, "holdfast.toml"))).unwrap();
    expect_test::expect![[r#"
        service holdfast/apiserver config Static https TCP 6443: [169.254.20.1:6443] affinity None on-empty None, holdfast.toml by file
        slice holdfast/apiserver-v4-6443 of apiserver V4 https TCP 6443: 192.0.2.1 ready, holdfast.toml by file
    "#]].assert_eq(&show(&running.group().await));
    running.led.send("192.0.2.2:6443".parse().ok()).unwrap();
    expect_test::expect![[r#"
        slice holdfast/apiserver-v4-6443 of apiserver V4 https TCP 6443: 192.0.2.2 ready, holdfast.toml by file
    "#]].assert_eq(&show(&running.group().await));
    running.led.send("192.0.2.1:7443".parse().ok()).unwrap();
    expect_test::expect![[r#"
        slice holdfast/apiserver-v4-7443 of apiserver V4 https TCP 7443: 192.0.2.1 ready, holdfast.toml by file
        slice holdfast/apiserver-v4-6443 deleted, holdfast.toml by file
    "#]].assert_eq(&show(&running.group().await));
    running.reload(&[]);
    expect_test::expect![[r#"
        service holdfast/apiserver deleted, holdfast.toml by file
        slice holdfast/apiserver-v4-7443 deleted, holdfast.toml by file
    "#]]
    .assert_eq(&show(&running.group().await));
}

#[tokio::test]
async fn an_empty_configuration_is_synced() {
    assert_eq!(Running::start(&[]).group().await, [Event::Synced(Source::Config)]);
}

#[tokio::test]
async fn a_backend_falls_and_rises_again() {
    let (well, mut other) = (Backend::up(1).await, Backend::up(2).await);
    let mut running = Running::start(&[checked("web", "10.96.0.10:80", &[well.address, other.address])]);
    assert_eq!(readiness(&running.group().await), [true, true], "ready before the first verdict");
    running.nothing_for(Duration::from_millis(200)).await;
    other.stop().await;
    let group = running.group().await;
    assert_eq!(group.len(), 1, "nothing but the slice that it is in");
    assert!(show(&group).contains(&format!("{} unready, holdfast.toml by health-check", other.address.ip())));
    other.start().await;
    assert!(show(&running.group().await).contains(&format!("{} ready", other.address.ip())));
}

#[tokio::test]
async fn a_reload_keeps_verdicts_and_sends_only_changes() {
    let mut down = Backend::up(3).await;
    down.stop().await;
    let web = checked("web", "10.96.0.10:80", &[down.address]);
    let mut running = Running::start(std::slice::from_ref(&web));
    assert_eq!(readiness(&running.group().await), [true]);
    assert_eq!(readiness(&running.group().await), [false]);

    running.reload(&[web.clone(), block("new", &["10.96.0.11:80"], &[])]);
    let group = show(&running.group().await);
    assert!(group.starts_with("service static/new ") && group.lines().count() == 1, "{group}");

    let moved = StaticService { frontends: vec!["10.96.0.99:80".parse().unwrap()], ..web };
    running.reload(&[moved]);
    let group = show(&running.group().await);
    assert!(group.starts_with("service static/new deleted"), "{group}");
    assert!(group.contains("service static/web ") && !group.contains("slice "), "{group}");
    running.nothing_for(Duration::from_millis(100)).await;

    let backends: Vec<_> = running.counts.backends().collect();
    assert_eq!(backends, [(CheckedState::Usable, 0), (CheckedState::Unusable, 1)]);
    let (results, totals): (Vec<_>, Vec<_>) = running.counts.totals().unzip();
    assert_eq!(results, [CheckResult::Good, CheckResult::Bad, CheckResult::NotRun]);
    assert!(totals[0] == 0 && totals[1] >= 3 && totals[2] == 0, "{totals:?}");

    running.reload(&[]);
    let group = show(&running.group().await);
    assert!(
        group.contains("service static/web deleted")
            && group.contains("deleted, holdfast.toml by health-check")
    );
}

#[tokio::test]
async fn hanging_backends_delay_no_other() {
    // Listens and never accepts: once its backlog is full, connecting hangs.
    let hanging = tokio::net::TcpSocket::new_v4().unwrap();
    hanging.bind("127.77.3.9:0".parse().unwrap()).unwrap();
    let hanging = hanging.listen(1).unwrap();
    let mut well = Backend::up(4).await;
    let hung = hanging.local_addr().unwrap();
    // More hanging checks than slots.
    let mut all: Vec<_> =
        (0..200).map(|n| checked(&format!("hung-{n}"), &format!("10.96.1.{n}:80"), &[hung])).collect();
    all.push(checked("web", "10.96.0.10:80", &[well.address]));
    let mut running = Running::start(&all);
    let first = running.group().await;
    assert!(readiness(&first).iter().all(|ready| *ready));
    let web = format!("{} unready", well.address.ip());
    let (begun, mut hung_seen) = (Instant::now(), 0);
    while hung_seen < 200 {
        let group = running.group().await;
        assert!(!show(&group).contains(&web));
        hung_seen += readiness(&group).len();
    }
    let behind = begun.elapsed();
    well.stop().await;
    let began = Instant::now();
    while !show(&running.group().await).contains(&web) {}
    // Without the slow lane it would wait behind those 200 checks of 500 ms each.
    assert!(began.elapsed() < behind, "{:?}, and those that hang {behind:?}", began.elapsed());
}

#[tokio::test]
async fn the_source_ends_with_its_reader_or_its_reloads() {
    let mut running = Running::start(&[]);
    running.group().await;
    drop(running.blocks);
    timeout(TEST_TIMEOUT, running.task).await.unwrap().unwrap();

    let mut running = Running::start(&[]);
    running.group().await;
    drop(running.events);
    timeout(TEST_TIMEOUT, running.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_configuration_is_sent_at_once_and_synced_awaits_the_folder() {
    use crate::blocks::folder::BlockFiles;
    use crate::folder::FileFormat as _;

    let web = block("web", &["10.96.0.10:80"], &["192.0.2.1:8080"]);
    let (_blocks, reloads) = watch::channel(Arc::new(blocks(&[web])));
    let (sender, mut events) = mpsc::channel(8);
    let (news, told) = mpsc::channel(1);
    let (counting, counts) = watch::channel(Arc::default());
    let ends = Some(("d".into(), told, counting));
    let (_datapath, view) = watch::channel(Arc::new(DatapathView::for_memory()));
    tokio::spawn(run(reloads, watch::channel(None).1, (ends, None), sender, view, (1, Arc::default())));
    let mut next = async || show(&timeout(TEST_TIMEOUT, events.recv()).await.unwrap().unwrap());
    expect_test::expect![[r#"
        service static/web config Static http TCP 80: [10.96.0.10:80] affinity None on-empty None, holdfast.toml by file
        slice static/web-v4-8080 of web V4 http TCP 8080: 192.0.2.1 ready, holdfast.toml by file
    "#]].assert_eq(&next().await);
    let text =
        b"[[service]]\nname = \"db\"\nfrontends = [\"10.96.0.11:80\"]\nbackends = [\"192.0.2.2:80\"]\n";
    let contents = BlockFiles::decode("d".as_ref(), &"db.toml".into(), text, FileAuthor::Administrator);
    let mut files = BlockFiles::for_folder("d".as_ref());
    let file: Arc<str> = "db.toml".into();
    let present = Ok([Arc::clone(&file)].into());
    let mut group =
        files.take_scan(holdfast_objects::manifests::FolderScan { present, files: vec![(file, contents)] });
    group.push(BlockFiles::complete_news());
    news.send(group).await.unwrap();
    expect_test::expect![[r#"
        service static/db config Static  TCP 80: [10.96.0.11:80] affinity None on-empty None, d/db.toml by file
        slice static/db-v4-80 of db V4  TCP 80: 192.0.2.2 ready, d/db.toml by file
        Synced(Config)
    "#]].assert_eq(&next().await);
    assert_eq!(counts.borrow().len(), 1);
    news.send(vec![FolderNews::Unreadable(Some("gone".into()))]).await.unwrap();
    assert!(next().await.starts_with("Rejected("), "nothing else is told");
    news.send(vec![FolderNews::Unreadable(None), FolderNews::Files(Arc::default())]).await.unwrap();
    expect_test::expect![[r#"
        service static/db deleted, d/db.toml by file
        slice static/db-v4-80 deleted, d/db.toml by file
        RejectionEnded(File(Config, "d"))
    "#]]
    .assert_eq(&next().await);
}
