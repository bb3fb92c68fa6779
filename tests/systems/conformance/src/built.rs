//! What clusters are made of: the programs, the root of the machines, the images; and the holdfast that is tested.
//!
//! Invariant: nothing is built here. What is missing is named with the command that builds it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ClusterError;
use crate::error::at;

/// A build of all that machines need.
#[derive(Clone, Debug)]
pub struct Built {
    /// The folder of programs; machines have it as `/opt/kubernetes`.
    pub bin: PathBuf,
    /// The Debian root under every machine.
    pub root: PathBuf,
    /// All images, as an OCI layout.
    pub images: PathBuf,
    /// The name of the image that holds a pod's network.
    pub pause: String,
    /// The holdfast that is tested.
    pub holdfast: PathBuf,
    /// Where clusters keep the state of their machines and leave their logs.
    pub folder: PathBuf,
}

impl Built {
    /// Looks into the target folder of this build.
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
            // What clusters are made of is shared by all clones; what they do is not.
            folder: target.join("clusters"),
        })
    }
}

/// The one that was built last, as a release or as the other tests have it: an old one would pass or fail for a new.
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
