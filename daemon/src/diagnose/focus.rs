//! What a question narrows a diagnosis to: one port, and a path that is asked for by HTTP.
//!
//! Invariant: a path is visible characters of one line, so that a request holds what is meant and nothing else. A
//! service that is narrowed is the same service with fewer ports; nothing of it is made up.

use std::sync::Arc;

use holdfast_core::facts::ServiceFacts;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView};

/// Characters of a path: as many as an operator types.
const PATH_LENGTH_MAX: usize = 256;

/// Characters of a port: a name by Kubernetes has 15.
const PORT_LENGTH_MAX: usize = 64;

/// What a diagnosis is narrowed to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Focus {
    /// None: all ports.
    pub(crate) port: Option<PortWanted>,
    /// None: no backend is asked by HTTP.
    pub(crate) http: Option<HttpPath>,
}

/// A port, by its name or by the number that clients dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortWanted(Arc<str>);

impl PortWanted {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_legal = !text.is_empty()
            && text.len() <= PORT_LENGTH_MAX
            && text.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_'));
        is_legal.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name of digits alone is none by Kubernetes, so no port is meant by both.
    pub(crate) fn is(&self, name: &str, number: u16) -> bool {
        *self.0 == *name || self.0.parse() == Ok(number)
    }

    /// The service with nothing but this port; none: it has no such port.
    fn narrow(&self, view: &ServiceView) -> Option<ServiceView> {
        let whole = view.facts.as_deref()?;
        let ports = whole.ports.iter().filter(|port| self.is(&port.name, port.port.get())).cloned().collect();
        let facts = ServiceFacts { ports, ..whole.clone() };
        let has = |port: &PortView| {
            let key = (&port.key.name, Some(port.key.transport));
            facts.ports.iter().any(|it| (&it.name, it.protocol.transport()) == key)
        };
        let ports: Box<[PortView]> = view.ports.iter().filter(|port| has(port)).cloned().collect();
        let leads = |it: &&FrontendView| {
            facts.ports.iter().any(|port| port.name == it.port_name && port.protocol == it.protocol)
        };
        let frontend = |it: &FrontendView| {
            let key = it.position.and_then(|position| view.ports.get(position)).map(|port| &port.key);
            let position = key.and_then(|key| ports.iter().position(|port| port.key == *key));
            FrontendView { position, ..it.clone() }
        };
        let frontends = view.frontends.iter().filter(leads).map(frontend).collect();
        // An alias has none, and is what it is by any of them.
        let has_it = !facts.ports.is_empty() || whole.ports.is_empty();
        has_it.then(|| ServiceView { facts: Some(Arc::new(facts)), ports, frontends, ..view.clone() })
    }
}

impl Focus {
    /// The services of a name with nothing but that port, if one is asked for. Those stay out that do not have it, but
    /// for one that is known by its slices alone.
    pub(crate) fn of(&self, views: &[Arc<ServiceView>]) -> Vec<Arc<ServiceView>> {
        let Some(wanted) = &self.port else { return views.to_vec() };
        let narrowed = |view: &Arc<ServiceView>| match &view.facts {
            Some(_) => wanted.narrow(view).map(Arc::new),
            None => Some(Arc::clone(view)),
        };
        views.iter().filter_map(narrowed).collect()
    }

    /// The ports of a service, where none is the one that is asked for.
    pub(crate) fn missed(&self, views: &[Arc<ServiceView>]) -> Option<Vec<String>> {
        self.port.as_ref()?;
        let facts: Vec<&ServiceFacts> = views.iter().filter_map(|view| view.facts.as_deref()).collect();
        let has_ports = facts.iter().any(|facts| !facts.ports.is_empty());
        let is_missed = has_ports && self.of(views).is_empty();
        let ports = facts.iter().flat_map(|facts| &facts.ports);
        is_missed.then(|| ports.map(|port| named(&port.name, port.port.get())).collect())
    }
}

fn named(name: &str, number: u16) -> String {
    if name.is_empty() { number.to_string() } else { format!("{number} ({name})") }
}

/// What is asked for by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpPath(Arc<str>);

impl HttpPath {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_legal = text.starts_with('/')
            && text.len() <= PATH_LENGTH_MAX
            && text.bytes().all(|it| it.is_ascii_graphic() && !br##""#<>\^`{|}"##.contains(&it));
        is_legal.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::fixture::everything;
    use crate::diagnose::gather::views;
    use holdfast_core::keys::ObjectName;

    fn web(port: &str) -> (Vec<Arc<ServiceView>>, Option<Vec<String>>) {
        let all = views(&ObjectName::new("default", "web").unwrap(), &everything());
        let focus = Focus { port: PortWanted::parse(port), http: None };
        (focus.of(&all), focus.missed(&all))
    }

    #[test]
    fn a_port_is_found_by_its_name_and_by_the_number_that_is_dialled() {
        for (port, found) in [("80", 1), ("http", 2), ("8000", 1), ("30080", 0), ("8080", 0), ("htt", 0)] {
            let (narrowed, missed) = web(port);
            assert_eq!((narrowed.len(), missed.is_some()), (found, found == 0), "{port}");
            for view in narrowed {
                let facts = view.facts.as_deref().unwrap();
                assert_eq!((facts.ports.len(), view.ports.len()), (1, 1), "{port}");
                assert!(view.frontends.iter().all(|it| it.position == Some(0)), "{port}");
            }
        }
        assert_eq!(web("81").1.unwrap(), ["80 (http)", "8000 (http)"]);
    }

    #[test]
    fn a_path_is_one_line_of_a_request() {
        for legal in ["/", "/healthz", "/a/b?c=d&e=%20", "//x"] {
            assert!(HttpPath::parse(legal).is_some(), "{legal}");
        }
        let long = format!("/{}", "x".repeat(256));
        for bad in
            ["", "healthz", "http://a/", "/a b", "/a\r\nHost: b", "/a\n", "/\u{7f}", "/ä", "/a#b", &long]
        {
            assert!(HttpPath::parse(bad).is_none(), "{bad:?}");
        }
        for bad in ["", "a b", "a/b", "\n", &long] {
            assert!(PortWanted::parse(bad).is_none(), "{bad:?}");
        }
    }
}
