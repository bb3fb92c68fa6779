//! The maps.
