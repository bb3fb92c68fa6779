//! The cluster's certificate authority, the servers' certificates, and clients' credentials.
//!
//! Invariant: all keys are files in the cluster's folder and are removed with it. As in Kubernetes, the common name of
//! a certificate is the user, and its organisations are the groups.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::{ADVERTISED, PeersError, apiserver};

/// The names of every apiserver; a daemon that dials an address verifies one of them: `tls_server_name`.
const SERVER_NAMES: [&str; 3] = ["kubernetes.default.svc", "kubernetes", "192.168.0.1"];

/// A client's certificate and key, as files.
#[derive(Clone, Debug)]
pub struct Credential {
    /// A PEM file.
    pub certificate: PathBuf,
    /// A PEM file, PKCS#8.
    pub key: PathBuf,
}

/// The certificate authority of one cluster.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    file: PathBuf,
    tokens: Credential,
    admin: Credential,
}

/// Keeps keys out of a failed test's output.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Authority {
    pub(super) fn create(folder: &Path) -> Result<Self, PeersError> {
        let issuer = issuer().map_err(failed("the authority"))?;
        let file = folder.join("ca.pem");
        write(&file, &issuer.pem())?;
        let tokens = Credential { certificate: folder.join("tokens.pub"), key: folder.join("tokens.key") };
        let key = KeyPair::generate().map_err(failed("the key of tokens"))?;
        write(&tokens.certificate, &key.public_key_pem())?;
        write(&tokens.key, &key.serialize_pem())?;
        let admin = issue(&issuer, folder, "admin", client("admin", &["system:masters"]))?;
        Ok(Self { issuer, folder: folder.to_owned(), file, tokens, admin })
    }

    /// The CA certificate, which clients trust.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The administrator's credential.
    pub fn admin(&self) -> &Credential {
        &self.admin
    }

    /// A credential for a user; a kubelet is `system:node:n1` with the group `system:nodes`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Credential, PeersError> {
        issue(&self.issuer, &self.folder, user, client(user, groups))
    }

    /// The certificate of an apiserver, with its names and addresses.
    pub(super) fn server(&self, index: usize) -> Result<Credential, PeersError> {
        let own = [apiserver(index)?.ip().to_string(), ADVERTISED.to_string()];
        let names: Vec<String> = SERVER_NAMES.into_iter().map(str::to_owned).chain(own).collect();
        self.named(&format!("apiserver-{index}"), names)
    }

    /// A server's certificate with these names and addresses.
    pub(super) fn named(&self, file: &str, names: Vec<String>) -> Result<Credential, PeersError> {
        let params = CertificateParams::new(names).map(|mut params| {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            params
        });
        issue(&self.issuer, &self.folder, file, params)
    }

    /// The key with which all apiservers sign tokens; `certificate` holds its public half.
    pub(super) fn tokens(&self) -> &Credential {
        &self.tokens
    }

    /// Writes a kubeconfig for one apiserver.
    pub fn kubeconfig(&self, index: usize, credential: &Credential) -> Result<PathBuf, PeersError> {
        let path = credential.certificate.with_extension(format!("{index}.kubeconfig"));
        let (server, authority) = (apiserver(index)?, self.file.display());
        let (certificate, key) = (credential.certificate.display(), credential.key.display());
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: 'https://{server}', certificate-authority: '{authority}'}}}}]\n\
             users: [{{name: it, user: {{client-certificate: '{certificate}', client-key: '{key}'}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n"
        );
        write(&path, &text)?;
        Ok(path)
    }
}

fn issuer() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "the cluster's authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn client(user: &str, groups: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    Ok(params)
}

/// Signs and writes; the file names are the user's name without the characters that a path may not have.
fn issue(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    folder: &Path,
    name: &str,
    params: Result<CertificateParams, rcgen::Error>,
) -> Result<Credential, PeersError> {
    let signed = params.and_then(|params| {
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
    });
    let (certificate, key) = signed.map_err(failed(name))?;
    let stem = name.replace([':', '/'], "_");
    let path = |end: &str| folder.join(format!("{stem}.{end}"));
    let credential = Credential { certificate: path("pem"), key: path("key") };
    write(&credential.certificate, &certificate)?;
    write(&credential.key, &key)?;
    Ok(credential)
}

fn failed(what: &str) -> impl FnOnce(rcgen::Error) -> PeersError {
    move |source| PeersError::Certificate { what: what.to_owned(), source }
}

fn write(path: &Path, text: &str) -> Result<(), PeersError> {
    fs::write(path, text).map_err(|source| PeersError::File { path: path.to_owned(), source })
}
