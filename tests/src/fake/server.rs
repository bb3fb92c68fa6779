//! One apiserver: its address, its doings, and the knobs of a test.
//!
//! Invariant: each server has a loopback address of its own, so that it can go away and come back to the same address
//! and port while other tests run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::authority::ServerIdentity;
use super::cluster::Cluster;
use super::fault::{Asked, Fault, Greeting, Script};
use super::journal::{Journal, Request};
use super::{FakeError, Kind, connection, lock};

/// As real apiservers send bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// What one watch may be told before it has done any of it.
const ORDERS_WAITING_MAX: usize = 64;

/// Knobs turn one after the other.
const COMMANDS_WAITING_MAX: usize = 4;

/// One apiserver of a cluster; it goes when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    state: Arc<State>,
    // Gone only while it is being dropped.
    commands: Option<mpsc::Sender<(Command, std_mpsc::SyncSender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

/// What only the thread that accepts can do.
#[derive(Debug)]
enum Command {
    Listen(StdListener),
    Close,
    DropPackets(bool),
}

/// What a running watch is told to do.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Say(String),
    LookAgain,
    End,
}

/// What all connections of a server share.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cluster: Cluster,
    pub(super) script: Script,
    pub(super) journal: Journal,
    knobs: Mutex<Knobs>,
    // Watches and connections that are open.
    watches: Mutex<Vec<(Kind, mpsc::Sender<Order>)>>,
    sockets: Mutex<BTreeMap<u64, OwnedFd>>,
}

#[derive(Debug)]
struct Knobs {
    tls: Arc<ServerConfig>,
    greeting: Greeting,
    bookmarks: Option<Duration>,
    mute: BTreeSet<Kind>,
    protobuf: bool,
    /// The clients that are answered, by `Authorization` and by certificate; none means that all are.
    known: Option<(BTreeSet<String>, Vec<Vec<u8>>)>,
}

impl Server {
    /// Serves a cluster at an address that no other server of this process has.
    pub fn start(cluster: &Cluster, identity: &ServerIdentity) -> Result<Self, FakeError> {
        let listener = StdListener::bind(SocketAddr::from((own_address(), 0)))?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::new(cluster, identity));
        let (commands, incoming) = mpsc::channel(COMMANDS_WAITING_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let accepting = accept(Arc::clone(&state), incoming);
        let thread =
            std::thread::Builder::new().name("fake".to_owned()).spawn(move || runtime.block_on(accepting))?;
        let server = Self { address, state, commands: Some(commands), thread: Some(thread) };
        server.command(Command::Listen(listener));
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as configurations say it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The next request of this kind goes wrong.
    pub fn once(&self, asked: Asked, fault: Fault) {
        self.times(asked, fault, 1);
    }

    /// The next so many requests of this kind go wrong.
    pub fn times(&self, asked: Asked, fault: Fault, times: u32) {
        self.state.script.add(asked, fault, Some(times));
    }

    /// From now on each n-th request of this kind goes wrong.
    pub fn each(&self, nth: u32, asked: Asked, fault: Fault) {
        self.state.script.add_each(asked, fault, nth);
    }

    /// From now on all requests of this kind go wrong.
    pub fn always(&self, asked: Asked, fault: Fault) {
        self.state.script.add(asked, fault, None);
    }

    /// Takes all faults of requests back.
    pub fn heal(&self) {
        self.state.script.clear();
    }

    /// Says this line in every running watch of a kind, framed as the watch is.
    pub fn say(&self, kind: Kind, text: &str) {
        self.state.order(kind, &Order::Say(text.to_owned()));
    }

    /// Ends every running watch of a kind as its time would.
    pub fn end_watches(&self, kind: Kind) {
        self.state.order(kind, &Order::End);
    }

    /// Watches of a kind say nothing any more, neither events nor bookmarks; or tell what they kept to themselves.
    pub fn mute(&self, kind: Kind, mute: bool) {
        let mut knobs = lock(&self.state.knobs);
        let _ = if mute { knobs.mute.insert(kind) } else { knobs.mute.remove(&kind) };
        drop(knobs);
        self.state.order(kind, &Order::LookAgain);
    }

    /// How often watches that begin from now on send bookmarks.
    pub fn set_bookmarks(&self, every: Option<Duration>) {
        lock(&self.state.knobs).bookmarks = every;
    }

    /// Whether it speaks protobuf to clients that ask for it; at first it does.
    pub fn speak_protobuf(&self, protobuf: bool) {
        lock(&self.state.knobs).protobuf = protobuf;
    }

    /// How new connections are met.
    pub fn greet(&self, greeting: Greeting) {
        lock(&self.state.knobs).greeting = greeting;
    }

    /// What new connections are shown.
    pub fn show(&self, identity: &ServerIdentity) {
        lock(&self.state.knobs).tls = Arc::clone(&identity.tls);
    }

    /// Answers only requests with this token or certificate from now on, besides those allowed before.
    pub fn let_in(&self, token: Option<&str>, certificate: Option<&[u8]>) {
        let mut knobs = lock(&self.state.knobs);
        let (tokens, certificates) = knobs.known.get_or_insert_default();
        tokens.extend(token.map(|token| format!("Bearer {token}")));
        certificates.extend(certificate.map(<[u8]>::to_vec));
    }

    /// Answers no client from now on but those that [`let_in`](Self::let_in) names later.
    pub fn let_nobody_in(&self) {
        lock(&self.state.knobs).known = Some(Default::default());
    }

    /// Resets every connection.
    pub fn reset_connections(&self) {
        let numbers: Vec<u64> = lock(&self.state.sockets).keys().copied().collect();
        numbers.into_iter().for_each(|number| self.state.reset(number));
    }

    /// Goes away: connections are refused, open ones are closed.
    pub fn stop(&self) {
        self.command(Command::Close);
    }

    /// Comes back at its address.
    pub fn start_again(&self) -> Result<(), FakeError> {
        self.command(Command::Listen(StdListener::bind(self.address)?));
        Ok(())
    }

    /// Every packet to it is lost, those of open connections and of new ones, as if its cable was pulled;
    /// or arrives again.
    pub fn drop_packets(&self, dropped: bool) {
        self.command(Command::DropPackets(dropped));
        for socket in lock(&self.state.sockets).values() {
            // A socket that is just being closed needs no filter.
            let _ = filter(&SockRef::from(socket), dropped);
        }
    }

    /// How many requests of this kind came.
    pub fn asked(&self, asked: Asked) -> u64 {
        self.state.journal.asked(asked)
    }

    /// The requests that came, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.state.journal.requests()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.state.journal.connections()
    }

    /// How many watches of a kind are running.
    pub fn watches(&self, kind: Kind) -> usize {
        lock(&self.state.watches).iter().filter(|(it, orders)| *it == kind && !orders.is_closed()).count()
    }

    /// Counts from nothing again.
    pub fn forget_requests(&self) {
        self.state.journal.clear();
    }

    /// Waits until it is done; the thread that does it never waits for a test.
    fn command(&self, command: Command) {
        let (done, wait) = std_mpsc::sync_channel(1);
        let Some(commands) = &self.commands else { return };
        if commands.try_send((command, done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread ends with the last sender.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn new(cluster: &Cluster, identity: &ServerIdentity) -> Self {
        let knobs = Knobs {
            tls: Arc::clone(&identity.tls),
            greeting: Greeting::Serve,
            bookmarks: Some(BOOKMARKS),
            mute: BTreeSet::new(),
            protobuf: true,
            known: None,
        };
        Self {
            cluster: cluster.clone(),
            script: Script::default(),
            journal: Journal::default(),
            knobs: Mutex::new(knobs),
            watches: Mutex::default(),
            sockets: Mutex::default(),
        }
    }

    pub(super) fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&lock(&self.knobs).tls)
    }

    pub(super) fn greeting(&self) -> Greeting {
        lock(&self.knobs).greeting
    }

    pub(super) fn speaks_protobuf(&self) -> bool {
        lock(&self.knobs).protobuf
    }

    pub(super) fn bookmarks(&self) -> Option<Duration> {
        lock(&self.knobs).bookmarks
    }

    pub(super) fn is_mute(&self, kind: Kind) -> bool {
        lock(&self.knobs).mute.contains(&kind)
    }

    pub(super) fn lets_in(&self, request: &Request) -> bool {
        lock(&self.knobs).known.as_ref().is_none_or(|(tokens, certificates)| {
            let certificate = request.certificate.as_ref();
            tokens.contains(request.header("authorization"))
                || certificate.is_some_and(|shown| certificates.contains(shown))
        })
    }

    /// Gives a watch that begins what the test orders.
    pub(super) fn register(&self, kind: Kind) -> mpsc::Receiver<Order> {
        let (orders, incoming) = mpsc::channel(ORDERS_WAITING_MAX);
        let mut watches = lock(&self.watches);
        watches.retain(|(_, orders)| !orders.is_closed());
        watches.push((kind, orders));
        incoming
    }

    fn order(&self, kind: Kind, order: &Order) {
        for (_, orders) in lock(&self.watches).iter().filter(|(it, _)| *it == kind) {
            // A watch that has ended does nothing any more.
            let _ = orders.try_send(order.clone());
        }
    }

    /// Ends a connection with a reset; what it was about to say is lost.
    pub(super) fn reset(&self, number: u64) {
        if let Some(socket) = lock(&self.sockets).get(&number) {
            let socket = SockRef::from(socket);
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(std::net::Shutdown::Read);
        }
    }
}

/// Accepts and obeys until the sender of commands is gone.
async fn accept(state: Arc<State>, mut commands: mpsc::Receiver<(Command, std_mpsc::SyncSender<()>)>) {
    let mut listener = None;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some((command, done)) = command else { return };
                obey(command, &mut listener, &mut connections).await;
                let _ = done.send(());
            }
            stream = accepted(listener.as_ref()) => {
                let number = state.journal.connection();
                connections.spawn(connected(stream, number, Arc::clone(&state)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn obey(command: Command, listener: &mut Option<TcpListener>, connections: &mut JoinSet<()>) {
    match command {
        Command::Listen(bound) => {
            *listener = bound.set_nonblocking(true).and_then(|()| TcpListener::from_std(bound)).ok();
        }
        Command::Close => {
            *listener = None;
            connections.shutdown().await;
        }
        Command::DropPackets(dropped) => {
            let _ = listener.as_ref().map(|listener| filter(&SockRef::from(listener), dropped));
        }
    }
}

async fn accepted(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // A client that has gone again is not served.
        if let Ok((stream, _)) = listener.accept().await {
            return stream;
        }
    }
}

async fn connected(stream: TcpStream, number: u64, state: Arc<State>) {
    let _ = stream.set_nodelay(true);
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else { return };
    let _entry = Entry { state: Arc::clone(&state), number };
    lock(&state.sockets).insert(number, socket);
    // Whatever ends a connection is what its client is tested with.
    let _ = connection::serve(stream, number, state).await;
}

/// A connection in the list of open ones, also while it is being aborted.
struct Entry {
    state: Arc<State>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.state.sockets).remove(&self.number);
    }
}

/// A program that keeps no byte of any packet.
fn filter(socket: &SockRef<'_>, dropped: bool) -> std::io::Result<()> {
    const RETURN: u16 = 0x06;
    if dropped { socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]) } else { socket.detach_filter() }
}

/// 127.P.P.N: of this process as far as 16 bits tell, and of this server.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = (std::process::id() ^ (next / 250)).to_be_bytes();
    let last = u8::try_from(next % 250).unwrap_or_default();
    // 127.0 is what others use.
    Ipv4Addr::new(127, high.max(1), low, last + 1)
}
