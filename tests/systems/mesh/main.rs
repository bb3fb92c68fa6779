//! Meshes in pods and DNS on the node, by the real programs that `scripts/mesh.sh` builds. Needs root.

#[cfg(test)]
mod control;
#[cfg(test)]
mod dns;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod sidecars;
