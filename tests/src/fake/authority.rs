//! Issues valid certificates, and one for each fault that the other side must notice.
//!
//! Invariant: an authority signs only on request, and no key is written to a file here.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::FakeError;

/// The name in every apiserver's certificate.
const KUBERNETES: &str = "kubernetes.default.svc";

/// The names in a server's certificate.
#[derive(Clone, Debug)]
pub enum Names {
    /// `kubernetes.default.svc`, as in every apiserver's certificate.
    Kubernetes,
    /// Only an address.
    Address(IpAddr),
    /// A wrong name.
    Other(String),
    /// `kubernetes.default.svc`, in an expired certificate.
    Expired,
}

#[allow(missing_debug_implementations)] // it holds a private key
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The certificate that a server presents in the TLS handshake.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    pub(super) tls: Arc<ServerConfig>,
}

/// The certificate that a client may present.
#[allow(missing_debug_implementations)] // it holds a private key
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// The certificate as DER, to compare with the one that a server received.
    pub der: Vec<u8>,
}

impl Authority {
    /// A new authority, with a key of its own.
    pub fn new() -> Result<Self, FakeError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "fake-ca");
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// The CA certificate for clients.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server's identity with a new certificate. The server requests client certificates; it accepts those that this
    /// authority signed, and clients without one.
    pub fn server(&self, names: &Names) -> Result<ServerIdentity, FakeError> {
        let key = KeyPair::generate()?;
        let certificate = server_params(names)?.signed_by(&key, &self.issuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let clients = clients.allow_unauthenticated().build()?;
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], private_key(&key))?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ServerIdentity { tls: Arc::new(tls) })
    }

    /// A client's certificate.
    pub fn client(&self, name: &str) -> Result<ClientIdentity, FakeError> {
        self.signed_client(name, CertificateParams::new(Vec::new())?)
    }

    /// An expired client certificate.
    pub fn expired_client(&self, name: &str) -> Result<ClientIdentity, FakeError> {
        self.signed_client(name, past(CertificateParams::new(Vec::new())?))
    }

    fn signed_client(&self, name: &str, mut params: CertificateParams) -> Result<ClientIdentity, FakeError> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let der = CertificateDer::as_ref(certificate.der()).to_vec();
        Ok(ClientIdentity { certificate: certificate.pem(), key: key.serialize_pem(), der })
    }
}

fn server_params(names: &Names) -> Result<CertificateParams, FakeError> {
    let named = |name: &str| CertificateParams::new(vec![name.to_owned()]);
    Ok(match names {
        Names::Kubernetes => named(KUBERNETES)?,
        Names::Address(address) => named(&address.to_string())?,
        Names::Other(name) => named(name)?,
        Names::Expired => past(named(KUBERNETES)?),
    })
}

fn past(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    params
}

fn private_key(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
}
