use super::*;

fn meta(finalizers: &[&str]) -> ObjectMeta {
    ObjectMeta {
        finalizers: (!finalizers.is_empty()).then(|| finalizers.iter().map(|f| (*f).to_owned()).collect()),
        ..ObjectMeta::default()
    }
}

fn options(policy: Option<&str>, orphan: Option<bool>) -> DeleteOptions {
    DeleteOptions {
        propagation_policy: policy.map(str::to_owned),
        orphan_dependents: orphan,
        ..DeleteOptions::default()
    }
}

#[test]
fn propagation_becomes_finalizers() {
    type Case<'a> = (&'a [&'a str], Option<&'a str>, Option<bool>, Option<&'a [&'a str]>);
    let cases: [Case<'_>; 12] = [
        (&[], None, None, None),
        (&[], Some("Background"), None, None),
        (&[], Some("Foreground"), None, Some(&["foregroundDeletion"])),
        (&[], Some("Orphan"), None, Some(&["orphan"])),
        (&[], None, Some(true), Some(&["orphan"])),
        (&[], None, Some(false), None),
        (&["orphan"], None, None, None),
        (&["foregroundDeletion", "x"], None, None, None),
        (&["orphan", "x"], Some("Background"), None, Some(&["x"])),
        (&["orphan"], Some("Foreground"), None, Some(&["foregroundDeletion"])),
        (&["x"], Some("Foreground"), None, Some(&["x", "foregroundDeletion"])),
        (&["foregroundDeletion"], None, Some(false), Some(&[])),
    ];
    for (present, policy, orphan, expected) in cases {
        let found = deletion_finalizers(&meta(present), &options(policy, orphan));
        let expected = expected.map(|list| list.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>());
        assert_eq!(found, expected, "{present:?} {policy:?} {orphan:?}");
    }
}

#[test]
fn marking_counts_the_generation_once() {
    let (first, later) = (Time(Timestamp::from_second(100).unwrap()), Time(Timestamp::from_second(200).unwrap()));
    let mut marked = ObjectMeta { generation: Some(3), ..meta(&["x"]) };
    mark_as_deleting(&mut marked, first.clone());
    assert_eq!((marked.generation, marked.deletion_timestamp.clone()), (Some(4), Some(first.clone())));
    assert_eq!(marked.deletion_grace_period_seconds, Some(0));
    mark_as_deleting(&mut marked, later);
    assert_eq!((marked.generation, marked.deletion_timestamp), (Some(4), Some(first)));
}

#[test]
fn a_deletion_ends_when_the_last_finalizer_goes() {
    let deleting = ObjectMeta { deletion_timestamp: Some(now()), ..meta(&["x"]) };
    assert!(ends_deletion(&meta(&[]), &deleting));
    assert!(!ends_deletion(&meta(&["x"]), &deleting));
    assert!(!ends_deletion(&meta(&[]), &meta(&["x"])));
    let graceful = ObjectMeta { deletion_grace_period_seconds: Some(30), ..deleting };
    assert!(!ends_deletion(&meta(&[]), &graceful));
}

#[test]
fn the_namespace_is_that_of_the_request() {
    let inside = |namespace: &str| ObjectMeta { namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
    let mut unset = ObjectMeta::default();
    ensure_namespace("default", &mut unset).unwrap();
    assert_eq!(unset, inside("default"));
    ensure_namespace("", &mut unset).unwrap();
    assert_eq!(unset.namespace, None);
    assert_eq!(ensure_namespace("default", &mut inside("other")).unwrap_err().code().as_u16(), 400);
}

#[test]
fn owner_references_are_kept_once() {
    let owner = |uid: &str, name: &str| OwnerReference {
        uid: uid.to_owned(),
        name: name.to_owned(),
        ..OwnerReference::default()
    };
    let mut meta = ObjectMeta {
        owner_references: Some(vec![owner("1", "a"), owner("1", "b"), owner("1", "a"), owner("2", "c")]),
        ..ObjectMeta::default()
    };
    let warning = deduplicate_owner_references(&mut meta, Stage::Request).unwrap();
    assert!(warning.ends_with("duplicate UID(s) observed: 1"), "{warning}");
    assert_eq!(meta.owner_references, Some(vec![owner("1", "a"), owner("1", "b"), owner("2", "c")]));
    assert_eq!(deduplicate_owner_references(&mut meta, Stage::Admitted), None);
}

#[test]
fn many_owner_references_take_no_time() {
    for uid in [|_| "1".to_owned(), |i: usize| i.to_string()] {
        let owner = |i: usize| OwnerReference { uid: uid(i), name: i.to_string(), ..OwnerReference::default() };
        let mut meta = ObjectMeta { owner_references: Some((0..20_000).map(owner).collect()), ..ObjectMeta::default() };
        let begin = tokio::time::Instant::now();
        assert_eq!(deduplicate_owner_references(&mut meta, Stage::Request), None);
        // Comparing each with each takes half a minute.
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(meta.owner_references.unwrap().len(), 20_000);
    }
}

#[test]
fn what_clients_cannot_change_is_carried_over() {
    let old = ObjectMeta {
        uid: Some("u".to_owned()),
        creation_timestamp: Some(Time(Timestamp::from_second(1).unwrap())),
        deletion_timestamp: Some(Time(Timestamp::from_second(2).unwrap())),
        deletion_grace_period_seconds: Some(0),
        ..ObjectMeta::default()
    };
    let mut new = ObjectMeta { creation_timestamp: Some(now()), ..ObjectMeta::default() };
    carry_over(&mut new, &old);
    assert_eq!(new, old);
    new.uid = Some("other".to_owned());
    carry_over(&mut new, &old);
    assert_eq!(new.uid.as_deref(), Some("other"), "validation refuses it, not the carrying over");
}

#[test]
fn what_says_nothing_is_left_out() {
    let mut meta = ObjectMeta {
        name: Some(String::new()),
        labels: Some(std::collections::BTreeMap::new()),
        finalizers: Some(Vec::new()),
        owner_references: Some(Vec::new()),
        generation: Some(0),
        ..ObjectMeta::default()
    };
    tidy(&mut meta);
    assert_eq!(meta, ObjectMeta::default());
}
