//! Reloads, one after the other.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{Reload, settings};
use crate::config::Config;
use crate::logging::Logging;

/// A daemon's reloads, in a folder of their own.
struct Bed {
    folder: tempfile::TempDir,
    reload: Reload,
}

impl Bed {
    fn started_with(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holdfast.toml");
        std::fs::write(&path, text).unwrap();
        let (config, _) = Config::load(&path).unwrap();
        let logging = Arc::new(Logging::silent(&config.log));
        let told = (
            watch::channel(Arc::new(settings::effective(&config))).0,
            watch::channel(Arc::new(settings::blocks(&config, &path).unwrap())).0,
            watch::channel(None).0,
        );
        // The engine has gone, and takes nothing.
        let events = mpsc::channel(1).0;
        Self {
            reload: Reload::new(&path, watch::channel(Arc::new(config)).0, logging, None, events, told),
            folder,
        }
    }

    async fn reload(&self, text: &str) -> Vec<&'static str> {
        std::fs::write(self.folder.path().join("holdfast.toml"), text).unwrap();
        self.reload.now().await.unwrap().waiting
    }
}

#[tokio::test]
async fn a_reload_compares_with_what_runs_and_not_with_the_last_file() {
    let bed = Bed::started_with("[admin]\nlisten = \"127.0.0.1:9890\"\n");
    let changed = "[admin]\nlisten = \"127.0.0.1:9891\"\n[state]\npath = \"/s\"\n[node]\nname = \"n\"\n[datapath]\nkind = \"memory\"\n";
    let waiting = ["node.name", "datapath.kind", "state.path", "admin.listen"];
    assert_eq!(bed.reload(changed).await, waiting);
    assert_eq!(bed.reload(changed).await, waiting, "they still wait");
    assert!(bed.reload("").await.is_empty(), "what was taken back waits for nothing");
}

#[tokio::test]
async fn what_waits_for_a_restart_is_not_in_force() {
    let bed = Bed::started_with("[hold]\nlimit = \"1m\"\n");
    bed.reload(
        "[hold]\nlimit = \"2m\"\n[admin]\nlisten = \"127.0.0.1:9891\"\n[datapath.limits]\nfrontends = 7\n",
    )
    .await;
    let shown = bed.reload.effective.borrow().text.clone();
    assert!(shown.contains("limit = \"2m\"") && shown.contains("listen = \"127.0.0.1:9890\""), "{shown}");
    assert!(!shown.contains("frontends = 7"), "{shown}");
    let settings = settings::settings(&bed.reload.config.borrow(), Default::default());
    assert_ne!(settings.frontends_max, Some(7), "nor is it half in force");
}
