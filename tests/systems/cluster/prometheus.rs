//! One node with two proxies, and a Prometheus for each: the latency of endpoint changes, queried as in Kubernetes'
//! own scalability tests.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Location, succeed};
use holdfast_tests::peers::{Cluster, Part, until};
use serde_json::{Value, json};

use crate::stage;

/// The timeout of one request on a busy machine.
const ANSWER: Duration = Duration::from_secs(10);

/// The changes and their interval, in which kube-proxy, which writes once a second, combines some.
const CHANGES: u8 = 40;
const APART: Duration = Duration::from_millis(250);

/// The metrics address of each proxy, and the address of its Prometheus.
const OURS: [&str; 2] = ["127.0.0.1:10349", "127.0.0.1:19349"];
const THEIRS: [&str; 2] = ["127.0.0.1:10249", "127.0.0.1:19249"];

const PORTS: &str = "[kube_proxy]\nhealth = \"off\"\nmetrics = \"127.0.0.1:10349\"\n";

/// The queried quantiles, as in labels.
const QUANTILES: [&str; 3] = ["0.50", "0.90", "0.99"];

/// The query of clusterloader2's measurement `NetworkProgrammingLatency`, for the last minute.
const QUESTION: &str =
    "quantile_over_time(0.99, kubeproxy:kubeproxy_network_programming_duration:histogram_quantile{}[1m])";

/// clusterloader2's recording rules for that query, verbatim.
fn rules() -> Value {
    let rule = |quantile: &&str| {
        let buckets = "kubeproxy_network_programming_duration_seconds_bucket";
        json!({
            "record": "kubeproxy:kubeproxy_network_programming_duration:histogram_quantile",
            "expr": format!("histogram_quantile({quantile}, sum(rate({buckets}[5m])) by (le))"),
            "labels": {"quantile": quantile},
        })
    };
    json!({"groups": [{"name": "kube-proxy.rules", "rules": QUANTILES.iter().map(rule).collect::<Vec<_>>()}]})
}

/// A Prometheus that scrapes one proxy each second, in a folder of its own.
struct Prometheus<'a> {
    cluster: &'a Cluster,
    address: &'static str,
    child: Child,
}

impl<'a> Prometheus<'a> {
    fn start(cluster: &'a Cluster, [target, address]: [&'static str; 2]) -> Self {
        let folder = cluster.folder().join(address.replace(':', "-"));
        fs::create_dir_all(&folder).unwrap();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "kube-proxy", "static_configs": [{"targets": [target]}]}],
        });
        // JSON is valid YAML.
        fs::write(folder.join("prometheus.yaml"), config.to_string()).unwrap();
        fs::write(folder.join("rules.yaml"), rules().to_string()).unwrap();
        let mut command = cluster.bed().command(Location::OUTSIDE, program()).unwrap();
        command.arg(format!("--config.file={}", folder.join("prometheus.yaml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { cluster, address, child: command.spawn().unwrap() }
    }

    /// The answer to the query in seconds, in the order of the quantiles; `None`: there is none yet.
    fn ask(&self) -> Option<Vec<f64>> {
        let mut curl = self.cluster.bed().command(Location::OUTSIDE, "curl").unwrap();
        curl.args(["-sS", "--max-time", "5", "-G", "--data-urlencode", &format!("query={QUESTION}")]);
        curl.arg(format!("http://{}/api/v1/query", self.address));
        let said = succeed(curl, ANSWER).ok()?;
        let said: Value = serde_json::from_str(&said).ok()?;
        let samples = said["data"]["result"].as_array()?;
        let value = |quantile: &&str| -> Option<f64> {
            let sample = samples.iter().find(|it| it["metric"]["quantile"] == **quantile)?;
            sample["value"][1].as_str()?.parse().ok().filter(|value: &f64| value.is_finite())
        };
        // clusterloader2 requires exactly three samples.
        (samples.len() == QUANTILES.len()).then(|| QUANTILES.iter().map(value).collect())?
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian's Prometheus, which `scripts/promtool.sh` unpacks into the target folder, some levels above the test's
/// program; otherwise this machine's.
fn program() -> PathBuf {
    let near = std::env::current_exe().unwrap();
    let mut paths = near.ancestors().skip(1).map(|folder| folder.join("promtool/usr/bin/prometheus"));
    paths.find(|path| path.is_file()).unwrap_or_else(|| "prometheus".into())
}

fn change(cluster: &Cluster, last: u8) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": holdfast_host::clock::now().to_string()},
        },
        "ports": [{"name": "a", "port": 8080}],
        "endpoints": [{"addresses": [format!("10.9.0.{last}")], "conditions": {"ready": true}}],
    });
    drop(cluster.api(0).unwrap().apply_object(&slice).unwrap());
}

#[test]
fn kubernetes_own_query_shows_faster_changes_than_kube_proxy() {
    let cluster = stage::start_with_node_address();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "a", "port": 80}]},
    });
    drop(cluster.api(0).unwrap().apply_object(&service).unwrap());
    change(&cluster, 1);
    cluster.start_part(Part::Proxy).unwrap();
    let mut daemon = Daemon::new(cluster.bed(), &(stage::by_certificate(&cluster, 1) + PORTS)).unwrap();
    daemon.start().unwrap();
    let asked = [OURS, THEIRS].map(|of| Prometheus::start(&cluster, of));
    for last in 2..=CHANGES {
        change(&cluster, last);
        pause(APART);
    }
    let said = asked.each_ref().map(|it| until(TEST_TIMEOUT, "three quantiles", || Ok(it.ask())).unwrap());
    let [ours, theirs] = &said;
    println!("{QUANTILES:?}: holdfast {ours:?} s, kube-proxy {theirs:?} s");
    assert!(ours.iter().zip(theirs).all(|(ours, theirs)| ours < theirs), "{said:?}");
    drop(asked);
    daemon.stop().unwrap();
}
