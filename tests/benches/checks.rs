//! The cost of health checks: 10,000 backends, each checked every five seconds, by each kind of check.
//!
//! Runs the source of `[[service]]` blocks as in the daemon, on a thread of its own whose CPU time is measured. Over
//! loopback, that includes the kernel's time for the packets. The backends are ten addresses of one other thread; each
//! is a backend of every service. The kernel's own cost is measured first.

// Every line of a measurement may panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::Endpoint;
use holdfast_core::keys::Transport;
use holdfast_fixtures::clock::{Stopwatch, pause, pause_async};
use holdfast_standalone::blocks::{Blocks, CheckKind, GrpcCheck, HealthCheck, HttpCheck, StaticService, run};
use holdfast_status::views::datapath::DatapathView;
use holdfast_tests::size::sized;
use nix::libc::linger;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeValLike;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const INTERVAL: Duration = Duration::from_secs(5);

const BACKENDS: u32 = 10;

fn services() -> u32 {
    sized(1_000, 10)
}

/// How long checks are measured, after the first check of each backend.
fn counted() -> Duration {
    sized(INTERVAL * 6, Duration::from_secs(1))
}

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\nall is well\n";

fn kinds() -> [(&'static str, CheckKind); 5] {
    let http = HttpCheck { path: "/healthz".to_owned(), ..HttpCheck::default() };
    let body = HttpCheck { expect_body: Some("all is well".to_owned()), ..http.clone() };
    let exchange = CheckKind::SendExpect {
        send: Some("GET / HTTP/1.1\r\n\r\n".to_owned()),
        expect: "200 OK".to_owned(),
    };
    [
        ("tcp", CheckKind::Tcp),
        ("http", CheckKind::Http(http)),
        ("http with a body", CheckKind::Http(body)),
        ("send-expect", exchange),
        ("grpc", CheckKind::Grpc(GrpcCheck::default())),
    ]
}

/// A gRPC server's first frame: its settings, which it sends before it reads.
const SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0";

/// The end of a call: a message without a field.
const CALL_END: &[u8] = b"\0\0\x05\0\x01\0\0\0\x01\0\0\0\0\0";

/// The rest: an acknowledgement of settings, then headers, a message, and headers again, in grpc-go's sizes.
const GRPC_ANSWER: &[u8] = b"\0\0\0\x04\x01\0\0\0\0\
    \0\0\x0e\x01\x04\0\0\0\x01\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64\
    \0\0\x07\0\0\0\0\0\x01\0\0\0\0\x02\x08\x01\
    \0\0\x18\x01\x05\0\0\0\x01\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30\
    \x40\x89\x9a\xca\xc8\xb5\x25\x42\x07\x31\x7f\x00";

async fn answer(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut end = &b"\r\n\r\n"[..];
    while !request.ends_with(end) {
        // A TCP check sends nothing.
        if stream.read_buf(&mut request).await.unwrap_or_default() == 0 {
            return;
        }
        if request.starts_with(b"PRI ") && end != CALL_END {
            end = CALL_END;
            let _ = stream.write_all(SETTINGS).await;
        }
    }
    let _ = stream.write_all(if end == CALL_END { GRPC_ANSWER } else { ANSWER }).await;
    // Closing before all is read would reset the connection and might lose the answer. The check closes the connection
    // itself.
    while end == CALL_END && stream.read_buf(&mut request).await.unwrap_or_default() > 0 {}
}

/// Backends on a thread of their own; `asked` counts their accepted connections.
fn backends(asked: &Arc<AtomicU64>) -> Vec<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let addresses = (1..=BACKENDS).map(|n| Ipv4Addr::from_bits(0x7f4d_0400 + n));
    let listen = |address| TcpListener::bind((address, 0));
    let listeners: Vec<_> = addresses.map(|address| runtime.block_on(listen(address)).unwrap()).collect();
    let found = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    for listener in listeners {
        let asked = Arc::clone(asked);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(answer(stream));
            }
        });
    }
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    found
}

fn blocks(backends: &[SocketAddr], kind: &CheckKind) -> Blocks {
    let check = HealthCheck { kind: kind.clone(), interval: INTERVAL, ..HealthCheck::default() };
    let service = |number: u32| StaticService {
        name: format!("web-{number}"),
        namespace: "static".to_owned(),
        port_name: String::new(),
        transport: Transport::Tcp,
        frontends: vec![SocketAddr::from((Ipv4Addr::from_bits(0x0a60_0001 + number), 80))],
        backends: backends.to_vec(),
        weights: Vec::new(),
        resolve: None,
        health_check: Some(check.clone()),
        affinity_timeout: None,
        affinity_prefix: None,
        on_empty: None,
        maglev: None,
    };
    Blocks::new((0..services()).map(service).collect(), "holdfast.toml").unwrap()
}

/// This thread's CPU time.
fn own_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap())
}

/// Fails if a check fails: results of failing checks say nothing about passing ones.
async fn watched(mut events: mpsc::Receiver<Vec<Event>>) {
    while let Some(group) = events.recv().await {
        let ready = |endpoint: Endpoint<'_>| endpoint.conditions.ready;
        let slices = group
            .iter()
            .filter_map(|event| if let Event::SliceApplied(facts) = event { Some(facts) } else { None });
        slices.for_each(|facts| assert!(facts.endpoints.iter().all(ready), "a backend failed its check"));
    }
}

async fn measure(name: &str, blocks: Blocks, asked: &AtomicU64) {
    let (_blocks, blocks) = watch::channel(Arc::new(blocks));
    let (_led, led) = watch::channel(None);
    let (_datapath, datapath) = watch::channel(Arc::new(DatapathView::for_memory()));
    let (sender, events) = mpsc::channel(8);
    let running = tokio::spawn(run(blocks, led, (None, None), sender, datapath, (7, Arc::default())));
    let watching = tokio::spawn(watched(events));
    // By then the first check of each backend is over, and the second one, which comes within an interval.
    pause_async(sized(INTERVAL * 2, Duration::from_millis(500))).await;
    let (before, taken, begun) = (asked.load(Ordering::Relaxed), own_time(), Stopwatch::start());
    pause_async(counted()).await;
    let (checks, taken, passed) = (asked.load(Ordering::Relaxed) - before, own_time() - taken, begun.read());
    running.abort();
    show(name, (u32::try_from(checks).unwrap(), taken), passed);
    assert!(!watching.is_finished() || watching.await.is_ok(), "{name}");
}

/// The kernel's own cost: as many connections a second as checks, one after the other, with only the system calls that
/// a TCP check needs.
fn bare(backends: &[SocketAddr]) {
    let pace = INTERVAL / (services() * BACKENDS);
    let (taken, begun) = (own_time(), Stopwatch::start());
    let mut connections = 0_u32;
    while begun.read() < counted() {
        pause((pace * connections).saturating_sub(begun.read()));
        let backend = backends[connections as usize % backends.len()];
        let stream = std::net::TcpStream::connect(backend).unwrap();
        setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).unwrap();
        connections += 1;
    }
    show("system calls alone", (connections, own_time() - taken), begun.read());
}

fn show(name: &str, (checks, taken): (u32, Duration), passed: Duration) {
    let (seconds, each) = (passed.as_secs_f64(), taken.as_secs_f64() * 1e6 / f64::from(checks.max(1)));
    println!(
        "{name}: {:.0} checks/s, {:.2} % of a core, {each:.1} µs each",
        f64::from(checks) / seconds,
        taken.as_secs_f64() / seconds * 100.0,
    );
}

fn main() {
    let asked = Arc::default();
    let backends = backends(&asked);
    println!("{} backends, each checked every {} s", services() * BACKENDS, INTERVAL.as_secs());
    bare(&backends);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, kind) in kinds() {
        runtime.block_on(measure(name, blocks(&backends, &kind), &asked));
    }
}
