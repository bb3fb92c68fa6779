//! A Kubernetes cluster of real nodes on one kernel: etcd, apiserver, controllers, scheduler, and on each node kubelet,
//! containerd, runc, CNI and the proxy of its Services.
//!
//! ```no_run
//! use holdfast_conformance::{Cluster, ClusterError, Topology};
//!
//! # fn main() -> Result<(), ClusterError> {
//! let cluster = Cluster::start(&Topology::default())?;
//! cluster.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")?;
//! let nodes = cluster.kubectl(&["get", "nodes", "-o", "wide"])?;
//! let here = cluster.on("n1")?.run(&["holdfast", "status"])?;
//! cluster.stop_machine("n1")?;
//! cluster.boot_machine("n1")?;
//! cluster.restart("apiserver")?;
//! # Ok(())
//! # }
//! ```
//!
//! Machines are `cp` (the control plane, without pods), `n1` to `n3`, and `out`, a client outside. Each has its own
//! network, processes, mounts and cgroups, and a writable Debian root; `/opt/kubernetes` in it has the programs. Names
//! outside contain this process's id, so that several clusters can run at once.
//!
//! Invariant: only the load balancer outside of the nodes is imitated (`tests/systems/peers/load-balancer`), and
//! nothing outside of the cluster's own namespaces and cgroups is changed. All of it ends when the [`Cluster`] is
//! dropped, or when its [`guarded`] process ends; the next start removes what a killed process left. Logs stay.

mod baseline;
mod built;
mod cgroups;
mod cluster;
mod control_plane;
mod credentials;
mod error;
mod guard;
mod images;
mod leftovers;
mod machine;
mod node;
mod program;
mod report;
mod suite;
mod topology;
mod units;
mod vpc;
mod wires;

pub use self::baseline::{Baseline, Comparison, Difference, Exceptions};
pub use self::built::{Built, layer};
pub use self::cluster::Cluster;
pub use self::error::ClusterError;
pub use self::guard::guarded;
pub use self::images::write_images;
pub use self::machine::{Machine, Running};
pub use self::report::{Outcome, Report, State};
pub use self::suite::{Selection, Suite};
pub use self::topology::{Cni, Family, Init, MachineName, Mode, Proxy, Topology};
