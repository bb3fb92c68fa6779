//! One HTTP request to a backend that took a connection, for its status only.
//!
//! Invariant: a backend is queried only if the apiserver says that a pod of this service has the address as its own,
//! and that the port speaks HTTP: by `appProtocol`, or because kubelet probes it by HTTP. The path comes from the
//! query, the host is the service's own name, and no redirect is followed. At most [`HEALTH_BYTES_MAX`] of a reply are
//! read, up to the end of its first line.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::StreamExt;
use holdfast_core::keys::{ObjectName, Transport};
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::HttpPath;
use holdfast_diagnose::evidence::{
    Cluster, HttpAnswer, HttpProbe, Lookup, ObservedPort, Pod, Probe, ProbeKind, ProbeOutcome,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout_at};

use crate::diagnose::limits::{HEALTH_BYTES_MAX, PROBE_TIMEOUT, PROBES_AT_ONCE};
use holdfast_host::exempt;

/// Values of `appProtocol` for servers of HTTP/1.1.
const HTTP_PROTOCOLS: [&str; 2] = ["http", "kubernetes.io/ws"];

pub(super) async fn query_backends(
    path: Option<&HttpPath>,
    name: &ObjectName,
    (views, cluster): (&[Arc<ServiceView>], &Cluster),
    probes: &Lookup<Vec<Probe>>,
    deadline: Instant,
) -> Lookup<Vec<HttpProbe>> {
    let Some(path) = path else { return Lookup::Skipped("no path was named (--http)") };
    let Lookup::Answered(probes) = probes else { return Lookup::Skipped("no connection was tried") };
    let Lookup::Answered(pods) = &cluster.pods else { return cluster.pods.as_ref().map(|_| Vec::new()) };
    let port_names = http_port_names(cluster);
    let is_permitted = |to: SocketAddr| {
        let own = pods.list.iter().find(|pod| pod.ips.contains(&to.ip()) && !pod.shares_host);
        own.is_some_and(|pod| is_http_backend(views, &port_names, to) || is_probed_by_kubelet(pod, to.port()))
    };
    let is_backend = |it: &&Probe| matches!(it.kind, ProbeKind::Backend { .. });
    let connected = probes.iter().filter(is_backend).filter(|it| it.outcome == ProbeOutcome::Connected);
    let targets: Vec<SocketAddr> = connected.map(|it| it.to).filter(|to| is_permitted(*to)).collect();
    let host = format!("{}.{}.svc", name.name(), name.namespace());
    let one = |to| query_backend(to, &host, path.as_str(), deadline);
    Lookup::Answered(futures_util::stream::iter(targets).map(one).buffered(PROBES_AT_ONCE).collect().await)
}

/// The names of the Service's ports with the `appProtocol` HTTP.
fn http_port_names(cluster: &Cluster) -> BTreeSet<&str> {
    let seen = cluster.service.answer().and_then(Option::as_ref);
    let speaks = |port: &&ObservedPort| {
        let word = port.app_protocol.as_deref().unwrap_or_default();
        HTTP_PROTOCOLS.iter().any(|speaker| word.eq_ignore_ascii_case(speaker)) && port.protocol == "TCP"
    };
    let ports = seen.into_iter().flat_map(|seen| &seen.ports);
    ports.filter(speaks).map(|port| port.name.as_str()).collect()
}

fn is_http_backend(views: &[Arc<ServiceView>], names: &BTreeSet<&str>, to: SocketAddr) -> bool {
    let mut ports = views.iter().flat_map(|view| &view.ports);
    ports.any(|port| {
        port.key.transport == Transport::Tcp
            && names.contains(&*port.key.name)
            && port.rows.find(to).is_some()
    })
}

fn is_probed_by_kubelet(pod: &Pod, port: u16) -> bool {
    pod.http_ports.contains(&port)
}

async fn query_backend(to: SocketAddr, host: &str, path: &str, deadline: Instant) -> HttpProbe {
    let begun = Instant::now();
    let answer = match timeout_at(deadline.min(begun + PROBE_TIMEOUT), request_status(to, host, path)).await {
        Ok(Ok(status)) => HttpAnswer::Status(status),
        Ok(Err(error)) => HttpAnswer::Failed(error.to_string()),
        Err(_) => HttpAnswer::Silent,
    };
    HttpProbe { to, answer, took: begun.elapsed() }
}

/// Requests a path over HTTP, and returns the reply's status.
pub(super) async fn request_status(to: SocketAddr, host: &str, path: &str) -> io::Result<u16> {
    let mut stream = exempt::connect(to).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut line = Vec::new();
    BufReader::new(stream.take(HEALTH_BYTES_MAX)).read_until(b'\n', &mut line).await?;
    let line = String::from_utf8_lossy(&line);
    let word = line.split(' ').nth(1).filter(|_| line.starts_with("HTTP/1."));
    let status = word.and_then(|word| word.trim_end().parse().ok()).filter(|it| (100..1_000).contains(it));
    status.ok_or_else(|| io::Error::other("the answer is no HTTP"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_diagnose::evidence::{Pod, Pods, Right};
    use tokio::net::TcpListener;

    use super::*;

    /// Serves this reply to its first client, and returns that client's request.
    async fn served(answer: String) -> (SocketAddr, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let request = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        (at, tokio::spawn(request))
    }

    #[tokio::test]
    async fn kernel_only_the_status_of_the_first_line_counts() {
        let moved = "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n".to_owned();
        let endless = format!("HTTP/1.1 200 {}", "x".repeat(1 << 20));
        for (answer, wanted) in [
            ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), Some(204)),
            ("HTTP/1.0 503\r\n".to_owned(), Some(503)),
            (moved, Some(302)),
            (endless, Some(200)),
            ("HTTP/1.1 99999 x\r\n".to_owned(), None),
            ("HTTP/1.1 7 x\r\n".to_owned(), None),
            ("-ERR unknown command\r\n".to_owned(), None),
            ("\0".repeat(100), None),
            (String::new(), None),
        ] {
            let shown: String = answer.chars().take(40).collect();
            let (at, _server) = served(answer).await;
            assert_eq!(request_status(at, "web.shop.svc", "/").await.ok(), wanted, "{shown:?}");
        }
    }

    #[tokio::test]
    async fn kernel_a_request_is_the_path_and_the_services_own_name() {
        let (at, server) = served("HTTP/1.1 200 OK\r\n\r\n".to_owned()).await;
        request_status(at, "web.shop.svc", "/healthz?a=b").await.unwrap();
        let wanted = "GET /healthz?a=b HTTP/1.1\r\nHost: web.shop.svc\r\nConnection: close\r\n\r\n";
        assert_eq!(server.await.unwrap(), wanted);
    }

    fn pods(pods: &[Pod]) -> Cluster {
        let pods = Lookup::Answered(Pods { list: pods.to_vec(), more: false });
        Cluster { pods, ..Cluster::default() }
    }

    /// Slices may list any address, and Services may claim any protocol for a port. Neither makes the daemon query an
    /// address that is no pod's.
    #[tokio::test]
    async fn kernel_only_pods_at_their_own_addresses_get_an_http_request() {
        let pod = |ip: &str, port: u16, shares_host| {
            let ips = vec![ip.parse().unwrap()];
            pods(&[Pod { ips, http_ports: vec![port], shares_host, ..Pod::default() }])
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let port = to.port();
        let other = to.port().wrapping_add(1);
        for (what, cluster, asked) in [
            ("kubelet asks it", pod("127.0.0.1", port, false), 1),
            ("another port", pod("127.0.0.1", other, false), 0),
            ("another pod's", pod("127.0.0.2", port, false), 0),
            ("its node's", pod("127.0.0.1", port, true), 0),
            ("nobody's", pods(&[]), 0),
        ] {
            let outcome = ProbeOutcome::Connected;
            let of = ProbeKind::Backend { local: false };
            let probes = Lookup::Answered(vec![Probe { to, kind: of, outcome, took: Duration::ZERO }]);
            let path = HttpPath::parse("/").unwrap();
            let name = ObjectName::new("shop", "web").unwrap();
            let until = Instant::now() + Duration::from_millis(200);
            let found = query_backends(Some(&path), &name, (&[], &cluster), &probes, until).await;
            assert_eq!(found.answer().unwrap().len(), asked, "{what}");
        }
    }

    #[tokio::test]
    async fn without_a_path_or_pods_no_backend_gets_a_request() {
        let name = ObjectName::new("shop", "web").unwrap();
        let until = Instant::now();
        let path = HttpPath::parse("/").unwrap();
        let probes = Lookup::Answered(Vec::new());
        let all = Cluster { pods: Lookup::Forbidden(Right::default()), ..Cluster::default() };
        let none = Lookup::default();
        assert!(matches!(query_backends(None, &name, (&[], &all), &probes, until).await, Lookup::Skipped(_)));
        assert!(matches!(
            query_backends(Some(&path), &name, (&[], &all), &none, until).await,
            Lookup::Skipped(_)
        ));
        assert!(matches!(
            query_backends(Some(&path), &name, (&[], &all), &probes, until).await,
            Lookup::Forbidden(_)
        ));
    }
}
