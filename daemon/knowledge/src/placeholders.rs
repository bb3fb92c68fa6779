//! Fills names into advice: `{ns}`, `{name}`, `{pod}`, `{node}`, `{ip}`, `{port}`.
//!
//! Invariant: only names that pass Kubernetes' grammar, addresses and ports get into a text that may be a command. Any
//! other value is left out, and its placeholder becomes a word: `<name>`.

use std::net::IpAddr;
use std::num::NonZeroU16;

/// The placeholders, in the order of the values below.
pub(crate) const PLACEHOLDERS: [&str; 6] = ["ns", "name", "pod", "node", "ip", "port"];

/// The longest label, and the longest name of several labels, as in DNS.
const LABEL_BYTES_MAX: usize = 63;
const SUBDOMAIN_BYTES_MAX: usize = 253;

/// The values for the placeholders of an advice.
#[derive(Clone, Debug, Default)]
pub struct Values([Option<String>; PLACEHOLDERS.len()]);

impl Values {
    #[must_use]
    pub fn namespace(self, text: &str) -> Self {
        self.with("ns", text, is_label(text))
    }

    #[must_use]
    pub fn name(self, text: &str) -> Self {
        self.with("name", text, is_subdomain(text))
    }

    #[must_use]
    pub fn pod(self, text: &str) -> Self {
        self.with("pod", text, is_subdomain(text))
    }

    #[must_use]
    pub fn node(self, text: &str) -> Self {
        self.with("node", text, is_subdomain(text))
    }

    #[must_use]
    pub fn ip(self, address: IpAddr) -> Self {
        self.with("ip", &address.to_string(), true)
    }

    #[must_use]
    pub fn port(self, port: NonZeroU16) -> Self {
        self.with("port", &port.to_string(), true)
    }

    fn with(mut self, placeholder: &str, text: &str, is_legal: bool) -> Self {
        let places = PLACEHOLDERS.iter().zip(&mut self.0);
        for (_, place) in places.filter(|(name, _)| is_legal && **name == placeholder) {
            *place = Some(text.to_owned());
        }
        self
    }

    /// Fills each placeholder with its value, or with a word in brackets.
    pub fn fill(&self, advice: &str) -> String {
        let mut filled = String::with_capacity(advice.len());
        let mut rest = advice;
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            rest = match self.resolve_placeholder(after) {
                Some((value, after)) => {
                    filled.push_str(&value);
                    after
                }
                None => {
                    filled.push('{');
                    after
                }
            };
        }
        filled.push_str(rest);
        filled
    }

    /// Resolves the placeholder that ends at the first `}`, and returns the text after it. `None`: it is no
    /// placeholder.
    fn resolve_placeholder<'t>(&self, text: &'t str) -> Option<(String, &'t str)> {
        let (name, after) = text.split_once('}')?;
        let (placeholder, value) = PLACEHOLDERS.iter().zip(&self.0).find(|(known, _)| **known == name)?;
        Some((value.clone().unwrap_or_else(|| format!("<{placeholder}>")), after))
    }
}

fn is_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES_MAX && has_label_grammar(text)
}

/// Whether a text is labels joined by dots; only the total length is limited.
fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_BYTES_MAX && text.split('.').all(has_label_grammar)
}

fn has_label_grammar(text: &str) -> bool {
    let is_outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_outer) && text.ends_with(is_outer) && text.chars().all(|c| is_outer(c) || c == '-')
}

/// The first word in braces that is no placeholder, such as `{message}`.
pub(crate) fn unknown_placeholder(text: &str) -> Option<&str> {
    let names = text.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name));
    let is_word = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
    names.into_iter().find(|name| is_word(name) && !PLACEHOLDERS.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_legal_names_get_into_a_command() {
        let advice = "kubectl -n {ns} get pod {pod} -o jsonpath='{.status}' {name}";
        let filled = Values::default().namespace("shop").pod("web-0.x").name("web; rm -rf /").fill(advice);
        assert_eq!(filled, "kubectl -n shop get pod web-0.x -o jsonpath='{.status}' <name>");
        for bad in ["", "-rf", "A", "a b", "a\n", "a$(x)", "a..b", ".a", "a.", "a-", "é", "a/b", "a'b"] {
            assert_eq!(Values::default().name(bad).fill("{name}"), "<name>", "{bad:?}");
        }
        assert_eq!(Values::default().namespace(&"a".repeat(64)).fill("{ns}"), "<ns>");
        assert_eq!(Values::default().name(&"a".repeat(254)).fill("{name}"), "<name>");
    }

    #[test]
    fn addresses_and_ports_are_typed() {
        let values = Values::default().ip(IpAddr::from([10, 0, 0, 1])).port(NonZeroU16::MIN);
        assert_eq!(values.fill("{ip}:{port} {node} {"), "10.0.0.1:1 <node> {");
        assert_eq!(values.fill("{}{x}{ip"), "{}{x}{ip");
    }

    #[test]
    fn a_filled_value_is_not_filled_again() {
        assert_eq!(Values::default().name("a").fill("{{name}}"), "{a}");
        assert_eq!(unknown_placeholder("{ns} {message}"), Some("message"));
        assert_eq!(unknown_placeholder("{.spec} {\"a\"} {ns}"), None);
    }
}
