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

/// A sentence with its frontends as people read them.
pub fn shorten_node_ports(sentence: &str) -> String {
    sentence.split(' ').map(shorten_node_port).collect::<Vec<_>>().join(" ")
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

    #[test]
    fn only_the_frontends_of_a_sentence_change() {
        let sentence = "frontend 0.0.0.0:30080/TCP: missing,  though [::]:30080/TCP is there; 0.0.0.0 too";
        let expected = "frontend *:30080/TCP: missing,  though [*]:30080/TCP is there; 0.0.0.0 too";
        assert_eq!(shorten_node_ports(sentence), expected);
    }
}
