//! One etcd alone: a server of gRPC that others wrote, with the health service that theirs has.
//!
//! Invariant: it is at an address of its own, so several of them are in one bed, and goes with its folder. What it
//! tells without gRPC is at the port [`METRICS_PORT`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tempfile::TempDir;

use super::server::Server;
use super::{Authority, Part, PeersError, flags};
use crate::bed::Bed;

const CLIENT_PORT: u16 = 2379;

const PEER_PORT: u16 = 2380;

/// Where it answers HTTP/1 and nothing else.
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
    /// Starts one that speaks without TLS.
    pub fn start(bed: &Bed, address: Ipv4Addr) -> Result<Self, PeersError> {
        Self::start_with(bed, address, "http", |_| Ok(Vec::new()))
    }

    /// Starts one that speaks TLS, and only with clients that its authority knows.
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

    /// Where it serves gRPC.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address.into(), CLIENT_PORT)
    }

    /// Who signs for it and for its clients.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Ends it without a warning.
    pub fn kill(&self) -> Result<(), PeersError> {
        self.server.kill()
    }
}

/// A failed test shows what it said last.
impl Drop for Etcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.show();
        }
    }
}
