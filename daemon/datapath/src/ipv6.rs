//! Whether this node uses IPv6 beyond its link, so that memory for IPv6 flows is worth taking in advance.
//!
//! Invariant: this decides about cost only. IPv6 flows are served either way.

use std::fs;

/// The addresses of this thread's network namespace; absent if IPv6 is off.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";

/// The scope of addresses that are valid beyond link and host.
const GLOBAL: &str = "00";

/// Whether this node has a global IPv6 address.
pub fn has_global_ipv6() -> bool {
    fs::read_to_string(ADDRESSES).is_ok_and(|addresses| addresses.lines().any(is_global_line))
}

/// A line has the address, the device's index, the prefix length, the scope, the flags and the device.
fn is_global_line(line: &str) -> bool {
    line.split_ascii_whitespace().nth(3) == Some(GLOBAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_host_or_link_scope_are_not_global() {
        for (line, expected) in [
            ("20010db8000000000000000000000001 02 40 00 80     eth0", true),
            ("fd000000000000000000000000000005 0b 80 00 80     eth1", true),
            ("00000000000000000000000000000001 01 80 10 80       lo", false),
            ("fe80000000000000001122fffe334455 02 40 20 80     eth0", false),
            ("20010db8000000000000000000000001 02 40", false),
            ("", false),
        ] {
            assert_eq!(is_global_line(line), expected, "{line}");
        }
    }
}
