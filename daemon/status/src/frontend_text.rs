//! A frontend in tables and sentences for people.
//!
//! Invariant: JSON keeps the address as the maps have it.

use std::borrow::Cow;

/// A frontend as people read it, such as `*:30080/TCP`: a reader takes `0.0.0.0` for every address, and a node port
/// answers at those of `node_port_addresses` alone.
pub fn shorten_node_port(frontend: &str) -> Cow<'_, str> {
    let starred = |prefix, star: &str| frontend.strip_prefix(prefix).map(|port| format!("{star}{port}"));
    let short = starred("0.0.0.0:", "*:").or_else(|| starred("[::]:", "[*]:"));
    short.map_or(Cow::Borrowed(frontend), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_port_has_a_star_for_its_addresses() {
        for (frontend, expected) in [
            ("0.0.0.0:30080/TCP", "*:30080/TCP"),
            ("[::]:53/UDP", "[*]:53/UDP"),
            ("10.96.0.10:80/TCP", "10.96.0.10:80/TCP"),
        ] {
            assert_eq!(shorten_node_port(frontend), expected);
        }
    }
}
