//! Meshes in pods, by the real programs that `scripts/mesh.sh` builds. Needs root.

#[cfg(test)]
mod programs;
#[cfg(test)]
mod sidecars;
