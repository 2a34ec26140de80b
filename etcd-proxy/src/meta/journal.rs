//! How far a restore is: a meta key of the tenant that it is restored into, written together with the keys, so that a restore that
//! was broken off is gone on with where it was, and recognised for what it is until then.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{FORMAT, MetaError, TenantKeys, from_json, joined, to_json};

/// The value of a tenant's `restore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// The id of the backup.
    pub backup: String,
    /// The last key without a lease that is written, as the tenant sees it; empty at the beginning. Those with a lease come after
    /// all others, and are written anew by whoever goes on.
    pub last: Bytes,
}

#[derive(Serialize, Deserialize)]
struct JournalValue {
    format: u32,
    backup: String,
    /// In hexadecimal.
    last: String,
}

impl TenantKeys {
    /// How far a restore into this tenant is; gone once it is done.
    pub fn restore(&self) -> Bytes {
        joined(&self.base, b"restore")
    }
}

impl Journal {
    /// The value to be stored.
    pub fn encode(&self) -> Bytes {
        to_json(&JournalValue { format: FORMAT, backup: self.backup.clone(), last: hex::encode(&self.last) })
    }

    /// Reads a stored value.
    ///
    /// # Errors
    /// When it is damaged or of a newer format.
    pub fn decode(value: &[u8]) -> Result<Self, MetaError> {
        const WHAT: &str = "journal of a restore";
        let JournalValue { backup, last, .. } = from_json(WHAT, value)?;
        let last = hex::decode(last)
            .map_err(|_| MetaError::Damaged { what: WHAT, reason: "its key is not in hexadecimal".to_owned() })?;
        Ok(Self { backup, last: last.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{meta::MetaLayout, prefix::Prefix};

    /// Other programs depend on this: see `docs/meta-format.md`.
    #[test]
    fn in_its_stored_form() {
        let keys = MetaLayout::new(Prefix::new("/m/").unwrap()).tenant(&Prefix::new("/a/").unwrap());
        assert_eq!(keys.restore(), "/m/tenants/2f612f/restore");
        let (start, end) = keys.all();
        assert!(start <= keys.restore() && keys.restore() < end);
        let journal = Journal { backup: "ab".into(), last: b"\0k"[..].into() };
        assert_eq!(journal.encode(), r#"{"format":1,"backup":"ab","last":"006b"}"#);
        assert_eq!(Journal::decode(&journal.encode()).unwrap(), journal);
        assert!(Journal::decode(br#"{"format":1,"backup":"ab","last":"x"}"#).is_err());
    }
}
