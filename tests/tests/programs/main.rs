//! Real sockets and real programs, each test in a bed of its own. Needs root, so the `root` feature selects it.

// Not yet by the tests' clock.
#![allow(clippy::disallowed_methods)]

#[cfg(test)]
mod bed;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod conversations;
#[cfg(test)]
mod daemon;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod denied;
#[cfg(test)]
mod diagnosed;
#[cfg(test)]
mod diagnosed_faults;
#[cfg(test)]
mod drains;
#[cfg(test)]
mod facts;
#[cfg(test)]
mod incident;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod names;
#[cfg(test)]
mod node;
#[cfg(test)]
mod served;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod starts;
#[cfg(test)]
mod unanswered;
