//! Counts work where it is done, so that a test distinguishes linear from quadratic work without a clock.
//!
//! Invariant: outside tests it counts nothing and costs nothing. Loops count their iterations, and keys count each
//! comparison, so a search through a list shows even in code that counts nothing itself.

/// Counts examined or created items.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn count_work(_: usize) {}

#[cfg(test)]
pub(crate) use tests::{count_work, take};

/// Makes keys of a type compare part by part, so that a test can count comparisons.
macro_rules! counted_key {
    ($key:ident { $($part:ident),+ }) => {
        impl PartialEq for $key {
            fn eq(&self, other: &Self) -> bool {
                crate::work::count_work(1);
                $(self.$part == other.$part)&&+
            }
        }

        impl Eq for $key {}

        impl PartialOrd for $key {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $key {
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                crate::work::count_work(1);
                core::cmp::Ordering::Equal$(.then_with(|| self.$part.cmp(&other.$part)))+
            }
        }
    };
}

pub(crate) use counted_key;

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    std::thread_local! {
        static DONE: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count_work(count: usize) {
        DONE.with(|done| done.set(done.get() + count as u64));
    }

    /// The work of this thread since the last call.
    pub(crate) fn take() -> u64 {
        DONE.with(Cell::take)
    }

    #[test]
    fn a_comparison_of_two_keys_counts() {
        #[derive(Debug)]
        struct Key {
            part: u8,
        }
        counted_key!(Key { part });
        take();
        assert!(Key { part: 1 } == Key { part: 1 } && Key { part: 1 } < Key { part: 2 });
        count_work(5);
        assert_eq!((take(), take()), (7, 0));
    }
}
