//! Who we are to the apiserver and whom we trust, read from files that rotate.
//!
//! Invariant: what was good stays in force until something better is read. Deliberately absent: the request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::HeaderValue;
use rustls::ClientConfig;

use super::tls::{self, Pair};
use crate::config::ClientIdentity;

/// Where the credentials are.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) ca_file: PathBuf,
    pub(super) identity: Option<ClientIdentity>,
}

/// What one connection needs.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) authorization: Option<HeaderValue>,
}

/// Reads everything.
pub(super) async fn read(places: &Places) -> Result<Shown, String> {
    let authorities = file(&places.ca_file).await?;
    match &places.identity {
        None => Ok(Shown { tls: tls::config(&authorities, None)?, authorization: None }),
        Some(ClientIdentity::TokenFile(path)) => {
            let token = file(path).await?;
            let token = std::str::from_utf8(&token)
                .map_err(|_| format!("{}: the token is no text", path.display()))?
                .trim();
            let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| format!("{}: the token has control characters", path.display()))?;
            header.set_sensitive(true);
            Ok(Shown { tls: tls::config(&authorities, None)?, authorization: Some(header) })
        }
        Some(ClientIdentity::Certificate { certificate_file, key_file }) => {
            let (certificate, key) = (file(certificate_file).await?, file(key_file).await?);
            let pair = Pair { certificate: &certificate, key: &key };
            Ok(Shown { tls: tls::config(&authorities, Some(&pair))?, authorization: None })
        }
    }
}

async fn file(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))
}
