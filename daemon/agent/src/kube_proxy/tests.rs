//! kube-proxy's ports, as load balancers and scrapers see them. The real rules make the snapshots, from objects as an
//! apiserver delivers them.

mod answers;
mod bed;
mod doors;
mod follow;
mod plans;
