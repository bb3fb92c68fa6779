//! TLS for peers other than apiservers, from files that rotate as an apiserver's do.
//!
//! Invariant: the last good credentials stay in force. A file that cannot be read is named in the log and changes
//! nothing. Of many concurrent callers, one checks the files, at most once per second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::sync::MutexGuard;

use super::{ConnectionCredentials, Credentials, Locations};
use holdfast_config::TlsFiles;

/// How often the files are checked. A check costs one `stat` per file.
pub const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct ClientTls {
    credentials: Credentials,
    // When the files were last checked. The task that checks holds the lock.
    checked_at: tokio::sync::Mutex<Option<Instant>>,
}

impl ClientTls {
    pub fn new(files: &TlsFiles) -> Self {
        let credentials = Credentials::new(Locations::from_files(files));
        Self { credentials, checked_at: tokio::sync::Mutex::default() }
    }

    /// Why these files cannot be used now, each by itself; it takes a few seconds at most.
    pub fn check_files(files: &TlsFiles) -> Vec<String> {
        Credentials::new(Locations::from_files(files)).check().unwrap_or_else(|why| vec![why])
    }

    /// The configuration of the last readable files; `None` if they never were readable.
    pub async fn current(&self) -> Option<Arc<ClientConfig>> {
        let shown = match (self.checked_at.try_lock(), self.credentials.last_good()) {
            (Ok(looked), _) => self.refresh_if_due(looked).await,
            // Another task is checking.
            (Err(_), Some(shown)) => Some(shown),
            (Err(_), None) => self.refresh_if_due(self.checked_at.lock().await).await,
        };
        shown.map(|shown| Arc::clone(&shown.tls))
    }

    async fn refresh_if_due(
        &self,
        mut looked: MutexGuard<'_, Option<Instant>>,
    ) -> Option<Arc<ConnectionCredentials>> {
        if looked.is_none_or(|at| at.elapsed() >= CHECK_EVERY) {
            // The log names the problem.
            let _ = self.credentials.current(false).await;
            *looked = Some(Instant::now());
        }
        self.credentials.last_good()
    }
}
