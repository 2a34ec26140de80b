//! The claims: each readable, none overlapping another, and the tenant's own among them.

use tonic::Code;

use super::{Examination, Level, said};
use crate::{
    meta::{ClaimError, Claims, Standing, read_claims, standing},
    prefix::Prefix,
};

const CLAIMS: &str = "claims";

impl Examination {
    pub(super) async fn claims(&mut self) {
        let mut kv = self.upstream.kv();
        let read = self.ask(read_claims(&mut kv, &self.layout)).await;
        let subject = self.layout.prefix().to_string();
        match read {
            Ok(read) => self.all_claims(&subject, &read),
            Err(status) if status.code() == Code::PermissionDenied => {
                self.report.add(CLAIMS, &subject, Level::Skipped, "this user may not see those of others");
            }
            Err(status) => self.report.add(CLAIMS, &subject, Level::Error, said(&status)),
        }
        if let Some(prefix) = self.tenant.clone() {
            self.own_claim(&prefix).await;
        }
    }

    fn all_claims(&mut self, subject: &str, read: &Claims) {
        let (mut wrong, count) = (false, read.claims.len());
        for held in &read.claims {
            if let Err(error) = &held.claim {
                wrong = true;
                let message = format!("{}: nobody knows who holds it: {error}", held.prefix.escape_ascii());
                self.report.add(CLAIMS, subject, Level::Warning, message);
            }
        }
        for (outer, inner) in overlaps(read.claims.iter().map(|held| &held.prefix[..])) {
            wrong = true;
            let message = format!("{} contains {}: two tenants share keys", outer.escape_ascii(), inner.escape_ascii());
            self.report.add(CLAIMS, subject, Level::Error, message);
        }
        if !wrong {
            self.report.add(CLAIMS, subject, Level::Ok, format!("{count}, none of which overlaps another"));
        }
    }

    async fn own_claim(&mut self, prefix: &Prefix) {
        let mut kv = self.upstream.kv();
        let standing = async {
            match standing(&mut kv, &self.layout, prefix).await {
                Err(ClaimError::Upstream(status)) => Err(status),
                judged => Ok(judged),
            }
        };
        let (level, message) = match self.ask(standing).await {
            Ok(Ok(Standing::Claimed { claim, .. })) => (Level::Ok, format!("claimed by {}", claim.owner)),
            Ok(Ok(Standing::Unclaimed)) => (
                Level::Warning,
                "not claimed: nothing keeps others from overlapping it; run `etcd-proxy claim`".to_owned(),
            ),
            Ok(Ok(Standing::Overlaps { prefix, owner })) => {
                (Level::Error, format!("overlaps {}, which is claimed by {owner}", prefix.escape_ascii()))
            }
            Ok(Ok(Standing::Unknown)) => {
                let message =
                    "not claimed, and this user cannot see whether it is free: a proxy does not start like that";
                (Level::Error, message.to_owned())
            }
            Ok(Err(error)) => (Level::Error, error.to_string()),
            Err(status) => (Level::Error, said(&status)),
        };
        self.report.add("own claim", &prefix.to_string(), level, message);
    }
}

/// Pairs of prefixes of which the first contains the second.
fn overlaps<'a>(prefixes: impl Iterator<Item = &'a [u8]>) -> Vec<(&'a [u8], &'a [u8])> {
    let mut sorted: Vec<_> = prefixes.collect();
    // What a prefix contains comes right after it.
    sorted.sort_unstable();
    let mut found = Vec::new();
    let mut around: Vec<&[u8]> = Vec::new();
    for prefix in sorted {
        while around.pop_if(|outer| !prefix.starts_with(outer)).is_some() {}
        if let Some(outer) = around.last() {
            found.push((*outer, prefix));
        }
        around.push(prefix);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contains_what() {
        let found = |prefixes: &[&'static str]| overlaps(prefixes.iter().map(|prefix| prefix.as_bytes()));
        assert_eq!(found(&["/a/", "/b/", "/ab/", "/a0/"]), []);
        let pairs: [(&[u8], &[u8]); 3] = [(b"/a/", b"/a/b/"), (b"/a/b/", b"/a/b/c/"), (b"/a/", b"/a/d/")];
        assert_eq!(found(&["/a/b/c/", "/a/d/", "/x/", "/a/", "/a/b/"]), pairs);
    }
}
