//! Real traffic around a node: from outside, from pods, to near and far backends. Each test has a network of its own.
//! Needs root, so the `root` feature selects it.

// Not yet by the tests' clock.
#![allow(clippy::disallowed_methods)]

#[cfg(test)]
mod announced;
#[cfg(test)]
mod associations;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod direct;
#[cfg(test)]
mod drained;
#[cfg(test)]
mod ecmp;
#[cfg(test)]
mod fabric;
#[cfg(test)]
mod firewalls;
#[cfg(test)]
mod joined;
#[cfg(test)]
mod known;
#[cfg(test)]
mod loxilb;
#[cfg(test)]
mod maglev;
#[cfg(test)]
mod node;
#[cfg(test)]
mod notices;
#[cfg(test)]
mod own_address;
#[cfg(test)]
mod page;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod regressions;
#[cfg(test)]
mod resolved;
#[cfg(test)]
mod routers;
#[cfg(test)]
mod served;
#[cfg(test)]
mod shortcut;
#[cfg(test)]
mod speakers;
#[cfg(test)]
mod survival;
#[cfg(test)]
mod taken;
#[cfg(test)]
mod talk;
#[cfg(test)]
mod uplinks;
#[cfg(test)]
mod ways;
#[cfg(test)]
mod weights;
