//! The TLS clients of checks, by their files.
//!
//! Invariant: one client per set of files, however many services use it, and none for files that no service uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::HealthCheck;
use super::block::Blocks;
use holdfast_config::TlsFiles;
use holdfast_credentials::ClientTls;

#[derive(Debug, Default)]
pub(super) struct TlsCache(BTreeMap<TlsFiles, Arc<ClientTls>>);

impl TlsCache {
    /// The TLS client of a check; `None`: it uses no TLS.
    pub(super) fn client_tls(&mut self, check: &HealthCheck) -> Option<Arc<ClientTls>> {
        let files = &check.kind.tls()?.files;
        let tls = self.0.entry(files.clone()).or_insert_with(|| Arc::new(ClientTls::new(files)));
        Some(Arc::clone(tls))
    }

    /// Drops the clients of files that no block uses.
    pub(super) fn retain_used(&mut self, blocks: &Blocks) {
        let checks = blocks.iter().filter_map(|(_, block)| block.check.as_ref());
        let named: BTreeSet<_> = checks.filter_map(|check| Some(&check.kind.tls()?.files)).collect();
        self.0.retain(|files, _| named.contains(files));
    }
}
