//! What etcd holds, changed behind the apiservers' backs: the objects of another time, and the ones that no apiserver
//! would take.
//!
//! Invariant: an object is written whole, as an apiserver last read it but for the change. The apiservers hear of it as
//! of any other write.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::api::{Kind, malformed};
use super::{Cluster, ETCD, PeersError};
use crate::bed::Location;

impl Cluster {
    /// Writes an object anew with a change that no apiserver sees to: `metadata.creationTimestamp`, for one.
    pub fn overwrite(
        &self,
        kind: Kind,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), PeersError> {
        let found = self.api(0)?.get(kind, name)?;
        let mut object = found.ok_or_else(|| malformed(format!("{kind:?} {name}"), "it is not there"))?;
        change(&mut object);
        self.store(&format!("{}/{name}", prefix(kind)?), &object)
    }

    /// By etcd's own gateway, which speaks HTTP; apiservers read objects as JSON too.
    fn store(&self, key: &str, object: &Value) -> Result<(), PeersError> {
        let put = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())});
        let url = format!("http://{ETCD}/v3/kv/put");
        let unreached = |source| PeersError::Unreached {
            request: format!("PUT {key} at etcd"),
            source: Box::new(source),
        };
        let send = || ureq::post(&url).send(put.to_string()).map(drop);
        self.bed.within(Location::OUTSIDE, send)?.map_err(unreached)
    }
}

/// Where apiservers keep the objects of a kind.
fn prefix(kind: Kind) -> Result<&'static str, PeersError> {
    match kind {
        Kind::Pod => Ok("/registry/pods"),
        Kind::Service => Ok("/registry/services/specs"),
        Kind::Endpoints => Ok("/registry/services/endpoints"),
        Kind::ServiceCidr => Ok("/registry/servicecidrs"),
        other => Err(malformed(format!("{other:?}"), "a kind whose place in etcd no test has needed yet")),
    }
}
