//! Rung 5: the real source and the real way to the apiserver, over the real engine, against an apiserver that does
//! whatever apiservers have been seen to do. One test for each fault.
//!
//! After each fault the table has to be the one that a daemon would have which had started just then, and at no instant
//! between two ops may a service that keeps its backends be without them. How soon things come is not
//! judged here.

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
