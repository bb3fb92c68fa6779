//! The difference of two texts, line by line.

/// Lines of only the expected text begin with `-`, lines of only the other with `+`.
pub fn difference(expected: &str, seen: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), seen.lines().collect());
    let common = common_lengths(&old, &new);
    let length = |i: usize, j: usize| common.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0);
    let (mut i, mut j) = (0, 0);
    let mut text = String::new();
    while i < old.len() || j < new.len() {
        let (left, right) = (old.get(i), new.get(j));
        let (mark, line) = match (left, right) {
            (Some(line), Some(other)) if line == other => (' ', line),
            (Some(line), _) if right.is_none() || length(i + 1, j) >= length(i, j + 1) => ('-', line),
            (_, Some(line)) => ('+', line),
            (Some(line), None) => ('-', line),
            (None, None) => break,
        };
        i += usize::from(mark != '+');
        j += usize::from(mark != '-');
        text.push(mark);
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// At (i, j): the length of the longest common subsequence from there on.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<usize>> {
    let mut rows = vec![vec![0; new.len() + 1]];
    for left in old.iter().rev() {
        let below = rows.last().cloned().unwrap_or_default();
        let mut row = vec![0];
        for (j, right) in new.iter().enumerate().rev() {
            let at = |j: usize| below.get(j).copied().unwrap_or(0);
            let last = row.last().copied().unwrap_or(0);
            row.push(if left == right { at(j + 1) + 1 } else { at(j).max(last) });
        }
        row.reverse();
        rows.push(row);
    }
    rows.reverse();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differing_lines_are_marked() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\nd\n"), " a\n-b\n+x\n c\n+d\n");
        assert_eq!(difference("a\n", "a\n"), " a\n");
        assert_eq!(difference("", "a\n"), "+a\n");
        assert_eq!(difference("a\nb\n", ""), "-a\n-b\n");
    }
}
