//! How name servers answer for backends that have names.
//!
//! Invariant: as for all metrics, see the parent; no series is of a name or of a server.

use holdfast_agent::exposition::Exposition;
use holdfast_standalone::names::NameTable;

/// Writes how questions went, and how the names are.
pub(super) fn write(out: &mut Exposition, names: &NameTable) {
    let help = "Questions to name servers for the backends of services, by result.";
    out.labelled_metric("holdfast_dns_queries_total", "counter", help, "result", names.totals());
    let help = "Services whose backends are asked for by name, by how the name is.";
    out.labelled_metric("holdfast_dns_names", "gauge", help, "state", names.states());
}
