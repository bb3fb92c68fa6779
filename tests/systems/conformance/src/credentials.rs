//! The authority of a cluster, and the credentials of its users and servers.
//!
//! Invariant: a machine gets only the keys of its own users and servers. As in Kubernetes, the common name of a
//! certificate is the user, and its organisations are the groups.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::ClusterError;
use crate::error::write;
use crate::topology::{APISERVER_PORT, APISERVER_SERVICE, MachineName, Topology, VIRTUAL_ADDRESS};

/// The folder in machines.
const FOLDER: &str = "/etc/kubernetes";

/// The certificate authority of one cluster.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Keeps keys out of a failed test's output.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(crate) fn create() -> Result<Self, ClusterError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the cluster's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let issuer = KeyPair::generate().and_then(|key| CertifiedIssuer::self_signed(params, key));
        Ok(Self { issuer: issuer.map_err(failed("the authority"))? })
    }

    /// The control plane's credentials: the authority with its key, its server, and its users.
    pub(crate) fn equip_control_plane(&self, root: &Path) -> Result<(), ClusterError> {
        self.trust(root)?;
        let key = self.issuer.key().serialize_pem();
        // A separate file: during a change several authorities may be trusted, but only one signs.
        write(&inside(root, "signer.pem"), self.issuer.pem())?;
        write(&inside(root, "signer.key"), key)?;
        self.tokens(root)?;
        self.server(root, MachineName::ControlPlane, "apiserver", &apiserver_names())?;
        self.user(root, "kubelet-client", "apiserver-kubelet-client", &["system:masters"])?;
        self.user(root, "front-proxy", "front-proxy-client", &[])?;
        self.kubeconfig(root, "admin", "admin", &["system:masters"])?;
        for name in ["kube-controller-manager", "kube-scheduler"] {
            self.kubeconfig(root, name, &format!("system:{name}"), &[])?;
        }
        Ok(())
    }

    /// A node's credentials: kubelet's client and server, and a user for each proxy.
    pub(crate) fn equip_node(
        &self,
        root: &Path,
        node: MachineName,
        topology: &Topology,
    ) -> Result<(), ClusterError> {
        self.trust(root)?;
        self.server(root, node, "kubelet-server", &[])?;
        let kubelet = ("kubelet", format!("system:node:{node}"), &["system:nodes"][..]);
        if topology.virtual_address {
            self.kubeconfig_for(root, kubelet, VIRTUAL_ADDRESS, ", tls-server-name: kubernetes")?;
        } else {
            self.kubeconfig(root, kubelet.0, &kubelet.1, kubelet.2)?;
        }
        self.kubeconfig(root, "kube-proxy", "system:kube-proxy", &[])?;
        self.kubeconfig(root, "holdfast", "holdfast", &[])
    }

    fn trust(&self, root: &Path) -> Result<(), ClusterError> {
        write(&inside(root, "ca.pem"), self.issuer.pem())
    }

    /// The key that signs the tokens of service accounts, and its public half.
    fn tokens(&self, root: &Path) -> Result<(), ClusterError> {
        let key = KeyPair::generate().map_err(failed("tokens"))?;
        write(&inside(root, "tokens.pub"), key.public_key_pem())?;
        write(&inside(root, "tokens.key"), key.serialize_pem())
    }

    /// The certificate of a machine's server, for the machine's name and addresses, and for `more`.
    fn server(&self, root: &Path, at: MachineName, file: &str, more: &[&str]) -> Result<(), ClusterError> {
        let own = at.addresses().into_iter().chain([at.to_string()]);
        let names: Vec<String> = own.chain(more.iter().map(|name| (*name).to_owned())).collect();
        let params = CertificateParams::new(names).map_err(failed(file))?;
        self.issue(root, file, file, params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn user(&self, root: &Path, file: &str, name: &str, groups: &[&str]) -> Result<(), ClusterError> {
        let mut params = CertificateParams::default();
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        self.issue(root, file, name, params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        root: &Path,
        file: &str,
        name: &str,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<(), ClusterError> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages.push(purpose);
        let key = KeyPair::generate().map_err(failed(name))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed(name))?;
        write(&inside(root, &format!("{file}.pem")), certificate.pem())?;
        write(&inside(root, &format!("{file}.key")), key.serialize_pem())
    }

    /// A user's certificate, and `FILE.conf` for the apiserver.
    fn kubeconfig(&self, root: &Path, file: &str, name: &str, groups: &[&str]) -> Result<(), ClusterError> {
        let [server, _] = MachineName::ControlPlane.addresses();
        self.kubeconfig_for(root, (file, name.to_owned(), groups), &server, "")
    }

    /// The same for another address of a server; `more` adds keys to it.
    fn kubeconfig_for(
        &self,
        root: &Path,
        (file, name, groups): (&str, String, &[&str]),
        server: &str,
        more: &str,
    ) -> Result<(), ClusterError> {
        self.user(root, file, &name, groups)?;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: 'https://{server}:{APISERVER_PORT}', \
             certificate-authority: {FOLDER}/ca.pem{more}}}}}]\n\
             users: [{{name: it, user: {{client-certificate: {FOLDER}/{file}.pem, client-key: {FOLDER}/{file}.key}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n"
        );
        write(&inside(root, &format!("{file}.conf")), text)
    }
}

/// The names that clients in pods and on nodes verify.
fn apiserver_names() -> [&'static str; 6] {
    [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "localhost",
        "127.0.0.1",
        APISERVER_SERVICE,
    ]
}

/// The path of a file from outside of the machine.
fn inside(root: &Path, file: &str) -> std::path::PathBuf {
    root.join(FOLDER.trim_start_matches('/')).join(file)
}

fn failed(whose: &str) -> impl FnOnce(rcgen::Error) -> ClusterError {
    move |source| ClusterError::Certificate { whose: whose.to_owned(), source }
}
