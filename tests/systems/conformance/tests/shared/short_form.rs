//! Kubernetes' own tests in their short form, beside what kube-proxy does in the same cluster.
//!
//! Invariant: a test that passes with kube-proxy and not with holdfast fails, as does a run of too few.

use holdfast_conformance::{Baseline, Cluster, Comparison, Exceptions, Suite};

/// The tests of the short form.
const SHORT_MIN: usize = 24;

#[track_caller]
pub(crate) fn check_short_form(cluster: &Cluster) {
    let report = Suite::run(&Suite::short().selection, cluster).unwrap();
    let baseline = Baseline::load(&cluster.topology().id()).unwrap();
    let comparison = Comparison::new(&baseline, &report, &Exceptions::read().unwrap());
    println!("{comparison}{} passed", comparison.passed);
    assert!(!baseline.is_empty() && comparison.failed() == 0, "{comparison}");
    assert!(comparison.passed >= SHORT_MIN, "{comparison}");
}
