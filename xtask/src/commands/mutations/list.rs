//! The mutations: each a hole in the wall between tenants, or a lie to one, as a change to one place of the source.

/// A named change of the proxy that its tests must notice.
#[derive(Debug)]
pub(super) struct Mutation {
    pub(super) name: &'static str,
    /// What is then wrong.
    pub(super) what: &'static str,
    /// The file that is changed, in `etcd-proxy/src`.
    pub(super) file: &'static str,
    /// What stands in it once, and what stands there instead.
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

pub(super) const MUTATIONS: [Mutation; 17] = [
    Mutation {
        name: "no-successor-cap",
        what: "an open range ends where the shared etcd ends",
        file: "prefix.rs",
        from: "FROM_KEY => self.successor.clone(),",
        to: "FROM_KEY => Bytes::from_static(FROM_KEY),",
    },
    Mutation {
        name: "range-end-not-mapped",
        what: "the end \\0 of a range is prefixed like any other",
        file: "prefix.rs",
        from: "FROM_KEY => self.successor.clone(),",
        to: "FROM_KEY => self.key(FROM_KEY),",
    },
    Mutation {
        name: "compare-end-not-mapped",
        what: "a comparison of a range compares the keys beside the tenant's",
        file: "rewrite/kv.rs",
        from: "    term.range_end = view.prefix.range_end(&term.range_end);\n",
        to: "",
    },
    Mutation {
        name: "nested-txn-not-rewritten",
        what: "a Txn in a Txn goes up as it came",
        file: "rewrite/kv.rs",
        from: "Some(Request::RequestTxn(txn)) => Txn::request(view, txn),",
        to: "Some(Request::RequestTxn(_)) => Ok(()),",
    },
    Mutation {
        name: "empty-key-not-refused",
        what: "an empty key is the bare prefix",
        file: "validate.rs",
        from: "pub fn put(request: &PutRequest) -> Result<(), EtcdError> {\n    if request.key.is_empty() {",
        to: "pub fn put(request: &PutRequest) -> Result<(), EtcdError> {\n    if false {",
    },
    Mutation {
        name: "delete-prev-kvs-not-stripped",
        what: "DeleteRange shows the keys as they lie on the shared etcd",
        file: "rewrite/answer.rs",
        from: "Ok(match (self, number, &field.value) {\n",
        to: "Ok(match (self, number, &field.value) {\n            (Self::DeleteRange, 3, Value::Bytes(_)) => Mapped::Same(field.raw),\n",
    },
    Mutation {
        name: "put-prev-kv-not-stripped",
        what: "Put shows the key before as it lies on the shared etcd",
        file: "rewrite/answer.rs",
        from: "Ok(match (self, number, &field.value) {\n",
        to: "Ok(match (self, number, &field.value) {\n            (Self::Put, 2, Value::Bytes(_)) => Mapped::Same(field.raw),\n",
    },
    Mutation {
        name: "watch-prev-kv-not-stripped",
        what: "events show the pair before as it lies on the shared etcd",
        file: "rewrite/answer.rs",
        from: "Ok(match (self, number, &field.value) {\n",
        to: "Ok(match (self, number, &field.value) {\n            (Self::Event, 3, Value::Bytes(_)) => Mapped::Same(field.raw),\n",
    },
    Mutation {
        name: "progress-ahead-of-events",
        what: "progress is told of a revision whose events may be still to come",
        file: "rewrite/watch.rs",
        from: "        Shape::Watch.rewrite(view, message, out)?;\n",
        to: "        let mut told: WatchResponse = prost::Message::decode(message.clone()).unwrap_or_default();\n        if told.events.is_empty() && !created && !canceled {\n            told.header.iter_mut().for_each(|header| header.revision += 1);\n        }\n        Shape::Watch.rewrite(view, &Bytes::from(prost::Message::encode_to_vec(&told)), out)?;\n",
    },
    Mutation {
        name: "progress-of-one-watch",
        what: "progress of a whole stream is told as that of one watch",
        file: "rewrite/watch.rs",
        from: "        Shape::Watch.rewrite(view, message, out)?;\n",
        to: "        let mut told: WatchResponse = prost::Message::decode(message.clone()).unwrap_or_default();\n        if told.events.is_empty() && !created && !canceled {\n            told.watch_id = 0;\n        }\n        Shape::Watch.rewrite(view, &Bytes::from(prost::Message::encode_to_vec(&told)), out)?;\n",
    },
    Mutation {
        name: "watermark-not-in-txn",
        what: "a Txn reads what the tenant has compacted",
        file: "rewrite/kv.rs",
        from: "range.revision != 0 && range.revision < view.watermark()?",
        to: "range.revision == i64::MAX - 1 && range.revision < view.watermark()?",
    },
    Mutation {
        name: "leases-not-mapped",
        what: "lease ids are those of the shared etcd",
        file: "lease_id.rs",
        from: "        if id == 0 {\n            return Ok(0);\n        }",
        to: "        if id < i64::MAX || id == i64::MAX {\n            return Ok(id);\n        }",
    },
    Mutation {
        name: "foreign-keep-alive",
        what: "a keep-alive goes to the lease that the id names on the shared etcd",
        file: "rewrite/lease.rs",
        from: "    fn request(view: &View<'_>, request: &mut LeaseKeepAliveRequest) -> Result<(), Interrupt> {\n        request.id = view.lease_to_upstream(request.id)?;",
        to: "    fn request(view: &View<'_>, request: &mut LeaseKeepAliveRequest) -> Result<(), Interrupt> {\n        view.lease_to_upstream(request.id)?;",
    },
    Mutation {
        name: "foreign-revoke",
        what: "a revocation ends the lease that the id names on the shared etcd",
        file: "service/lease.rs",
        from: "call.ask::<LeaseRevokeResponse>(&LeaseRevokeRequest { id })",
        to: "call.ask::<LeaseRevokeResponse>(&request)",
    },
    Mutation {
        name: "time-to-live-keys-not-filtered",
        what: "the mark of a lease is among its keys",
        file: "rewrite/answer.rs",
        from: "(Self::TimeToLive, 5, Value::Bytes(key)) if mark.is_some_and(|mark| mark == key) => Mapped::Nothing,",
        to: "(Self::TimeToLive, 5, Value::Bytes(key)) if mark.is_some_and(|mark| mark == key) => Mapped::Same(field.raw),",
    },
    Mutation {
        name: "leases-not-filtered",
        what: "LeaseLeases lists the leases of everybody",
        file: "service/lease.rs",
        from: "    let (key, range_end) = call.tenant.keys().lease_marks();\n",
        to: "    if let Ok(all) = call.ask::<LeaseLeasesResponse>(&LeaseLeasesRequest {}).await {\n        return Ok(Answer { frame: answer(&all)?, share: None });\n    }\n    let (key, range_end) = call.tenant.keys().lease_marks();\n",
    },
    Mutation {
        name: "watch-below-watermark",
        what: "a watch is told of what the tenant has compacted",
        file: "rewrite/watch.rs",
        from: "(create.start_revision < watermark).then_some(watermark)",
        to: "(create.start_revision < watermark - i64::MAX).then_some(watermark)",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutation that no longer applies shows nothing.
    #[test]
    fn each_applies_to_one_place() {
        for mutation in &MUTATIONS {
            let path = crate::root().join("etcd-proxy").join("src").join(mutation.file);
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(text.matches(mutation.from).count(), 1, "{}", mutation.name);
            assert_ne!(mutation.from, mutation.to, "{}", mutation.name);
        }
    }
}
