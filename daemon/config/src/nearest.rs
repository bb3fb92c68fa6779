//! The legal word that a wrong one resembles.
//!
//! Invariant: only a near word is offered; a far-fetched guess is worse than the list alone.

/// The longest compared word: a longer one is no typing error, and the work is the product of both lengths.
const WORD_BYTES_MAX: usize = 64;

/// The nearest word of `legal`, at most a third of the word's letters away (or one, in a short word). Of two equally
/// near words it is the first.
pub(super) fn find_nearest<'a>(word: &str, legal: &[&'a str]) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let plain = to_plain_chars(word);
    let slips_max = (plain.len() / 3).max(1);
    let ranked =
        legal.iter().map(|candidate| (distance(&plain, &self::to_plain_chars(candidate)), *candidate));
    ranked.filter(|(slips, _)| *slips <= slips_max).min_by_key(|(slips, _)| *slips).map(|(_, near)| near)
}

/// The letters of a word for comparison: case and the kind of dash make no difference.
fn to_plain_chars(word: &str) -> Vec<char> {
    word.chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).collect()
}

/// The number of insertions, deletions, replacements and swaps of neighbours from `a` to `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut previous = None;
    for (row, &x) in a.iter().enumerate() {
        let current = next_row(row, (previous, x), b, &last, &before_last);
        before_last = std::mem::replace(&mut last, current);
        previous = Some(x);
    }
    last.last().copied().unwrap_or(0)
}

fn next_row(
    row: usize,
    (previous, x): (Option<char>, char),
    b: &[char],
    last: &[usize],
    before_last: &[usize],
) -> Vec<usize> {
    let at = |cells: &[usize], index: usize| cells.get(index).copied().unwrap_or(usize::MAX - 1);
    let mut current = vec![row + 1];
    for (column, &y) in b.iter().enumerate() {
        let replaced = at(last, column) + usize::from(x != y);
        let mut best = replaced.min(at(last, column + 1) + 1).min(at(&current, column) + 1);
        let left = column.checked_sub(1);
        if let Some(left) = left
            && previous == Some(y)
            && b.get(left) == Some(&x)
        {
            best = best.min(at(before_last, left) + 1);
        }
        current.push(best);
    }
    current
}

#[cfg(test)]
mod tests {
    use super::find_nearest;

    #[track_caller]
    fn check(word: &str, legal: &[&str], expected: Option<&str>) {
        assert_eq!(find_nearest(word, legal), expected, "{word}");
    }

    #[test]
    fn only_near_words_are_offered() {
        check("lisen", &["listen", "socket"], Some("listen"));
        check("litsen", &["listen", "socket"], Some("listen"));
        check("LISTEN", &["listen", "socket"], Some("listen"));
        check("tls-server-name", &["endpoints", "tls_server_name"], Some("tls_server_name"));
        check("frontend", &["frontends", "backends"], Some("frontends"));
        check("port", &["listen", "socket"], None);
        check("x", &["listen", "socket"], None);
        check("", &["listen", "socket"], None);
        check("tpc", &["TCP", "UDP"], Some("TCP"));
        check("ab", &["ac", "ad"], Some("ac"));
        check(&"listen".repeat(20), &["listen"], None);
        check("zoné", &["zone"], Some("zone"));
    }
}
