//! Rung 5: the real source and apiserver client, over the real engine, against an apiserver with every known fault.
//! One test for each fault.
//!
//! After each fault the table must equal that of a freshly started daemon. Between any two operations, a service that
//! keeps its backends must never be without them. These tests do not check timing.

#![cfg(test)]

mod credentials;
mod diagnosed;
mod encodings;
mod endpoints;
mod events;
mod hung;
mod imports;
mod learned;
mod listed;
mod lists;
mod node;
mod objects;
mod own_node;
mod pages;
mod programmed;
mod rotated;
mod throttled;
mod watches;
