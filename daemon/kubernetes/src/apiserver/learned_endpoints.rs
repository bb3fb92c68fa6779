//! Apiserver addresses that the cluster listed, with the slice and the time of each; they survive restarts.
//!
//! Invariant: learning only adds. An empty list removes nothing. An address goes only when an operator forgets it or
//! others need its place; addresses that no apiserver wrote go first. Being listed now and being remembered are
//! separate. No address is trusted for being here: the server must present this cluster's certificate and uid.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_status::views::apiserver::ClusterId;
use holdfast_status::views::apiserver::LearnedState;
use holdfast_status::views::apiserver::Tier;
use serde::{Deserialize, Serialize};

use holdfast_host::small_file;

/// The most addresses: clusters have three to seven apiservers, and some keep changing theirs.
const ADDRESSES_MAX: usize = 16;

/// The largest file: sixteen addresses and a uid take about 1 KB.
const FILE_BYTES_MAX: usize = 64 << 10;

/// How much newer `seen` must be to make a save worthwhile on its own.
const SAVE_INTERVAL_SECONDS: i64 = 3600;

/// The file's name in the state folder.
const FILE: &str = "apiserver.json";

/// The version of the file's format.
const VERSION: u32 = 1;

/// The slice that apiservers write themselves; other slices count less.
const OWN_SLICE: &str = "kubernetes";

/// An address that the cluster lists now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEndpoint {
    /// The slice of `default/kubernetes` that lists it.
    pub slice: Arc<str>,
    pub address: SocketAddr,
}

/// An address, the slice that listed it, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LearnedEndpoint {
    pub(super) address: SocketAddr,
    /// When it was first listed; `None`: an older daemon wrote the row.
    pub(super) since: Option<Timestamp>,
    /// When it was last listed.
    pub(super) seen: Timestamp,
    /// The slice that last listed it.
    pub(super) slice: Option<Arc<str>>,
    pub(super) standing: LearnedState,
}

impl LearnedEndpoint {
    fn new(listed: &ListedEndpoint, now: Timestamp) -> Self {
        let slice = Some(Arc::clone(&listed.slice));
        Self { address: listed.address, since: Some(now), seen: now, slice, standing: LearnedState::Listed }
    }

    /// The order in which addresses are kept and dialled: those of an apiserver's own slice first, then by standing,
    /// then the latest listed first.
    fn rank(&self) -> (bool, LearnedState, std::cmp::Reverse<i64>) {
        (!self.is_from_apiserver(), self.standing, std::cmp::Reverse(self.seen.0))
    }

    fn is_from_apiserver(&self) -> bool {
        self.slice.as_deref() == Some(OWN_SLICE)
    }

    /// Whether this row differs enough from the saved one to save again.
    fn is_worth_saving(&self, other: &Self) -> bool {
        (self.standing, &self.slice) != (other.standing, &other.slice)
            || self.seen.0.saturating_sub(other.seen.0) >= SAVE_INTERVAL_SECONDS
    }
}

/// Why an address cannot be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// It was never learned.
    #[error("{0} is not among the learned addresses")]
    Unknown(SocketAddr),
    /// The configuration or kubelet's kubeconfig names it.
    #[error("{address} is {}: take it out there first", .tier.describe_source())]
    Configured {
        address: SocketAddr,
        /// What names it.
        tier: Tier,
    },
    /// The cluster lists it now, and it would be learned again at once.
    #[error("{address} is listed now, in the EndpointSlice default/{slice}: take it out there first")]
    Listed { address: SocketAddr, slice: Arc<str> },
    /// It is the last known endpoint while the cluster lists none.
    #[error("{0} is held: default/kubernetes is empty, and this was among its last endpoints")]
    Held(SocketAddr),
}

/// The remembered cluster and its addresses, in dial order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterMemory {
    pub(super) cluster: Option<ClusterId>,
    pub(super) learned: Vec<LearnedEndpoint>,
    /// The endpoint that the virtual address forwards to.
    pub(super) vip_target: Option<SocketAddr>,
}

impl ClusterMemory {
    /// Takes all addresses that the cluster lists now. Returns whether the change is worth a save.
    ///
    /// If the list has no address of a family, the known ones of that family are held, as the engine holds that list of
    /// `default/kubernetes`.
    pub(super) fn merge_listed(&mut self, listed: &[ListedEndpoint], now: Timestamp) -> bool {
        let before = self.learned.clone();
        let selected = select_listed(listed);
        let is_listed = |of: &SocketAddr| selected.iter().any(|it| it.address == *of);
        let is_family_listed =
            |of: &SocketAddr| selected.iter().any(|it| it.address.is_ipv4() == of.is_ipv4());
        for row in self.learned.iter_mut().filter(|row| row.standing != LearnedState::Past) {
            let is_gone = !is_listed(&row.address);
            if is_gone && row.standing == LearnedState::Listed {
                row.seen = now;
            }
            row.standing = match is_family_listed(&row.address) {
                true if is_gone => LearnedState::Past,
                true => row.standing,
                false => LearnedState::Held,
            };
        }
        let known = std::mem::take(&mut self.learned);
        let refresh = |it: &&ListedEndpoint| {
            let since = known.iter().find(|row| row.address == it.address).map(|row| row.since);
            let new = LearnedEndpoint::new(it, now);
            LearnedEndpoint { since: since.unwrap_or(new.since), ..new }
        };
        self.learned = selected.iter().map(refresh).collect();
        self.learned.extend(known.into_iter().filter(|row| !is_listed(&row.address)));
        self.learned.sort_by_key(LearnedEndpoint::rank);
        self.learned.truncate(ADDRESSES_MAX);
        let is_news = |row: &LearnedEndpoint| {
            before.iter().find(|old| old.address == row.address).is_none_or(|old| row.is_worth_saving(old))
        };
        self.learned.iter().any(is_news)
    }

    /// The addresses that are listed or held. Addresses that no apiserver wrote must have proven themselves: they may
    /// be another Service's.
    pub(super) fn trusted_addresses(
        &self,
        proven: &BTreeSet<SocketAddr>,
    ) -> impl Iterator<Item = SocketAddr> {
        let is_trusted = |it: &&LearnedEndpoint| {
            it.standing != LearnedState::Past && (it.is_from_apiserver() || proven.contains(&it.address))
        };
        self.learned.iter().filter(is_trusted).map(|it| it.address)
    }

    /// Drops an address that the cluster no longer lists.
    pub(super) fn forget_endpoint(&mut self, address: SocketAddr) -> Result<(), ForgetError> {
        let row = self.learned.iter().find(|it| it.address == address);
        match row.map(|row| (row.standing, row.slice.clone().unwrap_or_default())) {
            None => Err(ForgetError::Unknown(address)),
            Some((LearnedState::Listed, slice)) => Err(ForgetError::Listed { address, slice }),
            Some((LearnedState::Held, _)) => Err(ForgetError::Held(address)),
            Some((LearnedState::Past, _)) => {
                self.learned.retain(|it| it.address != address);
                Ok(())
            }
        }
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.learned.iter().map(|it| it.address).collect()
    }

    pub(super) fn get(&self, address: SocketAddr) -> Option<&LearnedEndpoint> {
        self.learned.iter().find(|it| it.address == address)
    }

    /// Loads the memory. A missing file gives an empty one; the error says why a file is unusable.
    pub(super) fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join(FILE);
        let describe = |what: &str| format!("{}: {what}", path.display());
        let content = match small_file::read_bounded(&path, FILE_BYTES_MAX) {
            Ok(content) if content.len() <= FILE_BYTES_MAX => content,
            Ok(_) => return Err(describe("is too large to be ours")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(describe(&error.to_string())),
        };
        let file: MemoryFile =
            serde_json::from_slice(&content).map_err(|error| describe(&error.to_string()))?;
        if file.version != VERSION {
            return Err(describe(&format!("has version {}, not {VERSION}", file.version)));
        }
        let mut learned: Vec<_> = file
            .learned
            .into_iter()
            .map(LearnedEndpoint::from)
            .filter(|it| is_dialable(&it.address))
            .collect();
        learned.truncate(ADDRESSES_MAX);
        let cluster = file.cluster.as_deref().and_then(ClusterId::new);
        Ok(Self { cluster, learned, vip_target: file.led.filter(is_dialable) })
    }

    /// Saves to a new file, syncs it, and renames it into place.
    pub(super) fn save(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join(FILE);
        let file = MemoryFile {
            version: VERSION,
            cluster: self.cluster.as_ref().map(|it| it.as_str().to_owned()),
            learned: self.learned.iter().cloned().map(LearnedRow::from).collect(),
            led: self.vip_target,
        };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| error.to_string())?;
        small_file::replace_file(&path, &text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The dialable listed addresses, at most [`ADDRESSES_MAX`]; those of the own slice first.
fn select_listed(listed: &[ListedEndpoint]) -> Vec<&ListedEndpoint> {
    let mut selected: Vec<&ListedEndpoint> = Vec::new();
    let (own, others): (Vec<_>, Vec<_>) = listed.iter().partition(|it| &*it.slice == OWN_SLICE);
    for one in own.into_iter().chain(others).filter(|it| is_dialable(&it.address)) {
        if selected.len() < ADDRESSES_MAX && selected.iter().all(|it| it.address != one.address) {
            selected.push(one);
        }
    }
    selected
}

/// Whether a socket can dial the address and a server can have it.
fn is_dialable(address: &SocketAddr) -> bool {
    let ip = address.ip();
    let broadcast = matches!(ip, std::net::IpAddr::V4(v4) if v4.is_broadcast());
    address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !broadcast && ip.to_canonical() == ip
}

#[derive(Deserialize, Serialize)]
struct MemoryFile {
    version: u32,
    cluster: Option<String>,
    learned: Vec<LearnedRow>,
    #[serde(default)]
    led: Option<SocketAddr>,
}

/// One address in the file. An older daemon's row has fewer members, and an older daemon can read ours.
#[derive(Deserialize, Serialize)]
struct LearnedRow {
    address: SocketAddr,
    seen: i64,
    #[serde(default)]
    since: Option<i64>,
    #[serde(default)]
    slice: Option<Arc<str>>,
    #[serde(default)]
    standing: LearnedState,
}

impl From<LearnedRow> for LearnedEndpoint {
    fn from(row: LearnedRow) -> Self {
        let LearnedRow { address, seen, since, slice, standing } = row;
        Self { address, since: since.map(Timestamp), seen: Timestamp(seen), slice, standing }
    }
}

impl From<LearnedEndpoint> for LearnedRow {
    fn from(row: LearnedEndpoint) -> Self {
        let LearnedEndpoint { address, since, seen, slice, standing } = row;
        Self { address, seen: seen.0, since: since.map(|it| it.0), slice, standing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `10.0.0.1:443` as listed by the apiserver's own slice, `x=10.0.0.1:443` as listed by slice `x`.
    fn listed(text: &str) -> Vec<ListedEndpoint> {
        let one = |word: &str| {
            let (slice, address) = word.split_once('=').unwrap_or((OWN_SLICE, word));
            ListedEndpoint { slice: slice.into(), address: address.parse().unwrap() }
        };
        text.split_whitespace().map(one).collect()
    }

    /// Checks the memory after a merge at a time, and whether it is worth a save.
    #[track_caller]
    fn check(memory: &mut ClusterMemory, now: i64, text: &str, expected: &str, news: bool) {
        let is_news = memory.merge_listed(&listed(text), Timestamp(now));
        let show = |it: &LearnedEndpoint| format!("{}@{} {}", it.address, it.seen.0, it.standing.as_str());
        let shown: Vec<_> = memory.learned.iter().map(show).collect();
        assert_eq!((shown.join(", ").as_str(), is_news), (expected, news));
    }

    #[test]
    fn learning_only_adds() {
        let mut memory = ClusterMemory::default();
        check(&mut memory, 0, "10.0.0.1:443 10.0.0.2:443", "10.0.0.1:443@0 now, 10.0.0.2:443@0 now", true);
        check(&mut memory, 9, "", "10.0.0.1:443@9 held, 10.0.0.2:443@9 held", true);
        check(&mut memory, 9, "", "10.0.0.1:443@9 held, 10.0.0.2:443@9 held", false);
        check(&mut memory, 10, "10.0.0.2:443", "10.0.0.2:443@10 now, 10.0.0.1:443@9 past", true);
        check(&mut memory, 11, "10.0.0.2:443", "10.0.0.2:443@11 now, 10.0.0.1:443@9 past", false);
        check(&mut memory, 4000, "10.0.0.2:443", "10.0.0.2:443@4000 now, 10.0.0.1:443@9 past", true);
        let bad = "10.0.0.2:443 0.0.0.0:443 10.0.0.9:0 224.0.0.1:443 [::ffff:10.0.0.1]:443";
        check(&mut memory, 4001, bad, "10.0.0.2:443@4001 now, 10.0.0.1:443@9 past", false);
    }

    #[test]
    fn a_family_without_a_listed_address_is_held() {
        let mut memory = ClusterMemory::default();
        memory.merge_listed(&listed("10.0.0.1:443 [fd00::1]:443"), Timestamp(0));
        check(&mut memory, 1, "[fd00::1]:443", "[fd00::1]:443@1 now, 10.0.0.1:443@1 held", true);
        check(
            &mut memory,
            2,
            "[fd00::2]:443",
            "[fd00::2]:443@2 now, 10.0.0.1:443@1 held, [fd00::1]:443@2 past",
            true,
        );
        assert_eq!(memory.trusted_addresses(&BTreeSet::new()).count(), 2);
    }

    #[test]
    fn addresses_that_no_apiserver_wrote_go_first_when_full() {
        let mut memory = ClusterMemory::default();
        memory.merge_listed(&listed("10.0.0.1:443 10.0.0.2:443"), Timestamp(0));
        memory.merge_listed(&listed("10.0.0.1:443"), Timestamp(1));
        let flood: String = (1..=40).map(|last| format!(" x=192.0.2.{last}:443")).collect();
        memory.merge_listed(&listed(&format!("{flood} 10.0.0.1:443")), Timestamp(2));
        let first: Vec<String> = memory.addresses().iter().take(2).map(ToString::to_string).collect();
        assert_eq!(
            (first.join(" ").as_str(), memory.learned.len()),
            ("10.0.0.1:443 10.0.0.2:443", ADDRESSES_MAX)
        );
        let shown = ["192.0.2.1:443", "192.0.2.9:443", "10.0.0.2:443"].map(|it| it.parse().unwrap());
        let of = |shown: &[SocketAddr]| memory.trusted_addresses(&shown.iter().copied().collect()).count();
        assert_eq!((of(&[]), of(&shown)), (1, 3), "and those that have proven themselves");
    }

    #[test]
    fn the_oldest_address_goes_when_full() {
        let mut memory = ClusterMemory::default();
        for number in 1..=20_u16 {
            memory.merge_listed(&listed(&format!("10.0.0.1:{number}")), Timestamp(number.into()));
        }
        let ports: Vec<u16> = memory.addresses().iter().map(SocketAddr::port).collect();
        assert_eq!(ports, (5..=20).rev().collect::<Vec<_>>());
    }

    #[test]
    fn only_an_unlisted_address_is_forgotten() {
        let address = "10.0.0.1:443".parse().unwrap();
        let mut memory = ClusterMemory::default();
        assert_eq!(memory.forget_endpoint(address), Err(ForgetError::Unknown(address)));
        memory.merge_listed(&listed("x=10.0.0.1:443"), Timestamp(0));
        let said = memory.forget_endpoint(address).unwrap_err().to_string();
        assert_eq!(
            said,
            "10.0.0.1:443 is listed now, in the EndpointSlice default/x: take it out there first"
        );
        memory.merge_listed(&[], Timestamp(1));
        assert_eq!(memory.forget_endpoint(address), Err(ForgetError::Held(address)));
        memory.merge_listed(&listed("10.0.0.2:443"), Timestamp(2));
        assert_eq!((memory.forget_endpoint(address), memory.learned.len()), (Ok(()), 1));
    }

    #[test]
    fn a_file_of_an_older_daemon_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let old =
            r#"{"version": 1, "cluster": "uid-1", "learned": [{"address": "10.0.0.1:443", "seen": 5}]}"#;
        std::fs::write(folder.path().join(FILE), old).unwrap();
        let memory = ClusterMemory::load(folder.path()).unwrap();
        let row = memory.get("10.0.0.1:443".parse().unwrap()).unwrap();
        assert_eq!((row.seen, row.since, row.standing), (Timestamp(5), None, LearnedState::Past));
    }

    #[test]
    fn an_unusable_file_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ClusterMemory::load(folder.path()), Ok(ClusterMemory::default()));
        let mut memory = ClusterMemory { cluster: ClusterId::new("uid-1"), ..ClusterMemory::default() };
        memory.merge_listed(&listed("10.0.0.1:443"), Timestamp(5));
        memory.vip_target = "10.0.0.1:443".parse().ok();
        memory.save(folder.path()).unwrap();
        assert_eq!(ClusterMemory::load(folder.path()), Ok(memory.clone()));
        let new = folder.path().join("not/there/yet");
        memory.save(&new).unwrap();
        assert_eq!(ClusterMemory::load(&new), Ok(memory.clone()));
        for (content, why) in
            [("{", "EOF"), (r#"{"version":2,"learned":[]}"#, "version 2"), (&"x".repeat(70_000), "too large")]
        {
            std::fs::write(folder.path().join(FILE), content).unwrap();
            let error = ClusterMemory::load(folder.path()).unwrap_err();
            assert!(error.contains(why) && error.contains(FILE), "{error}");
        }
        std::fs::remove_file(folder.path().join(FILE)).unwrap();
        nix::unistd::mkfifo(&folder.path().join(FILE), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = ClusterMemory::load(folder.path()).unwrap_err();
        assert!(error.contains("is no file"), "a pipe is not waited for: {error}");
        assert!(memory.save(Path::new("/proc/nowhere")).unwrap_err().contains("/proc/nowhere"));
    }
}
