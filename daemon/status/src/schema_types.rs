//! Schemas that deriving cannot produce: words of closed sets, and texts.
//!
//! Invariant: one type both writes a value and describes it, so the two cannot differ.

use std::borrow::Cow;
use std::fmt::{self, Display};

use holdfast_core::str_enum::StrEnum;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

/// A word for programs to match on: written as its spelling, described with every legal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<T>(pub T);

impl<T: StrEnum> Display for Code<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.spelling())
    }
}

impl<T: StrEnum> Serialize for Code<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.spelling())
    }
}

impl<T: StrEnum> JsonSchema for Code<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }

    fn schema_id() -> Cow<'static, str> {
        std::any::type_name::<Self>().into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let legal: Vec<&str> = T::ALL.iter().map(|it| it.spelling()).collect();
        json_schema!({ "type": "string", "enum": legal })
    }
}

/// A value with one spelling, from a set too large to list: a name, an address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<T> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
