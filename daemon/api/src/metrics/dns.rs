//! DNS results for backends with names.
//!
//! Invariant: as for all metrics, see the parent; no series has the name of a host or of a server.

use holdfast_agent::exposition::Exposition;
use holdfast_standalone::names::NameTable;

/// Writes the results of queries, and the states of names.
pub(super) fn write(out: &mut Exposition, names: &NameTable) {
    let help = "Queries to name servers for the backends of services, by result.";
    out.labelled_metric("holdfast_dns_queries_total", "counter", help, "result", names.totals());
    let help = "Services with backends by name, by the state of the name.";
    out.labelled_metric("holdfast_dns_names", "gauge", help, "state", names.states());
}
