//! Why an object cannot be taken: what is wrong, in which field, and what would be legal.
//!
//! Invariant: text of the object is shown quoted and cut, so that the legal values stay in sight.

use std::net::IpAddr;

use holdfast_core::facts::endpoints::EndpointError;
use holdfast_core::keys::{Family, InvalidName};

/// Characters shown of a value that is wrong; enough to find it in the object.
const SHOWN_LENGTH_MAX: usize = 60;

/// Why an object, or an endpoint, cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// A name that no object can have.
    #[error("{field}: {error}")]
    Name {
        /// Where it stands.
        field: String,
        /// What is wrong with it.
        error: InvalidName,
    },
    /// A field without which the object means nothing.
    #[error("{field} is missing; {legal}")]
    Missing {
        /// Where it should stand.
        field: String,
        /// What it should say.
        legal: &'static str,
    },
    /// Not an address.
    #[error("{field} is {shown}, which is not an IP address")]
    Address {
        /// Where it stands.
        field: String,
        shown: String,
    },
    /// Not a network.
    #[error("{field} is {shown}, which is not a CIDR such as 10.0.0.0/8")]
    Cidr {
        /// Where it stands.
        field: String,
        shown: String,
    },
    /// A number out of its range.
    #[error("{field} is {value}; {legal} is legal")]
    Range {
        /// Where it stands.
        field: String,
        value: i64,
        legal: &'static str,
    },
    /// A word that is not in the vocabulary.
    #[error("{field} is {shown}; {legal} are legal")]
    Word {
        /// Where it stands.
        field: String,
        shown: String,
        legal: &'static str,
    },
    /// More entries than a limit allows.
    #[error("{field} has {count} entries; at most {count_max} are legal")]
    TooMany {
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many it may have.
        count_max: usize,
    },
    /// More endpoints than a slice may have at so many ports.
    #[error("endpoints has {count} entries; at most {count_max} count where a slice has {ports} ports")]
    TooManyAtPorts {
        /// How many it has.
        count: usize,
        /// How many count.
        count_max: usize,
        ports: usize,
    },
    /// A text longer than a limit allows.
    #[error("{field} has {length} characters; at most {length_max} are legal")]
    TooLong {
        /// Where it stands.
        field: String,
        /// How long it is.
        length: usize,
        /// How long it may be.
        length_max: usize,
    },
    /// Two ports that endpoints could not tell apart.
    #[error("{field} repeats the name and protocol of an earlier port; each pair must be unique")]
    PortRepeated {
        /// Where the second one stands.
        field: String,
    },
    /// A cluster IP that is not of the family given for its place.
    #[error("spec.clusterIPs[{index}] is {address}, but spec.ipFamilies[{index}] is {family}")]
    FamilyMismatch {
        /// The place of the cluster IP in the list.
        index: usize,
        address: IpAddr,
        /// The family that stands at the same place.
        family: Family,
    },
    /// An endpoint that no backend can come from.
    #[error("{field}: {error}")]
    Endpoint {
        field: String,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// A value of another type than the field has.
    #[error("{path}: {reason}")]
    Shape {
        /// Where it stands.
        path: String,
        /// What was found, what is legal.
        reason: String,
    },
    /// An object of a version that is not read.
    #[error("apiVersion is {shown}; {legal} is legal for this kind")]
    Version {
        /// The version that the object names, quoted; empty if it names none.
        shown: String,
        /// The version that is read.
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

/// A value of an object, quoted and cut.
pub fn quote_value(text: &str) -> String {
    match text.char_indices().nth(SHOWN_LENGTH_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
    }
}
