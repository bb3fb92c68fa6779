//! Tables whose keys come from outside use a hash with a secret seed.
//!
//! Invariant: the daemon draws the seed when it starts. An author of objects can compute no hash of a table or of a
//! kernel map.

use crate::code::{code_only, is_word, without_tests};
use crate::tree::{Finding, Source};

/// The files that declare and draw the seed.
const SEED_HOMES: [&str; 2] = ["daemon/core/src/index.rs", "daemon/src/app/start.rs"];

/// Gives a table a fixed hash, or a kernel map one without a random seed.
const FIXED: [&str; 4] = ["with_hasher", "with_capacity_and_hasher", "BuildHasherDefault", "BPF_F_ZERO_SEED"];

fn is_code(source: &Source) -> bool {
    let is_ours = source.path.starts_with("daemon/") && source.path.contains("/src/");
    let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    is_ours && source.is_rust() && !is_test
}

/// A seed in the code is no secret.
fn seeds(source: &Source) -> Vec<Finding> {
    if !is_code(source) || SEED_HOMES.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let code = without_tests(&code_only(&source.text));
    let rule = format!("a `Seed` is made only in {}", SEED_HOMES.join(", "));
    lines_with(&code, "Seed(").map(|line| source.finding(line, rule.clone())).collect()
}

/// The standard library and the kernel draw their own seeds unless the code replaces them.
fn fixed(source: &Source) -> Vec<Finding> {
    if !is_code(source) && !source.path.starts_with("bpf/") {
        return Vec::new();
    }
    let code = if source.is_rust() { without_tests(&code_only(&source.text)) } else { source.text.clone() };
    let found = FIXED.iter().flat_map(|word| lines_with(&code, word).map(move |line| (line, word)));
    found
        .map(|(line, word)| source.finding(line, format!("no `{word}`: the hash would have no secret")))
        .collect()
}

fn lines_with<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let stands = move |line: &str| {
        line.match_indices(word)
            .any(|(at, _)| !line.get(..at).is_some_and(|before| before.ends_with(is_word)))
    };
    code.lines().enumerate().filter(move |(_, line)| stands(line)).map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{check, check_repository};

    #[test]
    fn a_seed_outside_its_home_is_found() {
        check(seeds, "daemon/agent/src/engine.rs", "let a = Seed(0);\nb(seed)", &[1]);
        check(seeds, "daemon/core/src/world.rs", "a: Seed,\n// Seed(0)\nb(index::Seed(1))", &[3]);
        check(
            seeds,
            "daemon/core/src/world.rs",
            "DeserializeSeed(0)\n#[cfg(test)]\nmod tests {\n    Seed(0);\n}\n",
            &[],
        );
        for path in [
            "daemon/src/app/start.rs",
            "daemon/agent/src/engine/tests.rs",
            "daemon/datapath/benches/kernel.rs",
        ] {
            check(seeds, path, "Seed(0)", &[]);
        }
        check_repository(seeds);
    }

    #[test]
    fn no_table_has_a_hash_without_a_secret() {
        check(fixed, "daemon/agent/src/engine.rs", "HashMap::with_hasher(a)\nwith_hashers", &[1, 2]);
        check(fixed, "daemon/datapath/src/map.rs", "\nBuildHasherDefault<A>", &[2]);
        check_repository(fixed);
    }

    #[test]
    fn no_map_has_a_hash_without_a_seed() {
        check(fixed, "bpf/maps.h", "a\n__uint(map_flags, BPF_F_ZERO_SEED);", &[2]);
        check(fixed, "daemon/datapath/src/map.rs", "map_flags: sys::BPF_F_ZERO_SEED", &[1]);
        check(fixed, "bpf/maps.h", "__uint(map_flags, BPF_F_NO_PREALLOC);", &[]);
        check_repository(fixed);
    }
}
