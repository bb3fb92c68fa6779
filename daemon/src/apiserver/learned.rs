//! Addresses of apiservers that the cluster told us, with the time when it last did; kept over restarts.
//!
//! Invariant: additive. An empty list changes nothing, and an address goes only when newer ones need its place. Deliberately
//! absent: trust; whoever answers at such an address has to show the certificate and the uid of this cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_core::facts::Timestamp;
use serde::{Deserialize, Serialize};

use super::identity::ClusterId;

/// The most addresses: clusters have three to seven apiservers, and some keep changing theirs.
const ADDRESSES_MAX: usize = 16;

/// The largest file: sixteen addresses and a uid have about 1 KB.
const FILE_BYTES_MAX: usize = 64 << 10;

/// A difference in age that is worth writing the file.
const WORTH_WRITING_SECONDS: i64 = 3600;

/// The file's name in the state folder.
const FILE: &str = "apiserver.json";

/// The format of the file.
const VERSION: u32 = 1;

/// An address, and when it was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Learned {
    pub(super) address: SocketAddr,
    pub(super) seen: Timestamp,
}

/// What is remembered: of which cluster, and its addresses, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) cluster: Option<ClusterId>,
    pub(super) learned: Vec<Learned>,
}

impl Memory {
    /// Adds what the cluster says now. Tells whether that is news worth writing down.
    pub(super) fn learn(&mut self, addresses: &[SocketAddr], now: Timestamp) -> bool {
        let fresh = |known: &Learned| now.0.saturating_sub(known.seen.0) < WORTH_WRITING_SECONDS;
        let mut told: Vec<Learned> = Vec::new();
        let mut is_news = false;
        for address in addresses.iter().copied().filter(is_dialable) {
            if told.iter().all(|it| it.address != address) {
                is_news |= !self.learned.iter().any(|it| it.address == address && fresh(it));
                told.push(Learned { address, seen: now });
            }
        }
        let untold = |it: &Learned| told.iter().all(|told| told.address != it.address);
        let mut others: Vec<Learned> = self.learned.iter().copied().filter(untold).collect();
        others.sort_by_key(|it| std::cmp::Reverse(it.seen.0));
        told.extend(others);
        told.truncate(ADDRESSES_MAX);
        self.learned = told;
        is_news
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.learned.iter().map(|it| it.address).collect()
    }

    pub(super) fn seen(&self, address: SocketAddr) -> Option<Timestamp> {
        self.learned.iter().find(|it| it.address == address).map(|it| it.seen)
    }

    /// What the file says; nothing if there is none, an error in words if it is not usable.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(FILE);
        let said = |what: &str| format!("{}: {what}", path.display());
        let content = match std::fs::read(&path) {
            Ok(content) if content.len() <= FILE_BYTES_MAX => content,
            Ok(_) => return Err(said("is too large to be ours")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(said(&error.to_string())),
        };
        let file: File = serde_json::from_slice(&content).map_err(|error| said(&error.to_string()))?;
        if file.version != VERSION {
            return Err(said(&format!("has version {}, not {VERSION}", file.version)));
        }
        let mut learned: Vec<_> =
            file.learned.into_iter().map(Learned::from).filter(|it| is_dialable(&it.address)).collect();
        learned.truncate(ADDRESSES_MAX);
        Ok(Self { cluster: file.cluster.as_deref().and_then(ClusterId::new), learned })
    }

    /// Writes the file: beside it, synced, renamed into place.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join(FILE);
        let file = File {
            version: VERSION,
            cluster: self.cluster.as_ref().map(|it| it.as_str().to_owned()),
            learned: self.learned.iter().map(|it| Row { address: it.address, seen: it.seen.0 }).collect(),
        };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| error.to_string())?;
        replace(&path, &text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    // On a new node nobody else may have written anything yet.
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let beside: PathBuf = path.with_extension("json.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
}

/// What a socket can dial, and a server can have.
fn is_dialable(address: &SocketAddr) -> bool {
    let ip = address.ip();
    let broadcast = matches!(ip, std::net::IpAddr::V4(v4) if v4.is_broadcast());
    address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !broadcast && ip.to_canonical() == ip
}

#[derive(Deserialize, Serialize)]
struct File {
    version: u32,
    cluster: Option<String>,
    learned: Vec<Row>,
}

#[derive(Deserialize, Serialize)]
struct Row {
    address: SocketAddr,
    seen: i64,
}

impl From<Row> for Learned {
    fn from(row: Row) -> Self {
        Self { address: row.address, seen: Timestamp(row.seen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace().map(|it| it.parse().unwrap()).collect()
    }

    /// What is told, at which time; what is remembered then, and whether it is news.
    #[track_caller]
    fn check(memory: &mut Memory, now: i64, told: &str, expected: &str, news: bool) {
        let is_news = memory.learn(&addresses(told), Timestamp(now));
        let shown: Vec<_> = memory.learned.iter().map(|it| format!("{}@{}", it.address, it.seen.0)).collect();
        assert_eq!((shown.join(" ").as_str(), is_news), (expected, news));
    }

    #[test]
    fn learning_only_adds() {
        let mut memory = Memory::default();
        check(&mut memory, 0, "10.0.0.1:443 10.0.0.2:443", "10.0.0.1:443@0 10.0.0.2:443@0", true);
        check(&mut memory, 9, "", "10.0.0.1:443@0 10.0.0.2:443@0", false);
        check(&mut memory, 9, "10.0.0.2:443", "10.0.0.2:443@9 10.0.0.1:443@0", false);
        check(&mut memory, 10, "[fd00::1]:443", "[fd00::1]:443@10 10.0.0.2:443@9 10.0.0.1:443@0", true);
        check(&mut memory, 4000, "[fd00::1]:443", "[fd00::1]:443@4000 10.0.0.2:443@9 10.0.0.1:443@0", true);
        let bad = "0.0.0.0:443 10.0.0.9:0 224.0.0.1:443 [::ffff:10.0.0.1]:443";
        check(&mut memory, 4001, bad, "[fd00::1]:443@4000 10.0.0.2:443@9 10.0.0.1:443@0", false);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut memory = Memory::default();
        for number in 1..=20_u16 {
            memory.learn(&[SocketAddr::from(([10, 0, 0, 1], number))], Timestamp(number.into()));
        }
        let ports: Vec<u16> = memory.addresses().iter().map(SocketAddr::port).collect();
        assert_eq!(ports, (5..=20).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Memory::read(folder.path()), Ok(Memory::default()));
        let mut memory = Memory { cluster: ClusterId::new("uid-1"), learned: Vec::new() };
        memory.learn(&addresses("10.0.0.1:443"), Timestamp(5));
        memory.write(folder.path()).unwrap();
        assert_eq!(Memory::read(folder.path()), Ok(memory.clone()));
        let new = folder.path().join("not/there/yet");
        memory.write(&new).unwrap();
        assert_eq!(Memory::read(&new), Ok(memory.clone()));
        for (content, why) in
            [("{", "EOF"), (r#"{"version":2,"learned":[]}"#, "version 2"), (&"x".repeat(70_000), "too large")]
        {
            std::fs::write(folder.path().join(FILE), content).unwrap();
            let error = Memory::read(folder.path()).unwrap_err();
            assert!(error.contains(why) && error.contains(FILE), "{error}");
        }
        assert!(memory.write(Path::new("/proc/nowhere")).unwrap_err().contains("/proc/nowhere"));
    }
}
