//! The packages on a booted Linux: an operator's steps from installation to purge, and failures meanwhile.
//!
//! Each test boots its own host from `HOLDFAST_HOST_ROOT` and takes the packages from `HOLDFAST_PACKAGES`;
//! `scripts/host.sh` makes both. A guest has one host, for one test: `cycle`.

// Every line of a test may panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]
#![allow(clippy::cast_precision_loss)]

mod bad_starts;
mod confinement;
mod cycle;
mod figures;
mod firewalls;
mod install_page;
mod journal;
mod life;
mod outside_page;
mod packages;
mod page;
mod pressure;
mod release;
mod release_contents;
mod reload;
mod watchdog;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_tests::bed::Server;
use holdfast_tests::host::Host;

/// The address that clients dial.
const VIP: &str = "10.96.0.10:80";

const CONFIG: &str = "/etc/holdfast/holdfast.toml";

/// One service with one backend.
fn config(backend: &str) -> String {
    format!("[[service]]\nname = \"web\"\nfrontends = [\"{VIP}\"]\nbackends = [\"{backend}\"]\n")
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn from_environment(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{name} is not set: run scripts/host.sh, which sets it"))
}

/// A version of the packages; both have the same sources.
#[derive(Clone, Copy, Debug)]
enum Version {
    First,
    /// The upgrade's version, as `scripts/host.sh` makes it.
    Next,
}
use Version::{First, Next};

impl Version {
    fn number(self) -> String {
        let first = env!("CARGO_PKG_VERSION");
        let (rest, patch) = first.rsplit_once('.').unwrap();
        match self {
            First => first.to_owned(),
            Next => format!("{rest}.{}", patch.parse::<u32>().unwrap() + 1),
        }
    }

    fn deb(self) -> String {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        format!("holdfast_{}_{architecture}.deb", package_version(&self.number()))
    }

    fn rpm(self) -> String {
        format!("holdfast-{}-1.x86_64.rpm", package_version(&self.number()))
    }
}

/// A version as packages write it: by this sign a candidate comes before its release.
fn package_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

/// The path of a package.
fn package(name: &str) -> PathBuf {
    from_environment("HOLDFAST_PACKAGES").join(name)
}

fn boot() -> Host {
    if Host::is_around() { Host::around() } else { Host::boot(&from_environment("HOLDFAST_HOST_ROOT")) }
        .unwrap()
}

/// Installs or replaces a package.
#[track_caller]
fn install(host: &Host, version: Version) -> String {
    let name = version.deb();
    host.copy(&package(&name), &format!("/srv/{name}")).unwrap();
    host.run(&["dpkg", "--install", &format!("/srv/{name}")]).unwrap().expect_success()
}

/// A host on which the daemon serves one service, and its backend.
fn serving() -> (Host, Server) {
    let host = boot();
    install(&host, First);
    let server = host.serve("one", address("127.0.0.1:8081")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    (host, server)
}

/// The name of the server that answers a client of the service.
fn who_answers(host: &Host) -> String {
    let line = "exec 3<>/dev/tcp/10.96.0.10/80 && echo >&3 && head -n 1 <&3";
    host.run(&["timeout", "5", "bash", "-c", line]).unwrap().out
}

/// A property of the service in systemd.
fn property(host: &Host, name: &str) -> String {
    host.run(&["systemctl", "show", "--value", "--property", name, "holdfast"]).unwrap().expect_success()
}

/// All files of the host that packages and services could leave, sorted.
fn files(host: &Host) -> Vec<String> {
    let listed = host
        .shell("find / -xdev -not -path '/proc/*' -not -path '/tmp/*'; find /sys/fs/bpf /run/systemd/system")
        .unwrap();
    let mut files: Vec<String> = listed.out.lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// The folder of this repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
