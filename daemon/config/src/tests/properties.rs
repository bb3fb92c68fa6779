//! For any bytes: no panic, and a well-formed report.

use proptest::prelude::*;

use super::effective::check_round_trip;
use crate::{Config, ConfigErrors};

const EXAMPLE: &str = include_str!("../../../../config.example.toml");
const GOLDEN: &str = include_str!("problems.golden");

/// An accepted file can be written down. A refusal has reasons in the order of the file, each of one line and inside
/// the text.
fn check(text: &str) {
    match Config::parse(text, "config.toml") {
        Ok((config, _)) => _ = check_round_trip(config),
        Err(refused) => check_refusal(text, &refused),
    }
}

fn check_refusal(text: &str, refused: &ConfigErrors) {
    assert!(!refused.errors.is_empty());
    assert!(refused.errors.is_sorted_by_key(|error| error.position));
    for error in refused.errors.iter().chain(&refused.warnings) {
        let position = error.position.expect("a position");
        assert!(position.line <= text.matches('\n').count() + 1, "{error}");
        assert!(position.line > 0 && position.column > 0, "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// Pieces of both files, so that most of the text is meaningful.
fn pieces() -> Vec<&'static str> {
    let lines = EXAMPLE.lines().chain(GOLDEN.lines()).map(|line| line.trim_start_matches('#'));
    lines.flat_map(|line| line.split_inclusive(['=', '[', '{', '"', ','])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_judged(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_bytes_that_are_text_are_judged(bytes in prop::collection::vec(prop::sample::select(&b"[]{}=\"'.,#\\\n\r\t ab1-_:\xc3\xa9\x00"[..]), 0..200)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_mutation_of_the_example_is_judged(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..20, any::<prop::sample::Index>()), 1..8)
    ) {
        let pieces = pieces();
        let mut bytes = EXAMPLE.replace("\n##", "\n").replace("\n#", "\n").into_bytes();
        for (at, removed, piece) in edits {
            let start = at.index(bytes.len());
            let end = (start + removed).min(bytes.len());
            bytes.splice(start..end, piece.get(&pieces).bytes());
        }
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_shuffle_of_pieces_is_judged(
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60)
    ) {
        let pieces = pieces();
        let piece = |(pick, line_end): &(prop::sample::Index, bool)| {
            format!("{}{}", pick.get(&pieces), if *line_end { "\n" } else { "" })
        };
        check(&picks.iter().map(piece).collect::<String>());
    }
}
