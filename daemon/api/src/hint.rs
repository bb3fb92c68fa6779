//! The advice in a refusal, in the words of the client: parameters of a URL, or arguments of the command line.
//!
//! Invariant: no client gets advice that its side does not understand. The command line identifies itself in a header;
//! nothing else depends on that header.

use axum::http::HeaderMap;

use super::bare_name::BareName;

/// The header by which the command line identifies itself.
pub const WORDS_HEADER: &str = "holdfast-words";

/// The value of that header.
pub const COMMAND: &str = "command";

/// The words of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintStyle {
    Url,
    Command,
}

impl HintStyle {
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        match headers.get(WORDS_HEADER) {
            Some(words) if words.as_bytes() == COMMAND.as_bytes() => Self::Command,
            _ => Self::Url,
        }
    }
}

/// The advice in a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// A text that is the same in all words.
    Plain(String),
    Service,
    /// The name lacks the namespace.
    BareName(BareName),
    Address,
    Endpoint,
    /// Give the frontend that the client dials.
    Dialled,
    /// Give a time to the filter of this name.
    Time(&'static str),
    After,
    /// Watch less: there are too many watchers.
    Watchers,
    /// Query one of these paths.
    Paths(String),
    /// Connect to loopback with this port.
    Host(u16),
}

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Plain(text)
    }
}

impl Hint {
    pub(super) fn text(&self, words: HintStyle) -> String {
        match words {
            HintStyle::Url => self.url_text(),
            HintStyle::Command => self.command_text(),
        }
    }

    fn url_text(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Service => {
                "give the namespace and the name, such as `?service=default/kubernetes`".to_owned()
            }
            Self::BareName(name) => name.text(|service| format!("`?service={service}`")),
            Self::Address => "give an IP address without a port, such as `?address=10.96.0.10`".to_owned(),
            Self::Endpoint => "give an address with its port, such as `?endpoint=10.96.0.10:80`, \
                               `?endpoint=10.96.0.10:53/UDP` or `?endpoint=[fd00::a]:80`"
                .to_owned(),
            Self::Dialled => "add what the client dials, such as `endpoint=10.96.0.10:80`; /frontends lists the \
                              addresses, and /diagnose?service=default/kubernetes&client=IP tries all of a service"
                .to_owned(),
            Self::Time(name) => format!(
                "give a time such as `{name}=2026-01-08T11:11:55Z`, or how long ago, such as `{name}=90s`, `15m`, `2h` or `1d`"
            ),
            Self::After => "give the number of a record, such as `after=184`".to_owned(),
            Self::Watchers => "close one of them, or poll `/history`".to_owned(),
            Self::Paths(paths) => format!("there are {paths}"),
            Self::Host(port) => format!("use localhost:{port}, 127.0.0.1:{port} or [::1]:{port}"),
        }
    }

    fn command_text(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Service => "give the namespace and the name, such as default/kubernetes".to_owned(),
            Self::BareName(name) => name.text(str::to_owned),
            Self::Address => "give an IP address without a port, such as --address 10.96.0.10".to_owned(),
            Self::Endpoint => "give NAMESPACE/NAME, or an address with its port, such as 10.96.0.10:80, \
                               10.96.0.10:53/UDP or [fd00::a]:80"
                .to_owned(),
            Self::Dialled => "give the address with its port in place of the service, as `holdfast frontends \
                              NAMESPACE/NAME` lists it; `holdfast diagnose NAMESPACE/NAME --client IP` tries all"
                .to_owned(),
            Self::Time(name) => format!(
                "give a time such as --{name} 2026-01-08T11:11:55Z, or how long ago, such as --{name} 90s, 15m, 2h or 1d"
            ),
            Self::After => "give the number of a record, such as --after 184".to_owned(),
            Self::Watchers => "close one of them, or run holdfast history from time to time".to_owned(),
            Self::Paths(_) => {
                "the daemon that runs is older than this command line; restart it: systemctl restart holdfast"
                    .to_owned()
            }
            Self::Host(port) => format!("give --tcp localhost:{port}, 127.0.0.1:{port} or [::1]:{port}"),
        }
    }
}
