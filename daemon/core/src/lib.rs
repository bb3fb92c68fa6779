//! The rules.
#![no_std]
extern crate alloc;
