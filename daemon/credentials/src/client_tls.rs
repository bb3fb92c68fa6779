//! TLS for what the daemon dials beside apiservers, from files that rotate as an apiserver's do.
//!
//! Invariant: as with an apiserver's credentials, what was good stays in force, and a file that cannot be read is named
//! in the log and changes nothing. Of many tasks that ask at once one looks at the files, at most once in a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::sync::MutexGuard;

use super::{ConnectionCredentials, Credentials, Locations};
use holdfast_config::TlsFiles;

/// How often the files are looked at, by a call of the kernel for each.
pub const CHECK_EVERY: Duration = Duration::from_secs(1);

/// What TLS needs from one set of files.
#[derive(Debug)]
pub struct ClientTls {
    credentials: Credentials,
    // When the files were looked at last. Held by the task that looks.
    checked_at: tokio::sync::Mutex<Option<Instant>>,
}

impl ClientTls {
    pub fn new(files: &TlsFiles) -> Self {
        let credentials = Credentials::new(Locations::from_files(files));
        Self { credentials, checked_at: tokio::sync::Mutex::default() }
    }

    /// What the files say, or said when they could be read; `None`: they never could.
    pub async fn current(&self) -> Option<Arc<ClientConfig>> {
        let shown = match (self.checked_at.try_lock(), self.credentials.last_good()) {
            (Ok(looked), _) => self.refresh_if_due(looked).await,
            // Another task is looking already.
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
            // What is wrong with a file is in the log.
            let _ = self.credentials.current(false).await;
            *looked = Some(Instant::now());
        }
        self.credentials.last_good()
    }
}
