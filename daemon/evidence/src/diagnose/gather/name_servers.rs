//! Queries a backend as a name server, and the cluster's own name server for the Service's name.
//!
//! Invariant: it queries only the Service's own name and a name that every cluster has. It queries only backends of the
//! Service and of the cluster's DNS, from a socket that no program translates. Each query is one datagram; a truncated
//! reply is not queried again.

use std::io;
use std::net::SocketAddr;

use holdfast_core::keys::ObjectName;
use holdfast_diagnose::evidence::DnsReply;
use tokio::time::{Instant, timeout_at};

use crate::diagnose::limits::PROBE_TIMEOUT;
use holdfast_standalone::dns::{self, Answer, Name, QueryError, Question, RecordType};

/// The most addresses of one reply that are read.
const ANSWERS_MAX: usize = 64;

/// The default domain of a cluster.
const CLUSTER_DOMAIN: &str = "svc.cluster.local";

const COMMON_NAME: &str = "kubernetes.default.svc.cluster.local";

fn to_dns_reply(answer: &Answer) -> DnsReply {
    let addresses = answer.addresses().take(ANSWERS_MAX).collect();
    let is_unknown = answer.rcode == dns::RCODE_NXDOMAIN;
    DnsReply::Answer { addresses, is_unknown, code: answer.rcode, is_cut: answer.is_truncated }
}

async fn query_name(to: SocketAddr, name: &str, kind: RecordType, until: Instant) -> DnsReply {
    let name = match Name::parse(name) {
        Ok(name) => name,
        Err(error) => return DnsReply::Failed(error.to_string()),
    };
    let question = Question::with_random_id(&name, kind);
    let until = until.min(Instant::now() + PROBE_TIMEOUT);
    match timeout_at(until, dns::query_udp(to, &question)).await {
        Ok(Ok(answer)) => to_dns_reply(&answer),
        Ok(Err(QueryError::Socket(error))) if error.kind() == io::ErrorKind::ConnectionRefused => {
            DnsReply::Refused
        }
        Ok(Err(error)) => DnsReply::Failed(error.to_string()),
        Err(_) => DnsReply::Silent,
    }
}

/// Queries a name that every cluster has. A backend that gives any answer is a name server.
pub(super) async fn query_common_name(to: SocketAddr, until: Instant) -> DnsReply {
    query_name(to, COMMON_NAME, RecordType::A, until).await
}

pub(super) async fn query_service_name(
    to: SocketAddr,
    name: &ObjectName,
    is_v6: bool,
    until: Instant,
) -> DnsReply {
    let kind = if is_v6 { RecordType::Aaaa } else { RecordType::A };
    query_name(to, &format!("{}.{}.{CLUSTER_DOMAIN}", name.name(), name.namespace()), kind, until).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn kernel_a_name_server_answers_and_a_closed_port_refuses() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap();
        let serving = async {
            let mut bytes = [0; 512];
            let (length, from) = server.recv_from(&mut bytes).await.unwrap();
            server.send_to(b"no answer at all", from).await.unwrap();
            // The query again, a pointer to its name, one address.
            let mut answer = bytes[..length - 11].to_vec();
            (answer[2], answer[3], answer[7], answer[11]) = (0x81, 0x80, 1, 0);
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 96, 0, 1]);
            server.send_to(&answer, from).await.unwrap();
        };
        let name = ObjectName::new("shop", "web").unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        let (found, ()) = tokio::join!(query_service_name(to, &name, false, until), serving);
        let addresses = vec![[10, 96, 0, 1].into()];
        assert_eq!(found, DnsReply::Answer { addresses, is_unknown: false, code: 0, is_cut: false });
        drop(server);
        assert_eq!(query_common_name(to, Instant::now() + Duration::from_secs(2)).await, DnsReply::Refused);
    }
}
