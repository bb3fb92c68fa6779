//! Derives each module's settings from the configuration.
//!
//! Invariant: nothing here starts, opens or waits for anything, so a start and a reload both use it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use holdfast_core::address_policy::{AddressRange, ExternalIps};
use holdfast_core::facts::Settings;

use super::AppError;
use holdfast_agent::readings::EffectiveConfig;
use holdfast_agent::state;
use holdfast_api as admin;
use holdfast_config::{self as config, Config, Discovery};
use holdfast_kubernetes::apiserver::{self, Access};
use holdfast_standalone::blocks::{Blocks, BlocksFolder};

/// Kubelet's kubeconfig where kubeadm puts it.
const KUBELET: &str = "/etc/kubernetes/kubelet.conf";

pub(super) fn apiserver_sources(config: &Config) -> apiserver::AccessSources {
    let discovers = |tier| config.apiserver.discover.contains(&tier);
    apiserver::AccessSources {
        apiserver: config.apiserver.clone(),
        kubelet: discovers(Discovery::Kubelet).then(|| KUBELET.into()),
        learns: discovers(Discovery::Learned),
    }
}

/// The settings of the rules. `apiserver_addresses` are the addresses of apiservers besides the configured ones.
pub(super) fn engine_settings(config: &Config, apiservers: BTreeSet<SocketAddr>) -> Settings {
    let is_direct = !config.packets.dsr_from.is_empty();
    let ends_tcp = config.datapath.stale_sockets.protocols.contains(&config::Protocol::Tcp);
    let bypass = config.apiserver.endpoints.iter().map(|endpoint| endpoint.address()).collect();
    Settings {
        service_proxy_name: config.kubernetes.service_proxy_name.as_deref().map(Into::into),
        bypass,
        reported_apiservers: apiservers,
        frontends_max: usize::try_from(config.datapath.limits.frontends).ok(),
        external_ips: external_ips(&config.kubernetes.external_ips),
        hold: config.hold.policy(),
        serves_sctp: config.packets.enabled,
        maglev: config.packets.maglev,
        has_dsr_from: is_direct,
        keeps_tcp_members: is_direct || ends_tcp,
    }
}

fn external_ips(allowed: &config::ExternalIps) -> ExternalIps {
    let range = |cidr: &config::Cidr| AddressRange { first: cidr.network(), last: cidr.last() };
    match allowed {
        config::ExternalIps::All => ExternalIps::All,
        config::ExternalIps::None => ExternalIps::None,
        config::ExternalIps::Cidrs(cidrs) => ExternalIps::Within(cidrs.iter().map(range).collect()),
    }
}

pub(super) fn apiserver_addresses(access: Option<&Access>) -> BTreeSet<SocketAddr> {
    access.map(|access| access.addresses().borrow().clone()).unwrap_or_default()
}

pub(super) fn admin_settings(config: &Config) -> admin::Settings {
    admin::Settings { listen: config.admin.listen.address(), socket: config.admin.socket.clone() }
}

pub(super) fn effective_config(config: &Config) -> EffectiveConfig {
    let config = config.clone().without_secrets();
    EffectiveConfig { text: config.effective_text(), json: config.effective_json() }
}

pub(super) fn parse_blocks(config: &Config, path: &Path) -> Result<Blocks, AppError> {
    Blocks::from_config(config, &path.to_string_lossy()).map_err(AppError::Services)
}

pub(super) fn state_folder(config: &Config) -> state::StateFolder {
    state::StateFolder::new(&config.state.path)
}

pub(super) fn blocks_folder(config: &Config) -> Option<(BlocksFolder, Arc<str>)> {
    let path = config.more_services.path.as_deref()?;
    Some((BlocksFolder::new(path), path.to_string_lossy().into()))
}
