//! Serde implementations for names, words and endpoints that cannot be derived.
//!
//! Invariant: every value that can be read could come from a constructor; anything else is a read error. The order of
//! fields is the format of the state file, so changing it needs a new version of that file.

mod endpoints;

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::facts::{AddressType, ServiceType};
use crate::hold::{Bound, ProbeState};
use crate::keys::{Family, InvalidName, ObjectName, Protocol, Source, Transport};
use crate::op::FrontendType;
use crate::snapshot::{Reason, ServiceState, UnusedReason, Verdict};
use crate::str_enum::StrEnum;

/// A name before validation.
#[derive(serde::Deserialize)]
pub(crate) struct UncheckedName {
    namespace: String,
    name: String,
}

impl TryFrom<UncheckedName> for ObjectName {
    type Error = InvalidName;

    fn try_from(UncheckedName { namespace, name }: UncheckedName) -> Result<Self, InvalidName> {
        Self::new(&namespace, &name)
    }
}

/// The key of a part inside a whole that names the source once: only the name is written. A key that is read has
/// [`Source::Config`] until the reader of the whole sets the right source.
pub(crate) mod name_alone {
    use super::{Deserialize, Deserializer, ObjectName, Serialize, Serializer, Source};
    use crate::keys::{ServiceKey, SliceKey};

    pub(crate) trait Key {
        fn from_name(name: ObjectName, source: Source) -> Self;
        fn name(&self) -> &ObjectName;
    }

    macro_rules! key {
        ($key:ident) => {
            impl Key for $key {
                fn from_name(name: ObjectName, source: Source) -> Self {
                    Self { name, source }
                }

                fn name(&self) -> &ObjectName {
                    &self.name
                }
            }
        };
    }

    key!(ServiceKey);
    key!(SliceKey);

    pub(crate) fn serialize<S: Serializer>(key: &impl Key, serializer: S) -> Result<S::Ok, S::Error> {
        key.name().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, K: Key>(deserializer: D) -> Result<K, D::Error> {
        Ok(K::from_name(ObjectName::deserialize(deserializer)?, Source::Config))
    }
}

/// Parses a member of a set by its spelling.
struct SpellingVisitor<T>(PhantomData<T>);

impl<T: StrEnum> Visitor<'_> for SpellingVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of")?;
        T::ALL.iter().try_for_each(|it| write!(f, " `{}`", it.spelling()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_spelling(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

macro_rules! as_its_spelling {
    ($($set:ty),+) => {$(
        impl Serialize for $set {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.spelling())
            }
        }

        impl<'de> Deserialize<'de> for $set {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(SpellingVisitor(PhantomData))
            }
        }
    )+};
}

as_its_spelling!(
    ProbeState,
    Bound,
    FrontendType,
    Reason,
    ServiceState,
    ServiceType,
    Source,
    Transport,
    UnusedReason,
    Verdict
);

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::parse(&Arc::<str>::deserialize(deserializer)?))
    }
}

impl From<AddressType> for Option<Family> {
    fn from(it: AddressType) -> Self {
        match it {
            AddressType::Ip(family) => Some(family),
            AddressType::Fqdn => None,
        }
    }
}

impl From<Option<Family>> for AddressType {
    fn from(family: Option<Family>) -> Self {
        family.map_or(Self::Fqdn, Self::Ip)
    }
}
