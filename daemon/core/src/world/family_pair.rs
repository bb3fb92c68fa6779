//! Access to pairs with one value per family.
//!
//! Invariant: IPv4 always comes first.

use crate::keys::Family;

pub(super) fn by_family<T>([v4, v6]: &[T; 2], family: Family) -> &T {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

pub(super) fn by_family_mut<T>([v4, v6]: &mut [T; 2], family: Family) -> &mut T {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}
