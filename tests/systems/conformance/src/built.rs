//! The parts of clusters: programs, the machines' root, images, and the tested holdfast.
//!
//! Invariant: nothing is built here. A missing part is reported with the command that builds it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ClusterError;
use crate::error::at;
use crate::topology::Topology;

/// A complete build for machines.
#[derive(Clone, Debug)]
pub struct Built {
    /// The folder of programs, `/opt/kubernetes` in machines.
    pub bin: PathBuf,
    /// The Debian root of every machine.
    pub root: PathBuf,
    /// All images, as an OCI layout.
    pub images: PathBuf,
    /// The image of pods' sandboxes.
    pub pause: String,
    /// The tested holdfast.
    pub holdfast: PathBuf,
    /// The folder of the clusters' state and logs.
    pub folder: PathBuf,
}

impl Built {
    /// Finds the build in this build's target folder.
    pub fn find() -> Result<Self, ClusterError> {
        let target = target_folder();
        let folder = target.join("conformance");
        let needed = |name: &str| {
            let path = folder.join(name);
            if path.exists() { Ok(path) } else { Err(ClusterError::NotBuilt { path }) }
        };
        let pause = needed("pause.name")?;
        let pause = fs::read_to_string(&pause).map_err(at("read", &pause))?.trim().to_owned();
        Ok(Self {
            bin: needed("bin")?,
            root: needed("root")?,
            images: needed("images.tar")?,
            pause,
            holdfast: holdfast(&target)?,
            // All clones share the parts; each has its own clusters.
            folder: target.join("clusters"),
        })
    }

    /// The topology with the layer of its pod network's programs, if that has any.
    pub(crate) fn with_layers(&self, topology: &Topology) -> Result<Topology, ClusterError> {
        let mut topology = topology.clone();
        topology.layers.extend(topology.cni.supply().map(layer).transpose()?);
        Ok(topology)
    }
}

/// The layer of machines' disks that `scripts/SUPPLY.sh` has built.
pub fn layer(supply: &'static str) -> Result<PathBuf, ClusterError> {
    let path = target_folder().join(supply).join("layer");
    if path.exists() { Ok(path) } else { Err(ClusterError::NoPodNetwork { path, supply }) }
}

/// The newest build, release or debug: an old one would be tested in place of a new one.
fn holdfast(target: &Path) -> Result<PathBuf, ClusterError> {
    let built = ["release", "debug"].map(|profile| target.join(profile).join("holdfast"));
    let age = |path: &PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    let found = built.into_iter().filter(|path| path.exists()).max_by_key(age);
    found.ok_or_else(|| ClusterError::NoHoldfast { target: target.to_owned() })
}

pub(crate) fn target_folder() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let asked = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = repository.join(asked);
    folder.canonicalize().unwrap_or(folder)
}
