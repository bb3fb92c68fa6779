//! Kernel modules with their dependencies, in the order of loading.
//!
//! Invariant: a module comes after all modules in its own `depends=`. There is no depmod: packages bring no index, and
//! each module lists its dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, at, output};

/// Modules for tests of a service load balancer: links, the packet stage, connection tables, socket destruction, a
/// disk, and those of containers, kubelet and kube-proxy. Built-in or missing ones are skipped: a test that needs one
/// reports it.
pub(crate) const WANTED: [&str; 43] = [
    "veth",
    "bridge",
    "br_netfilter",
    "dummy",
    "vxlan",
    "tun",
    "8021q",
    "bonding",
    "macvlan",
    "sit",
    "ip_gre",
    "ip6_tunnel",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    "nft_nat",
    "nft_compat",
    "cls_bpf",
    "sch_ingress",
    "act_bpf",
    "tcp_diag",
    "udp_diag",
    "virtio_pci",
    "virtio_blk",
    "overlay",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_limit",
    "nft_numgen",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_multiport",
    "xt_nat",
    "xt_statistic",
    "xt_tcpudp",
];

/// The wanted modules and their dependencies: name and unpacked bytes.
pub(crate) fn ordered(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut found = BTreeMap::new();
    index(folder, &mut found)?;
    let mut order = Order { found, seen: BTreeSet::new(), loaded: Vec::new() };
    for name in WANTED {
        order.load(name)?;
    }
    Ok(order.loaded)
}

struct Order {
    found: BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    loaded: Vec<(String, Vec<u8>)>,
}

impl Order {
    fn load(&mut self, name: &str) -> Result<(), Failure> {
        let name = name.replace('-', "_");
        let Some(path) = self.found.get(&name).cloned() else { return Ok(()) };
        if !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let bytes = unpacked(&path)?;
        for needed in needs(&bytes) {
            self.load(&needed)?;
        }
        self.loaded.push((name, bytes));
        Ok(())
    }
}

fn index(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).map_err(at("read", folder))? {
        let entry = entry.map_err(at("read", folder))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().map_err(at("look at", &path))?.is_dir() {
            index(&path, found)?;
        } else if let Some((name, _)) = name.split_once(".ko") {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn unpacked(path: &Path) -> Result<Vec<u8>, Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => fs::read(path).map_err(at("read", path)),
        Some("xz") => output(Command::new("xz").arg("-dc").arg(path)),
        Some("zst") => output(Command::new("zstd").arg("-dcq").arg(path)),
        _ => Err(Failure::UnknownPacking { path: path.to_owned() }),
    }
}

/// The names after `depends=`, and after a softdep's `pre:`, in the module's own description.
fn needs(module: &[u8]) -> Vec<String> {
    let mut needed = Vec::new();
    for text in module.split(|byte| *byte == 0).filter_map(|bytes| std::str::from_utf8(bytes).ok()) {
        if let Some(names) = text.strip_prefix("depends=") {
            needed.extend(names.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        } else if let Some(names) = text.strip_prefix("softdep=pre: ") {
            needed.extend(names.split_whitespace().take_while(|name| *name != "post:").map(str::to_owned));
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_lists_its_dependencies() {
        let module = b"\x7fELF\0\xff\xfe\0license=GPL\0depends=nf_tables,nf_nat\0softdep=pre: a b post: c\0";
        assert_eq!(needs(module), ["nf_tables", "nf_nat", "a", "b"]);
        assert!(needs(b"\0depends=\0").is_empty());
    }

    #[test]
    fn a_module_comes_after_its_dependencies() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, needs: &str| {
            fs::write(folder.path().join(name), format!("\0depends={needs}\0")).unwrap();
        };
        write("act_bpf.ko", "veth");
        write("veth.ko", "a-b");
        write("a_b.ko", "act_bpf");
        let order: Vec<String> = ordered(folder.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        // A circle is cut at its entry.
        assert_eq!(order, ["act_bpf", "a_b", "veth"]);
    }
}
