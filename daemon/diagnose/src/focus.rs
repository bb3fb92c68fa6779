//! The query's limits of a diagnosis: one port, and a path to request by HTTP.
//!
//! Invariant: a path consists of visible characters on one line, so that a request holds the path and nothing else. A
//! narrowed service is the same service with fewer ports; nothing is made up.

use std::sync::Arc;

use holdfast_core::facts::{ServiceFacts, ServicePort};
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView};

/// The longest path, in characters.
const PATH_LENGTH_MAX: usize = 256;

/// The longest port, in characters. A name of Kubernetes has up to 15.
const PORT_LENGTH_MAX: usize = 64;

/// The query's limits of a diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Focus {
    /// `None`: all ports.
    pub port: Option<PortSelector>,
    /// `None`: no backend gets an HTTP request.
    pub http: Option<HttpPath>,
}

/// A port, by its name or by the number that clients dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSelector(Arc<str>);

impl PortSelector {
    pub fn parse(text: &str) -> Option<Self> {
        let is_legal = !text.is_empty()
            && text.len() <= PORT_LENGTH_MAX
            && text.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_'));
        is_legal.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a port with this name and number matches. Kubernetes forbids names of digits alone, so a text never
    /// means one port by name and another by number.
    pub fn matches(&self, name: &str, number: u16) -> bool {
        *self.0 == *name || self.0.parse() == Ok(number)
    }

    fn is_of(&self, port: &ServicePort) -> bool {
        self.matches(&port.name, port.port.get())
            || port.node_port.is_some_and(|number| self.matches(&port.name, number.get()))
    }

    /// The service with this port only. `None`: it has no such port.
    fn narrow_view(&self, view: &ServiceView) -> Option<ServiceView> {
        let whole = view.facts.as_deref()?;
        let ports = whole.ports.iter().filter(|port| self.is_of(port)).cloned().collect();
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
        // An alias has no ports, and stays the same alias for every port.
        let has_it = !facts.ports.is_empty() || whole.ports.is_empty();
        has_it.then(|| ServiceView { facts: Some(Arc::new(facts)), ports, frontends, ..view.clone() })
    }
}

impl Focus {
    /// The services with only the queried port, if the query names one. A service without that port is left out, unless
    /// only its slices are known.
    pub fn narrow_views(&self, views: &[Arc<ServiceView>]) -> Vec<Arc<ServiceView>> {
        let Some(wanted) = &self.port else { return views.to_vec() };
        let narrowed = |view: &Arc<ServiceView>| match &view.facts {
            Some(_) => wanted.narrow_view(view).map(Arc::new),
            None => Some(Arc::clone(view)),
        };
        views.iter().filter_map(narrowed).collect()
    }

    /// All ports of the services, if none matches the query.
    pub fn unmatched_ports(&self, views: &[Arc<ServiceView>]) -> Option<Vec<String>> {
        self.port.as_ref()?;
        let facts: Vec<&ServiceFacts> = views.iter().filter_map(|view| view.facts.as_deref()).collect();
        let has_ports = facts.iter().any(|facts| !facts.ports.is_empty());
        let is_missed = has_ports && self.narrow_views(views).is_empty();
        let ports = facts.iter().flat_map(|facts| &facts.ports);
        is_missed.then(|| ports.map(|port| format_port(&port.name, port.port.get())).collect())
    }
}

fn format_port(name: &str, number: u16) -> String {
    if name.is_empty() { number.to_string() } else { format!("{number} ({name})") }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpPath(Arc<str>);

impl HttpPath {
    pub fn parse(text: &str) -> Option<Self> {
        let is_legal = text.starts_with('/')
            && text.len() <= PATH_LENGTH_MAX
            && text.bytes().all(|it| it.is_ascii_graphic() && !br##""#<>\^`{|}"##.contains(&it));
        is_legal.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::num::NonZeroU16;

    use holdfast_core::engine::Engine;
    use holdfast_core::event::Event;
    use holdfast_core::facts::{ServicePort, ServiceType, Settings};
    use holdfast_core::keys::{ObjectName, Protocol, ServiceKey, Source};
    use holdfast_core::maps::{Capacity, MemoryMaps};
    use holdfast_core::time::ClockReading;

    use super::*;
    use crate::known_services::find_views;

    /// A service with one named port. The port's number differs from its node port.
    fn served(name: &ObjectName, source: Source, ip: IpAddr, port: u16) -> Event {
        let mut facts = ServiceFacts::new(ServiceKey { name: name.clone(), source }, ServiceType::NodePort);
        facts.cluster_ips = vec![ip];
        facts.ports = vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::TCP,
            port: NonZeroU16::new(port).unwrap(),
            node_port: NonZeroU16::new(30_000 + port),
        }];
        Event::ServiceApplied(Arc::new(facts))
    }

    /// A name that two sources have, each with its own port.
    fn web(port: &str) -> (Vec<Arc<ServiceView>>, Option<Vec<String>>) {
        let name = ObjectName::new("default", "web").unwrap();
        let sources = [Source::Kubernetes, Source::Manifests];
        let maps = MemoryMaps::new(Capacity { slots: 64, ports: 64, services: 64 });
        let (mut engine, _) = Engine::start(maps, holdfast_core::index::Seed(0), &sources).unwrap();
        engine.apply(Event::SettingsApplied(Arc::new(Settings::default())));
        engine.apply(served(&name, Source::Kubernetes, [10, 96, 0, 10].into(), 80));
        engine.apply(served(&name, Source::Manifests, [10, 96, 0, 11].into(), 8000));
        sources.into_iter().for_each(|source| engine.apply(Event::Synced(source)));
        let all = find_views(&name, &engine.step(ClockReading::default(), &mut |_| {}));
        let focus = Focus { port: PortSelector::parse(port), http: None };
        (focus.narrow_views(&all), focus.unmatched_ports(&all))
    }

    #[test]
    fn a_port_is_found_by_its_name_or_its_dialled_number() {
        for (port, found) in [("80", 1), ("http", 2), ("8000", 1), ("30080", 1), ("8080", 0), ("htt", 0)] {
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
    fn a_path_or_port_with_other_characters_is_rejected() {
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
            assert!(PortSelector::parse(bad).is_none(), "{bad:?}");
        }
    }
}
