//! Why an object is rejected: what is wrong, in which field, and what would be legal.
//!
//! Invariant: object text is quoted and truncated, so that the legal values stay visible.

use std::net::IpAddr;

use holdfast_core::facts::endpoints::EndpointError;
use holdfast_core::keys::{Family, InvalidName};

/// How many characters of a wrong value are shown.
const SHOWN_LENGTH_MAX: usize = 60;

/// Why an object or an endpoint is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// An illegal name.
    #[error("{field}: {error}")]
    Name { field: String, error: InvalidName },
    /// A required field.
    #[error("{field} is missing; {legal}")]
    Missing {
        field: String,
        /// What it should contain.
        legal: &'static str,
    },
    #[error("{field} is {shown}, which is not an IP address")]
    Address { field: String, shown: String },
    #[error("{field} is {shown}, which is not a CIDR such as 10.0.0.0/8")]
    Cidr { field: String, shown: String },
    /// A number out of its range.
    #[error("{field} is {value}; {legal} is legal")]
    Range { field: String, value: i64, legal: &'static str },
    /// A word that is not legal in the field.
    #[error("{field} is {shown}; {legal} are legal")]
    Word { field: String, shown: String, legal: &'static str },
    /// More entries than a limit allows.
    #[error("{field} has {count} entries; at most {count_max} are legal")]
    TooMany { field: &'static str, count: usize, count_max: usize },
    /// More endpoints than a slice with so many ports may have.
    #[error("endpoints has {count} entries; at most {count_max} count where a slice has {ports} ports")]
    TooManyAtPorts { count: usize, count_max: usize, ports: usize },
    /// A text longer than a limit allows.
    #[error("{field} has {length} characters; at most {length_max} are legal")]
    TooLong { field: String, length: usize, length_max: usize },
    /// Two ports that endpoints could not distinguish.
    #[error("{field} repeats the name and protocol of an earlier port; each pair must be unique")]
    PortRepeated { field: String },
    /// A cluster IP of another family than `ipFamilies` gives at its index.
    #[error("spec.clusterIPs[{index}] is {address}, but spec.ipFamilies[{index}] is {family}")]
    FamilyMismatch { index: usize, address: IpAddr, family: Family },
    /// An endpoint that no backend can come from.
    #[error("{field}: {error}")]
    Endpoint { field: String, error: EndpointError },
    /// A value of the wrong type.
    #[error("{path}: {reason}")]
    Shape { path: String, reason: String },
    /// An object of an unsupported version.
    #[error("apiVersion is {shown}; {legal} is legal for this kind")]
    Version {
        /// The object's version, quoted; empty if it names none.
        shown: String,
        legal: &'static str,
    },
}

impl ObjectError {
    pub(super) fn address(field: String, text: &str) -> Self {
        Self::Address { field, shown: quote_value(text) }
    }

    pub(super) fn word(field: &str, text: &str, legal: &'static str) -> Self {
        Self::Word { field: field.to_owned(), shown: quote_value(text), legal }
    }

    pub fn shape(path: &str, reason: &dyn std::fmt::Display) -> Self {
        Self::Shape { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Quotes and truncates a value of an object.
pub fn quote_value(text: &str) -> String {
    match text.char_indices().nth(SHOWN_LENGTH_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
    }
}
