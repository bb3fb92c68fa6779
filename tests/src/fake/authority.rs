//! Certificates: sound ones, and one for each fault that the other side must notice.
//!
//! Invariant: an authority signs only what it is asked for, and no key is written to a file here.

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

/// The name that every apiserver's certificate carries.
const KUBERNETES: &str = "kubernetes.default.svc";

/// The names in a server's certificate.
#[derive(Clone, Debug)]
pub enum Names {
    /// `kubernetes.default.svc`, as in every apiserver's certificate.
    Kubernetes,
    /// An address and nothing else.
    Address(IpAddr),
    /// The wrong name.
    Other(String),
    /// `kubernetes.default.svc`, in a certificate that has expired.
    Expired,
}

#[allow(missing_debug_implementations)] // it holds a private key
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// What a server shows in the TLS handshake.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    pub(super) tls: Arc<ServerConfig>,
}

/// What a client may show.
#[allow(missing_debug_implementations)] // it holds a private key
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// The certificate as it travels, to compare with what a server saw.
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

    /// What clients are told to trust.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// What a server shows, with a certificate of its own. The server asks clients for certificates; it takes those
    /// that this authority signed, and clients without one.
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
