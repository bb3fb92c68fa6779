//! kube-proxy's ports, as load balancers and scrapers meet them. The snapshots are those of the real rules over objects
//! as an apiserver gives them.

mod answers;
mod bed;
mod doors;
mod follow;
mod plans;
