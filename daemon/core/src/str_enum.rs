//! Enums with one spelling per variant for tables, logs, metrics, JSON and files.
//!
//! Invariant: no two variants of an enum have the same spelling, so parsing restores the written variant. Otherwise the
//! enum does not compile.

/// An enum with spellings.
pub trait StrEnum: Copy + 'static {
    /// Every variant, in display order.
    const ALL: &'static [Self];

    fn spelling(self) -> &'static str;

    fn from_spelling(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.spelling() == text)
    }
}

/// Defines an enum with a spelling for each variant. `ALL` lists the variants in the order of their definition, or in
/// that of `told`.
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])* $seen:vis enum $set:ident
        { $($(#[$member_about:meta])* $member:ident = $spelling:literal,)+ }
    ) => {
        $crate::words! {
            $(#[$about])* $seen enum $set { $($(#[$member_about])* $member = $spelling,)+ } told [$($member),+]
        }
    };
    (
        $(#[$about:meta])* $seen:vis enum $set:ident
        { $($(#[$member_about:meta])* $member:ident = $spelling:literal,)+ }
        told [$($told:ident),+]
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $seen enum $set {
            $($(#[$member_about])* $member,)+
        }

        impl $set {
            /// All variants, in display order.
            $seen const ALL: [Self; [$($spelling),+].len()] = [$(Self::$told),+];

            $seen const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$member => $spelling,)+
                }
            }
        }

        const _: () = assert!($crate::str_enum::are_distinct(&[$($spelling),+]), "two members are spelled alike");

        impl $crate::str_enum::StrEnum for $set {
            const ALL: &'static [Self] = &Self::ALL;

            fn spelling(self) -> &'static str {
                self.as_str()
            }
        }

        impl core::fmt::Display for $set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

#[doc(hidden)]
pub const fn are_distinct(mut spellings: &[&str]) -> bool {
    while let [first, rest @ ..] = spellings {
        let mut others = rest;
        while let [other, more @ ..] = others {
            if bytes_equal(first.as_bytes(), other.as_bytes()) {
                return false;
            }
            others = more;
        }
        spellings = rest;
    }
    true
}

const fn bytes_equal(mut one: &[u8], mut other: &[u8]) -> bool {
    while let ([a, rest @ ..], [b, others @ ..]) = (one, other) {
        if *a != *b {
            return false;
        }
        (one, other) = (rest, others);
    }
    one.is_empty() && other.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    words! {
        /// The second variant is displayed first.
        #[derive(PartialOrd, Ord)]
        enum Number {
            First = "one",
            Second = "two",
        } told [Second, First]
    }

    #[test]
    fn a_spelling_parses_to_its_variant() {
        assert_eq!(Number::ALL, [Number::Second, Number::First]);
        assert!(Number::First < Number::Second, "variants order by definition");
        for member in Number::ALL {
            assert_eq!(Number::from_spelling(member.spelling()), Some(member));
        }
        assert_eq!(Number::from_spelling("three"), None);
    }

    #[test]
    fn equal_spellings_are_found() {
        assert!(are_distinct(&["one", "on", "ones", ""]));
        assert!(!are_distinct(&["one", "two", "one"]));
        assert!(!are_distinct(&["", ""]));
    }
}
