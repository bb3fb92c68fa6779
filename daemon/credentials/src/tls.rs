//! Builds TLS configurations from PEM.
//!
//! Invariant: a certificate is always verified against the given authorities and a name. The system's own authorities
//! are ignored.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// The most certificates read from a bundle: real ones have a handful, the largest public collection about 150.
const AUTHORITIES_MAX: usize = 1_000;

pub struct ClientKeyPair<'a> {
    pub certificate: &'a [u8],
    pub key: &'a [u8],
}

/// A key is never shown.
impl std::fmt::Debug for ClientKeyPair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

impl<'a> ClientKeyPair<'a> {
    pub fn from_pem((certificate, key): &'a (Vec<u8>, Vec<u8>)) -> Self {
        Self { certificate, key }
    }
}

/// Builds a configuration that trusts `authorities` and presents `pair`.
pub fn client_config(
    authorities: &[u8],
    pair: Option<&ClientKeyPair<'_>>,
) -> Result<Arc<ClientConfig>, String> {
    let builder = config_builder(root_store(authorities)?)?;
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => add_pair(builder, pair)?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn add_pair(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    pair: &ClientKeyPair<'_>,
) -> Result<ClientConfig, String> {
    let chain = parse_certificates(pair.certificate, "the client certificate")?;
    let key = PrivateKeyDer::from_pem_slice(pair.key)
        .map_err(|error| format!("the client key is not readable: {error}"))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            "the client certificate and its key do not belong together".to_owned()
        }
        other => format!("the client certificate cannot be used: {other}"),
    })
}

/// Why no server could be verified by these authorities.
pub(super) fn check_authorities(authorities: &[u8]) -> Result<(), String> {
    root_store(authorities).map(drop)
}

/// Why no server could be shown this pair, whatever the authorities are.
pub(super) fn check_pair(pair: &ClientKeyPair<'_>) -> Result<(), String> {
    config_builder(RootCertStore::empty()).and_then(|builder| add_pair(builder, pair)).map(drop)
}

/// The usable authorities of a bundle: an unusable one does not reject the others.
fn root_store(authorities: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut unusable = None;
    for authority in parse_certificates(authorities, "the certificate authority")? {
        unusable = roots.add(authority).err().or(unusable);
    }
    match unusable {
        Some(error) if roots.is_empty() => Err(format!("the certificate authority cannot be used: {error}")),
        Some(error) => {
            tracing::warn!(%error, "one of several certificate authorities cannot be used");
            Ok(roots)
        }
        None => Ok(roots),
    }
}

fn config_builder(roots: RootCertStore) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| format!("tls: {error}"))?.with_root_certificates(roots))
}

fn parse_certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).take(AUTHORITIES_MAX).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{what} has no PEM certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{what} is not PEM, or was cut short: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_authority_does_not_reject_the_others() {
        let good = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (bundle, usable) in [
            (good.clone(), Some(1)),
            (format!("{odd}{good}"), Some(1)),
            (format!("{good}{odd}"), Some(1)),
            (odd.to_owned(), None),
        ] {
            assert_eq!(root_store(bundle.as_bytes()).map(|roots| roots.len()).ok(), usable);
        }
    }
}
