//! The command line against a served snapshot.
