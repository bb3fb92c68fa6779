//! Access over real sockets and real TLS, with a scripted server.

mod guarding;
pub(crate) mod server;
mod tiers;
mod walking;
mod words;

use std::path::Path;

use super::{Access, AccessSettings, AccessSources};
use holdfast_config::Config;

/// The access of a configuration file.
pub(crate) fn access(folder: &Path, keys: &str) -> Access {
    Access::new(&settings(folder, keys)).unwrap()
}

fn settings(folder: &Path, keys: &str) -> AccessSettings {
    let text = format!("[node]\nname = \"n\"\n[apiserver]\n{keys}");
    let config = Config::parse(&text, &folder.join("config.toml").to_string_lossy()).unwrap().0;
    AccessSettings {
        sources: AccessSources { apiserver: config.apiserver, kubelet: None, learns: true },
        state: folder.to_owned(),
        known_cluster: None,
        seed: 7,
    }
}
