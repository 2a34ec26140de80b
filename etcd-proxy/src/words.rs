//! Numbers among words for people.

use std::fmt::Display;

/// A number with what it counts, in the plural unless it is one: "1 lease", "2 leases".
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    let plural = if number == N::from(1) { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let texts = [counted(0_i64, "key"), counted(1_u64, "lease"), counted(2_usize, "tenant")];
        assert_eq!(texts, ["0 keys", "1 lease", "2 tenants"]);
    }
}
