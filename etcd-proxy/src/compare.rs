//! Conditions of Txns.
//!
//! A key that does not exist has the revision 0 in either sense (`server/etcdserver/txn`, `applyCompare`), and a condition on a
//! range holds where it holds for every key in it.

use bytes::Bytes;
use proto::etcdserverpb::{
    Compare,
    compare::{CompareResult, CompareTarget, TargetUnion},
};

/// Holds while a key is as it was left at a revision; 0 is that of a key that does not exist.
pub(crate) fn modified_at(key: Bytes, revision: i64) -> Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// Holds while a key is there that was created at a revision, whatever has been written to it since.
pub(crate) fn created_at(key: Bytes, revision: i64) -> Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// Holds while a key does not exist.
pub(crate) fn absent(key: Bytes) -> Compare {
    created_at(key, 0)
}

/// Holds while there is no key in a range: any that there were would have been created at some revision.
pub(crate) fn none_in((key, range_end): (Bytes, Bytes)) -> Compare {
    Compare { range_end, ..absent(key) }
}

/// Never holds: no key is created before there was anything.
pub(crate) fn never(key: Bytes) -> Compare {
    Compare { result: CompareResult::Less as i32, ..absent(key) }
}

/// Holds while this of a key is as said.
fn equal(key: Bytes, target: CompareTarget, value: TargetUnion) -> Compare {
    let (result, target) = (CompareResult::Equal as i32, target as i32);
    Compare { result, target, key, target_union: Some(value), ..Default::default() }
}
