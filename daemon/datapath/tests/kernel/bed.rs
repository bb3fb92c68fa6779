//! A separate bed for one test: network namespace, mount namespace with a BPF file system, cgroup.
//!
//! Invariant: nothing outside is changed, and nothing is left. The test runs on its own thread, which alone enters all
//! three; a threaded cgroup makes that possible. Needs root.

// Everything here is for tests, and some of it for only one of them.
#![allow(
    unsafe_code,
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]

#[path = "lacks.rs"]
mod lacks;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) use lacks::{knows_its_netns, tells_what_sockets_keep};

use holdfast_core::facts::{Conditions, Timestamp};
use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::{Row, Rows, Scope, SlotState};
use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::op::{
    Action, FrontendType, FrontendValue, MapGrowth, MemberKey, Membership, PortIndex, QuotaId, SlotRange,
    Word, WordFlags,
};
use holdfast_datapath::{
    KernelMaps, PINS_VERSION, ServedSockets, SocketSweepProgress, StaleSockets, StartOptions,
};
use holdfast_fixtures::clock::{try_wait_for, wait_for};
use holdfast_fixtures::network_namespace;

pub(crate) const MARK: u32 = 0x686f;
pub(crate) const CAPACITY: Capacity = Capacity { slots: 1 << 17, ports: 50_000, services: 1000 };
const PATIENCE: Duration = Duration::from_secs(5);

/// The bed of one test.
pub(crate) struct ThreadBed {
    pub(crate) cgroup: PathBuf,
    folder: tempfile::TempDir,
}

/// Runs a test in its own bed.
#[track_caller]
pub(crate) fn bed(test: impl FnOnce(&ThreadBed) + Send + 'static) {
    let run = move || test(&ThreadBed::enter());
    let ended = std::thread::spawn(run).join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn must(returned: i32, what: &str) {
    assert_eq!(returned, 0, "{what}: {}; these tests need root", io::Error::last_os_error());
}

fn mount(kind: &str, point: &Path, flags: u64) {
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let (kind, point) = (text(kind), text(point.to_str().unwrap()));
    // SAFETY: all strings end in zero and outlive the call.
    let returned =
        unsafe { libc::mount(kind.as_ptr(), point.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    must(returned, "mount");
}

fn loopback_up() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: a request of zeros is valid, and the kernel only reads it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = libc::c_char::try_from(b'l').unwrap();
    request.ifr_name[1] = libc::c_char::try_from(b'o').unwrap();
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request outlives the call.
    must(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) }, "bring up the loopback");
}

/// A folder of the cgroup v2 hierarchy, as a path from its root.
pub(crate) fn below_root(folder: &Path) -> PathBuf {
    Path::new("/").join(folder.strip_prefix(cgroup_root()).unwrap())
}

fn cgroup_root() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    mounted.split(' ').nth(4).unwrap().into()
}

/// This thread's folder in the cgroup v2 hierarchy.
fn own_cgroup() -> PathBuf {
    let own = fs::read_to_string("/proc/thread-self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    cgroup_root().join(own)
}

/// The process's own cgroup, for threads that outlive their bed.
static HOME: OnceLock<PathBuf> = OnceLock::new();

pub(crate) fn go_home() {
    fs::write(HOME.get().unwrap().join("cgroup.threads"), "0").unwrap();
}

impl ThreadBed {
    fn enter() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let home = HOME.get_or_init(own_cgroup);
        let name = format!("holdfast-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cgroup = home.join(name);
        network_namespace::enter().expect("these tests need root");
        // SAFETY: only this thread is moved.
        must(unsafe { libc::unshare(libc::CLONE_NEWNS) }, "unshare");
        mount("none", Path::new("/"), libc::MS_REC | libc::MS_PRIVATE);
        loopback_up();
        let folder = tempfile::tempdir().unwrap();
        mount("bpf", folder.path(), 0);
        let bed = Self { cgroup, folder };
        // A run that was killed may have left one, and had the same process id.
        let _ = fs::remove_dir(&bed.cgroup);
        bed.add_cgroup(&bed.cgroup);
        bed
    }

    fn add_cgroup(&self, cgroup: &Path) {
        fs::create_dir(cgroup).unwrap();
        fs::write(cgroup.join("cgroup.type"), "threaded").unwrap();
    }

    /// A cgroup inside the served one.
    pub(crate) fn child_cgroup(&self, name: &str) -> PathBuf {
        let child = self.cgroup.join(name);
        self.add_cgroup(&child);
        child
    }

    /// The whole BPF file system.
    pub(crate) fn bpffs(&self) -> &Path {
        self.folder.path()
    }

    /// Creates the folder of pins as a mount, as in a container.
    pub(crate) fn mount_pins(&self) {
        let pins = self.options().bpffs;
        std::fs::create_dir(&pins).unwrap();
        mount(pins.to_str().unwrap(), &pins, libc::MS_BIND);
    }

    /// Makes pinning and removing impossible, or possible again.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        let flags = if read_only { libc::MS_RDONLY } else { 0 };
        mount("bpf", self.folder.path(), libc::MS_REMOUNT | flags);
    }

    /// A cgroup next to the served one, for clients without programs.
    pub(crate) fn other_cgroup(&self, name: &str) -> PathBuf {
        let other = self.cgroup.with_extension(name);
        self.add_cgroup(&other);
        other
    }

    /// Moves this thread's new sockets to that cgroup.
    pub(crate) fn join(&self, cgroup: &Path) {
        fs::write(cgroup.join("cgroup.threads"), "0").unwrap();
    }

    /// Makes the next start load its programs, as after an upgrade.
    pub(crate) fn remove_programs(&self) {
        fs::remove_dir_all(self.options().bpffs.join(pinned("programs"))).unwrap();
    }

    pub(crate) fn options(&self) -> StartOptions {
        StartOptions {
            cgroup: Some(self.cgroup.clone()),
            bpffs: self.folder.path().join("holdfast"),
            capacity: CAPACITY,
            mark: MARK,
            expected: MapGrowth::default(),
            stale_sockets: StaleSockets::default(),
            served: ServedSockets::default(),
            packets: None,
        }
    }

    /// Starts a daemon outside, with this thread as its client.
    pub(crate) fn start(&self) -> KernelMaps {
        let maps = KernelMaps::start(&self.options()).unwrap();
        self.join(&self.cgroup);
        maps
    }
}

impl Drop for ThreadBed {
    fn drop(&mut self) {
        go_home();
        let text = std::ffi::CString::new(self.folder.path().to_str().unwrap()).unwrap();
        // SAFETY: the string ends in zero and outlives the call.
        unsafe { libc::umount2(text.as_ptr(), libc::MNT_DETACH) };
        let children = fs::read_dir(&self.cgroup).unwrap().flatten().filter(|it| it.path().is_dir());
        children.for_each(|child| remove_cgroup(&child.path()));
        remove_cgroup(&self.cgroup);
        for other in ["other", "empty"].map(|name| self.cgroup.with_extension(name)) {
            if other.exists() {
                remove_cgroup(&other);
            }
        }
    }
}

/// A path among the pins of this version.
pub(crate) fn pinned(what: &str) -> String {
    format!("v{PINS_VERSION}/{what}")
}

/// A thread that has just ended may still be in it.
fn remove_cgroup(cgroup: &Path) {
    let _ = try_wait_for(|| fs::remove_dir(cgroup).ok());
}

/// A port with its frontends and backends.
pub(crate) struct Port<'a> {
    pub(crate) index: u32,
    pub(crate) kind: FrontendType,
    pub(crate) transport: Transport,
    pub(crate) frontends: &'a [&'a str],
    pub(crate) backends: &'a [SocketAddr],
    pub(crate) flags: WordFlags,
    /// The first slot of its list.
    pub(crate) base: u32,
    /// The slots of its list if that is a table; 0: it is not.
    pub(crate) places: u32,
    /// Serving backends are written as members too, as for every UDP port.
    pub(crate) keeps_members: bool,
    /// The quota of its service.
    pub(crate) share: QuotaId,
}

impl Port<'_> {
    pub(crate) const TCP: Self = Self {
        index: 1,
        kind: FrontendType::ClusterIp,
        transport: Transport::Tcp,
        frontends: &[],
        backends: &[],
        flags: NONE,
        base: 0,
        places: 0,
        keeps_members: false,
        share: QuotaId(1),
    };
    pub(crate) const UDP: Self = Self { transport: Transport::Udp, keeps_members: true, ..Self::TCP };
    pub(crate) const SCTP: Self = Self { transport: Transport::Sctp, ..Self::TCP };

    fn family(&self) -> Family {
        Family::from_address(address(self.frontends[0]).ip())
    }

    /// Writes list and word in the order of the rules, and the list's backends as members.
    pub(crate) fn publish(&self, maps: &mut impl Maps, scope: Scope) {
        self.publish_beside(maps, scope, &[]);
    }

    /// Like [`Self::publish`], with other members that are not in the list.
    pub(crate) fn publish_beside(&self, maps: &mut impl Maps, scope: Scope, others: &[SocketAddr]) {
        if self.places == 0 && !self.keeps_members {
            return self.publish_list(maps, scope);
        }
        let listed = self.backends.iter().map(|it| (Membership::List(scope), *it));
        let serving = self.backends.iter().chain(others).map(|it| (Membership::Serving, *it));
        let listed = listed.filter(|_| self.places > 0);
        let members: Vec<_> = listed.chain(serving.filter(|_| self.keeps_members)).collect();
        let port = PortIndex(self.index);
        for (membership, backend) in &members {
            let member = MemberKey { port, membership: *membership, backend: *backend };
            maps.execute(&Action::InsertMember(member, SlotState::Active)).unwrap();
        }
        self.publish_list(maps, scope);
        let known = maps.dump().unwrap().members.into_iter().map(|(member, _)| member);
        // With affinity the test itself sets the members of a list that is no table.
        let is_own = |it: &MemberKey| match it.membership {
            Membership::List(of) => self.places > 0 && of == scope,
            Membership::Serving => true,
        };
        let has_left =
            |it: &MemberKey| it.port == port && is_own(it) && !members.contains(&(it.membership, it.backend));
        for member in known.filter(has_left) {
            maps.execute(&Action::RemoveMember(member)).unwrap();
        }
    }

    fn publish_list(&self, maps: &mut impl Maps, scope: Scope) {
        let count = u32::try_from(self.backends.len()).unwrap();
        let count = if count > 0 { count.max(self.places) } else { 0 };
        if count > 0 {
            let range = SlotRange { family: self.family(), base: self.base, count };
            maps.execute(&Action::WriteRange(range, scope, Arc::new(self.rows(scope)))).unwrap();
        }
        let base = if count > 0 { self.base } else { 0 };
        let says_who_serves = scope == Scope::Cluster && self.keeps_members;
        let flags = self.flags.with(WordFlags::MEMBERS, says_who_serves);
        let flags = flags.with(WordFlags::TABLE, self.places > 0 && count > 0);
        let word = Word { base, count, flags };
        maps.execute(&Action::PublishWord(PortIndex(self.index), scope, word)).unwrap();
    }

    pub(crate) fn serve(&self, maps: &mut impl Maps) {
        self.publish(maps, Scope::Cluster);
        for frontend in self.frontends {
            let value = FrontendValue { port: PortIndex(self.index), kind: self.kind, quota: self.share };
            maps.execute(&Action::InsertFrontend(self.key(frontend), value)).unwrap();
        }
    }

    pub(crate) fn key(&self, frontend: &str) -> FrontendKey {
        let address = address(frontend);
        FrontendKey {
            address: address.ip(),
            port: address.port().try_into().unwrap(),
            transport: self.transport,
        }
    }

    fn rows(&self, scope: Scope) -> Rows {
        let conditions = Conditions { ready: true, serving: true, terminating: false };
        let mut backends = self.backends.to_vec();
        backends.sort_unstable();
        let row = |backend: &SocketAddr| {
            let mut row = Row::new(backend.ip(), backend.port().try_into().unwrap(), conditions, 0, 0);
            row.choose(scope);
            row
        };
        Rows::new(backends.iter().map(row).collect(), &Rows::default(), Timestamp(0))
    }
}

/// The progress of the sweep of stale sockets.
pub(crate) fn swept(maps: &KernelMaps) -> SocketSweepProgress {
    maps.status().stale_sockets.unwrap()
}

/// Runs another sweep, and returns how many sockets were ended since the start.
#[track_caller]
pub(crate) fn sweep(maps: &mut KernelMaps) -> u64 {
    sweep_while(maps, true)
}

/// The same, with the maps complete or not.
#[track_caller]
pub(crate) fn sweep_while(maps: &mut KernelMaps, is_whole: bool) -> u64 {
    let before = swept(maps).sweeps;
    wait_for("a sweep", || {
        maps.end_stale_sockets(is_whole).unwrap();
        (swept(maps).sweeps > before).then(|| swept(maps).ended)
    })
}

/// Runs in its own network namespace with a process, like a pod's.
pub(crate) fn in_pod<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    network_namespace::run_inside(|| {
        loopback_up();
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let done = run();
        process.kill().unwrap();
        process.wait().unwrap();
        done
    })
}

pub(crate) const NONE: WordFlags = Word::EMPTY.flags;

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Capabilities of a thread.
pub(crate) const CAP_NET_ADMIN: u64 = 1 << 12;
pub(crate) const CAP_SYS_PTRACE: u64 = 1 << 19;
pub(crate) const CAP_SYS_ADMIN: u64 = 1 << 21;
pub(crate) const CAP_PERFMON: u64 = 1 << 38;
pub(crate) const CAP_BPF: u64 = 1 << 39;

/// Runs with only these capabilities, and restores them.
pub(crate) fn with_capabilities<T>(allowed: u64, run: impl FnOnce() -> T) -> T {
    let all = capabilities();
    set_effective(all, allowed);
    let done = run();
    set_effective(all, all[0][1] | all[1][1] << 32);
    done
}

/// Two rows, for the low and the high 32 bits: effective, permitted, inheritable.
type Capabilities = [[u64; 3]; 2];

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

fn capabilities() -> Capabilities {
    let header = [CAPABILITY_VERSION_3, 0];
    let mut rows = [[0_u32; 3]; 2];
    // SAFETY: header and rows have the layout of this version of the call.
    must(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), rows.as_mut_ptr()) } as i32, "capget");
    rows.map(|row| row.map(u64::from))
}

fn set_effective(all: Capabilities, allowed: u64) {
    let header = [CAPABILITY_VERSION_3, 0];
    let low = |number: u64| (number & 0xffff_ffff) as u32;
    let mut rows = all.map(|row| row.map(low));
    rows[0][0] = low(allowed);
    rows[1][0] = low(allowed >> 32);
    // SAFETY: as above; only this thread is changed.
    must(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), rows.as_ptr()) } as i32, "capset");
}

/// Runs on a thread with its own mounts, after a change to them.
pub(crate) fn with_mounts<T: Send>(change: impl FnOnce() + Send, run: impl FnOnce() -> T + Send) -> T {
    let body = || {
        // SAFETY: only this thread is moved.
        must(unsafe { libc::unshare(libc::CLONE_NEWNS) }, "unshare");
        change();
        run()
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// Hides the content of a folder.
pub(crate) fn hide(folder: &Path) {
    mount("tmpfs", folder, 0);
}

/// Undoes [`hide`].
pub(crate) fn show(folder: &Path) {
    let text = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: the string ends in zero and outlives the call.
    must(unsafe { libc::umount(text.as_ptr()) }, "unmount");
}

/// Unmounts every cgroup v2 hierarchy.
pub(crate) fn unmount_cgroups() {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    for line in mounts.lines().filter(|line| line.contains(" - cgroup2 ")) {
        let point = std::ffi::CString::new(line.split(' ').nth(4).unwrap()).unwrap();
        // SAFETY: the string ends in zero and outlives the call.
        must(unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) }, "unmount");
    }
}

/// As in a container: this thread's cgroup becomes the root of its view. For [`with_mounts`].
pub(crate) fn enter_cgroup_namespace(at: &Path) {
    // SAFETY: only this thread is moved.
    must(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }, "unshare");
    unmount_cgroups();
    mount("cgroup2", at, 0);
}

/// Accepts connections until the bed ends.
pub(crate) fn tcp_backend(at: &str) -> SocketAddr {
    let listener = TcpListener::bind(at).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        go_home();
        while listener.accept().is_ok() {}
    });
    address
}

/// A port where nothing listens.
pub(crate) fn closed_port(at: &str) -> SocketAddr {
    TcpListener::bind(at).unwrap().local_addr().unwrap()
}

/// Replies to each datagram with its own address.
pub(crate) fn udp_backend(at: &str) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        go_home();
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(address.to_string().as_bytes(), from);
        }
    });
    address
}

pub(crate) fn udp_client(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a datagram, and returns the backend by its reply, and by the socket.
pub(crate) fn ask(socket: &UdpSocket, to: &str) -> (SocketAddr, SocketAddr) {
    socket.send_to(b"who", address(to)).unwrap();
    answer(socket)
}

pub(crate) fn answer(socket: &UdpSocket) -> (SocketAddr, SocketAddr) {
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (address(std::str::from_utf8(&buffer[..length]).unwrap()), from)
}

/// Connects with a marked socket.
pub(crate) fn connect_marked(to: &str, mark: u32) -> io::Result<()> {
    // SAFETY: a new socket, owned at once.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the kernel reads the four bytes of the mark.
    must(
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MARK, (&raw const mark).cast(), 4) },
        "mark a socket",
    );
    let IpAddr::V4(ip) = address(to).ip() else { unreachable!("IPv4 only") };
    let name = libc::sockaddr_in {
        sin_family: u16::try_from(libc::AF_INET).unwrap(),
        sin_port: address(to).port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    let length = u32::try_from(size_of_val(&name)).unwrap();
    // SAFETY: the name is a whole socket address.
    match unsafe { libc::connect(fd, (&raw const name).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Disconnects a socket: it connects to an address of the family AF_UNSPEC, which is 0.
pub(crate) fn disconnect(socket: &impl std::os::fd::AsRawFd) {
    // SAFETY: zeros are an address of that family.
    let none: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = u32::try_from(size_of_val(&none)).unwrap();
    // SAFETY: the address outlives the call.
    must(unsafe { libc::connect(socket.as_raw_fd(), (&raw const none).cast(), length) }, "disconnect");
}

/// Closes by RST, so that no port stays in TIME_WAIT.
pub(crate) fn reset_when_closed(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = u32::try_from(size_of_val(&linger)).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(stream);
    // SAFETY: the kernel reads the struct during the call.
    match unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects, and returns the result of getpeername.
#[track_caller]
pub(crate) fn dial(to: &str) -> SocketAddr {
    TcpStream::connect(address(to)).unwrap().peer_addr().unwrap()
}

pub(crate) fn socket_cookie(socket: &impl std::os::fd::AsRawFd) -> u64 {
    let (mut cookie, mut length) = (0_u64, 8_u32);
    let value = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most eight bytes to the cookie.
    let returned = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, value, &raw mut length)
    };
    assert_eq!(returned, 0);
    cookie
}

/// The errno of a dropped connect: if a program cannot set it, a closed port does.
pub(crate) fn dropped(maps: &KernelMaps) -> i32 {
    if maps.status().features.set_retval { libc::ETIMEDOUT } else { libc::ECONNREFUSED }
}

/// Checks the errno of an unserved UDP client: of the call that dials, or for a connected socket possibly of the next
/// one.
#[track_caller]
pub(crate) fn check_udp_denied(maps: &KernelMaps, frontend: &str, errno: i32) {
    let to = address(frontend);
    let (unconnected, connected) = if to.is_ipv4() {
        (udp_client("0.0.0.0:0"), udp_client("0.0.0.0:0"))
    } else {
        (udp_client("[::]:0"), udp_client("[::]:0"))
    };
    let (sent, dialled) = (unconnected.send_to(b"x", to), connected.connect(to));
    if maps.status().features.set_retval {
        check_errno(sent, errno, "sendto");
        check_errno(dialled, errno, "connect of UDP");
    } else {
        sent.unwrap();
        dialled.unwrap();
        connected.send(b"x").unwrap();
        check_errno(connected.recv(&mut [0; 8]), errno, "recv of UDP");
    }
}

/// Checks the errno of an unserved client.
#[track_caller]
pub(crate) fn check_errno(result: io::Result<impl std::fmt::Debug>, errno: i32, what: &str) {
    let error = result.expect_err(what);
    assert_eq!(error.raw_os_error(), Some(errno), "{what}: {error}");
}

/// A TCP socket that is never connected.
pub(crate) struct Unconnected(OwnedFd);

impl Unconnected {
    pub(crate) fn new() -> Self {
        // SAFETY: only numbers are passed.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0);
        // SAFETY: a new file descriptor that nothing else owns.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Tries to connect, and returns the errno.
    pub(crate) fn connect(&self, to: SocketAddr) -> i32 {
        let SocketAddr::V4(to) = to else { panic!("{to}") };
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: to.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
            sin_zero: [0; 8],
        };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.0);
        // SAFETY: the address outlives the call.
        let returned = unsafe { libc::connect(fd, (&raw const name).cast(), size_of_val(&name) as u32) };
        assert_eq!(returned, -1);
        io::Error::last_os_error().raw_os_error().unwrap()
    }
}
