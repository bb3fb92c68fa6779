//! Filters that narrow down a question, as they are written after the command.
//!
//! Invariant: each filter has its name in the admin API, so its value is passed on as it is.

/// A filter of the admin API by its name, and what was given for it.
pub(super) type Given<'a> = (&'static str, &'a Option<String>);

/// Narrows down `frontends`.
#[derive(Clone, Debug, clap::Args)]
pub struct FrontendFilter {
    /// Exactly this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Exactly this type, such as `LoadBalancer`
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Exactly this address of the frontend
    #[arg(long, value_name = "IP")]
    address: Option<String>,
}

impl FrontendFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![("service", &self.service), ("type", &self.kind), ("address", &self.address)]
    }
}

/// Narrows down `backends`.
#[derive(Clone, Debug, clap::Args)]
pub struct BackendFilter {
    /// Exactly this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Exactly this address of the backend
    #[arg(long, value_name = "IP")]
    address: Option<String>,
}

impl BackendFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![("service", &self.service), ("address", &self.address)]
    }
}

/// Narrows down `services`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServiceFilter {
    /// Exactly this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Exactly this type, such as `LoadBalancer`
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

impl ServiceFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![("service", &self.service), ("type", &self.kind)]
    }
}

/// What `explain` is asked about.
#[derive(Clone, Debug, clap::Args)]
pub struct Explained {
    /// `NAMESPACE/NAME`, or an address with its port: what a client dials, or a backend [default: all that
    /// is not served]
    pub(super) what: Option<String>,
    /// What the first packet of this client meets at the address, step by step; nothing is sent
    #[arg(long, value_name = "IP", requires = "what")]
    pub(super) from: Option<String>,
    /// By UDP, as `/UDP` behind the address
    #[arg(long, requires = "what")]
    pub(super) udp: bool,
}

/// What `diagnose` is asked about.
#[derive(Clone, Debug, clap::Args)]
pub struct Diagnosed {
    /// Exactly this service
    #[arg(value_name = "NAMESPACE/NAME", required_unless_present = "explain")]
    pub(super) service: Option<String>,
    /// Try no connections to its frontends and backends
    #[arg(long)]
    pub(super) no_probe: bool,
    /// Only this port, by its name or by the number that clients dial
    #[arg(long, value_name = "PORT")]
    pub(super) port: Option<String>,
    /// Ask backends that are known to speak HTTP for this path; no redirect is followed
    #[arg(long, value_name = "PATH", conflicts_with = "no_probe")]
    pub(super) http: Option<String>,
    /// Who does not reach it: what this client would meet at each frontend; nothing is sent
    #[arg(long, value_name = "IP")]
    pub(super) client: Option<String>,
    /// How far back a change counts as recent, such as `15m`, `2h`, `1d` [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// How long the answer may take, in whole seconds; what is not known by then is said [default and most: 5s]
    #[arg(long, value_name = "SECONDS")]
    pub(super) timeout: Option<String>,
    /// Say what the check of this name looks at and when it is well, and ask nobody
    #[arg(long, value_name = "CHECK", exclusive = true)]
    pub(super) explain: Option<String>,
}

/// Narrows down `refusals`.
#[derive(Clone, Debug, clap::Args)]
pub struct RefusalFilter {
    /// Exactly this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Exactly this address of the frontend; for a NodePort that of the node
    #[arg(long, value_name = "IP")]
    address: Option<String>,
}

impl RefusalFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![("service", &self.service), ("address", &self.address)]
    }
}

/// Narrows down `flows`.
#[derive(Clone, Debug, clap::Args)]
pub struct FlowFilter {
    /// Exactly this address of the client, or this address and port
    #[arg(long, value_name = "IP[:PORT]")]
    client: Option<String>,
    /// Exactly this address that was dialled, or this address and port
    #[arg(long, value_name = "IP[:PORT]")]
    frontend: Option<String>,
    /// Exactly this address of the backend, or this address and port
    #[arg(long, value_name = "IP[:PORT]")]
    backend: Option<String>,
    /// Only those that have come so far: `opening`, `open`, `half-closed`, `closed` or `reset`
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// So many at most [default: 1000]
    #[arg(long, value_name = "COUNT")]
    limit: Option<String>,
}

impl FlowFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![
            ("client", &self.client),
            ("frontend", &self.frontend),
            ("backend", &self.backend),
            ("state", &self.state),
            ("limit", &self.limit),
        ]
    }
}

/// Narrows down `history`.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryFilter {
    /// Exactly this service, also one that is gone [default: all]
    #[arg(value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Not before this time (RFC 3339), or not longer ago, such as `90s`, `15m`, `2h`, `1d`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Not after this time, in the same forms
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only where this reason decided or clients were told it, such as `vanished`
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// The latest so many; with --after, the first so many [default: 1000]
    #[arg(long, value_name = "COUNT")]
    limit: Option<String>,
    /// Only records with a higher number than this
    #[arg(long, value_name = "SEQ")]
    after: Option<String>,
}

impl HistoryFilter {
    pub(super) fn given(&self) -> Vec<Given<'_>> {
        vec![
            ("service", &self.service),
            ("since", &self.since),
            ("until", &self.until),
            ("reason", &self.reason),
            ("limit", &self.limit),
            ("after", &self.after),
        ]
    }
}

/// Narrows down `watch`.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchFilter {
    /// Exactly this service, which need not be there yet [default: all]
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(super) service: Option<String>,
}
