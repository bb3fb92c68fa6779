//! Files of the kernel and of the host, below a root.
//!
//! Invariant: files are only read. An unreadable file is reported, and never counts as an empty one. At most
//! [`FILE_BYTES_MAX`] of a file are read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use holdfast_diagnose::evidence::{Conntrack, Lookup, Resolver, ReversePath};

use crate::diagnose::limits::FILE_BYTES_MAX;

/// The text of a file, up to the bound.
pub(super) fn read_text(root: &Path, path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(root.join(path))?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse_file<T>(root: &Path, path: &str, read: impl FnOnce(&str) -> Option<T>) -> Lookup<T> {
    match read_text(root, path) {
        Ok(text) => read(&text).map_or_else(|| file_failure(path, &"it is not understood"), Lookup::Answered),
        Err(error) => file_failure(path, &error),
    }
}

fn file_failure<T>(path: &str, error: &dyn std::fmt::Display) -> Lookup<T> {
    Lookup::Failed(format!("/{path}: {error}").into())
}

pub(super) fn read_port_range(root: &Path) -> Lookup<(u16, u16)> {
    parse_file(root, "proc/sys/net/ipv4/ip_local_port_range", |text| {
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    })
}

pub(super) fn read_reserved_ports(root: &Path) -> Lookup<Vec<(u16, u16)>> {
    parse_file(root, "proc/sys/net/ipv4/ip_local_reserved_ports", |text| {
        let ranges = text.trim().split(',').filter(|range| !range.is_empty());
        ranges
            .map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
            })
            .collect()
    })
}

/// Whether the kernel forwards packets of one family.
pub(super) fn read_forwarding(root: &Path, setting: &str) -> Lookup<bool> {
    parse_file(root, &format!("proc/sys/net/{setting}"), |text| Some(text.trim().parse::<u8>().ok()? != 0))
}

/// The reverse-path filter of a device (`rp_filter`): the larger of its own setting and `all`, as in the kernel.
pub(super) fn read_reverse_path(root: &Path, device: &str) -> Option<ReversePath> {
    let mode = |name: &str| {
        read_text(root, &format!("proc/sys/net/ipv4/conf/{name}/rp_filter")).ok()?.trim().parse::<u8>().ok()
    };
    Some(ReversePath { device: device.to_owned(), mode: mode(device)?.max(mode("all")?) })
}

pub(super) fn read_conntrack(root: &Path) -> Lookup<Conntrack> {
    const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";
    const MOST: &str = "proc/sys/net/netfilter/nf_conntrack_max";
    if !root.join(COUNT).exists() {
        return Lookup::Skipped("the kernel tracks no connections here");
    }
    let number = |path| parse_file(root, path, |text| text.trim().parse().ok());
    match (number(COUNT), number(MOST)) {
        (Lookup::Answered(entries), most) => most.map(|entries_max| Conntrack { entries, entries_max }),
        (other, _) => other.map(|_: u64| Conntrack { entries: 0, entries_max: 0 }),
    }
}

pub(super) fn read_resolver(root: &Path) -> Lookup<Resolver> {
    const PATH: &str = "etc/resolv.conf";
    match read_text(root, PATH) {
        Ok(text) => Lookup::Answered(parse_resolver(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Lookup::Answered(Resolver { missing: true, ..Resolver::default() })
        }
        Err(error) => file_failure(PATH, &error),
    }
}

/// Parses a `resolv.conf`. The last search line counts, as in the C library.
fn parse_resolver(text: &str) -> Resolver {
    let lines = || text.lines().map(str::split_whitespace);
    let of = |wanted: &'static str| {
        lines().filter_map(move |mut words| (words.next()? == wanted).then(|| words.collect::<Vec<_>>()))
    };
    let search = of("search").next_back().unwrap_or_default();
    Resolver {
        missing: false,
        nameservers: of("nameserver").filter(|words| !words.is_empty()).count(),
        search_domains: search.len(),
        search_bytes: search.join(" ").len(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn port_ranges_are_parsed_and_a_missing_file_is_a_failure() {
        let range = "proc/sys/net/ipv4/ip_local_port_range";
        let reserved = "proc/sys/net/ipv4/ip_local_reserved_ports";
        let files = root(&[(range, "32768\t60999\n"), (reserved, "30000-32767,8080\n")]);
        assert_eq!(read_port_range(files.path()), Lookup::Answered((32768, 60999)));
        assert_eq!(read_reserved_ports(files.path()), Lookup::Answered(vec![(30000, 32767), (8080, 8080)]));
        let empty = root(&[(range, "x"), (reserved, "\n")]);
        assert_eq!(read_reserved_ports(empty.path()), Lookup::Answered(Vec::new()));
        let why = read_port_range(empty.path()).unavailable_reason().unwrap();
        assert_eq!(why, format!("/{range}: it is not understood"));
        assert!(matches!(read_port_range(root(&[]).path()), Lookup::Failed(_)), "not there is not none");
    }

    #[test]
    fn the_stricter_of_two_filters_counts() {
        let conf = |device: &str| format!("proc/sys/net/ipv4/conf/{device}/rp_filter");
        let all = conf("all");
        let own = conf("eth0");
        let root = root(&[(&all, "2\n"), (&own, "1\n")]);
        assert_eq!(read_reverse_path(root.path(), "eth0").unwrap().mode, 2);
        assert_eq!(read_reverse_path(root.path(), "eth1"), None);
    }

    #[test]
    fn conntrack_is_read_if_the_kernel_tracks_connections() {
        let files = [
            ("proc/sys/net/netfilter/nf_conntrack_count", "12"),
            ("proc/sys/net/netfilter/nf_conntrack_max", "100"),
        ];
        let found = read_conntrack(root(&files).path());
        assert_eq!(found, Lookup::Answered(Conntrack { entries: 12, entries_max: 100 }));
        assert!(matches!(read_conntrack(root(&[]).path()), Lookup::Skipped(_)));
    }

    #[test]
    fn the_last_search_line_counts() {
        let file =
            "# a\nnameserver 10.0.0.1\nsearch a b\nnameserver 10.0.0.2\noptions ndots:5\nsearch c.d e\n";
        let root = root(&[("etc/resolv.conf", file)]);
        let expected = Resolver { missing: false, nameservers: 2, search_domains: 2, search_bytes: 5 };
        assert_eq!(read_resolver(root.path()), Lookup::Answered(expected));
        assert!(read_resolver(self::root(&[]).path()).answer().unwrap().missing);
    }
}
