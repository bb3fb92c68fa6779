//! The daemon's own client of a cluster's first apiserver, without a daemon.

use std::error::Error;

use holdfast_config::Config;
use holdfast_kubernetes::apiserver::{self, Access};

use super::Cluster;

impl Cluster {
    /// Access as the administrator; it has not connected yet.
    pub fn access(&self) -> Result<Access, Box<dyn Error>> {
        let kubeconfig = self.authority().kubeconfig(0, self.authority().admin())?;
        let text = format!("[apiserver]\nkubeconfig = {kubeconfig:?}\ndiscover = []\n");
        let (config, _) = Config::parse(&text, "config.toml")?;
        let sources = apiserver::AccessSources { apiserver: config.apiserver, kubelet: None, learns: false };
        let state = self.folder().to_owned();
        Ok(Access::new(&apiserver::AccessSettings { sources, state, known_cluster: None, seed: 1 })?)
    }
}
