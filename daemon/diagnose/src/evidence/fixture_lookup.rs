//! How a fixture writes a [`Lookup`]: the answer itself, or a word for why there is none.

use std::sync::Arc;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde_json::Value;

use super::{Lookup, Right};

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lookup<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value.as_str() {
            Some("not asked") => Ok(Self::default()),
            Some("forbidden") => Ok(Self::Forbidden(Right {
                group: "",
                resource: "pods",
                verbs: "list",
                namespace: Some(Arc::from("default")),
            })),
            Some("failed") => Ok(Self::Failed("no answer within 1 s".into())),
            Some("none") => serde_json::from_value(Value::Null).map(Self::Answered).map_err(D::Error::custom),
            _ => serde_json::from_value(value).map(Self::Answered).map_err(D::Error::custom),
        }
    }
}
