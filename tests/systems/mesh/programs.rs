//! The programs that `scripts/mesh.sh` built.

use std::path::PathBuf;

/// The variable with their folder.
const FOLDER: &str = "HOLDFAST_MESH";

/// The path of one of them.
#[track_caller]
pub(crate) fn path(name: &str) -> PathBuf {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let found = folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{FOLDER} is no folder with {name}; run this as `make part PART=mesh`"))
}
