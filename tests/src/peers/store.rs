//! Changes etcd's content behind the apiservers: restores an older state, or stores objects that no apiserver accepts.
//!
//! Invariant: an object is written in full, as an apiserver last read it plus the change. The apiservers see it like
//! any other write.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::api::{Kind, malformed};
use super::{Cluster, ETCD, Part, PeersError};
use crate::bed::Location;

/// A copy of etcd's content at some time.
#[derive(Debug)]
pub struct Backup {
    folder: PathBuf,
}

impl Cluster {
    /// Writes an object with a change that an apiserver would not allow, for example of `metadata.creationTimestamp`.
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

    /// Copies etcd's files. Etcd stops for that, because only then the copy is consistent.
    pub fn back_up(&self, name: &str) -> Result<Backup, PeersError> {
        let backup = Backup { folder: self.folder().join(name) };
        self.stop(Part::Etcd)?;
        copy(&self.store_folder(), &backup.folder)?;
        self.start_part(Part::Etcd)?;
        self.wait_ready(Part::Apiserver(0))?;
        Ok(backup)
    }

    /// Restores a backup as the documentation of Kubernetes says: the apiservers end, etcd gets the former files, all
    /// start again. The apiservers cannot see that versions are assigned a second time.
    pub fn restore(&self, backup: &Backup, apiservers: usize) -> Result<(), PeersError> {
        (0..apiservers).try_for_each(|index| self.kill(Part::Apiserver(index)))?;
        self.stop(Part::Etcd)?;
        fs::remove_dir_all(self.store_folder()).map_err(at(&self.store_folder()))?;
        copy(&backup.folder, &self.store_folder())?;
        self.start_part(Part::Etcd)?;
        (0..apiservers).try_for_each(|index| self.start_part(Part::Apiserver(index)))
    }

    fn store_folder(&self) -> PathBuf {
        self.folder().join("etcd")
    }

    /// Writes through etcd's HTTP gateway; apiservers also read objects as JSON.
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

fn at(path: &Path) -> impl Fn(io::Error) -> PeersError + use<> {
    let path = path.to_owned();
    move |source| PeersError::File { path: path.clone(), source }
}

fn copy(from: &Path, to: &Path) -> Result<(), PeersError> {
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(at(&source))?;
        }
    }
    // Etcd complains if other users may read it.
    let private = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
    fs::set_permissions(to, private).map_err(at(to))
}

/// The etcd key prefix of a kind.
fn prefix(kind: Kind) -> Result<&'static str, PeersError> {
    match kind {
        Kind::Pod => Ok("/registry/pods"),
        Kind::Service => Ok("/registry/services/specs"),
        Kind::Endpoints => Ok("/registry/services/endpoints"),
        Kind::ServiceCidr => Ok("/registry/servicecidrs"),
        other => Err(malformed(format!("{other:?}"), "a kind whose place in etcd no test has needed yet")),
    }
}
