//! A single etcd: a third party's gRPC server with its own health service.
//!
//! Invariant: each has its own address, so that several fit in one bed, and goes with its folder. It serves metrics
//! without gRPC on [`METRICS_PORT`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tempfile::TempDir;

use super::server::Server;
use super::{Authority, Part, PeersError, flags};
use crate::bed::Bed;

const CLIENT_PORT: u16 = 2379;

const PEER_PORT: u16 = 2380;

/// The port for plain HTTP/1.
pub const METRICS_PORT: u16 = 2381;

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    authority: Authority,
    address: Ipv4Addr,
    _folder: TempDir,
}

impl Etcd {
    /// Starts an etcd without TLS.
    pub fn start(bed: &Bed, address: Ipv4Addr) -> Result<Self, PeersError> {
        Self::start_with(bed, address, "http", |_| Ok(Vec::new()))
    }

    /// Starts an etcd with TLS that accepts only clients with a certificate of its authority.
    pub fn start_with_tls(bed: &Bed, address: Ipv4Addr) -> Result<Self, PeersError> {
        Self::start_with(bed, address, "https", |authority| {
            let own = authority.named("etcd", vec![address.to_string()])?;
            let path = |path: &Path| path.display().to_string();
            Ok(vec![
                ("cert-file", path(&own.certificate)),
                ("key-file", path(&own.key)),
                ("trusted-ca-file", path(authority.file())),
                ("client-cert-auth", "true".to_owned()),
            ])
        })
    }

    fn start_with(
        bed: &Bed,
        address: Ipv4Addr,
        scheme: &str,
        more: impl FnOnce(&Authority) -> Result<flags::Flags, PeersError>,
    ) -> Result<Self, PeersError> {
        let folder =
            tempfile::tempdir().map_err(|source| PeersError::File { path: std::env::temp_dir(), source })?;
        let authority = Authority::create(folder.path())?;
        let url = |scheme: &str, port: u16| format!("{scheme}://{address}:{port}");
        let mut all = flags::etcd_at(&url(scheme, CLIENT_PORT), &url("http", PEER_PORT), folder.path());
        all.push(("listen-metrics-urls", url("http", METRICS_PORT)));
        all.extend(more(&authority)?);
        let server = Server::new(Part::Etcd, "etcd", flags::arguments(all), folder.path());
        server.start(bed, &[])?;
        Ok(Self { server, authority, address, _folder: folder })
    }

    /// The address of its gRPC server.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address.into(), CLIENT_PORT)
    }

    /// The authority of its certificate and of its clients'.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Kills it with SIGKILL.
    pub fn kill(&self) -> Result<(), PeersError> {
        self.server.kill()
    }
}

/// Shows its last log lines if the test failed.
impl Drop for Etcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.show();
        }
    }
}
