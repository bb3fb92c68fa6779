//! One declaration per table of the file: its keys, and for each the default, the reader, the view in the effective
//! configuration, and when a changed value takes effect.
//!
//! Invariant: a key has one declaration. Their order is the order in which the keys are read, and in which messages
//! list the keys that wait for a restart.

use std::path::PathBuf;

use toml::Value;
use toml::de::DeValue;

use super::table::Table;

/// A table that [`table!`] declares.
pub(super) trait Keys: Default {
    /// Reads the table; an absent or bad key keeps its value of `default`.
    fn read_over(default: Self, table: &mut Table<'_, '_, '_>) -> Self;

    fn read(table: &mut Table<'_, '_, '_>) -> Self {
        Self::read_over(Self::default(), table)
    }

    /// Each key with its value in force. A key without a value is left out.
    fn rows(&self) -> toml::Table;

    /// Restores the values in force of the keys that wait for a restart. Returns these keys.
    fn keep(&mut self, in_force: &Self) -> Vec<RestartKey>;
}

/// A key that the daemon reads once, when it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartKey {
    pub(super) name: &'static str,
    /// Whether the file gives another value than the one in force.
    pub(super) differs: bool,
}

/// Declares a table as a struct, with a line per key: `name: Type = default, reader, show, reload or restart;`. The
/// reader is one of the functions `take…` below, or takes their arguments. `show` is one of the functions in
/// `show.rs`, or takes their argument. A nested table ends with `inner`.
macro_rules! table {
    (
        $(#[$about:meta])*
        pub struct $Table:ident $path:literal {
            $($(#[$doc:meta])* $key:ident: $Type:ty = $default:expr, $take:expr, $show:expr, $applies:ident;)+
        }
    ) => {
        $(#[$about])*
        pub struct $Table { $($(#[$doc])* pub $key: $Type,)+ }

        impl Default for $Table {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $crate::keys::Keys for $Table {
            fn read_over(default: Self, table: &mut $crate::table::Table<'_, '_, '_>) -> Self {
                Self { $($key: ($take)(table, stringify!($key)).unwrap_or(default.$key),)+ }
            }

            fn rows(&self) -> toml::Table {
                $crate::show::rows([$((stringify!($key), ($show)(&self.$key)),)+])
            }

            fn keep(&mut self, in_force: &Self) -> Vec<$crate::keys::RestartKey> {
                let keys = [$($crate::keys::$applies(
                    concat!($path, ".", stringify!($key)), &mut self.$key, &in_force.$key,
                ),)+];
                keys.concat()
            }
        }
    };
}
pub(super) use table;

/// The new value takes effect at a reload.
pub(super) fn reload<T>(_name: &'static str, _read: &mut T, _in_force: &T) -> Vec<RestartKey> {
    Vec::new()
}

/// The new value waits for a restart.
pub(super) fn restart<T: Clone + PartialEq>(
    name: &'static str,
    read: &mut T,
    in_force: &T,
) -> Vec<RestartKey> {
    let differs = read != in_force;
    read.clone_from(in_force);
    vec![RestartKey { name, differs }]
}

/// The keys of the nested table decide.
pub(super) fn inner<T: Keys>(_name: &'static str, read: &mut T, in_force: &T) -> Vec<RestartKey> {
    read.keep(in_force)
}

pub(super) fn take<T>(
    read: impl Fn(&DeValue<'_>) -> Result<T, String>,
) -> impl Fn(&mut Table<'_, '_, '_>, &'static str) -> Option<T> {
    move |table, key| table.take(key, &read)
}

/// Like [`take`], for a key without a default.
pub(super) fn take_some<T>(
    read: impl Fn(&DeValue<'_>) -> Result<T, String>,
) -> impl Fn(&mut Table<'_, '_, '_>, &'static str) -> Option<Option<T>> {
    move |table, key| table.take(key, &read).map(Some)
}

pub(super) fn take_path(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<PathBuf> {
    table.path(key).map(|found| found.value)
}

/// Like [`take_path`], for a key without a default.
pub(super) fn take_some_path(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Option<PathBuf>> {
    take_path(table, key).map(Some)
}

pub(super) fn take_table<T: Keys>(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<T> {
    Some(table.table(key, T::read))
}

/// Shows a table by its keys.
pub(super) fn show_table<T: Keys>(table: &T) -> Option<Value> {
    Some(Value::Table(table.rows()))
}
