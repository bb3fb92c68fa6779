//! One apiserver: its address, its threads, and the controls for a test.
//!
//! Invariant: each server has a loopback address of its own, so that it can stop and return to the same address and
//! port while other tests run.

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
use super::fault::{Fault, Greeting, RequestFilter, Script};
use super::journal::{Journal, Request};
use super::{FakeError, Kind, connection, lock};

/// The interval of bookmarks in real apiservers.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// The queue of orders to one watch.
const ORDERS_WAITING_MAX: usize = 64;

/// The queue of commands; they run one after the other.
const COMMANDS_WAITING_MAX: usize = 4;

/// One apiserver of a cluster; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    state: Arc<State>,
    // `None` only while it is being dropped.
    commands: Option<mpsc::Sender<(Command, std_mpsc::SyncSender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

/// Commands for the accepting thread.
#[derive(Debug)]
enum Command {
    Listen(StdListener),
    Close,
    DropPackets(bool),
}

/// Orders to a running watch.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Say(String),
    LookAgain,
    End,
}

/// The shared state of a server's connections.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cluster: Cluster,
    pub(super) script: Script,
    pub(super) journal: Journal,
    knobs: Mutex<Knobs>,
    // Open watches and connections.
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
    /// The accepted clients, by `Authorization` and by certificate; `None` accepts all.
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

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The next matching request gets the fault.
    pub fn once(&self, filter: RequestFilter, fault: Fault) {
        self.times(filter, fault, 1);
    }

    /// The next `times` matching requests get the fault.
    pub fn times(&self, filter: RequestFilter, fault: Fault, times: u32) {
        self.state.script.add(filter, fault, Some(times));
    }

    /// From now on, every n-th matching request gets the fault.
    pub fn each(&self, nth: u32, filter: RequestFilter, fault: Fault) {
        self.state.script.add_each(filter, fault, nth);
    }

    /// From now on, all matching requests get the fault.
    pub fn always(&self, filter: RequestFilter, fault: Fault) {
        self.state.script.add(filter, fault, None);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state.script.clear();
    }

    /// Sends this line in every running watch of a kind, in the watch's encoding.
    pub fn say(&self, kind: Kind, text: &str) {
        self.state.order(kind, &Order::Say(text.to_owned()));
    }

    /// Ends every running watch of a kind as its timeout would.
    pub fn end_watches(&self, kind: Kind) {
        self.state.order(kind, &Order::End);
    }

    /// Mutes watches of a kind: they send neither events nor bookmarks. Unmuted, they send what they held back.
    pub fn mute(&self, kind: Kind, mute: bool) {
        let mut knobs = lock(&self.state.knobs);
        let _ = if mute { knobs.mute.insert(kind) } else { knobs.mute.remove(&kind) };
        drop(knobs);
        self.state.order(kind, &Order::LookAgain);
    }

    /// The interval of bookmarks for new watches.
    pub fn set_bookmarks(&self, every: Option<Duration>) {
        lock(&self.state.knobs).bookmarks = every;
    }

    /// Whether it offers protobuf; true at first.
    pub fn speak_protobuf(&self, protobuf: bool) {
        lock(&self.state.knobs).protobuf = protobuf;
    }

    /// How it treats new connections.
    pub fn greet(&self, greeting: Greeting) {
        lock(&self.state.knobs).greeting = greeting;
    }

    /// The certificate for new connections.
    pub fn show(&self, identity: &ServerIdentity) {
        lock(&self.state.knobs).tls = Arc::clone(&identity.tls);
    }

    /// From now on accepts requests with this token or certificate, besides those allowed before.
    pub fn accept_client(&self, token: Option<&str>, certificate: Option<&[u8]>) {
        let mut knobs = lock(&self.state.knobs);
        let (tokens, certificates) = knobs.known.get_or_insert_default();
        tokens.extend(token.map(|token| format!("Bearer {token}")));
        certificates.extend(certificate.map(<[u8]>::to_vec));
    }

    /// From now on rejects all clients that [`accept_client`](Self::accept_client) does not add later.
    pub fn reject_all_clients(&self) {
        lock(&self.state.knobs).known = Some(Default::default());
    }

    /// Resets every connection.
    pub fn reset_connections(&self) {
        let numbers: Vec<u64> = lock(&self.state.sockets).keys().copied().collect();
        numbers.into_iter().for_each(|number| self.state.reset(number));
    }

    /// Stops: refuses connections and closes open ones.
    pub fn stop(&self) {
        self.command(Command::Close);
    }

    /// Listens again at its address.
    pub fn start_again(&self) -> Result<(), FakeError> {
        self.command(Command::Listen(StdListener::bind(self.address)?));
        Ok(())
    }

    /// Drops all packets to it, of open and of new connections, like a pulled cable; or stops that.
    pub fn drop_packets(&self, dropped: bool) {
        self.command(Command::DropPackets(dropped));
        for socket in lock(&self.state.sockets).values() {
            // A socket that is closing needs no filter.
            let _ = filter(&SockRef::from(socket), dropped);
        }
    }

    /// How many matching requests came.
    pub fn request_count(&self, filter: RequestFilter) -> u64 {
        self.state.journal.request_count(filter)
    }

    /// The stored requests, oldest first.
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

    /// Resets all counts.
    pub fn forget_requests(&self) {
        self.state.journal.clear();
    }

    /// Waits until the thread has run the command; the thread never waits for a test.
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

    /// Connects a new watch to the test's orders.
    pub(super) fn register(&self, kind: Kind) -> mpsc::Receiver<Order> {
        let (orders, incoming) = mpsc::channel(ORDERS_WAITING_MAX);
        let mut watches = lock(&self.watches);
        watches.retain(|(_, orders)| !orders.is_closed());
        watches.push((kind, orders));
        incoming
    }

    fn order(&self, kind: Kind, order: &Order) {
        for (_, orders) in lock(&self.watches).iter().filter(|(it, _)| *it == kind) {
            // A watch that has ended ignores orders.
            let _ = orders.try_send(order.clone());
        }
    }

    /// Resets a connection; unsent bytes are lost.
    pub(super) fn reset(&self, number: u64) {
        if let Some(socket) = lock(&self.sockets).get(&number) {
            let socket = SockRef::from(socket);
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(std::net::Shutdown::Read);
        }
    }
}

/// Accepts connections and runs commands until the sender is dropped.
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
        // A client that is already gone is not served.
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
    // The client under test sees how its connection ends; the server ignores the error.
    let _ = connection::serve(stream, number, state).await;
}

/// An open connection in the list, also while it is being aborted.
struct Entry {
    state: Arc<State>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.state.sockets).remove(&self.number);
    }
}

/// A BPF filter that drops every packet.
fn filter(socket: &SockRef<'_>, dropped: bool) -> std::io::Result<()> {
    const RETURN: u16 = 0x06;
    if dropped { socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]) } else { socket.detach_filter() }
}

/// 127.P.P.N: unique for this process, as far as 16 bits of its id tell, and for this server.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = (std::process::id() ^ (next / 250)).to_be_bytes();
    let last = u8::try_from(next % 250).unwrap_or_default();
    // Others use 127.0.
    Ipv4Addr::new(127, high.max(1), low, last + 1)
}
