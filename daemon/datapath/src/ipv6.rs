//! Whether this node speaks IPv6 with others, and so whether room for flows over it is worth taking before there are
//! any.
//!
//! Invariant: it is a question of cost alone. Flows over IPv6 are served whatever the answer is.

use std::fs;

/// The addresses of this thread's network namespace; there is no such file where IPv6 is off.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";

/// How the kernel writes that an address is valid beyond its link and its host.
const GLOBAL: &str = "00";

/// Whether this node has an address by which others can reach it over IPv6.
pub fn has_global_ipv6() -> bool {
    fs::read_to_string(ADDRESSES).is_ok_and(|told| told.lines().any(is_global_line))
}

/// Each line has the address, the number of its device, the length of its prefix, its scope, flags and the device.
fn is_global_line(line: &str) -> bool {
    line.split_ascii_whitespace().nth(3) == Some(GLOBAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_host_or_of_a_link_reaches_no_others() {
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
