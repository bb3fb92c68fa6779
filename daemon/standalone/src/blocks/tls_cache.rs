//! The TLS clients of checks, by their files.
//!
//! Invariant: one client per set of files, however many services use it, and none for files that no service uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::HealthCheck;
use super::block::Blocks;
use holdfast_config::{ServiceBlock, TlsFiles};
use holdfast_credentials::ClientTls;

/// The files for checks of these blocks that cannot be used now, each with its first block and the reason.
pub fn unusable_tls_files(blocks: &[ServiceBlock]) -> Vec<(&ServiceBlock, String)> {
    let checks = blocks.iter().filter_map(|block| Some((block, block.health_check.as_ref()?.kind.tls()?)));
    let mut first = BTreeMap::new();
    for (block, tls) in checks {
        first.entry(&tls.files).or_insert(block);
    }
    let unusable = |(files, block)| ClientTls::check_files(files).into_iter().map(move |why| (block, why));
    first.into_iter().flat_map(unusable).collect()
}

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
