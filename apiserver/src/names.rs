//! Names for objects that ask for one with `metadata.generateName` (k8s.io/apiserver `pkg/storage/names/generate.go`).

use rand::Rng as _;

/// The most bytes of the base that are kept: with the random part a name has at most 63.
pub const MAX_BASE: usize = 58;

/// How many random characters come after the base.
const RANDOM: usize = 5;

/// No vowels, and no digits that look like letters: no words come out.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Makes a name from its base.
pub fn generate(base: &str) -> String {
    let mut rng = rand::rng();
    let mut name = base.get(..base.floor_char_boundary(MAX_BASE)).unwrap_or_default().to_owned();
    for _ in 0..RANDOM {
        let index = rng.random_range(0..ALPHABET.len());
        name.extend(ALPHABET.get(index).map(|byte| char::from(*byte)));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{RANDOM, generate};
    use crate::test_vectors;

    #[test]
    fn agrees_with_go() {
        for case in test_vectors::lines(include_str!("../tests/vectors/names/generate.jsonl")) {
            let base = test_vectors::text(&case["base"]);
            let kept = case["keptBytes"].as_u64().unwrap() as usize;
            let alphabet = case["alphabet"].as_str().unwrap();
            let name = generate(&base);
            assert_eq!(name.len(), case["length"].as_u64().unwrap() as usize, "{name}");
            let (start, random) = name.split_at(kept);
            assert_eq!(start, &base[..kept]);
            assert_eq!(random.len(), RANDOM);
            assert!(random.chars().all(|c| alphabet.contains(c)), "{name}");
        }
        assert_ne!(generate("a"), generate("a"));
    }
}
