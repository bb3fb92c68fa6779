//! The shell of holdfast: sources, engine, admin API, command line.
//!
//! Invariant: the shell talks, the core decides; no rule about endpoints is here.
#![forbid(unsafe_code)]

pub mod app;
pub mod sources;
pub use holdfast_agent::{
    datapath, devices, drains, engine, host_routes, kube_proxy, node, probes, proxies, readings, recorder,
    rejections, state,
};
pub(crate) use holdfast_agent::{exposition, listeners, renamed};
pub use holdfast_config as config;
pub(crate) use holdfast_evidence::why;
pub use holdfast_evidence::{diagnose, knowledge, overheard};
pub(crate) use holdfast_host::{beat, error_origin, exempt, guests, small_file};
pub use holdfast_host::{clock, room};
pub use holdfast_import as import;
pub use holdfast_kubernetes::{announce, apiserver, own_node, pod_lookup};
pub(crate) use holdfast_page as page;
pub use holdfast_standalone::dns;

use std::io::Write;
use std::process::ExitCode;

use cli::Run;
pub use holdfast_agent::systemd;
use holdfast_config::ConfigFile;
pub use holdfast_host::logging;

/// Runs the daemon. Why it does not start is written, one sentence that says what to do.
pub fn run(run: &Run, err: &mut impl Write) -> ExitCode {
    let file = ConfigFile { path: run.config.clone(), node_name: run.node_name.clone() };
    match app::run(&file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = error.to_string();
            holdfast_agent::systemd::failed(&why);
            holdfast_host::logging::last_words(&why, err);
            error.exit_code().into()
        }
    }
}
pub use holdfast_api as admin;
pub use holdfast_cli as cli;
