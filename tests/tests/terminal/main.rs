//! The command line at a real terminal, and in real shells.
//!
//! Invariant: the program is the real one, and the terminal is one of the kernel's, which `script` opens.

#[cfg(test)]
mod completions;
#[cfg(test)]
mod pty;
#[cfg(test)]
mod top;
