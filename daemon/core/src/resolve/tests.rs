//! kube-proxy's rules, row by row.
