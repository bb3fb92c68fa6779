//! The permissions of each user: the manifest that users apply, checked by the real authorizer.

use holdfast_tests::bed::Layout;
use holdfast_tests::peers::{Api, Cluster, Identity};

use crate::stage::{self, MANIFEST};

/// A kubelet's user and group.
const NODE: &str = "system:node:n1";
const NODES: &str = "system:nodes";

/// Requests that holdfast sends, and ones that must be rejected, with the expected status.
const NEEDS: [(&str, &str, u16); 16] = [
    ("GET", "api/v1/services", 200),
    ("GET", "api/v1/services?watch=1&timeoutSeconds=1", 200),
    ("GET", "apis/discovery.k8s.io/v1/endpointslices", 200),
    ("GET", "apis/discovery.k8s.io/v1/endpointslices?watch=1&timeoutSeconds=1", 200),
    ("GET", "api/v1/nodes?fieldSelector=metadata.name%3Dn1", 200),
    ("GET", "api/v1/nodes?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dn1", 200),
    ("GET", "api/v1/nodes/n1", 200),
    // It is permitted, but the kind does not exist.
    ("GET", "apis/multicluster.x-k8s.io/v1beta1/serviceimports", 404),
    ("DELETE", "apis/multicluster.x-k8s.io/v1beta1/namespaces/default/serviceimports/web", 403),
    ("GET", "api/v1/namespaces/kube-system", 200),
    ("GET", "api/v1/namespaces/default", 403),
    ("GET", "api/v1/secrets", 403),
    // The engine looks up which pod has the address of a held backend.
    ("GET", "api/v1/pods", 200),
    ("DELETE", "api/v1/namespaces/default/services/kubernetes", 403),
    ("DELETE", "apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", 403),
    ("DELETE", "api/v1/nodes/n1", 403),
];

#[track_caller]
fn check(who: &str, api: &Api<'_>, expected: &[(&str, &str, u16)]) {
    let found = expected.iter().map(|(method, path, _)| {
        let reply = api.request(method, path, None).unwrap();
        (*method, *path, reply.status)
    });
    assert_eq!(found.collect::<Vec<_>>(), expected, "of {who}");
}

#[test]
fn the_manifest_grants_exactly_what_holdfast_needs() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    api.add_node("n1", "a").unwrap();
    let user = cluster.authority().client(stage::USER, &[]).unwrap();
    let user = cluster.api_as(0, &Identity::Certificate(&user)).unwrap();
    let nothing = NEEDS.map(|(method, path, _)| (method, path, 403));
    check("a user before", &user, &nothing);

    stage::permit(&cluster, 1, MANIFEST, (stage::USER, &[]));
    check("a user with a certificate", &user, &NEEDS);
    let token = api.token("kube-system/holdfast").unwrap();
    check("the account", &cluster.api_as(0, &Identity::Token(&token)).unwrap(), &NEEDS);
}

#[test]
fn a_kubelets_credential_needs_the_group_that_the_manifest_names() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    api.add_node("n1", "a").unwrap();
    let kubelet = cluster.authority().client(NODE, &[NODES]).unwrap();
    let kubelet = cluster.api_as(0, &Identity::Certificate(&kubelet)).unwrap();
    let own = [
        ("GET", "api/v1/services", 200),
        ("GET", "api/v1/nodes?fieldSelector=metadata.name%3Dn1", 200),
        ("GET", "apis/discovery.k8s.io/v1/endpointslices", 403),
        ("GET", "api/v1/namespaces/kube-system", 403),
    ];
    check("a kubelet", &kubelet, &own);
    let with_group = MANIFEST.replace("  # - apiGroup", "  - apiGroup").replace("  #   kind", "    kind");
    let with_group = with_group.replace("  #   name", "    name");
    assert_ne!(with_group, MANIFEST);
    stage::permit(&cluster, 1, &with_group, (NODE, &[NODES]));
    check("a kubelet with the group", &kubelet, &own.map(|(method, path, _)| (method, path, 200)));
}

#[test]
fn a_made_up_token_is_answered_with_401() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let stranger = cluster.api_as(0, &Identity::Token("made-up")).unwrap();
    check("a stranger", &stranger, &[("GET", "api/v1/services", 401)]);
}
