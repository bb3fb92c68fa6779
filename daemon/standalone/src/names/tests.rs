//! The whole resolver with scripted name servers on 127.0.0.1.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_status::views::names::{NameState, QueryResult};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::timeout;

use super::*;
use crate::dns::message::tests::Written;
use crate::dns::{Name, Question, RecordType};
use holdfast_fixtures::TEST_TIMEOUT;

/// A server's reply to a question; `None`: silence.
type Reply = dyn Fn(&Question) -> Option<Written> + Send + Sync;

/// A name server on one port, over UDP and TCP.
struct NameServer {
    address: SocketAddr,
    says: Arc<Mutex<Arc<Reply>>>,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    async fn new(says: impl Fn(&Question) -> Option<Written> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).await.unwrap();
        let says: Arc<Mutex<Arc<Reply>>> = Arc::new(Mutex::new(Arc::new(says)));
        let asked = Arc::new(AtomicUsize::new(0));
        tokio::spawn(datagrams(socket, Arc::clone(&says), Arc::clone(&asked)));
        tokio::spawn(connections(listener, Arc::clone(&says)));
        Self { address, says, asked }
    }

    fn says(&self, says: impl Fn(&Question) -> Option<Written> + Send + Sync + 'static) {
        *self.says.lock().unwrap() = Arc::new(says);
    }
}

/// Truncates UDP answers of more than 1,232 bytes.
async fn datagrams(socket: UdpSocket, says: Arc<Mutex<Arc<Reply>>>, asked: Arc<AtomicUsize>) {
    let mut bytes = [0; 4_096];
    while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
        asked.fetch_add(1, Ordering::Relaxed);
        let says = Arc::clone(&says.lock().unwrap());
        let question = Question::of_bytes(&bytes[..length]);
        if let Some(mut answer) = says(&question) {
            if answer.bytes.len() > 1_232 {
                answer.bytes.truncate(600);
                answer.bytes[2] |= 2;
            }
            socket.send_to(&answer.bytes, from).await.unwrap();
        }
    }
}

async fn connections(listener: TcpListener, says: Arc<Mutex<Arc<Reply>>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut bytes).await.unwrap();
        let says = Arc::clone(&says.lock().unwrap());
        if let Some(answer) = says(&Question::of_bytes(&bytes)) {
            stream.write_u16(answer.bytes.len().try_into().unwrap()).await.unwrap();
            stream.write_all(&answer.bytes).await.unwrap();
        }
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn service(number: usize) -> ObjectName {
    ObjectName::new("static", &format!("s{number}")).unwrap()
}

fn host(text: &str) -> Resolve {
    Resolve::Addresses(name(text), NonZeroU16::new(80).unwrap())
}

/// A running resolver for one service.
struct Lab {
    wanted: watch::Sender<Arc<NameQueries>>,
    news: mpsc::Receiver<Vec<NameNews>>,
    seen: Arc<NameTable>,
}

impl Lab {
    fn new(resolve: &Resolve, servers: &[&NameServer]) -> Self {
        Self::of(&[resolve], &servers.iter().map(|it| it.address).collect::<Vec<_>>())
    }

    fn of(resolve: &[&Resolve], servers: &[SocketAddr]) -> Self {
        let wish = |resolve: &Resolve| {
            let families = vec![Family::V4, Family::V6];
            Arc::new(NameQuery { resolve: resolve.clone(), families, servers: servers.into() })
        };
        let each = resolve.iter().enumerate();
        let wanted: NameQueries = each.map(|(number, resolve)| (service(number), wish(resolve))).collect();
        let (wanted, wishes) = watch::channel(Arc::new(wanted));
        let (sender, news) = mpsc::channel(1);
        let seen = Arc::default();
        tokio::spawn(run(wishes, sender, Arc::clone(&seen), 1));
        Self { wanted, news, seen }
    }

    async fn next(&mut self) -> NameResult {
        let news = timeout(TEST_TIMEOUT, self.news.recv()).await.unwrap().unwrap();
        assert_eq!(news.len(), 1, "{news:?}");
        news.into_iter().next().unwrap().result
    }

    /// The backends of the next news.
    async fn backends(&mut self) -> String {
        match &*self.next().await.unwrap() {
            NameAnswer::Withdrawn => "withdrawn".to_owned(),
            NameAnswer::Backends(set) => {
                let each = set.backends.iter().map(|(backend, weight)| match weight.number() {
                    1 => backend.to_string(),
                    number => format!("{backend}={number}"),
                });
                each.collect::<Vec<_>>().join(" ")
            }
        }
    }

    fn state(&self) -> NameState {
        self.seen.service_row(&service(0)).unwrap().state.0
    }

    fn count(&self, result: QueryResult) -> u64 {
        self.seen.totals().find(|(it, _)| *it == result).unwrap().1
    }
}

/// One address for each A question, none for other types.
fn address(question: &Question, last: u8) -> Option<Written> {
    let written = Written::to(question);
    let owner = question.name().to_string();
    Some(if question.kind() == RecordType::A { written.a(&owner, 0, last) } else { written })
}

#[tokio::test]
async fn a_change_is_reported_after_the_ttl() {
    let server = NameServer::new(|question| address(question, 1)).await;
    let mut lab = Lab::new(&host("web.example.com"), &[&server]);
    assert_eq!(lab.backends().await, "192.0.2.1:80");
    assert_eq!(lab.state(), NameState::Resolved);
    server.says(|question| address(question, 2));
    assert_eq!(lab.backends().await, "192.0.2.2:80");
    server.says(|question| Some(Written::to(question).code(3)));
    assert_eq!(lab.backends().await, "");
    assert_eq!(lab.state(), NameState::Empty);
    assert!(lab.count(QueryResult::Answered) >= 2 && lab.count(QueryResult::Empty) >= 3);
    lab.wanted.send_replace(Arc::default());
    while lab.seen.service_row(&service(0)).is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn srv_targets_are_resolved_in_both_families() {
    let server = NameServer::new(|question| {
        let written = Written::to(question);
        Some(match (question.kind(), question.name().to_string().as_str()) {
            (RecordType::Srv, owner) => written
                .srv(owner, [10, 1, 8080], "one.example.com")
                .srv(owner, [10, 3, 8081], "two.example.com")
                .srv(owner, [20, 9, 8082], "spare.example.com")
                .srv(owner, [10, 1, 8083], "gone.example.com"),
            (RecordType::A, owner @ "one.example.com") => {
                written.a(owner, 60, 1).a("spare.example.com", 60, 66)
            }
            (RecordType::Aaaa, owner @ "two.example.com") => {
                written.record(owner, (28, 60), &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])
            }
            (_, "gone.example.com") => written.code(3),
            _ => written,
        })
    })
    .await;
    let mut lab = Lab::new(&Resolve::Servers(name("_web._tcp.example.com")), &[&server]);
    assert_eq!(lab.backends().await, "192.0.2.1:8080 [2001:db8::2]:8081=3");
    assert_eq!(server.asked.load(Ordering::Relaxed), 7, "spare servers are not asked for");
    server.says(|question| Some(Written::to(question).record("_web._tcp.example.com", (33, 1), &[0; 7])));
    let seen = lab.seen.service_row(&service(0)).unwrap().to_string();
    let begin = "_web._tcp.example.com (SRV): 2 backends by 127.0.0.1:";
    assert!(seen.starts_with(begin) && seen.ends_with(", TTL 30 s"), "{seen}");
}

#[tokio::test]
async fn a_failure_changes_nothing_and_is_reported_once() {
    let server = NameServer::new(|question| address(question, 1)).await;
    let mut lab = Lab::new(&host("web.example.com"), &[&server]);
    assert_eq!(lab.backends().await, "192.0.2.1:80");
    server.says(|question| Some(Written::to(question).code(2)));
    let told = lab.next().await.unwrap_err();
    assert!(told.ends_with("web.example.com: it answered with SERVFAIL"), "{told}");
    assert_eq!(lab.state(), NameState::Failing);
    server.says(|question| {
        let mut half = address(question, 1)?;
        half.bytes.pop();
        (question.kind() == RecordType::A).then_some(half)
    });
    while lab.count(QueryResult::Unreadable) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.says(|question| address(question, 1));
    assert_eq!(lab.backends().await, "192.0.2.1:80", "the end of trouble, and the next that is told");
    assert_eq!(lab.state(), NameState::Resolved);
    assert!(lab.count(QueryResult::Failed) >= 2, "each round is counted");
}

#[tokio::test]
async fn an_unreachable_or_silent_server_is_followed_by_the_next() {
    let away = {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.local_addr().unwrap()
    };
    let silent = NameServer::new(|_| None).await;
    let good = NameServer::new(|question| address(question, 1)).await;
    let mut lab = Lab::of(&[&host("web.example.com")], &[away, silent.address, good.address]);
    assert_eq!(lab.backends().await, "192.0.2.1:80");
    let asked = silent.asked.load(Ordering::Relaxed);
    assert_eq!((asked, lab.count(QueryResult::Unreachable), lab.count(QueryResult::Silent)), (1, 1, 1));
    good.says(|question| address(question, 2));
    assert_eq!(lab.backends().await, "192.0.2.2:80");
    assert_eq!(silent.asked.load(Ordering::Relaxed), 1, "who failed is asked last");
}

#[tokio::test]
async fn an_answer_of_64_kib_comes_by_tcp_and_is_cut() {
    let server = NameServer::new(|question| {
        let written = Written::to(question);
        let owner = question.name().to_string();
        if question.kind() != RecordType::Srv {
            return address(question, 1);
        }
        let each = 0..1_000_u16;
        let each =
            each.fold(written, |it, number| it.srv(&owner, [0, 1, 80], &format!("h{number:04}.example.com")));
        let filler = vec![0; 60_000 - each.bytes.len()];
        Some(each.record("other.example.net", (16, 1), &filler))
    })
    .await;
    let mut lab = Lab::new(&Resolve::Servers(name("_web._tcp.example.com")), &[&server]);
    assert_eq!(lab.backends().await, "192.0.2.1:80");
    let left_out = lab.seen.service_row(&service(0)).unwrap().answer.unwrap().left_out.unwrap();
    assert_eq!(left_out, "900 left out, such as h0100.example.com, because at most 100 hosts count");
    assert!(server.asked.load(Ordering::Relaxed) <= 201);
}

/// Servers older than RFC 6891 reply FORMERR or NOTIMP; some do not repeat the question.
#[tokio::test]
async fn a_server_without_edns_is_queried_without_it() {
    let refusals: [fn(&Question) -> Written; 3] = [
        |question| Written::to(question).code(1),
        |question| Written::to(question).header(),
        |question| Written::to(question).code(4),
    ];
    for refusal in refusals {
        let server = NameServer::new(move |question| {
            if question.has_options() { Some(refusal(question)) } else { address(question, 1) }
        })
        .await;
        let mut lab = Lab::new(&host("web.example.com"), &[&server]);
        assert_eq!(lab.backends().await, "192.0.2.1:80");
        server.says(|question| Some(Written::to(question).code(1)));
        let told = lab.next().await.unwrap_err();
        assert!(told.ends_with("it answered with FORMERR"), "{told}");
    }
}

#[tokio::test]
async fn invalid_addresses_never_empty_a_set() {
    let server = NameServer::new(|question| address(question, 1)).await;
    let mut lab = Lab::new(&host("web.example.com"), &[&server]);
    assert_eq!(lab.backends().await, "192.0.2.1:80");
    server.says(|question| {
        let owner = question.name().to_string();
        let written = Written::to(question);
        Some(if question.kind() == RecordType::A {
            written.record(&owner, (1, 0), &[169, 254, 169, 254])
        } else {
            written
        })
    });
    let told = lab.next().await.unwrap_err();
    let expected = "no backend of IPv4 is left of its answer; left out: 169.254.169.254, which is no address of another host";
    assert!(told.ends_with(expected), "{told}");
}

/// Each family has its own list. An empty family is an answer; a family with only invalid addresses is not.
#[tokio::test]
async fn invalid_addresses_empty_no_familys_list() {
    let mapped = [&[0; 10][..], &[0xff; 2], &[192, 0, 2, 7]].concat();
    let own = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    type Case<'a> = (&'a [u8], &'a [u8], Result<&'a str, &'a str>);
    let unfit =
        "no backend of IPv4 is left of its answer; left out: 0.0.0.0, which is no address of another host";
    let other =
        "no backend of IPv6 is left of its answer; left out: ::ffff:192.0.2.7, which is no address of IPv6";
    let cases: [Case<'_>; 4] = [
        (&[192, 0, 2, 1], &own, Ok("192.0.2.1:80 [2001:db8::2]:80")),
        (&[0; 4], &own, Err(unfit)),
        (&[192, 0, 2, 1], &mapped, Err(other)),
        (&[192, 0, 2, 1], &[], Ok("192.0.2.1:80")),
    ];
    for (v4, v6, expected) in cases {
        let [v4, v6] = [v4, v6].map(<[u8]>::to_vec);
        let server = NameServer::new(move |question| {
            let body = if question.kind() == RecordType::A { &v4 } else { &v6 };
            let written = Written::to(question);
            let kind = question.kind() as u16;
            let owner = question.name().to_string();
            Some(if body.is_empty() { written } else { written.record(&owner, (kind, 0), body) })
        })
        .await;
        let mut lab = Lab::new(&host("web.example.com"), &[&server]);
        match expected {
            Ok(backends) => assert_eq!(lab.backends().await, backends),
            Err(why) => {
                let told = lab.next().await.unwrap_err();
                assert!(told.ends_with(why), "{told}");
            }
        }
    }
}

#[tokio::test]
async fn only_the_answer_to_the_question_counts() {
    let server = NameServer::new(|question| {
        let other = Question::new(question.id().wrapping_add(1), question.name(), question.kind());
        address(&other, 66)
    })
    .await;
    let mut lab = Lab::new(&host("web.example.com"), &[&server]);
    let told = lab.next().await.unwrap_err();
    assert!(told.ends_with("nothing came within 1 s"), "{told}");
    // A packet from another address than the server's is ignored.
    let socket = holdfast_host::exempt::connect_udp(server.address).await.unwrap();
    let attacker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), socket.local_addr().unwrap().port());
    attacker.send_to(b"any", to).await.unwrap();
    let mut bytes = [0; 16];
    let heard = timeout(Duration::from_millis(50), socket.recv(&mut bytes)).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[tokio::test]
async fn ids_and_ports_of_questions_differ() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let hosts: Vec<_> = (0..20).map(|number| host(&format!("h{number}.example.com"))).collect();
    let lab = Lab::of(&hosts.iter().collect::<Vec<_>>(), &[server.local_addr().unwrap()]);
    let mut seen = std::collections::BTreeSet::new();
    let mut bytes = [0; 512];
    for _ in 0..20 {
        let (_, from) = timeout(TEST_TIMEOUT, server.recv_from(&mut bytes)).await.unwrap().unwrap();
        seen.insert((from.port(), [bytes[0], bytes[1]]));
    }
    let ports: std::collections::BTreeSet<_> = seen.iter().map(|(port, _)| *port).collect();
    let numbers: std::collections::BTreeSet<_> = seen.iter().map(|(_, number)| *number).collect();
    assert!(ports.len() == 20 && numbers.len() >= 19, "{seen:?}");
    let mut sorted: Vec<_> = seen.iter().map(|(_, number)| u16::from_be_bytes(*number)).collect();
    sorted.sort_unstable();
    assert!(sorted.windows(2).any(|two| two[1] - two[0] > 100), "they do not count up: {sorted:?}");
    drop(lab);
}
